"""Scene-text recognition: labels, decoding, the loss by hand, word accuracy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch
from documents import png

from simfl.data.base import Split
from simfl.errors import DataError
from simfl.objectives.recognition import END, LETTERS, UNKNOWN, Recognition, decode_word, normalize_word
from simfl.protocol import Outputs


def split(*texts: str) -> Split:
    return Split(pa.table({"image": [png((9, 9, 9))] * len(texts), "text": list(texts)}))


def test_recognition_has_94_letters_in_the_order_of_aster() -> None:
    assert len(LETTERS) == END == 94
    assert (LETTERS[0], LETTERS[10], LETTERS[36], LETTERS[62]) == ("0", "a", "A", "!")


def test_words_have_an_end_token_and_padding() -> None:
    rows = Recognition(height=4, width=8).encode(split("a0", "Zé!b"), None).rows
    assert rows["labels"].tolist() == [[10, 0, END] + [-100] * 5, [61, UNKNOWN, 62, 11, END, -100, -100, -100]]
    assert rows["pixel_values"].shape == (2, 3, 4, 8)
    assert Recognition(max_letters=3).encode(split("abcd"), None).rows["labels"].tolist() == [[10, 11, END]]


def test_decode_word_stops_at_the_end_token() -> None:
    assert decode_word([10, UNKNOWN, 37, END, 3]) == "aB"
    assert decode_word([10, 11]) == "ab"


def test_word_accuracy_ignores_case_and_punctuation() -> None:
    assert normalize_word("It's 5!") == "its5"
    scores = Recognition().score({"text": ["its", "ITS", "it"]}, split("It's", "ITS", "its"), np.arange(3))
    assert tuple(scores) == Recognition.metrics
    assert scores["accuracy"].tolist() == [1, 1, 0]
    assert scores["exact"].tolist() == [0, 1, 0]
    assert scores["similarity"].tolist() == pytest.approx([1, 1, 2 / 3])  # "it" to "its": one edit of three letters


def test_recognition_loss_is_summed_over_letters_and_averaged_over_words() -> None:
    logits = torch.zeros(3, 2, 97)
    batch = {"labels": torch.tensor([[1, END], [END, -100], [5, END]]), "mask": torch.tensor([1.0, 1.0, 0.0])}
    sums, weights = Recognition().loss(Outputs(logits), batch)
    one = torch.tensor(97.0).log()
    assert torch.allclose(sums, torch.stack([2 * one, one, 0 * one]))
    assert weights.tolist() == [1, 1, 0]


def test_recognition_refuses_examples_without_text() -> None:
    with pytest.raises(DataError, match="no column 'text'"):
        Recognition().encode(Split(pa.table({"image": [png((0, 0, 0))]})), None)
