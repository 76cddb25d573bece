"""Verification for engines and people: one entry, verifier classes, and the proof that they are exact."""
