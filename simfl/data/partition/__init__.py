"""Partitions: the assignment of training examples to clients, their manifests, and measures of heterogeneity."""
