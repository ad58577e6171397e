"""False alarms of `simfl check-privacy`: correct mechanisms of every scheme, checked with many seeds.

    python -m benchmarks.privacy_alarms --seeds 200 --processes 16 > alarms.json

Seeds are divided over the schemes in turn. Every check of every seed has to pass; those that fail are printed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests" / name) for name in ("", "privacy")]


def alarms(seed: int) -> tuple[str, int, list[str]]:
    """Return the scheme of a seed, the number of its checks, and those that failed."""
    import torch
    from fakes import Toy, experiment
    from test_planted_bugs import CASES

    from simfl.debug import privacy_noise
    from simfl.debug.privacy_check import check
    from simfl.models.mlp import Mlp

    torch.set_num_threads(1)
    privacy_noise.VALUES = 6000
    name = list(CASES)[seed % len(CASES)]
    algorithm, privacy, own = CASES[name]
    settings: dict[str, Any] = {"participation": 0.6, "data": Toy(sizes=(12, 9, 6, 12, 9)), "weighting": "uniform"}
    settings |= {"model": Mlp(hidden_sizes=(12, 12), dropout=0.0)} | own
    with tempfile.TemporaryDirectory(prefix="simfl-alarms-") as cache:
        found = check(experiment(algorithm, privacy=privacy, **settings), Path(cache), seed)
    return name, len(found), [f"{one.what}: {one.value:.4g} (allowed: {one.allowed})" for one in found if not one.holds]


def main() -> None:
    """Check the seeds in several processes, and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    with ProcessPoolExecutor(given.processes) as pool:
        found = list(pool.map(alarms, range(given.seeds)))
    schemes: dict[str, dict[str, int]] = {}
    for name, checks, failed in found:
        row = schemes.setdefault(name, {"seeds": 0, "checks": 0, "failed": 0})
        row["seeds"], row["checks"], row["failed"] = (
            row["seeds"] + 1,
            row["checks"] + checks,
            row["failed"] + len(failed),
        )
    failures = [{"seed": seed, "scheme": one[0], "check": text} for seed, one in enumerate(found) for text in one[2]]
    print(json.dumps({"seeds": given.seeds, "schemes": schemes, "failures": failures}, indent=1))


if __name__ == "__main__":
    main()
