"""simfl simulates federated learning at scale, on Ray, for people who research and ship federated multimodal models."""

__version__ = "0.1.0"
