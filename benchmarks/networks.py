"""The networks of the works without simfl: what every system but simfl trains, and the T5 that simfl trains too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Rows = dict[str, Tensor]  # the training split, by column

LORA_RANK, LORA_ALPHA = 6, 16


def cnn() -> nn.Module:
    """1,206,590 parameters on pictures [B, 1, 28, 28]."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.GELU(), nn.Conv2d(32, 64, 3), nn.GELU(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(64 * 12 * 12, 128), nn.GELU(), nn.Linear(128, 62),
    )  # fmt: skip


def mlp() -> nn.Module:
    """60-400-62."""
    return nn.Sequential(nn.Linear(60, 400), nn.GELU(), nn.Linear(400, 62))


class T5Network(nn.Module):
    """Teacher-forced pass of transformers' T5, 15 M parameters; no dropout."""

    def __init__(self, vocabulary: int = 16_384, clients_per_batch: int = 256, layers: int = 6) -> None:
        super().__init__()
        from transformers import T5Config, T5ForConditionalGeneration

        self.t5 = T5ForConditionalGeneration(
            T5Config(
                vocab_size=vocabulary, d_model=clients_per_batch, d_kv=32, num_heads=8, d_ff=4 * clients_per_batch, num_layers=layers,
                feed_forward_proj="gelu", dropout_rate=0.0,
            )
        )  # fmt: skip

    def forward(self, tokens: Tensor, answer: Tensor) -> Tensor:
        """`tokens` [B, L], `answer` [B, T]: logits [B, T, V]."""
        before = functional.pad(answer[:, :-1], (1, 0))
        logits: Tensor = self.t5(input_ids=tokens, decoder_input_ids=before, use_cache=False).logits
        return logits


def t5() -> nn.Module:
    """With LoRA on queries and values."""
    from peft import LoraConfig, inject_adapter_in_model

    network = T5Network()
    chosen = [name for name, layer in network.named_modules() if name.endswith((".q", ".v"))]
    settings: dict[str, Any] = {"r": LORA_RANK, "lora_alpha": LORA_ALPHA, "lora_dropout": 0.0, "bias": "none"}
    inject_adapter_in_model(LoraConfig(target_modules=chosen, **settings), network)
    return network


def loss(network: nn.Module, batch: Rows) -> Tensor:
    """Mean cross-entropy of a batch of any work."""
    if "tokens" in batch:
        logits, truth = network(batch["tokens"], batch["answer"]), batch["answer"]
        return functional.cross_entropy(logits.flatten(0, 1), truth.flatten())
    return functional.cross_entropy(network(batch["x"]), batch["label"])


NETWORKS = {"cnn": cnn, "mlp": mlp, "t5": t5}
OPTIMIZERS = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
