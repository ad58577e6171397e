"""Execution of a run's work: one worker, a pool in this process, and pools on Ray in `runtime.ray`."""
