"""A run looked at once more: its rounds, one visit, two runs side by side, its privacy."""
