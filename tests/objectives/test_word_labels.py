"""Labels of words: which tokens carry them, how spans are scored, and models of token classification from settings."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

import simfl
from simfl.data.base import Split
from simfl.errors import ConfigError, DataError
from simfl.models.hf_tokenizer import HfTokenizer, load_tokenizer
from simfl.objectives.word_labels import NO_LABEL, WORD, WordLabels

CLASSES = ("O", "B-SUM", "I-SUM", "B-DAY")
TOKENS = HfTokenizer(load_tokenizer(None))
OBJECTIVE = WordLabels(classes=CLASSES)
BERT = {
    "model_type": "bert",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
LAYOUT = {
    "model_type": "layoutlmv3", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 32, "coordinate_size": 3, "shape_size": 2, "input_size": 32, "patch_size": 8,
    "max_position_embeddings": 128, "rel_pos_bins": 8, "max_2d_position_embeddings": 1024,
}  # fmt: skip


def split_of(*labels: list[Any], words: tuple[str, ...] = ("total", "12", "euros", "on", "Monday")) -> Split:
    return Split(pa.table({"words": [list(words)] * len(labels), "labels": list(labels)}))


def test_the_first_token_of_each_word_has_its_label() -> None:
    rows = OBJECTIVE.encode(split_of(["O", "B-SUM", "I-SUM", "O", "B-DAY"]), TOKENS).rows
    learned = rows["labels"][0] != NO_LABEL
    assert rows["labels"][0][learned].tolist() == [0, 1, 2, 0, 3]
    assert rows[WORD][0][learned].tolist() == [0, 1, 2, 3, 4]
    assert int(rows["attention_mask"][0].sum()) > 5, "words have several tokens"


def test_words_that_do_not_fit_are_left_out_and_count_as_wrong() -> None:
    objective = WordLabels(classes=CLASSES, max_tokens=8)
    examples = objective.encode(split_of(["O", "B-SUM", "I-SUM", "O", "B-DAY"]), TOKENS)
    read = int((examples.rows[WORD] >= 0).sum())
    assert 0 < read < 5
    assert examples.notes == (f"max_tokens 8: {5 - read} of 5 words are left out",)
    scores = objective.score({"labels": [["O"]]}, split_of(["O", "B-SUM", "I-SUM", "O", "B-DAY"]), np.array([0]))
    assert scores["accuracy"][0] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("found", "f1"),
    [
        (["O", "B-SUM", "I-SUM", "O", "B-DAY"], 1.0),
        (["O", "B-SUM", "O", "O", "B-DAY"], 0.5),  # one of two spans on each side
        (["O", "I-SUM", "I-SUM", "O", "O"], 2 / 3),
        (["O"] * 5, 0.0),
    ],
)
def test_a_span_is_right_if_its_kind_and_words_are(found: list[str], f1: float) -> None:
    split = split_of(["O", "B-SUM", "I-SUM", "O", "B-DAY"])
    assert OBJECTIVE.score({"labels": [found]}, split, np.array([0]))["f1"][0] == pytest.approx(f1)
    assert OBJECTIVE.score(OBJECTIVE.perfect(split, np.array([0])), split, np.array([0]))["f1"][0] == 1


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["O"], "row 0 has 5 words and 1 labels"),
        (["O", "B-SUN", "O", "O", "O"], "unknown label 'B-SUN'; did you mean 'B-SUM'"),
        ([0, 1, 2, 3, 4], "unknown label 4"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels: list[Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        OBJECTIVE.check(split_of(labels))
    with pytest.raises(ConfigError, match="at least two different names"):
        WordLabels(classes=("O", "O"))


def page() -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


def rows_of(pages: bool) -> list[dict[str, Any]]:
    found = []
    for n in range(12):
        words = ["total", f"{n % 4}2", "on", ["Monday", "Friday"][n % 2]]
        row: dict[str, Any] = {"words": words, "labels": ["O", "B-SUM", "O", "B-DAY"], "shop": f"s{n % 2}"}
        if pages:
            row |= {"boxes": [[0.1, 0.2 * k, 0.4, 0.2 * k + 0.1] for k in range(4)], "image": page()}
        found.append(row)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("pages", [False, True])
def test_models_of_token_classification_learn_labels_alike_in_both_modes(pages: bool, tmp_path: Path) -> None:
    model = {
        "name": "hf", "config": LAYOUT if pages else BERT, "task": "token_classification",
        "adapters": {"kind": "lora", "rank": 2, "targets": ["query", "value"]},
    }  # fmt: skip
    phase = {
        "objective": {"name": "word_labels", "classes": list(CLASSES)}, "rounds": 2, "clients_per_round": 2,
        "local": {"optimizer": "adamw", "learning_rate": 0.02, "epochs": 8, "batch_size": 6},
    }  # fmt: skip
    data = {"train": rows_of(pages), "valid": rows_of(pages)[:4]}
    trained = []
    for mode in ("sequential", "vectorized"):
        run = simfl.run(
            {
                "name": mode, "data": data, "model": model, "phases": [phase], "execution": {"mode": mode},
                "partition": {"by": "natural", "column": "shop"},
            },
            out=tmp_path / mode, backend="inline",
        )  # fmt: skip
        trained.append(run.snapshot().server.weights)
        values = [row["value"] for row in run.evaluations().to_pylist() if row["metric"] == "f1"]
        assert values[-1] > values[0]
    assert any("classifier" in name for name in trained[0])
    for name, tensor in trained[0].items():
        torch.testing.assert_close(tensor, trained[1][name], rtol=1e-3, atol=1e-4)
