"""The choices of this benchmark."""

from __future__ import annotations

from simfl.data.benchmarks import dice
from simfl.seeds import Name


class Dice(dice.Dice):
    """Uniform choices whose names start with the benchmark's."""

    def __init__(self, *names: Name) -> None:
        super().__init__("provider_invoices", *names)
