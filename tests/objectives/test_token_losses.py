"""Losses of all tokens without whole logits, token accuracy, and what needs logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import simfl
from simfl.api import experiment_of
from simfl.data.base import Split
from simfl.errors import ConfigError
from simfl.models.hf import HuggingFace
from simfl.models.lora import Lora
from simfl.objectives import labelled
from simfl.objectives.chat import NO_LABEL, Chat
from simfl.protocol import Task

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 700,
}  # fmt: skip
CAPPED = {**LLAMA, "model_type": "gemma2", "head_dim": 4, "final_logit_softcapping": 5.0}
QUESTIONS = Split(pa.table({"question": ["what is the total ?", "date ?"], "answers": [["12"], ["2020"]]}))
ROWS = [{"question": f"what is {'abcd'[n % 4]} ?", "answers": ["dcba"[n % 4]], "shop": f"s{n % 2}"} for n in range(12)]


class Largest(TorchDispatchMode):
    """The most values of a tensor that an operation in the block returns."""

    def __init__(self) -> None:
        super().__init__()
        self.values = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.values = max([self.values, *(t.numel() for t in tree_leaves(out) if isinstance(t, Tensor))])
        return out


def batch_of(chat: Chat, model: HuggingFace) -> dict[str, Tensor]:
    rows = chat.encode(QUESTIONS, model.tokenizer()).rows
    return {**rows, "mask": torch.tensor([1.0, 0.5])}


def gradients(chat: Chat, module: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
    out: Any = chat.run(module, {name: batch[name] for name in chat.inputs if name in batch})
    sums, weights = chat.loss(out, batch)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(sums.sum() / weights.sum(), trained, materialize_grads=True)
    return torch.stack([sums.detach(), weights.detach()]), list(found)


@pytest.mark.parametrize(
    ("tied", "adapters"),
    [
        (True, None),
        (False, None),
        (True, Lora(rank=2, dropout=0.0)),
        (False, Lora(rank=2, dropout=0.0, targets=("lm_head", "q_proj"))),
    ],
)
def test_chunks_give_the_losses_and_gradients_of_whole_logits(
    tied: bool, adapters: Lora | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = HuggingFace(config={**LLAMA, "tie_word_embeddings": tied}, adapters=adapters)
    chat, module = Chat(loss_on="all"), model.build(Task(1)).train()
    batch = batch_of(chat, model)
    whole: Any = module(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    losses = nn.functional.cross_entropy(
        whole.logits.transpose(1, 2), batch["labels"], ignore_index=NO_LABEL, reduction="none"
    )
    weights = (batch["labels"] != NO_LABEL) * batch["mask"][:, None]
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    expected = torch.autograd.grad((losses * weights).sum() / weights.sum(), trained, materialize_grads=True)
    monkeypatch.setattr(labelled, "CHUNK", 3 * 2 * 700)
    with Largest() as seen:
        totals, found = gradients(chat, module, batch)
    assert seen.values < whole.logits.numel()
    torch.testing.assert_close(totals, torch.stack([(losses * weights).sum(1), weights.sum(1)]))
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other)


def test_logits_that_a_model_changes_after_its_last_layer_are_whole() -> None:
    model, chat = HuggingFace(config=CAPPED, adapters=Lora(rank=2, dropout=0.0)), Chat(loss_on="all")
    module = model.build(Task(1)).train()
    batch = batch_of(chat, model)
    logits: Tensor = module(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    expected = nn.functional.cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none").sum(1)
    out: Any = chat.run(module, {name: batch[name] for name in chat.inputs if name in batch})
    torch.testing.assert_close(chat.loss(out, batch)[0], expected * batch["mask"])
    assert logits.abs().max() <= 5


def experiment(
    objective: dict[str, Any], mode: str = "sequential", adapters: object = None, **phase: Any
) -> dict[str, Any]:
    local = {"optimizer": "adamw", "learning_rate": 0.02, "epochs": 4, "batch_size": 4}
    settings = {"objective": {"name": "chat", **objective}, "rounds": 2, "clients_per_round": 2, "local": local}
    return {
        "name": "tokens", "data": {"train": ROWS, "valid": ROWS[:4]}, "partition": {"by": "natural", "column": "shop"},
        "model": {"name": "hf", "config": LLAMA, "adapters": adapters},
        "execution": {"mode": mode}, "phases": [settings | phase],
    }  # fmt: skip


@pytest.mark.parametrize("adapters", [pytest.param(None, marks=pytest.mark.slow), {"kind": "lora", "rank": 2}])
def test_both_modes_learn_all_tokens_alike(adapters: Any, tmp_path: Path) -> None:
    objective = {"loss_on": "all", "metric": "token_accuracy", "max_answer": 2}
    runs = [
        simfl.run(experiment(objective, mode, adapters), out=tmp_path / mode, backend="inline")
        for mode in ("sequential", "vectorized")
    ]
    one, other = (run.snapshot().server.weights for run in runs)
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-3, atol=1e-4)
    rows = runs[0].evaluations().to_pylist()
    scores = [row["value"] for row in rows if row["metric"] == "token_accuracy"]
    assert all(0 <= score <= 1 for score in scores)
    if adapters is None:
        assert scores[-1] > scores[0] + 0.3, "the same prompts return"


def test_token_accuracy_is_the_share_of_learned_tokens_that_are_likeliest() -> None:
    model, chat = HuggingFace(config=LLAMA), Chat(metric="token_accuracy")
    module, batch = model.build(Task(1)), batch_of(chat, model)
    logits: Tensor = module(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    for row, found in enumerate(chat.predict(module, batch)["token_accuracy"]):
        positions = batch["label_positions"][row][batch["labels"][row] != NO_LABEL]
        wanted = batch["labels"][row][batch["labels"][row] != NO_LABEL]
        assert found == pytest.approx(float((logits[row, positions].argmax(-1) == wanted).float().mean()))
    assert "token_accuracy" in chat.metrics
    assert "token_accuracy" not in Chat().metrics


def test_an_algorithm_that_compares_logits_is_refused() -> None:
    given = experiment({"loss_on": "all"}, algorithm="soft_targets")
    with pytest.raises(
        ConfigError, match=r"^phases\.0\.algorithm: soft_targets compares logits, which objective\.loss_on"
    ):
        experiment_of(given)
