"""Differential privacy: units, mechanism, accounts, statement.

`units` clips, `mechanism` noises and vouches for what is released, `accounting` and `pld` compose what releases cost,
`budget` knows an experiment's scheme (its `foresee` is what a plan shows), `statement` says it to people.
"""

from simfl.privacy.units import clipped

__all__ = ["clipped"]
