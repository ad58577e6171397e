"""Sums of client uploads that do not depend on the number of workers."""
