"""Where a run's work is done: the driver, this process or Ray's actors, and what each of them is given."""
