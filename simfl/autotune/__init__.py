"""Autotuning of the execution mode: try candidates on the real model, choose, and cache the result."""
