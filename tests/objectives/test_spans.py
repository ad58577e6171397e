"""Spans of words: labels, predictions and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from documents import page, split

from simfl.errors import DataError
from simfl.models.hf import HuggingFace
from simfl.models.hf_tokenizer import HfTokenizer, load_tokenizer
from simfl.objectives.docvqa import NO_LABEL
from simfl.objectives.spans import Spans
from simfl.protocol import Outputs

CONFIG = {
    "model_type": "layoutlmv3", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 8, "coordinate_size": 1, "shape_size": 2, "input_size": 16, "patch_size": 8,
}  # fmt: skip
TOKENIZER = HuggingFace(config=CONFIG, task="question_answering").tokenizer()
WORDS = ["Invoice", "total", "12", "to", "pay", "12"]


def data(*answers: list[str]) -> Any:
    boxes = [value for k in range(len(WORDS)) for value in (0.1, 0.1 * k, 0.5, 0.1 * k + 0.05)]
    questions = [
        {"id": f"q{k}", "document": 0, "question": "total ?", "answers": texts, "field": "total"}
        for k, texts in enumerate(answers)
    ]
    return split([page(WORDS, boxes)], questions)


def test_the_label_is_the_first_place_where_the_words_of_an_answer_follow_each_other() -> None:
    found = Spans().encode(data(["to pay"], ["missing", "12"], ["pay to"]), TOKENIZER)
    rows = found.rows
    for row, (first, last) in enumerate([(3, 4), (2, 2)]):
        start, end = rows["labels"][row].tolist()
        assert rows["word"][row, start] == first
        assert rows["word"][row, start - 1] != first
        assert rows["word"][row, end] == last
    assert rows["labels"][2].tolist() == [NO_LABEL, NO_LABEL]
    assert found.notes == ("the words of 1 of 3 answers are not on their page; they are not learned",)
    assert rows["bbox"][0, rows["labels"][0, 0]].tolist() == [100, 300, 500, 350]


def test_the_best_span_of_words_on_the_page_is_the_answer() -> None:
    chosen = Spans(max_answer=4)
    found = chosen.encode(data(["to pay"], ["to pay"]), TOKENIZER)
    batch = found.take(torch.tensor([0, 1]))
    start, end = (torch.zeros(batch["input_ids"].shape) for _ in range(2))
    for row in range(2):
        first, last = batch["labels"][row].tolist()
        start[row, first], end[row, last] = 5.0, 5.0
    start[:, 0], end[1, 0] = 50.0, 50.0  # of the question

    def model(**inputs: Any) -> Any:
        return SimpleNamespace(start_logits=start, end_logits=end)

    module: Any = type("Model", (), {"__call__": lambda self, **inputs: model(**inputs), "hf_tokenizer": TOKENIZER})()
    assert chosen.predict(module, batch)["answer"] == ["to pay", "to pay"]
    sums, weights = chosen.loss(Outputs(torch.stack([start, end], 1)), batch)
    picked = [-start.log_softmax(-1)[0, batch["labels"][0, 0]], -end.log_softmax(-1)[0, batch["labels"][0, 1]]]
    torch.testing.assert_close(sums[0], picked[0] + picked[1])
    assert weights.tolist() == [2, 2]


def test_words_are_cut_from_the_end_until_the_question_fits() -> None:
    whole = Spans().encode(data(["12"]), TOKENIZER).rows["word"][0]
    limit = int((whole >= 0).sum()) + int((whole < 0).nonzero()[0]) - 1
    found = Spans(max_tokens=limit).encode(data(["12"]), TOKENIZER)
    assert found.rows["attention_mask"].sum() <= limit
    assert found.rows["word"].max() < len(WORDS) - 1
    with pytest.raises(DataError, match="spans: the question of row 0 has more than max_tokens 1 tokens"):
        Spans(max_tokens=1).encode(data(["12"]), TOKENIZER)


def test_a_model_that_reads_no_boxes_is_refused() -> None:
    with pytest.raises(DataError, match="spans: needs a model that reads words with boxes"):
        Spans().encode(data(["12"]), HfTokenizer(load_tokenizer(None)))
