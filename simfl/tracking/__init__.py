"""Progress of a run for people and trackers: terminal, `simfl watch`, Weights & Biases, TensorBoard."""
