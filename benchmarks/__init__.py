"""Measured against a bare PyTorch loop on the same batches, side by side in one run: `make bench`."""
