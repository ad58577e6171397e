"""The bundled weights vt5_tiny: they load, match their card and copy; the recipe encodes as the `docvqa` objective."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
import torch
from PIL import Image
from torch import Tensor

from simfl.data.base import DOCUMENTS, QUESTIONS, Split
from simfl.models.tokenizer import Tokenizer
from simfl.models.vt5 import VT5
from simfl.objectives.docvqa import DocVqa
from simfl.protocol import Task

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "experiments/pretrain"
BUNDLED = ROOT / "packages/simfl-benchmarks/simfl_benchmarks/pretrained/vt5_tiny"
MODULES = (
    *("words", "tokenizer", "tables", "device_random", "grid", "questions", "encoding", "drawer", "corpus", "pages"),
    *("step", "stages", "prepare", "train", "rebuild", "zero_shot"),
)
FILES = ("model.safetensors", "config.json", "tokenizer.json", "curve.csv")
LENGTH = 192


@pytest.fixture(scope="module")
def recipe() -> Iterator[dict[str, ModuleType]]:
    """Import the scripts of the recipe as modules, and remove them afterwards."""
    sys.path.insert(0, str(RECIPE))
    try:
        yield {name: importlib.import_module(name) for name in MODULES}
    finally:
        sys.path.remove(str(RECIPE))
        for name in MODULES:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def text() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))


@pytest.fixture(scope="module")
def table(recipe: dict[str, ModuleType], text: tokenizers.Tokenizer) -> object:
    kinds = {kind: words[::8] for kind, words in recipe["tables"].kinds(0.04).items()}
    return recipe["tables"].build(text, kinds, recipe["questions"].prompt_words())


@pytest.fixture
def drawer(recipe: dict[str, ModuleType], text: tokenizers.Tokenizer, table: Any) -> Any:
    return recipe["drawer"].Drawer(table, {mark: text.token_to_id(mark) for mark in ":?"}, seed=3)


def as_split(encoded: Any, words: tuple[str, ...], marks: dict[int, str], pages: Tensor | None = None) -> Split:
    """Return the drawn documents as a split of a data set; `pages` [B, 3, S, S] (uint8) are their images."""
    source = encoded.source

    def spell(rows: torch.Tensor, appended: torch.Tensor) -> list[str]:
        return [words[w] + marks.get(m, "") for w, m in zip(rows.tolist(), appended.tolist(), strict=True) if w >= 0]

    documents, examples = [], []
    for i in range(len(source.words)):
        present = source.words[i] >= 0
        question = " ".join(spell(source.question[i], source.question_marks[i]))
        boxes = (source.boxes[i][present].flatten() / 1000).tolist()
        image = None if pages is None else png(pages[i])
        documents.append((str(i), "", spell(source.words[i], source.marks[i]), boxes, image, 8, 8))
        question = question.removeprefix("question: ").removesuffix(" context:")
        answer = " ".join(words[w] for w in source.answer[i].tolist() if w >= 0)
        examples.append((str(i), i, question, [answer], ""))
    tables = [
        pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)
        for schema, rows in ((QUESTIONS, examples), (DOCUMENTS, documents))
    ]
    return Split(*tables)


def png(page: Tensor) -> bytes:
    out = io.BytesIO()
    Image.fromarray(page.permute(1, 2, 0).contiguous().numpy()).save(out, "PNG")
    return out.getvalue()


def test_drawn_documents_are_encoded_as_by_the_objective(drawer: Any, text: tokenizers.Tokenizer) -> None:
    encoded = drawer.draw(64, 14, LENGTH)
    split = as_split(encoded, drawer.table.words, {number: mark for mark, number in drawer.marks.items()})
    rows = DocVqa(max_tokens=LENGTH, max_answer=16).encode(split, Tokenizer(text, 64)).rows
    assert (encoded.attention_mask.sum(1) == LENGTH).any(), "some documents should be truncated"
    assert (encoded.attention_mask.sum(1) < LENGTH).any(), "some documents should not be truncated"
    assert rows["input_ids"].tolist() == encoded.input_ids.tolist()
    assert rows["boxes"].tolist() == encoded.boxes.tolist()
    assert rows["attention_mask"].long().tolist() == encoded.attention_mask.tolist()
    assert rows["labels"].tolist() == encoded.labels[:, : rows["labels"].shape[1]].tolist()


def test_nearly_all_drawn_answers_are_in_the_model_inputs(drawer: Any) -> None:
    encoded = drawer.draw(256, 14, LENGTH)
    found = 0
    for ids, labels in zip(encoded.input_ids.tolist(), encoded.labels.tolist(), strict=True):
        answer = [piece for piece in labels if piece > 1]
        found += any(ids[i : i + len(answer)] == answer for i in range(len(ids)))
    assert found >= 0.97 * 256


def test_synthetic_invoices_are_encoded_as_by_the_objective(
    recipe: dict[str, ModuleType], text: tokenizers.Tokenizer
) -> None:
    packed = recipe["corpus"].pack(40)
    words = recipe["corpus"].texts(packed)
    table = recipe["tables"].build(text, {"common": ["a"]}, [], words)
    corpus = recipe["corpus"].Corpus(packed, table, seed=1, held_out=8)
    encoded = recipe["encoding"].encode(table, corpus.draw(32), LENGTH)
    split = as_split(encoded, table.words, {})
    rows = DocVqa(max_tokens=LENGTH, max_answer=16).encode(split, Tokenizer(text, 64)).rows
    width = rows["input_ids"].shape[1]
    assert rows["input_ids"].tolist() == encoded.input_ids[:, :width].tolist()
    assert rows["boxes"].tolist() == encoded.boxes[:, :width].tolist()
    assert rows["labels"].tolist() == encoded.labels[:, : rows["labels"].shape[1]].tolist()


def test_held_out_invoices_are_not_trained_on(recipe: dict[str, ModuleType], text: tokenizers.Tokenizer) -> None:
    packed = recipe["corpus"].pack(40)
    table = recipe["tables"].build(text, {"common": ["a"]}, [], recipe["corpus"].texts(packed))
    corpus = recipe["corpus"].Corpus(packed, table, seed=1, held_out=8)
    trained = set(packed["document"][: corpus.train].tolist())
    held = set(packed["document"][corpus.train :].tolist())
    assert len(held) == 8
    assert not trained & held


@pytest.mark.slow
def test_the_tokenizer_is_rebuilt_with_identical_bytes(recipe: dict[str, ModuleType], tmp_path: Path) -> None:
    recipe["tokenizer"].train().save(str(tmp_path / "tokenizer.json"))
    assert (tmp_path / "tokenizer.json").read_bytes() == (BUNDLED / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    "value", ["1.234,56", "2023-04-17", "€1,299.00", "re-2024/00123", "müller & söhne gmbh", "5 % rabatt", "l'été"]
)
def test_the_tokenizer_decodes_values_unchanged(text: tokenizers.Tokenizer, value: str) -> None:
    assert text.decode(text.encode(value, add_special_tokens=False).ids) == value


def test_tokens_of_a_word_do_not_depend_on_its_neighbours(text: tokenizers.Tokenizer) -> None:
    words = ["Total", "due:", "(EUR)", "1.234,56", "l'été", "№", "12kg"]
    together = text.encode("  ".join(words), add_special_tokens=False).ids
    alone = [piece for word in words for piece in text.encode(word, add_special_tokens=False).ids]
    assert together == alone


def test_page_images_are_dark_at_the_boxes_of_words(recipe: dict[str, ModuleType]) -> None:
    boxes = torch.tensor([[[0, 0, 250, 125], [500, 500, 1000, 1000]]])
    page = recipe["pages"].page_images(boxes, torch.tensor([[1.0, 0.0]]), torch.full((1, 1, 1), 0.6), 8)[0, 0]
    expected = np.full((8, 8), 255)
    expected[0, :2] = 102  # 255 · (1 − 0.6); an absent word is not drawn
    assert page.numpy().tolist() == expected.tolist()


def hashes(card: Path) -> dict[str, str]:
    """Return the hashes of files in a card."""
    return dict(re.findall(r"\| `([\w.]+)` \| `([0-9a-f]{64})` \|", card.read_text(encoding="utf8")))


def test_the_card_has_the_hashes_of_the_bundled_files() -> None:
    assert hashes(BUNDLED / "card.md") == {
        name: hashlib.sha256((BUNDLED / name).read_bytes()).hexdigest() for name in FILES
    }


def test_the_readme_has_the_hashes_that_a_rebuild_checks(recipe: dict[str, ModuleType]) -> None:
    readme = (RECIPE / "README.md").read_text(encoding="utf8")
    assert recipe["rebuild"].PREPARED in readme
    assert hashes(BUNDLED / "card.md")["tokenizer.json"] in readme


def test_ship_replaces_the_bundled_files_and_their_hashes_in_the_card(
    recipe: dict[str, ModuleType], tmp_path: Path
) -> None:
    stage, bundled = tmp_path / "page", tmp_path / "bundled"
    stage.mkdir()
    bundled.mkdir()
    shutil.copyfile(BUNDLED / "card.md", bundled / "card.md")
    for name in recipe["rebuild"].FILES:
        (stage / name).write_bytes(name.encode())
    recipe["rebuild"].ship(stage, bundled)
    shipped = {name: hashlib.sha256(name.encode()).hexdigest() for name in recipe["rebuild"].FILES}
    tokenizer = hashlib.sha256((BUNDLED / "tokenizer.json").read_bytes()).hexdigest()
    assert hashes(bundled / "card.md") == shipped | {"tokenizer.json": tokenizer}
    assert all((bundled / name).read_bytes() == name.encode() for name in shipped)


def test_bundled_weights_load_with_their_sizes_and_are_finite() -> None:
    config = json.loads((BUNDLED / "config.json").read_text())
    model = VT5(weights="vt5_tiny", dropout=0.0)
    weights = dict(model.build(Task(seed=0)).named_parameters())
    assert sum(tensor.numel() for tensor in weights.values()) == 6_759_872
    assert all(bool(tensor.isfinite().all()) for tensor in weights.values())
    assert "t5.lm_head.weight" not in weights, "the head must be tied"
    assert len(model.tokenizer()) == config["vocab_size"] == 3072


def test_bundled_weights_copy_values_from_drawn_documents(recipe: dict[str, ModuleType], drawer: Any) -> None:
    encoded = drawer.draw(32, 7, 127)
    present, ink = (encoded.source.words >= 0).float(), torch.full((32, 1, 1), 0.5)
    pages = recipe["pages"].page_images(encoded.source.boxes, present, ink, 64)
    split = as_split(encoded, drawer.table.words, {number: mark for mark, number in drawer.marks.items()}, pages)
    scores = recipe["zero_shot"].zero_shot("vt5_tiny", split, DocVqa(max_tokens=127), np.arange(32))
    words = split.documents["words"].to_pylist()
    random_guess = np.mean([1 / len(page) for page in words])  # accuracy of guessing the first word of the answer
    assert random_guess < 0.05
    assert scores["accuracy"] >= 0.5


def test_the_bundled_curve_ends_with_the_bundled_stage(recipe: dict[str, ModuleType]) -> None:
    rows = [line.split(",") for line in (BUNDLED / "curve.csv").read_text().splitlines()[1:]]
    whole = (RECIPE / "curve.csv").read_text()
    assert rows[-1][0] == "page"
    assert whole.startswith((BUNDLED / "curve.csv").read_text()), "later stages must continue the same curve"
    stages = {stage.name: stage for stage in recipe["stages"].STAGES}
    seen = dict.fromkeys(stages, 0)
    for (name, _, total, *_), (_, _, before, *_) in zip(rows, [["", "", "0"], *rows], strict=False):
        seen[name] += int(total) - int(before)
    assert seen["middle"] == stages["middle"].steps * stages["middle"].batch == 256_000
    assert seen["page"] == stages["page"].steps * stages["page"].batch == 204_800
    assert seen["mixed"] == seen["invoices"] == 0
