"""Cards: what a run claims is computed again, and a forged run is found although all of its hashes match."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import experiment, run
from forging import forge_rows

from simfl import config
from simfl.cards.card import CARD, FORMAT, INSIDE, open_card, write_card
from simfl.cards.verify import Verification, verdict_of
from simfl.cli import main
from simfl.errors import DamagedFile, RunError
from simfl.experiment import Privacy
from simfl.json_files import body_of, seal
from simfl.runs import checkpoint
from simfl.runs.folder import read_json, write_json
from simfl.runs.manifest import text_sha256
from simfl.runs.results import Run
from simfl.runs.snapshot import Snapshot
from simfl.runs.tables import TableRow

SCAFFOLD = experiment("scaffold", rounds=2)
PRIVATE = experiment(
    "fedavg",
    rounds=2,
    weighting="uniform",
    privacy=Privacy(clip=0.5, noise_multiplier=0.5, groups_per_client=2, noise_seed=1),
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a run, the same with another seed, a shorter one, and a private one."""
    top = tmp_path_factory.mktemp("runs")
    cases = {"run": SCAFFOLD, "seed": replace(SCAFFOLD, seed=5), "short": experiment("scaffold", rounds=1)}
    for name, case in (cases | {"private": PRIVATE}).items():
        run(case, top / name)
    return {name: top / name for name in (*cases, "private")}


def checked(folder: Path, claims: Any = None, **options: Any) -> dict[str, tuple[str, str]]:
    """Return the verdict and the text of each check."""
    found = Verification(Run(folder), claims, **options).checks()
    return {check.name: (check.verdict, check.observed) for check in found}


def copied(source: Path, target: Path) -> Path:
    """Copy a run folder."""
    shutil.copytree(source, target)
    return target


def edit(folder: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file of a run, with its hash."""
    content = body_of(read_json(folder / name))
    change(content)
    write_json(folder / name, content)


def edit_experiment(folder: Path, old: str, new: str) -> None:
    """Change a setting of a run, with the hash of the experiment."""
    text = (folder / "experiment.yaml").read_text()
    assert old in text
    text = text.replace(old, new)
    (folder / "experiment.yaml").write_text(text)
    edit(folder, "manifest.json", lambda content: content.update(experiment_sha256=text_sha256(text)))


def test_a_card_of_a_run_holds(folders: dict[str, Path], tmp_path: Path) -> None:
    write_card(Run(folders["run"]), tmp_path / "a.card")
    folder, content = open_card(tmp_path / "a.card", tmp_path / "scratch")
    found = checked(folder, content["claims"], whole=True)
    assert {verdict for verdict, _ in found.values()} == {"holds"}
    assert set(found) == {
        "claims", "length", "data", "partition", "bytes", "client updates", "baselines", "initial scores",
        "last rounds", "final scores",
    }  # fmt: skip
    assert "2 rounds repeated from the first one" in found["last rounds"][1]
    assert content["claims"]["sha256"]["weights"] == Run(folders["run"]).summary["weights_sha256"]


PROFILE = {"devices": {"phone_low": 0.5, "laptop": 0.5}, "networks": "4g", "device_spread": 0.5}
TIMED: dict[str, dict[str, Any]] = {
    "over-selection": {"time": {"over_selection": 1.4}},
    "asynchronous": {"participation": None, "asynchronous": {"concurrency": 5, "buffer": 2, "staleness": "polynomial"}},
}


@pytest.mark.parametrize("name", TIMED)
def test_a_run_in_virtual_time_holds(name: str, tmp_path: Path) -> None:
    given = config.to_mapping(experiment("fedavg", rounds=3)) | {"clients": {"profile": PROFILE}}
    given["phases"][0] |= TIMED[name]
    run(config.parse(given), tmp_path)
    assert {verdict for verdict, _ in checked(tmp_path, num_updates=1).values()} == {"holds"}


def test_equal_runs_give_equal_cards(folders: dict[str, Path], tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_card(Run(folders["run"]), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_private_run_holds_and_its_epsilon_is_computed_again(folders: dict[str, Path], tmp_path: Path) -> None:
    found = checked(folders["private"])
    assert found["epsilon"] == ("holds", "computed again for 2 rounds")
    assert {verdict for verdict, _ in found.values()} == {"holds"}
    forged = copied(folders["private"], tmp_path / "forged")
    edit(forged, "summary.json", lambda content: content["privacy"].update(epsilon=1.0))
    verdict, text = checked(forged)["epsilon"]
    assert verdict == "differs"
    assert text.startswith("epsilon: 1.0 (claimed), ")


def test_the_key_of_the_noise_is_in_no_card_and_what_needs_it_cannot_be_told(tmp_path: Path) -> None:
    case = replace(PRIVATE, privacy=Privacy(clip=0.5, noise_multiplier=0.5, groups_per_client=2))
    run(case, tmp_path / "run")
    assert (tmp_path / "run" / "noise.key").exists()
    write_card(Run(tmp_path / "run"), tmp_path / "a.card")
    folder, content = open_card(tmp_path / "a.card", tmp_path / "scratch")
    assert not list(folder.rglob("noise.key"))
    found = checked(folder, content["claims"])
    assert found["epsilon"][0] == found["bytes"][0] == "holds"
    assert found["last rounds"][0] == "cannot tell"
    assert "noise.key" in found["last rounds"][1]


def forged_score(folder: Path, _: dict[str, Path]) -> None:
    edit(folder, "summary.json", lambda content: content["final"].update(accuracy=0.99))


def forged_evaluations(folder: Path, folders: dict[str, Path]) -> None:
    def raise_all(rows: list[TableRow]) -> None:
        for row in rows:
            if row["metric"] == "accuracy":
                row["value"] = 1.0

    forge_rows(folder, "evaluations", 2, raise_all)
    edit(folder, "summary.json", lambda content: content["final"].update(accuracy=1.0))


def forged_start(folder: Path, _: dict[str, Path]) -> None:
    edit(folder, "summary.json", lambda content: content["initial"].update(accuracy=0.0))


def forged_baseline(folder: Path, _: dict[str, Path]) -> None:
    edit(folder, "summary.json", lambda content: content["baselines"].update(majority=0.01))


def forged_bytes(folder: Path, _: dict[str, Path]) -> None:
    edit(folder, "summary.json", lambda content: content["bytes"].update(upload=10))


def forged_ledger(folder: Path, _: dict[str, Path]) -> None:
    def halve(rows: list[TableRow]) -> None:
        for row in rows:
            row["payload_bytes"] //= 2

    forge_rows(folder, "ledger", 1, halve)


def forged_loss(folder: Path, _: dict[str, Path]) -> None:
    forge_rows(folder, "clients", 2, lambda rows: rows[0].update(loss=0.0))


def forged_rate(folder: Path, _: dict[str, Path]) -> None:
    edit_experiment(folder, "learning_rate: 0.1", "learning_rate: 0.2")


def forged_weights(folder: Path, folders: dict[str, Path]) -> None:
    found = checkpoint.read(folder / "checkpoints", 2)
    tensors = {name: tensor + 1e-6 * torch.ones_like(tensor) for name, tensor in found.tensors.items()}
    state = checkpoint.write(folder / "checkpoints", 2, tensors, found.values, found.notes, found.coverage)
    weights = Snapshot.restore(checkpoint.read(folder / "checkpoints", 2)).weights_sha256
    edit(folder, "summary.json", lambda content: content.update(state_sha256=state, weights_sha256=weights))


def forged_weights_hash(folder: Path, folders: dict[str, Path]) -> None:
    other = read_json(folders["seed"] / "summary.json")["weights_sha256"]
    edit(folder, "summary.json", lambda content: content.update(weights_sha256=other))


def forged_partition(folder: Path, folders: dict[str, Path]) -> None:
    shutil.copy(folders["seed"] / "partition.json", folder / "partition.json")
    other = read_json(folders["seed"] / "manifest.json")["partition_sha256"]
    edit(folder, "manifest.json", lambda content: content.update(partition_sha256=other))


def forged_length(folder: Path, folders: dict[str, Path]) -> None:
    shutil.rmtree(folder)
    shutil.copytree(folders["short"], folder)
    edit_experiment(folder, "rounds: 1", "rounds: 2")


FORGERIES: dict[str, tuple[Callable[[Path, dict[str, Path]], None], str]] = {
    "a higher score": (forged_score, "final scores"),
    "a higher score, with its rows": (forged_evaluations, "final scores"),
    "a worse start": (forged_start, "initial scores"),
    "a worse baseline": (forged_baseline, "baselines"),
    "fewer bytes": (forged_bytes, "bytes"),
    "fewer bytes, with their rows": (forged_ledger, "bytes"),
    "a lower loss": (forged_loss, "last rounds"),
    "another learning rate": (forged_rate, "client updates"),
    "other weights": (forged_weights, "last rounds"),
    "the hash of other weights": (forged_weights_hash, "last rounds"),
    "another partition": (forged_partition, "partition"),
    "rounds that were not run": (forged_length, "length"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_run_is_found_although_its_hashes_match(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    forge, where = FORGERIES[name]
    folder = copied(folders["run"], tmp_path / "forged")
    forge(folder, folders)
    found = checked(folder, num_updates=1)
    assert found[where][0] == "differs", found


def test_a_card_that_claims_more_than_its_run_is_found(folders: dict[str, Path], tmp_path: Path) -> None:
    write_card(Run(folders["run"]), tmp_path / "a.card")
    with zipfile.ZipFile(tmp_path / "a.card") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    content = json.loads(files[CARD])
    content["claims"]["final"]["accuracy"] = 0.99
    pack(tmp_path / "b.card", files | {CARD: json.dumps(seal(body_of(content), FORMAT)).encode()})
    folder, opened = open_card(tmp_path / "b.card", tmp_path / "scratch")
    assert next(Verification(Run(folder), opened["claims"]).checks()).verdict == "differs"


def pack(path: Path, files: dict[str, bytes]) -> None:
    """Write a ZIP file."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def test_a_card_that_was_altered_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    write_card(Run(folders["run"]), tmp_path / "a.card")
    with zipfile.ZipFile(tmp_path / "a.card") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    summary, evil = f"{INSIDE}summary.json", json.loads(files[CARD])
    evil["files"]["../evil"] = "0" * 64
    cases = {
        "does not match its hash": files | {summary: files[summary] + b" "},
        "summary.json is missing": {name: data for name, data in files.items() if name != summary},
        "run/more is not named": files | {f"{INSIDE}run/more": b""},
        "card.json does not match": files | {CARD: files[CARD].replace(b'"rounds": 2', b'"rounds": 3')},
        "'../evil': this name": files
        | {f"{INSIDE}../evil": b"", CARD: json.dumps(seal(body_of(evil), FORMAT)).encode()},
        "no item named": {"other": b""},
    }
    for number, (text, content) in enumerate(cases.items()):
        pack(tmp_path / "b.card", content)
        with pytest.raises(DamagedFile) as caught:
            open_card(tmp_path / "b.card", tmp_path / f"scratch{number}")
        assert text in str(caught.value)
    (tmp_path / "b.card").write_text("no card")
    with pytest.raises(DamagedFile, match="not a card of simfl"):
        open_card(tmp_path / "b.card", tmp_path / "scratch")


def test_a_run_that_has_not_ended_has_no_card(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(folders["run"], tmp_path / "run")
    edit(folder, "summary.json", lambda content: content.update(status="interrupted"))
    with pytest.raises(RunError, match="resume it with --resume"):
        write_card(Run(folder), tmp_path / "a.card")


def test_a_stopped_or_forked_run_is_not_accused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(folders["run"], tmp_path / "run")
    edit(folder, "summary.json", lambda content: content.update(status="stopped"))
    assert checked(folder)["length"] == ("cannot tell", "the run is stopped; only a completed one can be verified")
    fork = {"folder": "elsewhere", "step": 1, "weights_sha256": "0" * 64}
    edit(folder, "summary.json", lambda content: content.update(status="completed"))
    edit(folder, "manifest.json", lambda content: content.update(forked=fork))
    assert checked(folder)["length"][0] == "cannot tell"


def test_the_commands(folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.card"
    assert main(["card", str(folders["run"]), str(file)]) == 0
    assert main(["card", str(folders["run"]), str(file)]) == 2
    assert "this file exists" in capsys.readouterr().err
    assert main(["verify", str(file), "--updates", "1", "--seed", "0"]) == 0
    assert capsys.readouterr().out.endswith(f"{file}: holds\n")
    folder = copied(folders["run"], tmp_path / "run")
    forged_bytes(folder, folders)
    assert main(["verify", str(folder), "--json", "--updates", "0"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "differs"


def test_the_verdict_is_the_worst_of_the_checks(folders: dict[str, Path]) -> None:
    checks = list(Verification(Run(folders["run"]), num_updates=0).checks())
    doubtful = replace(checks[0], verdict="cannot tell")
    assert verdict_of(checks) == "holds"
    assert verdict_of([*checks, doubtful]) == "cannot tell"
    assert verdict_of([*checks, doubtful, replace(checks[0], verdict="differs")]) == "differs"


def test_another_machine_makes_a_difference_doubtful(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(folders["run"], tmp_path / "run")
    forged_score(folder, folders)
    edit(folder, "manifest.json", lambda content: content["libraries"].update(torch="1.0"))
    verdict, text = checked(folder, num_updates=0)["final scores"]
    assert verdict == "cannot tell"
    assert "torch" in text
