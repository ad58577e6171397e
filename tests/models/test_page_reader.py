"""The recipe of the page reader: where letters are on drawn pages, conversations, and the folder that it ships."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from simfl.models.composed import composed_folder
from simfl.models.hf import HuggingFace
from simfl.models.hf_tokenizer import load_tokenizer

RECIPE = Path(__file__).resolve().parents[2] / "experiments/page_reader"
MODULES = ("drawing", "network", "shipping", "pretrain_reader")


@pytest.fixture(scope="module")
def recipe() -> Iterator[SimpleNamespace]:
    """Import the scripts of the recipe as modules, and remove them afterwards."""
    sys.path.insert(0, str(RECIPE))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    finally:
        sys.path.remove(str(RECIPE))
        for name in MODULES:
            sys.modules.pop(name, None)


@pytest.fixture
def tokenizer(recipe: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> object:
    found = load_tokenizer(None)
    found.add_special_tokens({"additional_special_tokens": [recipe.network.IMAGE_TOKEN]})
    monkeypatch.setattr(recipe.pretrain_reader, "_tokenizer", found)
    return found


@pytest.mark.parametrize("number", [0, 4, 5])  # 4 and 5: turned and noisy
def test_letters_are_where_the_page_is_dark(recipe, number):
    drawing: ModuleType = recipe.drawing
    page = drawing.draw_page("test", number)
    again = drawing.draw_page("test", number)
    assert np.array_equal(page.pixels, again.pixels)
    assert np.array_equal(page.slots, again.slots)
    assert page.pixels.shape == (drawing.SIDE, drawing.SIDE)
    flat, owned = page.slots.reshape(-1), 0
    for word, cells in zip(page.words, page.cells, strict=True):
        assert len(word) == len(cells)
        owned += sum(
            cell >= 0 and flat[cell] == ord(char) for char, cell in zip(word, cells, strict=True) if char != "€"
        )
    letters = sum(len(word) - word.count("€") for word in page.words)
    assert owned > 0.9 * letters  # the others share a cell with a letter before them
    rows, columns = drawing.GRID * drawing.ROWS, drawing.GRID * drawing.COLUMNS
    cells = page.slots.reshape(drawing.GRID, drawing.GRID, drawing.ROWS, drawing.COLUMNS).swapaxes(1, 2)
    cells = cells.reshape(rows, columns)
    dark = 255 - page.pixels.reshape(rows, drawing.SIDE // rows, drawing.SIDE)
    shade = np.stack([part.mean((1, 2)) for part in np.array_split(dark, columns, 2)], 1)
    printed = cells > 0
    assert shade[printed].mean() > 2 * shade[~printed].mean()
    moved = np.roll(printed, 2, 0)  # a line's height away
    assert shade[printed].mean() > 1.3 * shade[moved].mean()


def test_a_conversation_teaches_the_answers_with_their_ends(recipe, tokenizer):
    ids, labels = recipe.pretrain_reader.conversation([("Who issued it?", "Ashdown"), ("How many?", "53")])
    assert (ids == tokenizer.convert_tokens_to_ids(recipe.network.IMAGE_TOKEN)).sum() == recipe.drawing.GRID**2
    learned = labels != recipe.pretrain_reader.NO_LABEL
    assert np.array_equal(labels[learned], ids[learned])
    assert tokenizer.decode(labels[learned].tolist(), skip_special_tokens=True).split() == ["ashdown", "53"]
    assert (labels == tokenizer.eos_token_id).sum() == 2


def test_tokens_of_words_are_assigned_to_the_patch_of_their_first_letter(recipe, tokenizer):
    page = recipe.drawing.draw_page("test", 0)
    patches, tokens = recipe.pretrain_reader.printed_tokens(page)
    assert len(patches) == len(tokens) >= len(page.words)
    firsts = [cells[0] // recipe.drawing.SLOTS for cells in page.cells if cells[0] >= 0]
    assert set(firsts) <= set(patches.tolist())


@pytest.mark.slow
def test_the_shipped_folder_gives_the_trained_model(recipe, tmp_path, monkeypatch):
    pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))
    found = load_tokenizer(None)
    found.add_special_tokens({"additional_special_tokens": [recipe.network.IMAGE_TOKEN]})
    found.save_pretrained(tmp_path / "base")
    torch.manual_seed(0)
    text = transformers.LlamaConfig(
        vocab_size=len(found), hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, tie_word_embeddings=True,
    )  # fmt: skip
    transformers.LlamaForCausalLM(text).save_pretrained(tmp_path / "base")
    model, _ = recipe.network.build(tmp_path / "base")
    recipe.pretrain_reader.add_lora(model.model.language_model)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    (tmp_path / "reader").mkdir()
    recipe.shipping.pack(model, tmp_path / "reader", str(tmp_path / "base"))
    whole = composed_folder(tmp_path / "reader", lambda: tmp_path / "base")
    again = transformers.AutoModelForImageTextToText.from_pretrained(whole).eval()
    page = recipe.pretrain_reader.as_floats(torch.from_numpy(recipe.drawing.draw_page("test", 0).pixels.copy())[None])
    inputs = found([recipe.network.user_turn("Who issued it?", True)], return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        expected = model.eval()(input_ids=inputs["input_ids"], pixel_values=page).logits
        logits = again(input_ids=inputs["input_ids"], pixel_values=page).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    given = HuggingFace(weights=str(tmp_path / "reader"))
    processor = given.tokenizer().processor
    assert processor is not None
    rendered = processor.text("", "Who issued it?")
    assert rendered.replace(recipe.network.IMAGE_TOKEN, recipe.network.IMAGE_TOKEN * recipe.drawing.GRID**2) == (
        recipe.network.user_turn("Who issued it?", True)
    )
