"""Results are read from undamaged files of the newest state, never from an older one in silence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fakes import Killed, Stopping, Toy, experiment, run, traces

from simfl.cli import main
from simfl.errors import DamagedFile, RunError
from simfl.runs import checkpoint
from simfl.runs.results import Run
from simfl.runs.snapshot import Snapshot

CASE = experiment("scaffold", data=Toy(sizes=(3, 9, 2), valid=10), clients_per_round=2, participation=None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    run(CASE, folder)
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_off(folder: Path) -> None:
    """Run two rounds in a folder and kill the run."""
    with pytest.raises(Killed):
        run(CASE, folder, display=Stopping(2, error=Killed))


READERS: dict[str, Callable[[Run], object]] = {
    "model": Run.model,
    "snapshot": Run.snapshot,
    "client_model": lambda found: found.client_model(0),
}


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_newest_checkpoint_is_never_replaced_in_silence(copy: Path, name: str) -> None:
    READERS[name](Run(copy))
    flip(copy / "checkpoints" / "000003" / "state.safetensors")
    line = r"^[^\n]*000003: damaged checkpoint: [^\n]*; there are older checkpoints, after round 2$"
    with pytest.raises(DamagedFile, match=line):
        READERS[name](Run(copy))
    assert Run(copy).snapshot(2).step == 2  # on request
    shutil.rmtree(copy / "checkpoints" / "000003")
    with pytest.raises(
        DamagedFile, match=r"^[^\n]*checkpoints: the checkpoint after round 3, the last one, is missing$"
    ):
        READERS[name](Run(copy))


def test_a_summary_of_an_earlier_end_is_not_shown_for_a_longer_run(tmp_path: Path) -> None:
    run(CASE, tmp_path, display=Stopping(1))
    assert Run(tmp_path).summary["rounds"] == 1
    with pytest.raises(Killed):
        run(CASE, tmp_path, resume=True, display=Stopping(2, error=Killed))
    with pytest.raises(RunError, match=r"there is no summary\.json; the run has not ended yet$"):
        _ = Run(tmp_path).summary
    assert [row["round"] for row in Run(tmp_path).rounds().to_pylist()] == [1, 2]
    assert "a run with 2 rounds so far" in repr(Run(tmp_path))


def test_the_summary_has_the_hashes_of_the_joined_tables(copy: Path) -> None:
    summary = Run(copy).summary
    assert set(summary["files"]) == {path.name for path in copy.glob("*.parquet")}
    rounds = pq.read_table(copy / "rounds.parquet").to_pylist()
    assert summary["bytes"]["total"] == sum(row["total_bytes"] for row in rounds)


def test_totals_are_sums_over_verified_parts(tmp_path: Path) -> None:
    cut_off(tmp_path)
    flip(tmp_path / "tables" / "rounds" / "000001.parquet")
    with pytest.raises(RunError, match=r"^[^\n]*rounds/000001\.parquet: damaged: [^\n]*$"):
        run(CASE, tmp_path, resume=True)


def test_a_part_that_only_the_newest_checkpoint_needs_is_made_again(tmp_path: Path, whole: Path) -> None:
    cut_off(tmp_path)
    (tmp_path / "tables" / "ledger" / "000002.parquet").unlink()
    display = Stopping()
    run(CASE, tmp_path, resume=True, display=display)
    (message,) = display.messages
    assert message.endswith("ledger/000002.parquet: this part of a table is missing; using the previous checkpoint")
    assert traces(tmp_path) == traces(whole)


def test_a_resume_removes_temporary_files_and_incomplete_lines(tmp_path: Path, whole: Path) -> None:
    cut_off(tmp_path)
    for name in (".tmp-a", "client_states/.tmp-b", "checkpoints/.tmp-c/d", "tables/rounds/.tmp-e"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for name in ("log.jsonl", "tables/index.jsonl"):
        with open(tmp_path / name, "ab") as file:
            file.write(b'{"a": 1')
    display = Stopping()
    run(CASE, tmp_path, resume=True, display=display)
    assert [text.partition(": ")[2] for text in display.messages] == [
        "line 7 is incomplete, as a crash leaves it; removed",
        "an incomplete line was removed",
    ]
    assert not list(tmp_path.rglob(".tmp-*"))
    assert traces(tmp_path) == traces(whole)


@pytest.mark.parametrize("command", ["report", "table", "watch", "diff", "replay", "fork"])
@pytest.mark.parametrize("name", ["manifest.json", "experiment.yaml", "summary.json", "tables/index.jsonl"])
def test_every_command_names_a_damaged_file_in_one_line(
    copy: Path, command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(copy / name)
    more = {
        "watch": ["--once"],
        "diff": [str(copy)],
        "replay": ["--round", "1", "--client", "0"],
        "fork": ["--at", "1"],
    }
    code = main([command, str(copy), *more.get(command, [])])
    error = capsys.readouterr().err
    if (command, name) in {("watch", "experiment.yaml"), ("watch", "tables/index.jsonl")}:
        assert (code, error) == (0, "")  # not read
        return
    assert code == 2
    assert error.count("\n") == 1
    assert name in error


def test_a_checkpoint_with_an_unknown_value_is_refused(copy: Path) -> None:
    found = checkpoint.read(copy / "checkpoints", 3)
    with pytest.raises(RunError, match=r"^checkpoint after round 3: the value 'future' is unknown$"):
        Snapshot.restore(replace(found, values={**found.values, "future": 1}))
