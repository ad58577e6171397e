"""The bundled start of ViLT: it loads, and is what its card says."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import torch
from safetensors.torch import load_file

from simfl.models.vault import Vault
from simfl.models.vilt import Vilt
from simfl.protocol import Task

START = Path(__file__).resolve().parents[2] / "simfl/starts/vilt_tiny"


def test_the_files_are_those_of_the_card() -> None:
    told = dict(re.findall(r"`([\w.]+)`: SHA-256 `(\w{64})`", (START / "card.md").read_text()))
    assert sorted(told) == ["config.json", "model.safetensors", "tokenizer.json"]
    for name, digest in told.items():
        assert hashlib.sha256((START / name).read_bytes()).hexdigest() == digest, name


def test_backbones_take_its_weights_and_draw_a_head() -> None:
    stored = load_file(START / "model.safetensors")
    network = Vilt(weights="vilt_tiny").build(Task(1, 7, None))
    own = dict(network.named_parameters())
    for name, tensor in stored.items():
        assert torch.equal(own[name], tensor.float()), name
    assert {name.partition(".")[0] for name in own.keys() - stored.keys()} == {"head"}
    assert own["head.answers.out.weight"].shape == (7, 128)


def test_a_question_is_read_with_its_own_pieces() -> None:
    model = Vilt(weights="vilt_tiny")
    tokenizer = model.tokenizer()
    assert tokenizer.decode(tokenizer.encode(["what is on the left?"])) == ["what is on the left?"]
    assert len(tokenizer) == model.build(Task(1, 7, None)).config.vocab_size == 399


def test_vault_takes_it_beside_a_bert_of_its_own() -> None:
    network = Vault(weights="vilt_tiny").build(Task(1, 7, None))
    stored = load_file(START / "model.safetensors")
    own = dict(network.named_parameters())
    assert torch.equal(own["pooler.dense.weight"], stored["pooler.dense.weight"].float())
    assert any(name.startswith("bert.") for name in own)
