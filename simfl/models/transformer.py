"""The transformer blocks of ViT and of all that is built on it (transformers' `ViTLayer`), and how they are named.

h = h + attention(norm h)        h = h + mlp(norm h)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from transformers import ViTConfig
from transformers.models.vit.modeling_vit import ViTLayer

import simfl.models.attention  # noqa: F401  (registers "simfl", which keys the dropout of attention)

MASKED = -1e9  # added to the score of a padded key: e^−1e9 is 0 in every precision
QUERIES_AND_VALUES = ("q_proj", "v_proj")

LAYER_NAMES = (  # of a layer in transformers 4 -> ours, which are those of transformers 5
    (r"\.attention\.attention\.query\.", ".attention.q_proj."),
    (r"\.attention\.attention\.key\.", ".attention.k_proj."),
    (r"\.attention\.attention\.value\.", ".attention.v_proj."),
    (r"\.attention\.output\.dense\.", ".attention.o_proj."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
)
TIMM_NAMES = (  # of a layer in timm, whose queries, keys and values are one tensor -> ours
    (r"\.attn\.q\.", ".attention.q_proj."),
    (r"\.attn\.k\.", ".attention.k_proj."),
    (r"\.attn\.v\.", ".attention.v_proj."),
    (r"\.attn\.proj\.", ".attention.o_proj."),
    (r"\.norm1\.", ".layernorm_before."),
    (r"\.norm2\.", ".layernorm_after."),
)


class Block(ViTLayer):
    """A layer whose two dropouts are two modules, since keyed dropout would not tell two uses of one apart."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.mlp_dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        """[B, L, D]; `attention_mask` is additive, [B, 1, 1, L]."""
        mixed, _ = self.attention(self.layernorm_before(hidden_states), attention_mask)
        h = hidden_states + self.dropout(mixed)
        return h + self.mlp_dropout(self.mlp(self.layernorm_after(h)))


def transformer(dims: Mapping[str, Any], dropout: float, eps: float = 1e-12) -> nn.ModuleList:
    """The stack of a backbone with these dimensions, in transformers' names."""
    keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "image_size", "patch_size")
    config = ViTConfig(
        **{key: dims[key] for key in keys}, layer_norm_eps=eps,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, attn_implementation="simfl",
    )  # fmt: skip
    return nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))


def initialise(module: nn.Module, width: int) -> None:
    """Draw weights as BERT and ViT do: normal, biases 0, scales 1, bare parameters (tokens, positions) normal too.

    The deviation is their 0.02 at their width of 768 and grows as the width falls, by its root: what a layer gives is
    as large at any width, and a tiny network attends to something from the first step on.
    """
    std = 0.02 * (768 / width) ** 0.5
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.Embedding):
            nn.init.normal_(layer.weight, std=std)
        if isinstance(layer, nn.Linear | nn.Conv2d) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
        if isinstance(layer, nn.LayerNorm):
            nn.init.ones_(layer.weight)
            nn.init.zeros_(layer.bias)
        known = isinstance(layer, nn.Linear | nn.Conv2d | nn.Embedding | nn.LayerNorm)
        for parameter in () if known else layer.parameters(recurse=False):
            nn.init.normal_(parameter, std=std)


def split_qkv(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """timm's joint `attn.qkv` cut into `attn.q`, `attn.k`, `attn.v`; all else as it is."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if re.search(r"\.attn\.qkv\.", name):
            found |= {name.replace(".qkv.", f".{part}."): t for part, t in zip("qkv", tensor.chunk(3), strict=True)}
        else:
            found[name] = tensor
    return found


def additive(mask: Tensor) -> Tensor:
    """[B, L], 1 for real keys, to an additive mask [B, 1, 1, L]."""
    return (1.0 - mask)[:, None, None, :] * MASKED
