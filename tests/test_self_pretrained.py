"""The recipe of federated self-pretraining: its networks, its data, and the weights that it exports."""

from __future__ import annotations

import csv
import runpy
from pathlib import Path

import pytest
import torch

from simfl import config
from simfl.data.benchmarks.provider_invoices import ProviderInvoices
from simfl.models.layout_t5 import LayoutT5
from simfl.objectives.self_pretraining import MixedModeling
from simfl.protocol import Task
from simfl.runs.results import Run

RECIPE = Path(__file__).resolve().parents[1] / "experiments/pretrain"
SMALL = (
    ("model.size", "small"),
    *((f"data.{name}", count) for name, count in (("providers", 10), ("unseen", 2), ("train", 10), ("valid", 2))),
    *((f"data.{name}", 2) for name in ("test", "unseen_documents")),
    ("phases.0.rounds", 1),
    ("phases.0.local.steps", 1),
    ("phases.0.local.batch_size", 1),
    ("execution.mode", "sequential"),
    ("evaluate.limit", 1),
)


def test_pretraining_and_fine_tuning_have_the_same_network_and_different_providers() -> None:
    pretraining, fine_tuning = (config.load(RECIPE / f"{name}.yaml") for name in ("federated", "questions"))
    assert pretraining.model == fine_tuning.model
    assert isinstance(pretraining.model, LayoutT5)
    with torch.device("meta"):
        count = sum(p.numel() for p in pretraining.model.network().parameters())
    assert 10_000_000 < count < 20_000_000
    assert isinstance(pretraining.data, ProviderInvoices)
    assert isinstance(fine_tuning.data, ProviderInvoices)
    assert pretraining.data.seed != fine_tuning.data.seed
    objective = pretraining.phases[0].objective
    assert isinstance(objective, MixedModeling)
    assert {"text", "layout", "joint"} <= set(objective.tasks)


@pytest.mark.slow
def test_an_exported_run_loads_as_pretrained_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = config.read_yaml(RECIPE / "federated.yaml")
    for path, value in SMALL:
        given = config.override(given, path, value)
    recipe = tmp_path / "small.yaml"
    recipe.write_text(config.dump(config.parse(given)))
    runpy.run_path(str(RECIPE / "federated.py"))["main"](
        *(str(tmp_path / name) for name in ("run", "weights")), str(recipe)
    )
    assert "7,0" in capsys.readouterr().out  # 7 million parameters
    trained = dict(Run(tmp_path / "run").model().named_parameters())
    model = LayoutT5(size="small", weights=str(tmp_path / "weights"), special_tokens=True)
    loaded = model.build(Task(5))
    for name, tensor in loaded.named_parameters():
        assert torch.equal(tensor, trained[name].half().float()), name
    same = LayoutT5(size="small", vocabulary="vt5_tiny", special_tokens=True).tokenizer()
    assert loaded.tokenizer.backend.to_str() == same.backend.to_str()
    (row,) = csv.DictReader((tmp_path / "weights" / "curve.csv").open())
    assert row["round"] == "1"
    assert 7.0 < float(row["loss"]) < 12.0  # a uniform guess among 4,273 tokens is 8.4
