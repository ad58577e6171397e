"""Attention for transformers' models whose dropout is keyed (see `models.dropout`), registered under the name "simfl".

A model is built with `attn_implementation="simfl"`. Scores get an additive mask and, in T5, an additive position bias.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from simfl.models import fused_attention
from simfl.models.call_context import current
from simfl.models.dropout import keyed_dropout


def keyed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """`query`, `key`, `value` [B, H, L, D] to [B, L, H, D]; fused where nothing is dropped, and on a GPU."""
    scaling = query.size(-1) ** -0.5 if scaling is None else scaling
    drops = dropout > 0.0 and current().key is not None
    if (drops or position_bias is not None) and fused_attention.available(query, position_bias, attention_mask):
        layer = int(module.dropout_layer) if drops else 0
        fused = fused_attention.attend(
            query, key, value, position_bias, attention_mask, scaling, dropout if drops else 0.0, layer
        )
        return fused.transpose(1, 2).contiguous(), None
    bias = position_bias
    if attention_mask is not None:
        bias = attention_mask if bias is None else bias + attention_mask
    if not drops and not current().stacked:
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scaling)
        return mixed.transpose(1, 2).contiguous(), None
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    weights = nn.functional.softmax(scores if bias is None else scores + bias, dim=-1)
    weights = keyed_dropout(weights, dropout, int(module.dropout_layer))
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


AttentionInterface.register("simfl", keyed_attention)
AttentionMaskInterface.register("simfl", eager_mask)
