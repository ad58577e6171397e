"""What the command line offers beside `run`, `plan` and `list`."""
