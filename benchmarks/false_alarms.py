"""False alarms of the significance test of tables, where variants differ by the chance of their seeds alone.

    python -m benchmarks.false_alarms

Each simulated table has a reference and some variants of equal merit. In each seed, a method answers an example
correctly with a probability that the seed shifts, by a normal deviate of the given size; correct answers of two methods
are correlated, as some examples are easy. Each seed evaluates its own sample of a split, as `evaluate.limit` does.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import numpy as np

from simfl.reports.statistical_tests import SIGNIFICANCE_LEVEL, hierarchical_bootstrap, holm
from simfl.seeds import rng

DEVIATIONS = (0.0, 0.01, 0.02, 0.03, 0.05)
COMMON = 0.75  # correlation of two methods on an example


@dataclass(frozen=True)
class Setting:
    """A simulated table.

    Attributes:
        seeds: Seeds of each row.
        variants: Rows without the reference.
        examples: Examples of the split.
        limit: Examples that a seed evaluates.
        accuracy: Mean accuracy of all methods.
    """

    seeds: int = 3
    variants: int = 1
    examples: int = 829
    limit: int = 320
    accuracy: float = 0.4


def p_values(setting: Setting, deviation: float, generator: np.random.Generator) -> list[float]:
    """Return the p of each variant of a table without any difference, before correction."""
    shape, ease = (setting.seeds, setting.variants + 1), generator.normal(size=setting.examples)
    skill = _quantile(setting.accuracy) + generator.normal(size=shape) * deviation / _density(setting.accuracy)
    scores = np.full((*shape, setting.examples), np.nan)
    for seed in range(setting.seeds):
        rows = generator.choice(setting.examples, setting.limit, replace=False)
        luck = generator.normal(size=(setting.variants + 1, setting.limit))
        right = COMMON * ease[rows] + (1 - COMMON**2) ** 0.5 * luck < skill[seed][:, None]
        scores[seed][:, rows] = right
    tests = (scores[:, k] - scores[:, 0] for k in range(1, setting.variants + 1))
    return [hierarchical_bootstrap(difference).p for difference in tests]


def false_alarms(setting: Setting, deviation: float, tables: int, seed: int = 0) -> float:
    """Return the fraction of tables in which any variant is marked."""
    generator = rng(seed, "false alarms", setting.seeds, setting.variants, str(deviation))
    return float(
        np.mean([min(holm(p_values(setting, deviation, generator))) < SIGNIFICANCE_LEVEL for _ in range(tables)])
    )


def _quantile(p: float) -> float:
    low, high = -10.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _cumulative(middle) < p else (low, middle)
    return high


def _cumulative(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def _density(p: float) -> float:
    return float(np.exp(-0.5 * _quantile(p) ** 2) / (2 * np.pi) ** 0.5)


def main() -> None:
    """Print the share of tables with a false alarm."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=500, help="simulated tables per cell")
    tables = parser.parse_args().tables
    for setting in (Setting(), Setting(variants=10), Setting(seeds=5), Setting(seeds=10)):
        shares = [f"{d}: {false_alarms(setting, d, tables):.1%}" for d in DEVIATIONS]
        print(f"{setting.seeds} seeds, {setting.variants} variants: " + ", ".join(shares))


if __name__ == "__main__":
    main()
