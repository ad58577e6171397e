"""Plans of runs: bytes, memory, local steps and time, computed before the run."""
