"""Any altered byte of a run folder, and any missing or shorter file, is noticed or has no effect on any result."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
from fakes import Killed, Stopping, Toy, experiment, run
from mutations import (
    Reader,
    byte_changes,
    compared,
    file_changes,
    load,
    load_ended,
    replayed,
    reported,
    resume,
    tabled,
    try_changes,
    watched,
)

from simfl.experiment import Evaluate
from simfl.models.mlp import Mlp

PER_FILE, SEED = int(os.environ.get("SIMFL_MUTATIONS", 40)), int(os.environ.get("SIMFL_MUTATIONS_SEED", 1))
CASE = experiment(
    "scaffold",
    data=Toy(sizes=(3, 9, 2), valid=10),
    model=Mlp(hidden_sizes=(3,)),
    clients_per_round=2,
    participation=None,
    evaluate=Evaluate(samples=2),
)


@pytest.fixture(scope="module", params=["finished", "cut"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended, or one that was killed after two of its three rounds."""
    found = tmp_path_factory.mktemp(request.param)
    if request.param == "finished":
        run(CASE, found)
    else:
        with pytest.raises(Killed):
            run(CASE, found, display=Stopping(2, error=Killed))
    return found


def readers(folder: Path) -> dict[str, Reader]:
    """Return everything that reads a run folder."""
    found = {"load": load, "resume": resume(CASE), "replay": replayed, "watch": watched}
    if (folder / "summary.json").exists():
        found |= {"load": load_ended, "report": reported, "table": tabled, "diff": compared(folder)}
    return found


def test_a_sample_of_altered_bytes_is_noticed_or_has_no_effect(folder: Path, tmp_path: Path) -> None:
    fast = {name: reader for name, reader in readers(folder).items() if name in ("load", "table", "watch")}
    verdicts = try_changes(folder, tmp_path, fast, byte_changes(folder, Random(SEED), per_file=3))
    assert verdicts.wrong == []
    assert verdicts.noticed["load"] > verdicts.harmless["load"]
    again = {name: reader for name, reader in readers(folder).items() if name in ("resume", "report")}
    changes = Random(SEED).sample(byte_changes(folder, Random(SEED), per_file=2), 4)
    assert try_changes(folder, tmp_path, again, changes).wrong == []


def test_missing_and_shorter_files_are_noticed_or_have_no_effect(folder: Path, tmp_path: Path) -> None:
    assert try_changes(folder, tmp_path, {"load": readers(folder)["load"]}, file_changes(folder)).wrong == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_altered_bytes_of_every_file_are_noticed_or_have_no_effect_for_every_reader(
    folder: Path, tmp_path: Path
) -> None:
    """`SIMFL_MUTATIONS` bytes of every file (default 40) for every reader; `SIMFL_MUTATIONS_SEED` chooses others."""
    for number, (name, reader) in enumerate(readers(folder).items()):
        changes = byte_changes(folder, Random(SEED + number), PER_FILE) + file_changes(folder)
        verdicts = try_changes(folder, tmp_path, {name: reader}, changes)
        assert verdicts.wrong == [], name
        print(f"{folder.name}, {name}: {verdicts.noticed} noticed, {verdicts.harmless} without effect")
