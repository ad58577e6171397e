"""Extraction of fields: an erased field is gone from words and image, and is answered by a model that remembers it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import Toy, experiment, run
from fakes_documents import Pages

from simfl.audit.extraction import ExtractionSettings, _chosen, _paint, answer_words, extract
from simfl.audit.report import extraction_lines
from simfl.audit.scoring import Target
from simfl.cli import main
from simfl.data.partition.partitioners import Provider
from simfl.errors import ConfigError
from simfl.experiment import Evaluate, Experiment
from simfl.models.vt5 import VT5
from simfl.objectives.docvqa import DocVqa
from simfl.runs.results import Run

SMALL: dict[str, Any] = {"d_model": 64, "d_ff": 64, "num_layers": 1, "num_heads": 2, "dropout": 0.0}


def given(**settings: Any) -> Experiment:
    base: dict[str, Any] = {"rounds": 1, "steps": 1, "learning_rate": 3e-3, "data": Pages(train=8, providers=4)}
    return experiment(
        partition=Provider(clients=1),
        model=VT5(**SMALL),
        objective=DocVqa(max_tokens=32, max_answer=5),
        evaluate=Evaluate(every=0, limit=1),
        participation=1.0,
        optimizer="adamw",
        **{**base, **settings},
    )


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step, whose model remembers nothing."""
    folder = tmp_path_factory.mktemp("extraction") / "run"
    run(given(), folder)
    return folder


def test_the_words_of_an_answer_are_found_wherever_they_stand() -> None:
    words = ["Total:", "$12.50", "to", "Kirby", "Ltd,", "from", "kirby", "ltd"]
    assert np.flatnonzero(answer_words(words, ["Kirby Ltd"])).tolist() == [3, 4, 6, 7]
    assert np.flatnonzero(answer_words(words, ["12.50", "to"])).tolist() == [1, 2]
    assert not answer_words(words, ["Kirby from", "", "---"]).any()
    assert not answer_words([], ["a"]).any()


def test_an_erased_field_is_gone_from_words_boxes_and_image(fresh: Path) -> None:
    target = Target.of(Run(fresh))
    data = target.split("train")
    found = _chosen(data, np.arange(8), ExtractionSettings(), "train")
    assert len(found) == 8
    pages = {page["id"]: page for page in data.documents.to_pylist()}
    for name, example, page, gone in zip(
        found.documents, found.split.examples.to_pylist(), found.split.documents.to_pylist(), found.erased, strict=True
    ):
        assert page["id"] == name
        assert example["answers"][0] not in page["words"]
        before = pages[name]
        assert sorted(page["words"] + [example["answers"][0]] * len(gone)) == sorted(before["words"])
        assert len(page["boxes"]) == 4 * len(page["words"])
        assert gone[0].tolist() == pytest.approx(before["boxes"][:4])
    images = found.encoded(target).shared["pixel_values"][1]
    for image, gone in zip(images, found.erased, strict=True):
        left, top, right, bottom = (gone[0] * image.shape[1]).tolist()
        inner = image[:, int(np.ceil(top)) : int(bottom), int(np.ceil(left)) : int(right)]
        assert (inner == 255).all()


def test_paint_covers_every_pixel_that_a_box_touches() -> None:
    image = torch.zeros(3, 10, 10, dtype=torch.uint8)
    _paint(image, np.array([[0.11, 0.2, 0.39, 0.5]]))
    assert torch.equal(image[0].nonzero(), torch.cartesian_prod(torch.arange(2, 5), torch.arange(1, 4)))


def test_a_model_that_remembers_nothing_extracts_nothing(fresh: Path) -> None:
    found = extract(Run(fresh), ExtractionSettings())
    assert [one.name for one in found.rates] == [
        "trained documents",
        "other documents (valid)",
        "trained documents, initial model",
    ]
    assert all(one.extracted.value == 0.0 for one in found.rates)
    assert not found.leaks
    assert extraction_lines(found)[-1].startswith("no field is shown to leak")


@pytest.mark.slow
def test_fields_learned_by_heart_are_extracted(tmp_path: Path) -> None:
    run(given(steps=300, batch_size=8, data=Pages(train=16, providers=4)), tmp_path / "run")
    found = extract(Run(tmp_path / "run"), ExtractionSettings())
    assert found.rates[0].extracted.value > 0.3
    assert found.rates[1].extracted.value < 0.3
    assert found.leaks
    shadow = given(data=Pages(train=16, providers=2), seed=3)  # the same documents: no document is left out
    run(shadow, tmp_path / "shadow")
    with pytest.raises(ConfigError, match="the shadow runs have trained on all documents"):
        extract(Run(tmp_path / "run"), ExtractionSettings(shadows=[Run(tmp_path / "shadow")]))


def test_data_without_pages_are_refused(tmp_path: Path) -> None:
    run(experiment(rounds=1, data=Toy(sizes=(6, 6)), participation=1.0), tmp_path / "run")
    with pytest.raises(ConfigError, match="extraction: needs questions about pages"):
        extract(Run(tmp_path / "run"), ExtractionSettings())


def test_the_command_prints_a_table_and_json(fresh: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "extraction", str(fresh), "--limit", "4"]) == 0
    assert "no field is shown to leak: 0 fields more" in capsys.readouterr().out
    assert main(["audit", "extraction", str(fresh), "--limit", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["leaks"] is False
    assert main(["audit", "extraction", str(fresh), "--others", "vald"]) == 2
    assert "--others: the data have no split 'vald'; did you mean 'valid'" in capsys.readouterr().err
