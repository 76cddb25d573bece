"""What is learned once, from traces or text, and used in every run: one module per thing."""
