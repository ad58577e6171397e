"""What the command line offered_models beside `run`, `plan` and `list`."""
