"""Visual question answering: labels and scores, the loss by hand, lists by group, choices, image pairs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from documents import Letters, png

from simfl.data.base import Split
from simfl.errors import ConfigError, DataError
from simfl.objectives.answers import Normalization, SoftRule, top_answers
from simfl.objectives.vqa import Vqa
from simfl.objectives.vqa_text import normalize_vqa_answer
from simfl.protocol import Examples, Outputs
from simfl.session.check_data import check_best_score


def split(**columns: Sequence[object]) -> Split:
    """Questions about one or two white pages."""
    count = len(next(iter(columns.values())))
    base = {"document": pa.array([0] * count, pa.int32()), "question": ["ab"] * count}
    pages = pa.table({"id": ["d0", "d1"], "image": [png((255, 255, 255)), png((0, 0, 0))]})
    return Split(pa.table(base | columns), pages)


def encoded(objective: Vqa, given: Split) -> Examples:
    return objective.encode(given, Letters())


def test_a_question_has_start_and_end_token() -> None:
    rows = encoded(Vqa(), split(label=[0])).rows
    assert rows["input_ids"].tolist() == [[1, 10, 11, 1, 0, 0, 0, 0]]
    assert rows["attention_mask"].tolist() == [[True] * 4 + [False] * 4]
    assert encoded(Vqa(max_tokens=3), split(label=[0])).rows["input_ids"].tolist() == [[1, 10, 1]]


def test_questions_about_one_image_share_it() -> None:
    examples = encoded(Vqa(), split(label=[0, 1], document=pa.array([1, 0], pa.int32())))
    batch = examples.take(torch.tensor([0, 1, -1]))
    assert batch["pixel_values"].shape == (3, 3, 4, 4)
    assert batch["pixel_values"][:, 0, 0, 0].tolist() == [0, 255, 0]


def answered(path: Path, lists: object) -> Vqa:
    (path / "answers.json").write_text(json.dumps(lists))
    return Vqa(answers=str(path / "answers.json"))


def test_the_score_of_an_answer_depends_on_how_many_people_gave_it(tmp_path: Path) -> None:
    people = [["Yes"] * 4 + ["no"] * 2 + ["maybe"] * 4, ["no", " NO ", "no"], ["who knows"]]
    rows = encoded(answered(tmp_path, ["yes", "no"]), split(answers=people)).rows
    assert rows["labels"].tolist() == [[0, 1], [1, -1], [-1, -1]]
    assert torch.allclose(rows["scores"], torch.tensor([[1.0, 0.6], [1.0, 0.0], [0.0, 0.0]]))
    assert rows["label"].tolist() == [0, 1, -100]
    assert rows["num_answers"].tolist() == [2, 2, 2]


def test_each_group_has_its_own_list(tmp_path: Path) -> None:
    given = split(answers=[["red"], ["no"], ["red"]], group=["art", "web", "web"])
    rows = encoded(answered(tmp_path, {"art": ["red"], "web": ["yes", "no", "red"]}), given).rows
    assert rows["label"].tolist() == [0, 1, 2]
    assert rows["num_answers"].tolist() == [1, 3, 3]
    with pytest.raises(DataError, match="no list for the group 'web'"):
        encoded(answered(tmp_path, {"art": ["red"]}), given)


def test_top_answers_returns_the_most_frequent_answers_by_group() -> None:
    given = split(answers=[["b"], ["a"], ["B"], ["c"]], group=["x", "x", "x", "y"])
    assert top_answers(given, 2, by="group") == {"x": ["b", "a"], "y": ["c"]}
    assert top_answers(given, 1) == {"": ["b"]}


def test_a_list_can_be_a_text_file_with_one_answer_per_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("red\nblue\n")
    rows = encoded(Vqa(answers=str(tmp_path / "a.txt")), split(answers=[["Blue"]])).rows
    assert rows["label"].tolist() == [1]
    with pytest.raises(ConfigError, match=r"objective\.answers: .* cannot be read"):
        encoded(Vqa(answers=str(tmp_path / "none.txt")), split(answers=[["Blue"]]))


def test_the_counts_column_replaces_repeated_answers(tmp_path: Path) -> None:
    given = split(answers=[["yes", "no"]], counts=[[7, 3]])
    rows = encoded(answered(tmp_path, ["yes", "no"]), given).rows
    assert torch.allclose(rows["scores"], torch.tensor([[1.0, 0.9]]))


def test_one_split_can_mix_lists_labels_and_choices(tmp_path: Path) -> None:
    columns = {
        "answers": [["no"], ["True"], ["b"]],
        "label": pa.array([None, 1, 2], pa.int32()),
        "choices": pa.array([None, None, ["a", "c", "b"]], pa.list_(pa.string())),
        "dataset": ["vqa", "nlvr2", "vcr"],
        "second": pa.array([None, 1, None], pa.int32()),
    }
    objective = answered(tmp_path, {"vqa": ["yes", "no"]})
    objective = Vqa(answers=objective.answers, by="dataset", tasks=("vqa", "nlvr2", "vcr"))
    rows = encoded(objective, split(**columns)).rows
    assert rows["label"].tolist() == [1, 1, 2]
    assert rows["num_answers"].tolist() == [2, 2**31 - 1, 3]
    assert rows["head"].tolist() == [0, 1, 2]
    assert rows["document"].tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert rows["input_ids"][2, 1].tolist() == [1, 10, 11, 1, 12, 1, 0, 0]


def test_vqa_refuses_answers_without_a_list() -> None:
    with pytest.raises(DataError, match=r"give a list under objective\.answers"):
        encoded(Vqa(), split(answers=[["red"]]))


def test_vqa_softmax_loss_by_hand() -> None:
    logits = torch.tensor([[0.0, 0.0], [math.log(3), 0.0], [5.0, 0.0], [1.0, 2.0]])
    batch = {
        "labels": torch.tensor([[0, 1], [1, -1], [-1, -1], [0, -1]]),
        "scores": torch.tensor([[1.0, 0.5], [0.6, 0.0], [0.0, 0.0], [1.0, 0.0]]),
        "mask": torch.tensor([1.0, 1.0, 1.0, 0.0]),
    }
    sums, weights = Vqa().loss(Outputs(logits), batch)
    assert torch.allclose(sums, torch.tensor([math.log(2), math.log(4), 0.0, 0.0]))
    assert weights.tolist() == [1, 1, 1, 0]


def test_sigmoid_loss_is_binary_cross_entropy_summed_over_answers() -> None:
    logits, target = torch.tensor([[0.5, -1.0, 2.0]]), torch.tensor([[0.3, 0.0, 1.0]])
    batch = {"labels": torch.tensor([[2, 0]]), "scores": torch.tensor([[1.0, 0.3]]), "mask": torch.ones(1)}
    sums, _ = Vqa(criterion="sigmoid").loss(Outputs(logits), batch)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="sum")
    assert torch.allclose(sums[0], expected)


def test_soft_accuracy_is_the_score_of_the_chosen_answer(tmp_path: Path) -> None:
    people = [["yes"] * 4 + ["no"] * 2, ["no"], ["maybe"]]
    scores = answered(tmp_path, ["yes", "no"]).score({"label": [1, 1, 0]}, split(answers=people), np.arange(3))
    assert tuple(scores) == Vqa.metrics
    assert scores["accuracy"].tolist() == pytest.approx([0.6, 1.0, 0.0])
    assert scores["exact"].tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("soft", "expected"),
    [
        ("auto", [1.0, 0.5, 2 / 3, 0.9, 1.0]),
        ("vqa", [0.3, 0.3, 0.6, 0.9, 1.0]),
        ("share", [1.0, 0.5, 2 / 3, 0.3, 0.4]),
        ("any", [1.0] * 5),
    ],
)
def test_the_rule_of_vqa_needs_four_people(soft: SoftRule, expected: list[float]) -> None:
    people = [["a"], ["a", "b"], ["a", "a", "b"], ["a"] * 3 + ["b"] * 7, ["a"] * 4 + ["b"] * 6]
    scores = Vqa(answers=("a",), soft=soft).score({"label": [0] * 5}, split(answers=people), np.arange(5))
    assert scores["accuracy"].tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("The Cat.", "cat"),
        (" two  dogs\n", "2 dogs"),
        ("none", "0"),
        ("dont", "don't"),
        ("couldnt've", "couldn't've"),
        ("1,000", "1000"),
        ("3.5", "3.5"),
        ("red/blue", "red blue"),
        ("a blue-green car !", "blue green car"),
        ("it's", "it's"),
    ],
)
def test_answers_are_normalized_as_in_the_evaluation_of_vqa(given: str, expected: str) -> None:
    assert normalize_vqa_answer(given) == expected
    assert normalize_vqa_answer(expected) == expected


def test_normalized_answers_are_counted_together() -> None:
    given = split(answers=[["a cat", "The cat.", "cat", "cats"]])
    plain, vqa = (Vqa(answers=("cat",), soft="share", normalize=rule) for rule in ("plain", "vqa"))
    assert plain.score({"label": [0]}, given, np.arange(1))["accuracy"].tolist() == [0.25]
    assert vqa.score({"label": [0]}, given, np.arange(1))["accuracy"].tolist() == [0.75]
    assert top_answers(given, 1, normalization="vqa") == {"": ["cat"]}


def test_a_list_with_the_same_answer_twice_is_refused() -> None:
    given = split(answers=[["cat"]])
    with pytest.raises(ConfigError, match=r"objective\.answers: 'Cat' and 'cat' are the same answer"):
        encoded(Vqa(answers=("Cat", "dog", "cat")), given)
    assert encoded(Vqa(answers=("cat", "a cat")), given).rows["label"].tolist() == [0]
    with pytest.raises(ConfigError, match=r"'cat' and 'a cat' are the same answer, with normalize: vqa"):
        encoded(Vqa(answers=("cat", "a cat"), normalize="vqa"), given)


@pytest.mark.parametrize("people", [["cat"], ["cat"] * 3, ["cat"] * 4, ["cat"] * 10])
@pytest.mark.parametrize("normalize", ["plain", "vqa"])
def test_perfect_predictions_have_the_best_score(people: list[str], normalize: Normalization) -> None:
    assert check_best_score(Vqa(answers=("dog", "cat"), normalize=normalize), split(answers=[people] * 3)) == []


def test_a_rule_that_cannot_give_the_best_score_is_refused_by_data_set() -> None:
    given = split(answers=[["cat"] * 10, ["cat"]], dataset=["vqa", "gqa"])
    with pytest.raises(DataError, match=r"^perfect predictions have accuracy 0\.30 on gqa, expected 1: "):
        check_best_score(Vqa(answers=("cat",), soft="vqa"), given)


def test_answers_on_which_people_disagree_are_noted() -> None:
    given = split(answers=[["cat"] * 10, ["cat"] * 3 + list("abcdefg")])
    assert check_best_score(Vqa(answers=("cat",)), given) == ["perfect predictions have accuracy 0.950, not 1"]


def test_choices_follow_their_question() -> None:
    rows = encoded(Vqa(), split(label=[1, 0], choices=[["a", "b", "c"], ["d", "e"]])).rows
    assert rows["input_ids"].shape == (2, 3, 8)
    assert rows["input_ids"][0, 1].tolist() == [1, 10, 11, 1, 11, 1, 0, 0]
    assert rows["num_answers"].tolist() == [3, 2]
    assert rows["document"].tolist() == [[0, 0, 0], [0, 0, 0]]


def test_two_images_of_one_question_share_its_text() -> None:
    rows = encoded(Vqa(), split(label=[1], second=pa.array([1], pa.int32()))).rows
    assert rows["document"].tolist() == [[0, 1]]
    assert rows["input_ids"][0, 0].tolist() == rows["input_ids"][0, 1].tolist() == [1, 10, 11, 1, 0, 0, 0, 0]


def test_tasks_select_heads_by_name() -> None:
    given = split(label=[0, 1], group=["ve", "vqa"])
    assert encoded(Vqa(tasks=("vqa", "ve")), given).rows["head"].tolist() == [1, 0]
    with pytest.raises(ConfigError, match=r"objective\.tasks: the data have a task 've'; allowed: vqa"):
        encoded(Vqa(tasks=("vqa",)), given)


def test_vqa_refuses_data_without_images() -> None:
    with pytest.raises(DataError, match="needs documents"):
        encoded(Vqa(), Split(split(label=[0]).examples))
