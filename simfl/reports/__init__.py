"""Runs and sweeps as one HTML page."""
