"""Activation checkpointing: recomputed layers use the weights and the dropout of the forward pass."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_transformers as tiny
import torch
from fakes import Toy, experiment, run
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from simfl.errors import ConfigError
from simfl.models.call_context import ModelCall, call_context
from simfl.models.lora import Lora
from simfl.models.own import OwnModel
from simfl.models.recomputation import recomputable, use_recomputable_checkpoints
from simfl.protocol import Task
from simfl.training.context import Network

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers', about the name of the setting


class Recomputing(nn.Module):
    """Uses torch's checkpointing on its own."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.head, self.reentrant = nn.Linear(12, 8), nn.Linear(8, 5), reentrant

    def forward(self, x: Tensor) -> Tensor:
        hidden: Any = checkpoint(self.first, x.requires_grad_(), use_reentrant=self.reentrant)
        return self.head(torch.relu(hidden))


class Classifier(nn.Module):
    """A language model that reads classes from features; checkpoints its layers on request."""

    def __init__(self, checkpointing: bool) -> None:
        super().__init__()
        self.language_model = tiny.seeded(tiny.qwen, attention_dropout=0.2)
        if checkpointing:
            self.language_model.gradient_checkpointing_enable()

    def forward(self, x: Tensor) -> Tensor:
        embedded = (x.unsqueeze(-1) * torch.ones(16)).tanh()
        return self.language_model(inputs_embeds=embedded, use_cache=False).logits[:, -1, :5]


def gradients(checkpointing: bool, weights: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Return the gradients of a forward pass with `weights` of the trained tensors in place of the module's own."""
    plain = tiny.seeded(tiny.qwen, attention_dropout=0.2)
    if checkpointing:
        plain.gradient_checkpointing_enable()
    module = OwnModel(plain, adapters=Lora(targets=("q_proj",))).build(Task(seed=1)).train()
    trained = {n: weights(p.detach()).requires_grad_() for n, p in module.named_parameters() if p.requires_grad}
    network = Network(module, tuple(trained))

    def enter() -> Any:
        return _Entered(network, trained)

    with recomputable(enter):
        loss = module(input_ids=torch.arange(12).reshape(2, 6), use_cache=False).logits.square().sum()
    return dict(zip(trained, torch.autograd.grad(loss, list(trained.values())), strict=True))


class _Entered:
    """The weights and the dropout key of a forward pass."""

    def __init__(self, network: Network, trained: dict[str, Tensor]) -> None:
        self.contexts = [call_context(ModelCall(dropout_key=torch.tensor(5))), network.swapped(trained)]

    def __enter__(self) -> None:
        for context in self.contexts:
            context.__enter__()

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self.contexts):
            context.__exit__(*error)


def test_recomputed_layers_have_the_gradients_of_kept_activations() -> None:
    kept, recomputed = (gradients(checkpointing, lambda p: p + 0.1) for checkpointing in (False, True))
    assert all(torch.equal(kept[name], recomputed[name]) for name in kept)
    assert any(gradient.any() for gradient in kept.values())


def test_a_run_with_checkpointing_equals_one_without(tmp_path: Any) -> None:
    results = []
    for checkpointing in (False, True):
        given = experiment(model=OwnModel(Classifier(checkpointing)), optimizer="adam", learning_rate=0.01, rounds=2)
        given = replace(given, data=Toy(sizes=(9, 8), valid=4))
        results.append(run(given, tmp_path / str(checkpointing))["weights_sha256"])
    assert results[0] == results[1]


def test_layers_without_a_grouped_form_are_trained_one_client_at_a_time(tmp_path: Any) -> None:
    given = experiment(mode="vectorized", model=OwnModel(Classifier(True)))
    with pytest.raises(ConfigError, match=r"^execution\.mode: vectorized, but gradient checkpointing trains several"):
        run(given, tmp_path)


def test_models_without_checkpointing_are_left_unchanged() -> None:
    assert not use_recomputable_checkpoints(tiny.qwen())


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_of_the_users_own_is_refused(reentrant: bool) -> None:
    module = OwnModel(Recomputing(reentrant)).build(Task(seed=1)).train()
    with pytest.raises(ConfigError, match=r"^model\.of: the model recomputes activations by torch\.utils\.checkpoint"):
        module(torch.rand(2, 12))
    plain = Recomputing(reentrant)
    plain(torch.rand(2, 12)).sum().backward()  # torch's own functions are restored


class Dropping(nn.Module):
    """A layer that is repeated in the backward pass, as transformers do, and draws by `draw`."""

    def __init__(self, draw: Callable[[], Any]) -> None:
        super().__init__()
        self.first, self.head, self.draw = nn.Linear(12, 8), nn.Linear(8, 5), draw
        self.gradient_checkpointing = True
        self._gradient_checkpointing_func: Any = checkpoint

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self._gradient_checkpointing_func(self.layer, x.flatten(1).requires_grad_()))

    def layer(self, x: Tensor) -> Tensor:
        return torch.relu(self.first(x)) * torch.as_tensor(self.draw(), dtype=torch.float32)


def test_repeated_layers_draw_from_torch_alone(tmp_path: Path) -> None:
    case = experiment(model=OwnModel(Dropping(lambda: torch.rand(8))), rounds=1)
    assert run(case, tmp_path / "torch")["status"] == "completed"
    case = experiment(model=OwnModel(Dropping(lambda: [random.random() for _ in range(8)])), rounds=1)
    with pytest.raises(ConfigError, match=r"gradient checkpointing draw from the global generator of Python's random"):
        run(case, tmp_path / "python")
