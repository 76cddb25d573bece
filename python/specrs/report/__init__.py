"""What a run cost and what speculation brought."""
