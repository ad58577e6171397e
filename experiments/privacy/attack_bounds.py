"""Lower bounds by canaries for correct mechanisms and for planted errors: a table of the README.

    python experiments/privacy/attack_bounds.py [--seeds 20] [--processes 16]
    python experiments/privacy/attack_bounds.py --table      # from the rows of attack_bounds.jsonl

Schemes and errors are those of tests/audit/test_canaries.py, with 10,000 canaries (2,000 where these are clients). A
correct mechanism must not exceed its claim on any seed; an error that makes epsilon 1.5 times too small, or more, must
exceed it on every seed. All bounds of one audit hold together with 99.9 %: with 95 %, eight of 160 correct mechanisms
may exceed their claim.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROWS = HERE / "attack_bounds.jsonl"  # one audit a line: case, seed, view -> bound and claim
sys.path[:0] = [str(HERE.parent.parent / "tests" / name) for name in ("", "audit")]
MARKED = re.compile(r"(?<=<!-- attack bounds -->\n).*(?=<!-- /attack bounds -->)", re.DOTALL)
CANARIES, HIDDEN, CONFIDENCE = 10_000, 600, 0.999
CLIENTS = 2000  # canaries that are clients, each with an update of its own
FACTOR = 1.5  # by which the smallest planted error understates epsilon
ERRORS = {
    "noise / 1.6": "too_little_noise",
    "clip at twice the norm": "clip_at_twice_the_norm",
    "no clip": "no_clip",
    "divisor of the noise twice too large": "noise_after_the_division",
    "noise of two clients cancels": "equal_noise",
    "half of epsilon claimed": "account:2",
    "two thirds of epsilon claimed": f"account:{FACTOR}",
}
Row = tuple[str, int, dict[str, tuple[float, float]]]  # case, seed, view -> bound and claim


def case(name: str, seed: int) -> Row:
    """Audit a scheme, or a planted error, with the canaries and the noise of a seed."""
    import pytest
    import torch

    test_canaries: Any = import_module("test_canaries")
    torch.set_num_threads(1)
    scheme = test_canaries.KINDS.get(name, test_canaries.KINDS["groups"])
    privacy = scheme.privacy
    assert privacy is not None
    if privacy.groups_per_client == test_canaries.GROUPS.groups_per_client:
        privacy = replace(privacy, groups_per_client=CANARIES)
    scheme = replace(scheme, privacy=privacy, model=replace(scheme.model, hidden_sizes=(HIDDEN,)), name="audited")
    with tempfile.TemporaryDirectory(prefix="simfl-bounds-") as folder, pytest.MonkeyPatch.context() as patch:
        planted = ERRORS.get(name, "")
        if planted.startswith("account:"):
            _claim_less(patch, float(planted.removeprefix("account:")))
        elif planted:
            getattr(test_canaries, planted)(patch)
        number = CLIENTS if privacy.unit == "client" else CANARIES
        found = test_canaries.audited(Path(folder) / "run", scheme, seed, number, CONFIDENCE)
    _forget_claims()
    return name, seed, {view.view: (view.bound, view.claim) for view in found.views}


def _claim_less(patch: Any, factor: float) -> None:
    from simfl.privacy import budget

    real: Callable[..., float] = budget.accounting.epsilon
    patch.setattr(budget.accounting, "epsilon", lambda *arguments: real(*arguments) / factor)
    _forget_claims()


def _forget_claims() -> None:
    """Clear the cache of epsilons, so that no audit of this process has the claims of a planted error."""
    from simfl.privacy import budget

    budget._worst_epsilon.cache_clear()


def table(rows: list[Row]) -> str:
    """Return the table, one line for each scheme and error."""
    lines = [
        "| mechanism | seeds | seeds with a bound above its claim | bound / claim, smallest and largest over seeds |",
        "|---|---|---|---|",
    ]
    for name in dict.fromkeys(row[0] for row in rows):
        ratios = [max(bound / claim for bound, claim in views.values()) for one, _, views in rows if one == name]
        kind = f"error: {name}" if name in ERRORS else f"correct: {name}"
        above = sum(ratio > 1 for ratio in ratios)
        lines.append(f"| {kind} | {len(ratios)} | {above} | {min(ratios):.2f} to {max(ratios):.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Audit all cases in several processes, and write the table from their rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="names of schemes and errors; README.md stays as it is")
    parser.add_argument("--rows", type=Path, default=ROWS, help="file of the results, written as they are made")
    parser.add_argument("--table", action="store_true", help="make no audit; write the table from the file of results")
    given = parser.parse_args()
    if given.only and given.rows == ROWS:
        parser.error("--only needs --rows FILE: those of all cases are kept")
    if not given.table:
        audit(given.rows, given.only, given.seeds, given.processes)
    rows = [json.loads(line) for line in given.rows.read_text().splitlines()]
    print(table(rows))
    readme = HERE / "README.md"
    if not given.only:
        readme.write_text(MARKED.sub(lambda _: table(rows), readme.read_text()))


def audit(path: Path, only: list[str] | None, seeds: int, processes: int) -> None:
    """Audit cases in several processes, and write a row for each."""
    test_canaries: Any = import_module("test_canaries")
    names = only or [*test_canaries.KINDS, *ERRORS]
    tasks = [(name, seed) for name in names for seed in range(seeds)]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool, path.open("w") as file:
        for row in pool.map(case, *zip(*tasks, strict=True)):
            print(json.dumps(row), file=file, flush=True)


if __name__ == "__main__":
    main()
