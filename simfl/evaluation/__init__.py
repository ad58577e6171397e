"""Scoring of models, and the overall scores of a run."""
