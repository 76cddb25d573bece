"""How much to draft and how much of the draft to score."""
