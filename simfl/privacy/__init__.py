"""Differential privacy: clipping, noise, accounting, and a statement of the guarantee.

`units` clips updates. `mechanism` adds noise and admits only what it released. `accounting` and `pld` compose the
privacy loss of releases, `scheme` describes an experiment's sampling to them, `budget` limits it, and `account` charges
a run for each round. `statement` explains the guarantee.
"""

from simfl.privacy.units import clipped

__all__ = ["clipped"]
