"""Random generators that a user's code may draw from, seeded by name before the code runs, and watched.

simfl itself draws from none of them. A module, an objective or a transform may: by torch's functional dropout, by
`numpy.random`, by Python's `random`, or from a generator of its own in an attribute. Seeded by client and local step,
such draws are the same on every worker, after an interruption and in a repetition.

A generator is watched by its position, which is cheap to read: seeding all global generators takes 11 microseconds, and
comparing their positions 15.
"""
