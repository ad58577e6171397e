"""Transformer blocks of transformers' ViT and BERT, as the networks here use them, and how checkpoints name them.

ViT: h = h + attention(norm h), h = h + mlp(norm h). BERT normalizes after each residual; layers from `fusion` on attend
to an image too, by cross-attention between self-attention and feed-forward (ALBEF).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, ViTConfig
from transformers.models.bert.modeling_bert import BertEmbeddings, BertLayer
from transformers.models.vit.modeling_vit import ViTLayer

import simfl.models.attention  # noqa: F401  (registers "simfl", which keys the dropout of attention)

MASK_SCORE = -1e9  # added to the score of a padded key: e^−1e9 is 0 in every precision
QUERIES_AND_VALUES = ("q_proj", "v_proj")
BLOCK_SIZES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "image_size", "patch_size",
)  # fmt: skip

LAYER_NAMES = (  # of a layer in transformers 4 -> ours, which are those of transformers 5
    (r"\.attention\.attention\.query\.", ".attention.q_proj."),
    (r"\.attention\.attention\.key\.", ".attention.k_proj."),
    (r"\.attention\.attention\.value\.", ".attention.v_proj."),
    (r"\.attention\.output\.dense\.", ".attention.o_proj."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
)
TIMM_NAMES = (  # of a layer in timm, with queries, keys and values split (`split_qkv`) -> ours
    (r"\.attn\.q\.", ".attention.q_proj."),
    (r"\.attn\.k\.", ".attention.k_proj."),
    (r"\.attn\.v\.", ".attention.v_proj."),
    (r"\.attn\.proj\.", ".attention.o_proj."),
    (r"\.norm1\.", ".layernorm_before."),
    (r"\.norm2\.", ".layernorm_after."),
)


class ViTBlock(ViTLayer):
    """A ViT layer with two dropout modules instead of one used twice: keyed dropout would give both the same mask."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.mlp_dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        """Map [B, L, D] to [B, L, D]; `attention_mask` is additive, [B, 1, 1, L]."""
        attended, _ = self.attention(self.layernorm_before(hidden_states), attention_mask)
        h = hidden_states + self.dropout(attended)
        return h + self.mlp_dropout(self.mlp(self.layernorm_after(h)))


class BertTokenEmbeddings(BertEmbeddings):
    """Token, position and type-0 embeddings, normalized, without transformers' checks of values."""

    def forward(self, input_ids: Tensor) -> Tensor:
        """Map [B, L] to [B, L, D]."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device).expand(len(input_ids), -1)
        types = self.token_type_embeddings(torch.zeros_like(positions))
        embedded = self.word_embeddings(input_ids) + types + self.position_embeddings(positions)
        return self.dropout(self.LayerNorm(embedded))


class BertEncoder(nn.Module):
    """BERT's embeddings and layers; those from `fusion` on have cross-attention."""

    def __init__(self, config: BertConfig, fusion: int | None = None) -> None:
        super().__init__()
        first = config.num_hidden_layers if fusion is None else fusion
        plain, fused = BertConfig(**config.to_dict()), BertConfig(**config.to_dict())
        fused.is_decoder = fused.add_cross_attention = True  # transformers' only switch for it; masks are given here
        plain._attn_implementation = fused._attn_implementation = "simfl"
        self.embeddings = BertTokenEmbeddings(plain)
        self.layer = nn.ModuleList(BertLayer(plain if n < first else fused) for n in range(config.num_hidden_layers))
        self.first = first

    def forward(
        self, input_ids: Tensor, bias: Tensor, attended: Tensor | None = None, attended_mask: Tensor | None = None
    ) -> Tensor:
        """Encode token ids.

        Args:
            input_ids: [B, L].
            bias: Additive mask [B or 1, 1, 1 or L, L].
            attended: States for cross-attention [B, N, D].
            attended_mask: Additive mask over them; None if all are real.

        Returns:
            States [B, L, D].
        """
        h = self.embeddings(input_ids)
        for number, layer in enumerate(self.layer):
            h = layer(h, bias) if number < self.first else layer(h, bias, attended, attended_mask)
        return h


def vit_blocks(sizes: Mapping[str, int], dropout: float, eps: float = 1e-12) -> nn.ModuleList:
    """Build the stack of ViT blocks of a backbone with these sizes, in transformers' names."""
    config = ViTConfig(
        **{key: sizes[key] for key in BLOCK_SIZES}, layer_norm_eps=eps,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, attn_implementation="simfl",
    )  # fmt: skip
    return nn.ModuleList(ViTBlock(config) for _ in range(config.num_hidden_layers))


def init_weights(module: nn.Module, width: int) -> None:
    """Initialize as BERT and ViT do: normal weights, biases 0, scales 1; bare parameters (tokens, positions) normal.

    The standard deviation is their 0.02 at their width of 768, times √(768 / width): a layer's output has the same size
    at any width, and a tiny network attends to something from the first step on.
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
    """Split timm's joint `attn.qkv` into `attn.q`, `attn.k` and `attn.v`; other tensors are unchanged."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if re.search(r"\.attn\.qkv\.", name):
            found |= {name.replace(".qkv.", f".{part}."): t for part, t in zip("qkv", tensor.chunk(3), strict=True)}
        else:
            found[name] = tensor
    return found


def additive_mask(mask: Tensor) -> Tensor:
    """Convert [B, L], 1 for real keys, to an additive mask [B, 1, 1, L]."""
    return (1.0 - mask)[:, None, None, :] * MASK_SCORE
