"""Membership inference: providers and documents that were learned by heart are found, others are not."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fakes import experiment, run

from simfl.audit import report
from simfl.audit.membership import MembershipResult, MembershipSettings, attack
from simfl.audit.shadows import shadow_runs
from simfl.cli import main
from simfl.data.base import Data, Dataset, Split
from simfl.data.io.arrow_store import content_sha256
from simfl.data.io.classification import feature_split
from simfl.data.partition.nested import Subsample
from simfl.data.partition.partitioners import Provider
from simfl.errors import ConfigError, RunError
from simfl.experiment import Evaluate, Experiment, Privacy
from simfl.models.mlp import Mlp
from simfl.runs.folder import write_json
from simfl.runs.results import Run


@dataclass(frozen=True)
class ByHeart(Data):
    """Random labels of random features: what can be learned of them is by heart. Clients hold ten groups each."""

    groups: int = 20  # trained on
    unseen: int = 20  # not trained on
    size: int = 3  # examples of a group
    first: int = 0  # number of the first group that is trained on, of all that exist

    def load(self, cache: Path) -> Dataset:
        splits = {"train": self._split(range(self.first, self.first + self.groups))}
        others = [k for k in range(self.groups + self.unseen) if not self.first <= k < self.first + self.groups]
        splits |= {"unseen": self._split(others), "valid": self._split(others[:2])}
        return Dataset("by heart", splits, content_sha256(splits), {"shape": [24], "num_classes": 4})

    def _split(self, numbers: Any) -> Split:
        features = np.concatenate([np.random.default_rng([k, 0]).normal(size=(self.size, 24)) for k in numbers])
        labels = np.concatenate([np.random.default_rng([k, 1]).integers(0, 4, self.size) for k in numbers])
        group = pa.array([f"g{k}" for k in numbers for _ in range(self.size)])
        client = pa.array([k % 2 for k in range(len(numbers)) for _ in range(self.size)], pa.int32())
        return feature_split(features, labels, client=client, group=group)


def given(**settings: Any) -> Experiment:
    base: dict[str, Any] = {
        "participation": 1.0,
        "rounds": 3,
        "data": ByHeart(),
        "model": Mlp(hidden_sizes=(64,), dropout=0.0),
        "learning_rate": 0.3,
        "epochs": 25,
        "evaluate": Evaluate(every=0),
    }
    return experiment(**{"algorithm": "fedavg", **base, **settings})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("membership")
    private = Privacy(clip=1.0, groups_per_client=10, epsilon=1.0, noise_seed=0)
    kinds = {
        "bare": given(),
        "shadow": given(data=ByHeart(first=20), seed=5),
        "private": given(algorithm="group_dp", privacy=private, weighting="uniform", epochs=2),
    }
    for name, one in kinds.items():
        run(one, folder / name)
    return {name: folder / name for name in kinds}


def found(folder: Path, **settings: Any) -> MembershipResult:
    return attack(Run(folder), MembershipSettings(**settings))


def test_providers_learned_by_heart_are_found_and_their_initial_model_tells_nothing(runs: dict[str, Path]) -> None:
    result = found(runs["bare"])
    assert (result.main.roc.members, result.main.roc.others) == (20, 20)
    assert result.main.name == "loss less initial"
    assert result.main.roc.auc.low > 0.65
    assert {one.name for one in result.attacks} >= {"loss", "accuracy", "confidence", "confidence less initial"}
    for one in result.control:
        assert one.roc.auc.low < 0.5 < one.roc.auc.high
    assert "membership leaks" in report.membership_lines(result)[-1]
    assert "too few units" in "\n".join(report.membership_lines(result))


def test_under_privacy_the_interval_holds_one_half(runs: dict[str, Path]) -> None:
    result = found(runs["private"])
    assert result.main.roc.auc.low < 0.5
    assert result.epsilon == pytest.approx(1.0, rel=1e-3)
    assert result.allowed(0.01) == pytest.approx(np.e * 0.01, rel=0.01)
    assert "no better than guessing" in report.membership_lines(result)[-1]


def test_documents_without_pages_are_single_examples(runs: dict[str, Path]) -> None:
    result = found(runs["bare"], unit="document")
    assert (result.main.roc.members, result.main.roc.others) == (60, 60)
    assert result.main.roc.auc.low > 0.65


def test_shadow_runs_that_have_trained_on_the_others_calibrate_the_members(runs: dict[str, Path]) -> None:
    result = found(runs["bare"], shadows=[Run(runs["shadow"])])
    assert result.main.name == "loss less shadows"
    assert result.main.roc.auc.low > 0.65
    mirrored = found(runs["shadow"], shadows=[Run(runs["bare"])])
    assert mirrored.main.roc.auc.low > 0.65


def test_the_choice_of_units_repeats_with_its_seed(runs: dict[str, Path]) -> None:
    a, b, c = (found(runs["bare"], limit=8, examples=2, seed=seed) for seed in (0, 0, 1))
    assert a == b
    assert a != c
    assert (a.main.roc.members, a.main.roc.others) == (8, 8)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a sweep whose seeds draw one half of 40 groups each, and that has another budget."""
    folder = tmp_path_factory.mktemp("sweep") / "made"
    half = Subsample(of=Provider(clients=2, column="group"), fraction=0.5, column="group")
    whole = ByHeart(groups=40, unseen=2)
    points = {f"seed={seed}": given(data=whole, partition=half, seed=seed) for seed in (1, 2, 3)}
    points["rounds=1"] = given(data=whole, partition=half, seed=1, rounds=1)
    for label, one in points.items():
        run(one, folder / "runs" / label)
    listed = [{"label": label, "varied": {}} for label in points]
    write_json(folder / "sweep.json", {"name": "halves", "runs": listed, "table": {}})
    return folder


def test_groups_that_the_seed_leaves_out_are_the_others(sweep: Path) -> None:
    result = found(sweep / "runs" / "seed=1")
    assert (result.members, result.others) == ("train", "train")
    assert (result.main.roc.members, result.main.roc.others) == (20, 20)
    assert result.main.roc.auc.low > 0.65
    documents = found(sweep / "runs" / "seed=1", unit="document")
    assert (documents.others, documents.main.roc.members, documents.main.roc.others) == ("train", 60, 60)


def test_runs_of_a_sweep_that_differ_in_seed_and_partition_are_shadow_runs(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_folder = sweep / "runs" / "seed=1"
    shadows = shadow_runs(Run(run_folder), sweep)
    assert [one.folder.name for one in shadows] == ["seed=2", "seed=3"]
    assert main(["audit", "membership", str(run_folder), "--shadows", str(sweep)]) == 0
    assert "membership leaks: loss less shadows" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"--shadows: .* has no completed run that differs from"):
        shadow_runs(Run(sweep / "runs" / "rounds=1"), sweep)
    with pytest.raises(ConfigError, match=r"--shadows: .* holds no sweep; give a single run with --shadow"):
        shadow_runs(Run(run_folder), run_folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unit": "client"}, "--unit: unknown 'client'"),
        ({"others": "unsen"}, "--others: the data have no split 'unsen'; did you mean 'unseen'"),
        ({"others": "train"}, "there are 0 other providers in train"),
        ({"unit": "document", "others": "train"}, "there are 0 other documents in train"),
        ({"unit": "document", "members": "valid"}, "--unit: document needs --members train"),
    ],
)
def test_what_cannot_be_attacked_is_refused(runs: dict[str, Path], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        found(runs["bare"], **settings)


def test_a_shadow_of_another_model_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    run(replace(given(rounds=1, epochs=1), model=Mlp(hidden_sizes=(8,))), tmp_path / "other")
    with pytest.raises(RunError, match=r"--shadow: .* trains other tensors"):
        found(runs["bare"], shadows=[Run(tmp_path / "other")])


def test_the_commands_print_tables_and_json(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "membership", str(runs["bare"]), "--shadow", str(runs["shadow"])]) == 0
    assert "membership leaks: loss less shadows" in capsys.readouterr().out
    assert main(["audit", "membership", str(runs["private"]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["attacks"][0]["name"] == "loss"
    assert main(["audit", "canaries", str(runs["private"]), "--rounds", "1", "--canaries", "20"]) == 0
    assert "no bound exceeds its claim" in capsys.readouterr().out
    assert main(["audit", "canaries", str(runs["bare"])]) == 2
    assert "adds no noise" in capsys.readouterr().err
