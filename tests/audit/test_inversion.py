"""Inversion of uploads: one example's question is read from an exact update, and not from a batch or through noise."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import Toy, experiment, run
from fakes_documents import Pages
from PIL import Image

from simfl.audit.inversion import Inversion, invert, span
from simfl.audit.patches import _share, _sparsest
from simfl.audit.report import inversion_lines
from simfl.cli import main
from simfl.data.base import Split
from simfl.data.partition.partitioners import Provider
from simfl.errors import ConfigError
from simfl.experiment import Evaluate, Experiment, Privacy
from simfl.models.base import Model
from simfl.models.layout_t5 import LayoutT5
from simfl.models.lora import Lora
from simfl.models.vt5 import VT5
from simfl.objectives.docvqa import DocVqa
from simfl.runs.results import Run

ASKED = "invoice total", "customer name and city", "when was the bill due", "tax rate in percent"
SMALL: dict[str, Any] = {"d_model": 64, "d_ff": 32, "num_layers": 1, "num_heads": 2, "dropout": 0.0}


@dataclass(frozen=True)
class Asked(Pages):
    """Pages with several questions."""

    def _split(self, stream: int, count: int) -> Split:
        data = super()._split(stream, count)
        position = data.examples.column_names.index("question")
        texts = [ASKED[k % len(ASKED)] for k in range(count)]
        return replace(data, examples=data.examples.set_column(position, "question", [texts]))


def given(batch_size: int = 1, model: Model | None = None, **settings: Any) -> Experiment:
    base: dict[str, Any] = {"algorithm": "fedavg", "rounds": 1, "participation": 1.0, "learning_rate": 0.5}
    base["data"] = Asked(train=16, providers=4)
    return experiment(
        partition=Provider(clients=2),
        model=model or VT5(**SMALL),
        objective=DocVqa(max_tokens=16, max_answer=4),
        evaluate=Evaluate(every=0, limit=1),
        steps=1,
        batch_size=batch_size,
        **{**base, **settings},
    )


def attacks(folder: Path, one: Experiment) -> dict[str, Inversion]:
    run(one, folder)
    return {found.name: found for found in invert(Run(folder), 0, 1).attacks}


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose clients train on one example each."""
    folder = tmp_path_factory.mktemp("inversion") / "run"
    run(given(), folder)
    return folder


def test_the_question_of_one_example_is_read_from_its_exact_update(exact: Path) -> None:
    found = {one.name: one for one in invert(Run(exact), 0, 1).attacks}
    assert found["span"].recall == 1.0
    assert found["span"].roc.auc.value > 0.99
    assert found["span"].rank is not None
    assert found["span"].rank < 48
    assert found["embedding"].roc.auc.value > 0.9  # tokens of the page change their rows too


@pytest.mark.slow
def test_a_batch_fills_the_span_and_hides_a_part_of_the_tokens(tmp_path: Path) -> None:
    found = attacks(tmp_path / "run", given(batch_size=8))
    assert found["span"].rank == 48  # three quarters of 64 dimensions
    assert found["span"].recall < 1.0


@pytest.mark.slow
def test_noise_hides_the_question(tmp_path: Path) -> None:
    private = Privacy(clip=0.1, groups_per_client=2, noise_multiplier=1.0, noise_seed=0)
    found = attacks(tmp_path / "run", given(algorithm="group_dp", privacy=private, weighting="uniform"))
    for one in found.values():
        assert one.roc.auc.low < 0.6


@pytest.mark.slow
def test_the_rank_of_an_adapter_limits_the_span(tmp_path: Path) -> None:
    lora = VT5(**SMALL, adapters=Lora(rank=2, targets=("q", "v")))
    run(given(model=lora, rounds=2), tmp_path / "run")
    found = {one.name: one for one in invert(Run(tmp_path / "run"), 0, 2).attacks}
    assert set(found) == {"span"}
    assert found["span"].rank == 2
    assert found["span"].recall < 1.0


def test_a_span_holds_the_inputs_of_a_linear_layer_and_nothing_else() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(5, 12)
    basis = span(torch.randn(7, 5) @ inputs)
    assert basis.shape == (12, 5)
    torch.testing.assert_close((inputs.double() @ basis @ basis.T).float(), inputs, rtol=1e-4, atol=1e-5)
    other = torch.randn(12).double()
    assert float((other - basis @ (basis.T @ other)).norm()) > 0.5
    assert span(torch.zeros(3, 4)).shape == (4, 0)


def test_data_without_questions_are_refused(tmp_path: Path) -> None:
    run(experiment(rounds=1, data=Toy(sizes=(6, 6)), participation=1.0), tmp_path / "run")
    with pytest.raises(ConfigError, match="inversion: needs questions"):
        invert(Run(tmp_path / "run"), 0, 1)


def test_the_command_prints_a_table_and_json(exact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["audit", "inversion", str(exact), "--round", "1", "--client", "0"]
    assert main(where) == 0
    assert "span" in capsys.readouterr().out
    assert main([*where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 1


@dataclass(frozen=True)
class Inked(Asked):
    """White pages, each with a few black dots in each patch."""

    def _split(self, stream: int, count: int) -> Split:
        data = super()._split(stream, count)
        assert data.documents is not None
        position = data.documents.column_names.index("image")
        images = []
        for k in range(count):
            page = np.full((64, 64), 255, np.uint8)
            page.reshape(-1)[np.random.default_rng([stream, k]).choice(64 * 64, 200, replace=False)] = 0
            stored = io.BytesIO()
            Image.fromarray(page).save(stored, "PNG")
            images.append(stored.getvalue())
        return replace(data, documents=data.documents.set_column(position, "image", [images]))


def page_attack(folder: Path, **settings: Any) -> Inversion:
    one = given(model=LayoutT5(size="tiny", dropout=0.0), data=Inked(train=16, providers=4), **settings)
    return attacks(folder, one)["patch"]


def test_sparse_vectors_of_a_span_are_found() -> None:
    ink = (np.random.default_rng(0).random((5, 64)) < 0.1).astype(float)
    mixed = np.random.default_rng(1).normal(size=(5, 5)) @ ink
    found = _sparsest(np.linalg.qr(mixed.T)[0])
    assert _share(ink, found) == 1.0
    assert _share(ink, _sparsest(np.linalg.qr(np.random.default_rng(2).normal(size=(64, 5)))[0])) == 0.0
    assert _share(ink, _sparsest(np.zeros((64, 0)))) == 0.0


@pytest.mark.slow
def test_the_page_of_one_example_is_told_from_others_and_its_ink_is_recovered(tmp_path: Path) -> None:
    found = page_attack(tmp_path / "run")
    assert found.rank == 16  # patches of 16 x 16 pixels of a page of 64 x 64
    assert found.recall == 1.0
    assert found.roc.auc.value == 1.0
    assert found.recovered is not None
    assert found.recovered > 0.9
    assert "recovered" in inversion_lines(invert(Run(tmp_path / "run"), 0, 1))[1]


@pytest.mark.slow
def test_noise_hides_the_page(tmp_path: Path) -> None:
    private = Privacy(clip=0.1, groups_per_client=2, noise_multiplier=1.0, noise_seed=0)
    found = page_attack(tmp_path / "run", algorithm="group_dp", privacy=private, weighting="uniform")
    assert found.roc.auc.low < 0.6
    assert found.recovered == 0.0
