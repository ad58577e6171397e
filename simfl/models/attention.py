"""Attention for transformers' models with keyed dropout (`models.dropout`), registered under the name "simfl".

A model uses it if built with `attn_implementation="simfl"`. Scores get an additive mask and, in T5, an additive
position bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from simfl.errors import ConfigError
from simfl.models import fused_attention
from simfl.models.call_context import current_call
from simfl.models.dropout import keyed_dropout

UNSUPPORTED_OPTIONS = ("head_mask", "s_aux")  # they change the attention weights


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
        key: [B, H', S, D]. H' divides H: in grouped-query attention, H / H' heads share a key and a value.
        value: [B, H', S, D].
        attention_mask: Additive mask that broadcasts to [B, H, L, S].
        scaling: Factor on the scores; D^−½ by default.
        dropout: Rate at which attention weights are dropped.
        **options: `position_bias`, additive like the mask, or [n, H, L, S] for B / n examples in turn each, and
            `softcap`, a bound on the scores; others that change nothing in transformers' own attention are ignored.

    Returns:
        Outputs [B, L, H, D], and the attention weights if they were computed on their own.

    Raises:
        ConfigError: The model asks for an option that this attention does not have.
    """
    _check_options(options)
    key, value = _repeat_heads(key, query.shape[1]), _repeat_heads(value, query.shape[1])
    position_bias: Tensor | None = options.get("position_bias")
    softcap: float | None = options.get("softcap")
    scaling = query.size(-1) ** -0.5 if scaling is None else scaling
    drops = dropout > 0.0 and current_call().dropout_key is not None
    fusable = softcap is None and (drops or position_bias is not None)
    if fusable and fused_attention.can_fuse(query, position_bias, attention_mask):
        rate, layer = (dropout, int(module.dropout_layer)) if drops else (0.0, 0)
        fused = fused_attention.attend(query, key, value, position_bias, attention_mask, scaling, rate, layer)
        return fused.transpose(1, 2).contiguous(), None
    bias = None if position_bias is None else per_example(position_bias, len(query))
    if attention_mask is not None:
        bias = attention_mask if bias is None else bias + attention_mask
    if not drops and softcap is None and not current_call().under_vmap:
        out = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scaling)
        return out.transpose(1, 2).contiguous(), None
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    weights = functional.softmax(scores if bias is None else scores + bias, dim=-1)
    weights = keyed_dropout(weights, dropout, int(module.dropout_layer))
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def per_example(bias: Tensor, batch: int) -> Tensor:
    """Repeat the biases [n, …] of clients for their examples, [batch, …]; one for all stays one."""
    return bias if len(bias) in (1, batch) else bias.repeat_interleave(batch // len(bias), 0)


def _repeat_heads(x: Tensor, num_heads: int) -> Tensor:
    """Repeat each head of [B, H', S, D] for the query heads that share it: [B, num_heads, S, D]."""
    return x if x.shape[1] == num_heads else x.repeat_interleave(num_heads // x.shape[1], dim=1)


def _check_options(options: Mapping[str, Any]) -> None:
    for name in UNSUPPORTED_OPTIONS:
        if options.get(name) is not None:
            raise ConfigError(f"model.of: attention with {name} and dropout is not supported; set its dropout to 0")


AttentionInterface.register("simfl", keyed_attention)
AttentionMaskInterface.register("simfl", eager_mask)
