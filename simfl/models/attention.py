"""Attention for transformers' models with keyed dropout (`models.dropout`), registered under the name "simfl".

A model uses it if built with `attn_implementation="simfl"`. Scores get an additive mask and, in T5, an additive
position bias.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from simfl.models import fused_attention
from simfl.models.call_context import current_call
from simfl.models.dropout import keyed_dropout


class NumberedLayer(Protocol):
    """A layer that `install_keyed_dropout` has numbered."""

    dropout_layer: int


def keyed_attention(
    module: NumberedLayer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention in the signature of transformers' `AttentionInterface`.

    It is fused on a GPU, and everywhere if nothing is dropped.

    Args:
        module: The attention layer.
        query: [B, H, L, D].
        key: [B, H, S, D].
        value: [B, H, S, D].
        attention_mask: Additive mask that broadcasts to [B, H, L, S].
        scaling: Factor on the scores; D^−½ by default.
        dropout: Rate at which attention weights are dropped.
        **options: `position_bias`, additive like the mask; others are ignored.

    Returns:
        Outputs [B, L, H, D], and the attention weights if they were computed on their own.
    """
    position_bias: Tensor | None = options.get("position_bias")
    scaling = query.size(-1) ** -0.5 if scaling is None else scaling
    drops = dropout > 0.0 and current_call().dropout_key is not None
    if (drops or position_bias is not None) and fused_attention.can_fuse(query, position_bias, attention_mask):
        rate, layer = (dropout, int(module.dropout_layer)) if drops else (0.0, 0)
        fused = fused_attention.attend(query, key, value, position_bias, attention_mask, scaling, rate, layer)
        return fused.transpose(1, 2).contiguous(), None
    bias = position_bias
    if attention_mask is not None:
        bias = attention_mask if bias is None else bias + attention_mask
    if not drops and not current_call().under_vmap:
        out = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scaling)
        return out.transpose(1, 2).contiguous(), None
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    weights = functional.softmax(scores if bias is None else scores + bias, dim=-1)
    weights = keyed_dropout(weights, dropout, int(module.dropout_layer))
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


AttentionInterface.register("simfl", keyed_attention)
AttentionMaskInterface.register("simfl", eager_mask)
