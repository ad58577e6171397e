"""A run before it is run: its bytes, memory, local steps and time."""
