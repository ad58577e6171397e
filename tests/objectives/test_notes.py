"""Notes on what limits and data leave out: counted by the objectives, and reported once in a run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from documents import Letters, page, png, question, split

import simfl
from simfl.data.base import Split
from simfl.errors import DataError
from simfl.objectives.docvqa import DocVqa
from simfl.objectives.ranking import Ranking
from simfl.objectives.recognition import Recognition
from simfl.objectives.vqa import Vqa

PROMPT = len("question: ?  context: ")
BOXES = [0.1, 0.1, 0.2, 0.2]


def asked(words: list[str], answers: list[list[str]], image: bytes | None = png((0, 0, 0))) -> Split:
    pages = [page(words, BOXES * len(words), image, "a")]
    return split(pages, [question(0, "?", given, f"q{row}") for row, given in enumerate(answers)])


def test_words_and_answers_that_a_limit_cuts_are_counted() -> None:
    data = asked(["ab", "cdef", "g"], [["a"], ["abcdef"]])
    notes = DocVqa(max_tokens=PROMPT + 5, max_answer=4).encode(data, Letters()).notes
    assert notes == (
        f"max_tokens {PROMPT + 5}: 4 of 6 words are cut, in 2 of 2 examples",
        "max_answer 4: the answer is cut in 1 of 2 examples",
    )
    assert DocVqa(max_tokens=PROMPT + 8).encode(data, Letters()).notes == ()


def test_a_question_that_is_cut_and_a_page_without_an_image_are_counted() -> None:
    data = asked(["ab"], [["a"], []], image=None)
    notes = DocVqa(max_tokens=8).encode(data, Letters()).notes
    assert notes == (
        "max_tokens 8: 2 of 2 words are cut, in 2 of 2 examples",
        "max_tokens 8: the question is cut in 2 of 2 examples",
        "1 of 2 examples have no answer and teach the model to give none",
        "1 of 1 documents have no image: a white page is shown",
    )


def test_an_answer_that_is_a_text_is_learned_whole() -> None:
    whole = asked(["ab"], [["abc"]])
    column = whole.examples.column_names.index("answers")
    plain = type(whole)(whole.examples.set_column(column, "answers", [["abc"]]), whole.documents)
    assert DocVqa().encode(plain, Letters()).rows["labels"][0, :4].tolist() == [10, 11, 12, 1]
    assert DocVqa().score({"answer": ["abc"]}, plain, np.array([0]))["accuracy"].tolist() == [1]


def test_words_and_boxes_are_matched_document_by_document() -> None:
    pages = [page(["a"], BOXES * 2, None, "first"), page(["a", "b", "c"], BOXES * 2, None, "second")]
    with pytest.raises(DataError, match=r"^docvqa: document 'first': 1 words have 2 boxes$"):
        DocVqa().encode(split(pages, [question(0, "?", ["a"])]), Letters())


@pytest.mark.parametrize("box", [[0.1, 0.1, float("nan"), 0.2], [10, 10, 20, 20], [0.2, 0.1, 0.1, 0.2]])
def test_a_box_that_is_none_is_refused_by_the_encoding_too(box: list[float]) -> None:
    data = split([page(["a", "b"], BOXES + box, None, "d")], [question(0, "?", ["a"])])
    with pytest.raises(DataError, match=r"^docvqa: document 'd': word 1 has the box \[.*\], expected left, top"):
        DocVqa().encode(data, Letters())


def test_a_document_that_does_not_exist_is_refused_by_the_encoding_too() -> None:
    for objective in (DocVqa(), Vqa(answers=("a",)), Ranking(answers=("a",))):
        data = split([page(["a"], BOXES, png((0, 0, 0)))], [question(3, "?", ["a"])])
        with pytest.raises(DataError, match="row 0: document 3, but there are 1 documents"):
            objective.encode(data, Letters())


def test_questions_that_are_cut_and_answers_outside_of_the_list_are_counted() -> None:
    data = split(
        [page([], [], png((0, 0, 0)))],
        [question(0, "abcdefgh", ["a"], "1"), question(0, "ab", ["z"], "2"), question(0, "ab", ["a"], "3")],
    )
    notes = Vqa(answers=("a", "b"), max_tokens=6).encode(data, Letters()).notes
    assert notes == (
        "max_tokens 6: the question is cut in 1 of 3 examples",
        "1 of 3 examples have no answer that can be chosen, so they teach nothing and score 0",
    )
    assert Ranking(answers=("a", "b"), max_tokens=6).encode(data, Letters()).notes == notes[:1]


def test_a_label_beyond_the_choices_is_refused() -> None:
    whole = split([page([], [], png((0, 0, 0)))], [question(0, "ab", [])])
    examples = whole.examples.append_column("choices", [[["x", "y"]]]).append_column("label", [[2]])
    with pytest.raises(DataError, match="answers: row 0, column 'label' is 2, allowed: 0 to 1"):
        Vqa().encode(type(whole)(examples, whole.documents), Letters())


def test_counts_and_answers_must_match() -> None:
    whole = split([page([], [], png((0, 0, 0)))], [question(0, "ab", ["a", "b"])])
    examples = whole.examples.append_column("counts", [[[3]]])
    with pytest.raises(DataError, match=r"answers: row 0 has 2 answers with counts \[3\]"):
        Vqa(answers=("a", "b")).encode(type(whole)(examples, whole.documents), Letters())


def test_words_that_are_cut_or_have_unknown_letters_are_counted() -> None:
    data = Split(pa.table({"image": [png((0, 0, 0))] * 3, "text": ["abcdef", "é", "ab"]}))
    assert Recognition(max_letters=4).encode(data, None).notes == (
        "max_letters 4: 1 of 3 words are cut",
        "1 of 3 words have letters outside of ASTER's 94, learned as unknown",
    )
    null = Split(pa.table({"image": [png((0, 0, 0))] * 2, "text": ["a", None]}))
    with pytest.raises(DataError, match="recognition: row 1, column 'text': null"):
        Recognition().encode(null, None)


@pytest.mark.parametrize("backend", ["inline", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_run_reports_each_note_once(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))
    items = [
        {"question": "total?", "answers": "a", "words": ["word"] * 50, "boxes": BOXES * 50, "image": png((n, 0, 0))}
        for n in range(8)
    ]
    phase = {"objective": {"name": "docvqa", "max_tokens": 32}, "rounds": 2, "participation": 1.0}
    phase["local"] = {"optimizer": "sgd", "learning_rate": 0.1, "steps": 1, "batch_size": 2}
    experiment = {"name": "long", "data": {"train": items, "valid": items[:2]}, "phases": [phase]}
    experiment |= {"model": {"name": "vt5", "weights": "vt5_tiny"}, "partition": {"by": "iid", "clients": 4}}
    simfl.run(experiment, out=tmp_path / "run", backend=backend, workers=2 if backend == "ray" else None)
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    cut = [line["text"] for line in lines if "words are cut" in line.get("text", "")]
    assert sorted(text.partition(":")[0] for text in cut) == ["data, split train", "data, split valid"]
