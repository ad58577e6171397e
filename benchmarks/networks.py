"""Networks of the works without simfl: the other systems train them, and simfl trains the same T5."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Rows = dict[str, Tensor]  # columns of the training split

LORA_RANK, LORA_ALPHA = 6, 16


def cnn() -> nn.Module:
    """Build a CNN of 1,206,590 parameters for images [B, 1, 28, 28]."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.GELU(), nn.Conv2d(32, 64, 3), nn.GELU(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(64 * 12 * 12, 128), nn.GELU(), nn.Linear(128, 62),
    )  # fmt: skip


def mlp() -> nn.Module:
    """Build an MLP 60-400-62."""
    return nn.Sequential(nn.Linear(60, 400), nn.GELU(), nn.Linear(400, 62))


class T5Network(nn.Module):
    """Teacher-forced pass of the T5 of transformers, 15 M parameters, without dropout."""

    def __init__(self, vocabulary: int = 16_384, width: int = 256, layers: int = 6) -> None:
        super().__init__()
        from transformers import T5Config, T5ForConditionalGeneration

        self.t5 = T5ForConditionalGeneration(
            T5Config(
                vocab_size=vocabulary, d_model=width, d_kv=32, num_heads=8, d_ff=4 * width, num_layers=layers,
                feed_forward_proj="gelu", dropout_rate=0.0,
            )
        )  # fmt: skip

    def forward(self, tokens: Tensor, answer: Tensor) -> Tensor:
        """Return logits [B, T, V] for `tokens` [B, L] and `answer` [B, T]."""
        decoder_inputs = functional.pad(answer[:, :-1], (1, 0))
        logits: Tensor = self.t5(input_ids=tokens, decoder_input_ids=decoder_inputs, use_cache=False).logits
        return logits


def t5() -> nn.Module:
    """Build a T5 with LoRA on queries and values."""
    from peft import LoraConfig, inject_adapter_in_model

    network = T5Network()
    targets = [name for name, layer in network.named_modules() if name.endswith((".q", ".v"))]
    settings: dict[str, Any] = {"r": LORA_RANK, "lora_alpha": LORA_ALPHA, "lora_dropout": 0.0, "bias": "none"}
    inject_adapter_in_model(LoraConfig(target_modules=targets, **settings), network)
    return network


def loss(network: nn.Module, batch: Rows) -> Tensor:
    """Return the mean cross-entropy of a batch of any work."""
    if "tokens" in batch:
        logits, target = network(batch["tokens"], batch["answer"]), batch["answer"]
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten())
    return functional.cross_entropy(network(batch["x"]), batch["label"])


NETWORKS = {"cnn": cnn, "mlp": mlp, "t5": t5}
OPTIMIZERS = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
