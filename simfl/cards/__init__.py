"""Cards: a run in one file that others can verify, and the verification of a card or a run folder."""
