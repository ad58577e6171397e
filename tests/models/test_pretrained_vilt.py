"""The bundled weights of ViLT: they load, and match their card."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import torch
from safetensors.torch import load_file

from simfl.models.vault import Vault
from simfl.models.vilt import Vilt
from simfl.protocol import Task

FOLDER = Path(__file__).resolve().parents[2] / "packages/simfl-benchmarks/simfl_benchmarks/pretrained/vilt_tiny"


def test_the_files_match_the_hashes_on_the_card() -> None:
    hashes = dict(re.findall(r"`([\w.]+)`: SHA-256 `(\w{64})`", (FOLDER / "card.md").read_text()))
    assert sorted(hashes) == ["config.json", "model.safetensors", "tokenizer.json"]
    for name, digest in hashes.items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == digest, name


def test_vilt_loads_the_bundled_weights_and_draws_a_head() -> None:
    stored = load_file(FOLDER / "model.safetensors")
    network = Vilt(weights="vilt_tiny").build(Task(1, 7, None))
    own = dict(network.named_parameters())
    for name, tensor in stored.items():
        assert torch.equal(own[name], tensor.float()), name
    assert {name.partition(".")[0] for name in own.keys() - stored.keys()} == {"head"}
    assert own["head.answers.out.weight"].shape == (7, 128)


def test_a_question_is_encoded_by_the_bundled_tokenizer() -> None:
    model = Vilt(weights="vilt_tiny")
    tokenizer = model.tokenizer()
    assert tokenizer.decode(tokenizer.encode(["what is on the left?"])) == ["what is on the left?"]
    assert len(tokenizer) == model.build(Task(1, 7, None)).config.vocab_size == 399


def test_vault_loads_the_bundled_weights_next_to_its_bert() -> None:
    network = Vault(weights="vilt_tiny").build(Task(1, 7, None))
    stored = load_file(FOLDER / "model.safetensors")
    own = dict(network.named_parameters())
    assert torch.equal(own["pooler.dense.weight"], stored["pooler.dense.weight"].float())
    assert any(name.startswith("bert.") for name in own)
