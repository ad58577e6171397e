"""Damaged files of pretrained weights are one line that names the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from simfl.errors import ConfigError
from simfl.models.pretrained import read_config, read_sizes, read_tensors
from simfl.models.tokenizer import load_bert_tokenizer, load_t5_tokenizer

HUGE = json.dumps({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()


@pytest.mark.parametrize("content", [b'{"d_model": ', b"\xff\xfe", b"[1]", b"[" * 100_000, b""])
def test_a_damaged_config_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    for read in (read_config, lambda folder: read_sizes(folder, ["d_model"])):
        with pytest.raises(ConfigError, match=r"^model\.weights: [^\n]*config\.json [^\n]*$"):
            read(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "old.pth"])
@pytest.mark.parametrize("content", [b"garbage" * 10, b"", len(HUGE).to_bytes(8, "little") + HUGE, b"\x80\x04."])
def test_damaged_tensors_are_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=rf"^model\.weights: [^\n]*{name} cannot be read [^\n]*$"):
        read_tensors(tmp_path)


def test_every_shorter_file_of_weights_is_one_line(tmp_path: Path) -> None:
    for name, save in {"model.safetensors": save_file, "pytorch_model.bin": torch.save}.items():
        path = tmp_path / name
        save({"a": torch.ones(3)}, path)
        whole = path.read_bytes()
        assert read_tensors(tmp_path)["a"].tolist() == [1, 1, 1]
        for length in range(0, len(whole) - 1, 37):
            path.write_bytes(whole[:length])
            with pytest.raises(ConfigError, match=rf"^[^\n]*{name} cannot be read [^\n]*$"):
                read_tensors(tmp_path)
        path.unlink()


@pytest.mark.parametrize("name", ["tokenizer.json", "spiece.model", "vocab.txt"])
def test_a_damaged_tokenizer_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xff\x00garbage")
    load = load_t5_tokenizer if name == "spiece.model" else lambda folder: load_bert_tokenizer(folder, 32)
    with pytest.raises(ConfigError, match=rf"^model\.weights: [^\n]*{name} cannot be read [^\n]*$"):
        load(tmp_path)
