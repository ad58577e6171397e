"""Local training of sampled clients on a worker."""
