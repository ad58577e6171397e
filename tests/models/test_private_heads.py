"""FedDAT's setup on a tiny ViLT: personal heads and answer lists of different sizes, in both execution modes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fakes import experiment, run
from toy_vqa import ANSWERS, Corners

from simfl.algorithms.feddat import FedDat
from simfl.data.partition.partitioners import Provider
from simfl.experiment import Evaluate, Experiment
from simfl.models.bottleneck import Bottleneck
from simfl.models.vilt import Vilt
from simfl.objectives.vqa import Vqa
from simfl.run_context import RunContext
from simfl.runs import checkpoint, tables
from simfl.runs.snapshot import Snapshot

LISTS = {"c0": list(ANSWERS), "c1": list(ANSWERS[:3]), "c2": list(reversed(ANSWERS[3:]))}  # 5, 3 and 2 answers


def given(folder: Path, **settings: Any) -> Experiment:
    (folder / "lists.json").write_text(json.dumps(LISTS))
    usual: dict[str, Any] = {
        "data": Corners(train=36, valid=6),
        "partition": Provider(clients=3),
        "model": Vilt(adapters=Bottleneck()),
        "objective": Vqa(answers=str(folder / "lists.json"), soft="any"),
        "algorithm": FedDat(temperature=3.0),
        "personal_params": ("head.*",),
        "participation": 1.0,
        "rounds": 2,
        "learning_rate": 0.05,
        "evaluate": Evaluate(every=0, models=("personal",)),
    }
    return experiment(**usual | settings)


def shared(given: Experiment, folder: Path) -> dict[str, torch.Tensor]:
    run(given, folder)
    found = checkpoint.latest(folder / "checkpoints")
    assert found is not None
    return Snapshot.restore(found).model


def test_both_modes_train_personal_heads_alike(tmp_path: Path) -> None:
    plain = given(tmp_path)
    modes = {
        mode: replace(plain, execution=replace(plain.execution, mode=mode, clients_per_batch=4))
        for mode in ("sequential", "vectorized")
    }
    models = {mode: shared(one, tmp_path / mode) for mode, one in modes.items()}
    start = dict(RunContext(plain, tmp_path / "cache").module.named_parameters())
    assert set(models["sequential"]) == {name for name in start if "adapter_shared" in name}
    gap = sum((models["vectorized"][n] - t).double().square().sum() for n, t in models["sequential"].items())
    path = sum((t - start[n]).double().square().sum() for n, t in models["sequential"].items())
    assert path > 0
    assert (gap / path).sqrt() < 1e-4


def test_personal_heads_and_client_adapters_are_never_sent(tmp_path: Path) -> None:
    run(given(tmp_path), tmp_path / "r")
    rows = tables.read(tmp_path / "r" / "ledger.parquet").to_pylist()
    one = 2 * (64 * 4 + 4 + 4 * 64 + 64)  # two layers of width 64, reduction 16
    assert {row["floats"] for row in rows} == {one}


def test_each_client_is_evaluated_with_its_own_head(tmp_path: Path) -> None:
    run(given(tmp_path), tmp_path / "r")
    scores = tables.read(tmp_path / "r" / "evaluations.parquet").to_pylist()
    personal = [row for row in scores if row["model"] == "personal" and row["by"] == "client"]
    scored = [row["group"] for row in personal if row["metric"] == "accuracy"]
    assert set(scored) == {"0", "1", "2"}
