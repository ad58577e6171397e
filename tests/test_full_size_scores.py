"""Experiments at published size score the test sets of their papers, by the papers' averages."""

from __future__ import annotations

from pathlib import Path

import pytest

from simfl import config

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
SEVEN = {"IIIT5K", "SVT", "IC03", "IC13", "IC15", "SVTP", "CUTE"}


@pytest.mark.parametrize("name", ["aster", "hash_1", "hash_1_2", "hash_1_4", "hash_1_8"])
def test_fedocr_scores_seven_test_sets_and_trains_on_none(name: str) -> None:
    experiment = config.load(EXPERIMENTS / "fedocr" / f"real_{name}.yaml")
    data = config.to_mapping(experiment)["data"]
    assert {folder.removesuffix("_test") for folder in data["test"]} == SEVEN
    assert not {*data["test"]} & {*data["train"], *data.get("valid", ())}
    assert (experiment.evaluate.splits, experiment.evaluate.two_step) == (("test",), "source")


@pytest.mark.parametrize("name", ["fedavg_k3", "fedavg_k10", "fedavg_k30", "fsp_k3"])
def test_fedocvqa_averages_over_data_sets(name: str) -> None:
    assert config.load(EXPERIMENTS / "fedocvqa" / f"{name}.yaml").evaluate.two_step == "dataset"


def test_fedvqa_scores_the_last_local_models_on_seen_and_unseen_scenes() -> None:
    evaluate = config.load(EXPERIMENTS / "fedvqa" / "gqa_fedavg.yaml").evaluate
    assert (evaluate.splits, evaluate.models) == (("test", "unseen"), ("global", "local"))


@pytest.mark.parametrize("name", ["vilt", "vault", "albef"])
def test_feddat_scores_test_questions_where_their_answers_are_public(name: str) -> None:
    experiment = config.load(EXPERIMENTS / "feddat" / f"{name}.yaml")
    renamed = config.to_mapping(experiment)["data"]["splits"]
    assert experiment.evaluate.splits == ("test",)
    assert {part for part, names in renamed.items() if names["valid"] == "test"} == {"abstract", "gqa", "vizwiz"}
