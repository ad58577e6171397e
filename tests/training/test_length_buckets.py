"""Batches cut to their longest example: the results are those of whole batches, in both modes and in programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import simfl
from simfl.api import experiment_of
from simfl.errors import ConfigError
from simfl.models.call_context import ModelCall, call_context
from simfl.models.dropout import keyed_dropout
from simfl.objectives.chat import Chat

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
T5: dict[str, Any] = {"model_type": "t5", "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 1, "num_heads": 4}
LONG = "please read all of this carefully before you tell me in a few words"
ROWS = [
    {
        "question": f"{LONG * (1 + n // 5) if n % 5 == 4 else ''} what is {'abcd'[n % 4]} ?",
        "answers": ["dcba"[n % 4]],
        "shop": "ab"[n % 3 == 0],
    }
    for n in range(15)
]


def train(
    tmp_path: Path, objective: dict[str, Any], mode: str, config: Any = LLAMA, execution: Any = None
) -> dict[str, Tensor]:
    local = {"optimizer": "sgd", "learning_rate": 0.5, "epochs": 1, "batch_size": 4}
    phase = {"objective": {"name": "chat", "max_answer": 2} | objective, "rounds": 2, "clients_per_round": 2}
    run = simfl.run(
        {
            "name": "lengths",
            "data": {"train": ROWS, "valid": ROWS[:2]},
            "partition": {"by": "natural", "column": "shop"},
            "model": {
                "name": "hf",
                "config": config,
                "adapters": {"kind": "lora", "rank": 2, "dropout": 0.3, "targets": ["q_proj", "v_proj"]}
                if config is LLAMA
                else {"kind": "lora", "rank": 2, "dropout": 0.3, "targets": ["q", "v"]},
            },
            "execution": {"mode": mode} | (execution or {}),
            "phases": [phase | {"local": local}],
        },
        out=tmp_path,
        backend="inline",
    )
    return run.snapshot().server.weights


def assert_close(one: dict[str, Tensor], other: dict[str, Tensor], scale: float = 1.0) -> None:
    assert any((tensor != 0).any() for name, tensor in one.items() if "lora_B" in name)
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-4 * scale, atol=1e-6 * scale)


@pytest.mark.parametrize("loss_on", ["answer", pytest.param("all", marks=pytest.mark.slow)])
def test_cut_batches_train_like_whole_ones_in_both_modes(loss_on: str, tmp_path: Path) -> None:
    objective = {"loss_on": loss_on}
    whole = train(tmp_path / "whole", objective, "sequential")
    for mode in ("sequential", "vectorized"):
        assert_close(whole, train(tmp_path / mode, objective | {"buckets": 8}, mode))


@pytest.mark.slow
def test_a_model_with_an_encoder_and_dropout_of_its_own_is_cut_likewise(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", {}, "sequential", T5)
    for mode in ("sequential", "vectorized"):
        assert_close(whole, train(tmp_path / mode, {"buckets": 8}, mode, T5), scale=100)  # values move by 0.6


@pytest.mark.gpu
@pytest.mark.parametrize("program", ["eager", "graph"])
def test_programs_of_fixed_shape_work_with_cut_batches(program: str, tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", {}, "sequential")
    execution = {"program": program, "clients_per_batch": 2, "autotune": "never"}
    found = train(tmp_path / program, {"buckets": 8}, "vectorized", execution=execution)
    assert_close(whole, found, scale=1000)  # products are rounded to TF32


def test_batches_are_as_long_as_their_longest_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    cut = Chat.cut

    def noted(self: Chat, batch: Any, length: int) -> Any:
        found = cut(self, batch, length)
        longest = int(found["attention_mask"].sum(-1).max())
        assert longest == int(batch["attention_mask"].sum(-1).max())
        assert found["input_ids"].shape[-1] == length < longest + 16
        lengths.append(length)
        return found

    monkeypatch.setattr(Chat, "cut", noted)
    train(tmp_path, {"buckets": 16}, "sequential")
    assert 16 in lengths
    assert len(set(lengths)) > 1


@pytest.mark.parametrize("shape", [(3, 8, 5), (2, 2, 8, 8)])
def test_dropout_of_a_cut_activation_is_that_of_the_whole_one(shape: tuple[int, ...]) -> None:
    full, groups = tuple(24 if size == 8 else size for size in shape), 2
    here = tuple(slice(size) for size in shape[1:])
    keys = torch.tensor([5, 77])
    with call_context(ModelCall(keys, groups)):
        whole = keyed_dropout(torch.ones(groups * full[0], *full[1:]), 0.4, 3)
    with call_context(ModelCall(keys, groups, cut=(8, 24))):
        cut = keyed_dropout(torch.ones(groups * shape[0], *shape[1:]), 0.4, 3)
    assert torch.equal(cut, whole[(slice(None), *here)])
    assert 0.3 < (cut == 0).float().mean() < 0.5


def test_a_length_of_no_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"buckets"):
        experiment_of({"phases": [{"objective": {"name": "chat", "buckets": 0}}]})
