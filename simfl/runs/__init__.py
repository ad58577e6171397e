"""Files of a run: its folder, manifest, checkpoints, tables and summary, and the results read from them."""
