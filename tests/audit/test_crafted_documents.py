"""Crafted documents as canaries: they are trained on if their coin includes them, and their coins are guessed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fakes import Toy, experiment, run
from fakes_documents import Pages

from simfl.audit.documents import WithDocuments
from simfl.audit.one_run import AuditSettings, audit
from simfl.cli import main
from simfl.data.partition.manifest import Partition
from simfl.data.partition.partitioners import Provider
from simfl.errors import ConfigError
from simfl.experiment import Evaluate, Experiment, Privacy
from simfl.models.vt5 import VT5
from simfl.objectives.docvqa import DocVqa
from simfl.runs.results import Run


def test_groups_with_rows_follow_the_groups_of_each_client() -> None:
    real = Partition.from_owners(np.array([0, 0, 1, 1, 1]), 2, (np.array([0, 1, 0, 0, 1]), pa.array(["a", "b"])))
    more = [np.array([7, 5]), np.zeros(0, np.int64)], [np.array([6])]
    found = real.with_groups([["x", "y"], ["z"]], more)
    assert [(name, rows.tolist()) for name, rows in found.groups(0)] == [
        ("a", [0]),
        ("b", [1]),
        ("x", [7, 5]),
        ("y", []),
    ]
    assert [(name, rows.tolist()) for name, rows in found.groups(1)] == [("a", [2, 3]), ("b", [4]), ("z", [6])]
    assert found.sizes.tolist() == [4, 4]


SMALL: dict[str, Any] = {"d_model": 32, "d_ff": 32, "num_layers": 1, "num_heads": 2, "dropout": 0.0}
QUIET = Privacy(clip=1.0, noise_multiplier=0.01, groups_per_client=30)


def given(privacy: Privacy = QUIET, **settings: Any) -> Experiment:
    base: dict[str, Any] = {"rounds": 2, "steps": 1, "learning_rate": 0.1, "data": Pages(train=8, providers=4)}
    return experiment(
        "group_dp",
        mode="vectorized",
        partition=Provider(clients=2),
        model=VT5(**SMALL),
        objective=DocVqa(max_tokens=32, max_answer=9),
        evaluate=Evaluate(every=0, limit=1),
        participation=1.0,
        weighting="uniform",
        privacy=privacy,
        **{**base, **settings},
    )


def test_crafted_documents_follow_the_training_split_and_depend_on_the_seed(tmp_path: Path) -> None:
    plain, added, other = (
        data.load(tmp_path).splits["train"]
        for data in (Pages(), WithDocuments(Pages(), 5, seed=1), WithDocuments(Pages(), 5, seed=2))
    )
    assert (len(plain), len(added)) == (20, 25)
    assert added.examples.slice(0, 20).equals(plain.examples)
    rows = added.examples.slice(20).to_pylist()
    pages = added.documents.to_pylist()
    assert [pages[row["document"]]["id"] for row in rows] == [f"canary {k}" for k in range(5)]
    assert (
        len({row["answers"][0] for row in rows} | {row["answers"][0] for row in other.examples[20:].to_pylist()}) == 10
    )
    words = {tuple(page["words"]) for page in Pages().load(tmp_path).splits["valid"].documents.to_pylist()}
    assert all(tuple(page["words"]) in words for page in pages[20:])


def test_with_little_noise_the_coins_of_documents_are_seen(tmp_path: Path) -> None:
    run(given(replace(QUIET, noise_multiplier=0.001), rounds=1), tmp_path / "run")
    result = audit(Run(tmp_path / "run"), AuditSettings(24, fixed_noise=True, documents=True))
    assert {view.view for view in result.views} == {"averages", "messages", "model"}
    assert result.included < result.canaries == 24
    assert result.holds
    for view in result.views:
        assert view.auc > (0.6 if view.view == "model" else 0.8)
        assert view.gaussian is None
    assert max(view.one_run for view in result.views) > 0.2


def test_under_noise_the_coins_of_documents_are_not_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(given(replace(QUIET, noise_multiplier=20.0), rounds=1), tmp_path / "run")
    assert main(["audit", "canaries", str(tmp_path / "run"), "--documents", "--canaries", "24", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["holds"]
    assert all(0.1 < view["auc"] < 0.9 for view in found["views"])


def test_documents_need_groups_and_questions_about_pages(tmp_path: Path) -> None:
    toy = experiment(
        "group_dp", data=Toy(sizes=(6, 6), groups=2), participation=1.0, rounds=1, weighting="uniform", privacy=QUIET
    )
    run(toy, tmp_path / "toy")
    with pytest.raises(ConfigError, match="--documents: needs questions about pages in train and one of unseen"):
        audit(Run(tmp_path / "toy"), AuditSettings(documents=True))
    clients = Privacy(unit="client", clip=0.05, noise_multiplier=1.0, adjacency="zero_out")
    run(
        replace(toy, privacy=clients, phases=experiment("dp_fedavg", rounds=1, weighting="uniform").phases),
        tmp_path / "c",
    )
    with pytest.raises(ConfigError, match=r"--documents: privacy\.unit is client; allowed: group"):
        audit(Run(tmp_path / "c"), AuditSettings(documents=True))
