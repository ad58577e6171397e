"""Bundled benchmarks: data sets that are generated on this machine, with identical content everywhere."""
