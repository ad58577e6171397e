"""Bundled weights of simfl: small pretrained models, one folder each in `pretrained/`, with a card."""
