"""The recipe of the page reader: where letters are on drawn pages, conversations, and the folder that it ships."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from simfl.models.composed import composed_folder
from simfl.models.hf import HuggingFace

RECIPE = Path(__file__).resolve().parents[2] / "experiments/page_reader"
MODULES = ("drawing", "network", "drawn_pages", "reader_scores", "shipping", "pretrain_reader")


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


VOCABULARY = ("page", "words", "Reading", "paper", "between")


def byte_level_tokenizer(image: str) -> Any:
    """Return a tokenizer of bytes and some words, of SmolLM2's kind: digits are tokens of their own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    found = Tokenizer(models.BPE())
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bytes_of])
    found.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>", image]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=special, initial_alphabet=alphabet)
    found.train_from_iterator([" ".join(("", *VOCABULARY, "user", "assistant"))] * 9, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=found, eos_token="<|im_end|>", pad_token="<|im_end|>")


@pytest.fixture(scope="module")
def base(recipe: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny language model."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("base")
    found = byte_level_tokenizer(recipe.network.IMAGE_TOKEN)
    found.save_pretrained(folder)
    torch.manual_seed(0)
    text = transformers.LlamaConfig(
        vocab_size=len(found), hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, tie_word_embeddings=True, initializer_range=0.2,
    )  # fmt: skip
    transformers.LlamaForCausalLM(text).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def writer(recipe: SimpleNamespace, base: Path) -> Any:
    return recipe.drawn_pages.Writer(base)


@pytest.mark.parametrize("kind", ["invoice", "turned invoice", "text"])
def test_letters_are_where_the_page_is_dark(recipe, kind):
    drawing: ModuleType = recipe.drawing
    number = {"invoice": 0, "turned invoice": 4, "text": 1}[kind]
    draw = (lambda: drawing.draw_text("test", number, VOCABULARY)) if kind == "text" else (
        lambda: drawing.draw_page("test", number)
    )  # fmt: skip
    page, again = draw(), draw()
    assert np.array_equal(page.pixels, again.pixels)
    assert np.array_equal(page.slots, again.slots)
    assert page.pixels.shape == (drawing.SIDE, drawing.SIDE)
    cells = page.slots.reshape(drawing.GRID, drawing.GRID * drawing.SLOTS)
    letters = sum(len(word) for word in page.words)
    assert (cells > 0).sum() > 0.85 * letters  # the others share a cell with a letter before them
    shade = 255 - page.pixels.reshape(drawing.GRID, drawing.PATCH, -1, drawing.PATCH // drawing.SLOTS).astype(float)
    shade = shade.mean((1, 3))
    printed = cells > 0
    assert shade[printed].mean() > 2 * shade[~printed].mean()
    assert shade[printed].mean() > 1.3 * shade[np.roll(printed, 1, 0)].mean()  # a line's height away


def test_a_conversation_teaches_the_answers_with_their_ends(writer):
    ids, learned = writer.conversation([("Who issued it?", "Ashdown"), ("How many?", "53")])
    assert len(ids) == len(learned)
    assert writer.tokenizer.decode(ids[learned].tolist(), skip_special_tokens=True) == "Ashdown53"
    assert (ids[learned] == writer.tokenizer.eos_token_id).sum() == 2
    long = [(f"Question {number}?", "an answer of some words") for number in range(60)]
    ids, learned = writer.conversation(long)
    turns = (ids[learned] == writer.tokenizer.eos_token_id).sum()
    assert 2 < turns < 60  # whole turns, as many as there is room for


def test_places_are_spread_to_different_patches_by_least_squares(recipe):
    spread = recipe.drawing.spread
    assert spread(np.array([3.2, 7.9, 8.4]), 40).tolist() == [3, 8, 9]
    assert spread(np.array([10.0, 10.4, 10.8, 11.2, 11.6]), 40).tolist() == [9, 10, 11, 12, 13]
    assert spread(np.array([38.0, 38.4, 38.8, 39.2]), 40).tolist() == [36, 37, 38, 39]
    generator = np.random.default_rng(0)
    for _ in range(20):
        places = np.sort(generator.random(5) * 7)
        best = min(itertools.combinations(range(8), 5), key=lambda c: ((np.array(c) - places) ** 2).sum())
        found = spread(places, 8)
        assert ((found - places) ** 2).sum() <= ((np.array(best) - places) ** 2).sum() + 1  # but for rounding


def test_patches_show_the_tokens_of_their_line_in_order(recipe, writer):
    page = recipe.drawing.draw_page("test", 0)
    shown = writer.shown(page)
    assert shown.shape == (recipe.drawing.GRID**2,)
    expected = [token for ids in writer.encode([f" {word}" for word in page.words]) for token in ids]
    expected = [token for token in expected if token != writer.space]
    assert sorted(shown[shown != recipe.drawing.NOTHING].tolist()) == sorted(expected)
    row = int(page.places[0][:, 1].mean()) * recipe.drawing.GRID
    first = [token for token in writer.encode([f" {page.words[0]}"])[0] if token != writer.space]
    line = shown[row : row + recipe.drawing.GRID]
    assert line[line != recipe.drawing.NOTHING][: len(first)].tolist() == first


def test_the_language_model_in_training_equals_that_of_transformers(recipe, base):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base).eval()
    language = recipe.network.Language(model.model)
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(2, 9, 32, generator=generator)
    positions = torch.arange(9).expand(2, -1) * 3  # with gaps
    expected = model.model(inputs_embeds=embeddings, position_ids=positions).last_hidden_state
    torch.testing.assert_close(language(embeddings, positions), expected, rtol=1e-4, atol=1e-5)
    for parameter in language.parameters():
        parameter.data.normal_(std=0.3, generator=generator)
    found = language(embeddings, positions)
    assert not torch.allclose(found, expected, atol=0.1)
    language.write_into(model.model)
    merged = model.model(inputs_embeds=embeddings, position_ids=positions).last_hidden_state
    torch.testing.assert_close(found, merged, rtol=1e-4, atol=1e-5)
    found.sum().backward()
    assert all(parameter.grad is not None for parameter in language.parameters())


@pytest.mark.slow
def test_the_shipped_folder_gives_the_trained_model(recipe, base, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))
    network = recipe.network
    model, found = network.build(base)
    language = network.Language(model.model.language_model)
    for parameter in language.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    recipe.shipping.pack(model, language, tmp_path / "reader", str(base))
    recipe.shipping.unpack(model, language, tmp_path / "reader")
    language.write_into(model.model.language_model)
    whole = composed_folder(tmp_path / "reader", lambda: base)
    again = transformers.AutoModelForImageTextToText.from_pretrained(whole).eval()
    page = network.as_floats(torch.from_numpy(recipe.drawing.draw_page("test", 0).pixels.copy())[None])
    image = network.IMAGE_TOKEN * recipe.drawing.GRID**2
    text = network.user_turn("Who issued it?", network.BEFORE_IMAGE + image)
    inputs = found([text], return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        expected = model.eval()(input_ids=inputs["input_ids"], pixel_values=page).logits
        logits = again(input_ids=inputs["input_ids"], pixel_values=page).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    given = HuggingFace(weights=str(tmp_path / "reader"))
    processor = given.tokenizer().processor
    assert processor is not None
    assert processor.text("", "Who issued it?").replace(network.IMAGE_TOKEN, image) == text


@pytest.mark.slow
def test_training_writes_weights_and_scores_them(recipe, base, tmp_path):
    script = RECIPE / "pretrain_reader.py"
    given = "--encoder-seconds 1 --reader-seconds 2 --encoder-batch 1 --batch 1 --processes 1 --capacity 16 --first 16"
    scored = "--questions 1 --few-questions 1 --save-seconds 0.5"
    command = [sys.executable, str(script), str(tmp_path / "out"), "--base", str(base), *f"{given} {scored}".split()]
    environment = {name: value for name, value in os.environ.items() if name != "SIMFL_REAL_DATA"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    facts = json.loads((tmp_path / "out/facts.json").read_text())
    assert set(facts["scores"]) == {"reading", "drawn", "invoices"}
    assert "characters" in (tmp_path / "out/curve.csv").read_text().splitlines()[0]
    assert recipe.shipping.read_parts(tmp_path / "out/model.safetensors")[1] == 2.0
