"""Reports on runs and sweeps: comparison tables, significance tests, and an HTML page with charts."""
