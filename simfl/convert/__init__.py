"""Conversion of a training script into an experiment, by its syntax tree; the script is never executed."""
