"""Ranking: answers as tokens with shares, candidates by group, the loss by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from documents import Letters
from test_vqa import split

from simfl.errors import ConfigError, DataError
from simfl.objectives.ranking import Ranking
from simfl.protocol import Outputs


def test_ranking_labels_are_the_most_frequent_answers_with_their_shares() -> None:
    given = split(answers=[["ab"] * 5 + ["c"] * 3 + ["d"] * 2, ["A b"]])
    rows = Ranking(answers=("ab",), max_answers=2).encode(given, Letters()).rows
    assert rows["labels"].tolist() == [
        [[10, 11, 1, -100], [12, 1, -100, -100]],
        [[10, 9, 11, 1], [-100] * 4],
    ]
    assert torch.allclose(rows["shares"], torch.tensor([[0.5, 0.3], [1.0, 0.0]]))


def test_each_group_has_its_own_candidate_answers(tmp_path: Path) -> None:
    (tmp_path / "lists.json").write_text(json.dumps({"art": ["a", "b", "cc"], "web": ["d"]}))
    objective = Ranking(answers=str(tmp_path / "lists.json"))
    given = split(answers=[["a"], ["d"]], group=["art", "web"])
    batch = objective.encode(given, Letters()).take(torch.tensor([1, 0]))
    assert batch["num_answers"].tolist() == [1, 3]
    assert batch["candidates"].tolist() == [
        [[13, 1, -100, -100], [-100] * 4, [-100] * 4],
        [[10, 1, -100, -100], [11, 1, -100, -100], [12, 12, 1, -100]],
    ]
    with pytest.raises(DataError, match="no list for the group 'sea'"):
        objective.encode(split(answers=[["a"]], group=["sea"]), Letters())


def test_ranking_refuses_an_empty_list() -> None:
    with pytest.raises(ConfigError, match=r"objective\.answers: a list of answers is empty"):
        Ranking(answers=()).encode(split(answers=[["a"]]), Letters())


def test_ranking_loss_is_summed_over_tokens_and_weighted_by_shares() -> None:
    logits = torch.zeros(2, 4, 5)  # two answers of two tokens, a vocabulary of five
    batch = {
        "labels": torch.tensor([[[3, 1], [1, -100]], [[2, 1], [-100, -100]]]),
        "shares": torch.tensor([[0.6, 0.4], [1.0, 0.0]]),
        "mask": torch.tensor([1.0, 0.0]),
    }
    sums, weights = Ranking(answers=("a",)).loss(Outputs(logits), batch)
    assert torch.allclose(sums, torch.tensor([(0.6 * 2 + 0.4 * 1) * torch.tensor(5.0).log(), 0.0]))
    assert weights.tolist() == [1, 0]


def test_ranking_scores_the_chosen_answer() -> None:
    given = split(answers=[["a"] * 4 + ["b"] * 2, ["c"]])
    scores = Ranking(answers=("a", "b")).score({"label": [1, 0]}, given, np.arange(2))
    assert tuple(scores) == Ranking.metrics
    assert scores["accuracy"].tolist() == pytest.approx([0.6, 0.0])
