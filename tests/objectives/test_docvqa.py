"""Document question answering: inputs and loss by hand, both confidence rules."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from documents import Letters, page, png, question, split
from PIL import Image

from simfl.data.base import Split
from simfl.errors import DataError
from simfl.models.vt5 import VT5
from simfl.objectives.docvqa import PROMPT_BOX, DocVqa, confidence
from simfl.protocol import Examples, Outputs, Task

PROMPT = "question: hi?  context: "
BOXES = [0.1, 0.2, 0.29, 0.4, 0.5, 0.6, 1.0, 0.8]


def encoded(objective: DocVqa, tokenizer: Letters | None = None) -> Examples:
    documents = [page(["Ab", "c"], BOXES, png((255, 0, 9))), page([], [], None)]
    questions = [question(0, "hi?", ["Ab"]), question(1, "hi?", []), question(0, "hi?", ["c", "b"])]
    return objective.encode(split(documents, questions), tokenizer or Letters())


def test_docvqa_input_is_prompt_words_and_end_token_with_their_boxes() -> None:
    rows = encoded(DocVqa()).rows
    length = len(PROMPT) + 3 + 1  # a b c and the end
    assert rows["input_ids"].shape == (3, 32)
    prompt = Letters().encode([PROMPT])[0]
    assert rows["input_ids"][0].tolist() == [*prompt, 10, 11, 12, 1] + [0] * (32 - length)
    assert rows["boxes"][0].tolist() == (
        [list(PROMPT_BOX)] * len(PROMPT)
        + [[100, 200, 290, 400], [100, 200, 290, 400], [500, 600, 1000, 800], [0, 0, 0, 0]]
        + [[0, 0, 0, 0]] * (32 - length)
    )
    assert rows["attention_mask"].sum(-1).tolist() == [length, length - 3, length]
    assert rows["input_ids"][1].tolist() == [*prompt, 1] + [0] * (32 - length + 3)


def test_docvqa_labels_are_the_first_answer_in_lower_case_with_its_end_token() -> None:
    assert encoded(DocVqa()).rows["labels"].tolist() == [[10, 11, 1, -100], [1, -100, -100, -100], [12, 1, -100, -100]]


def test_a_drawn_answer_depends_on_the_question_id_alone() -> None:
    names = [f"q{i}" for i in range(40)]
    made = split([page(["x"], [0.0] * 4)], [question(0, "?", ["a", "b"], name) for name in names])
    labels = DocVqa(answer="drawn").encode(made, Letters()).rows["labels"][:, 0]
    assert set(labels.tolist()) == {10, 11}
    again = split([page(["x"], [0.0] * 4)], [question(0, "?", ["a", "b"], name) for name in names[::-1]])
    assert torch.equal(DocVqa(answer="drawn").encode(again, Letters()).rows["labels"][:, 0], labels.flip(0))


def test_with_a_box_scale_of_one_all_coordinates_below_one_become_zero() -> None:
    boxes = encoded(DocVqa(), Letters(box_scale=1)).rows["boxes"][0]
    words = boxes[len(PROMPT) : len(PROMPT) + 3].tolist()
    assert words == [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]]
    assert boxes[0].tolist() == list(PROMPT_BOX)


def test_a_long_page_is_cut_and_keeps_its_end_token() -> None:
    made = split([page(["abcdef"] * 50, [0.5] * 200)], [question(0, "hi?", ["a" * 30])])
    rows = DocVqa(max_tokens=40, max_answer=6).encode(made, Letters()).rows
    assert rows["input_ids"].shape == (1, 40)
    assert rows["attention_mask"].all()
    assert rows["input_ids"][0, len(PROMPT) :].tolist() == [*range(10, 16), *range(10, 16), 10, 11, 12, 1]
    assert rows["labels"].tolist() == [[10, 10, 10, 10, 10, 1]]


def test_a_prompt_longer_than_the_limit_is_cut_to_the_limit() -> None:
    rows = DocVqa(max_tokens=16).encode(split([page(["x"], [0.0] * 4)], [question(0, "a" * 90, ["b"])]), Letters()).rows
    assert rows["input_ids"].shape == (1, 16)
    assert rows["input_ids"][0, -1] == 1
    assert rows["boxes"][0, :15].tolist() == [list(PROMPT_BOX)] * 15


def test_page_images_have_the_models_size_and_missing_ones_are_white() -> None:
    examples = encoded(DocVqa())
    key, table = examples.shared["pixel_values"]
    assert (key, table.shape, table.dtype) == ("document", (2, 3, 4, 4), torch.uint8)
    assert table[0, :, 0, 0].tolist() == [255, 0, 9]
    assert (table[1] == 255).all()
    taken = examples.take(torch.tensor([2, 1, -1]))
    assert torch.equal(taken["pixel_values"], table[[0, 1, 0]])
    assert taken["mask"].tolist() == [1, 1, 0]


def test_page_images_can_be_files(tmp_path: object) -> None:
    Image.new("RGB", (5, 5), (1, 2, 3)).save(f"{tmp_path}/p.png")
    whole = split([page(["x"], [0.0] * 4)], [question(0, "?", ["a"])])
    paths = whole.documents.drop_columns(["image"]).append_column("image_path", pa.array([f"{tmp_path}/p.png"]))
    table = DocVqa().encode(Split(whole.examples, paths), Letters()).shared["pixel_values"][1]
    assert table[0, :, 0, 0].tolist() == [1, 2, 3]


def test_docvqa_refuses_data_without_documents_images_or_boxes_in_one_line() -> None:
    whole = split([page(["x"], [0.0] * 4, b"no image")], [question(0, "?", ["a"])])
    with pytest.raises(DataError, match="document d: not a readable image"):
        DocVqa().encode(whole, Letters())
    with pytest.raises(DataError, match="needs documents"):
        DocVqa().encode(Split(whole.examples), Letters())
    with pytest.raises(DataError, match="1 words have 2 boxes"):
        DocVqa().encode(split([page(["x"], [0.0] * 8)], [question(0, "?", ["a"])]), Letters())


def test_docvqa_loss_is_the_summed_cross_entropy_weighted_by_tokens() -> None:
    logits = torch.randn(3, 4, 20, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[3, 5, 1, -100], [1, -100, -100, -100], [4, 4, 4, 4]])
    sums, weights = DocVqa().loss(Outputs(logits), {"labels": labels, "mask": torch.tensor([1.0, 1.0, 0.0])})
    assert weights.tolist() == [3, 1, 0]
    assert sums[2] == 0
    expected = torch.nn.functional.cross_entropy(
        logits[:2].flatten(0, 1), labels[:2].flatten()
    )  # as transformers means
    assert torch.allclose(sums.sum() / weights.sum(), expected)


def test_both_confidence_rules_by_hand() -> None:
    tokens = torch.tensor([[7, 8, 1], [7, 1, 0], [7, 8, 9]])
    probs = torch.tensor([[0.5, 0.5, 0.9], [0.5, 0.8, 0.25], [0.5, 0.5, 0.5]])
    assert confidence(tokens, probs, "answer").tolist() == [0.25, 0.5, 0.125]
    assert confidence(tokens, probs, "batch").tolist() == pytest.approx([0.25, 0.4, 0.25])


def test_both_confidence_rules_agree_for_a_batch_of_one() -> None:
    tokens, probs = torch.tensor([[7, 8, 1]]), torch.tensor([[0.5, 0.7, 0.9]])
    assert torch.equal(confidence(tokens, probs, "answer"), confidence(tokens, probs, "batch"))


def test_docvqa_predictions_are_the_generated_tokens_as_text() -> None:
    def generate(max_tokens: int, **given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert sorted(given) == ["attention_mask", "boxes", "input_ids", "pixel_values"]
        assert max_tokens == 19  # with the start, transformers' default of 20
        return torch.tensor([[10, 11, 1], [1, 0, 0]]), torch.ones(2, 3) / 2

    module = SimpleNamespace(generate=generate, tokenizer=Letters())
    found = DocVqa().predict(module, encoded(DocVqa()).take(torch.tensor([0, 1])))
    assert found == {"answer": ["ab", ""], "confidence": [0.25, 1.0]}


def test_docvqa_scores_compare_with_the_answers_of_each_row() -> None:
    made = split([page(["x"], [0.0] * 4)], [question(0, "?", answers) for answers in (["zz"], ["12.50"], ["ab", "ac"])])
    scores = DocVqa().score({"answer": ["AC ", "12.60"]}, made, np.array([2, 1]))
    assert tuple(scores) == DocVqa.metrics
    assert scores["accuracy"].tolist() == [1, 0]
    assert scores["anls"].tolist() == [1, 0.8]
    assert DocVqa(anls_threshold="gt").score({"answer": ["zy"]}, made, np.array([0]))["anls"].tolist() == [0]


def test_vt5_memorises_four_answers() -> None:
    words = ["red", "blue", "oak", "elm"]
    made = split(
        [page([w], [0.1] * 4, png((9, 9, 9))) for w in words], [question(i, "what?", [w]) for i, w in enumerate(words)]
    )
    network = VT5(d_model=32, d_ff=64, num_layers=1, num_heads=2, dropout=0.0).build(Task(0))
    objective = DocVqa(max_answer=8)
    batch = objective.encode(made, network.tokenizer).take(torch.arange(4))
    optimizer = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], 5e-3)
    for _ in range(60):
        sums, weights = objective.loss(network(**{name: batch[name] for name in objective.inputs}), batch)
        optimizer.zero_grad()
        (sums.sum() / weights.sum()).backward()
        optimizer.step()
    predictions = objective.predict(network, batch)
    assert predictions["answer"] == words
    assert objective.score(predictions, made, np.arange(4))["anls"].mean() == 1
