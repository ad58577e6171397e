"""Commands of the command line, except `run`, `plan` and `list`."""
