"""Readers of existing data sets: one module a format. `simfl.data.DATA` lists them by name."""
