"""Execution of a run's work on Ray: connection, workers, task queue and pool."""
