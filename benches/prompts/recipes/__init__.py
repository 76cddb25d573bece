"""The recipes of the prompt sets, one module per set."""
