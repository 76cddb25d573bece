"""Who proposes tokens: one file per kind of drafter."""
