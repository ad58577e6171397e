"""BERT's parts as ViLT's relatives use them (transformers' layers), without the checks of values in its forward.

Layers from `fusion` on look at an image too, by cross-attention between self-attention and feed-forward (ALBEF).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertEmbeddings, BertLayer

import simfl.models.attention  # noqa: F401  (registers "simfl", which keys the dropout of attention)


class Words(BertEmbeddings):
    """Pieces, their places and kind 0, normalised."""

    def forward(self, input_ids: Tensor) -> Tensor:
        """[B, L] to [B, L, D]."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device).expand(len(input_ids), -1)
        kinds = self.token_type_embeddings(torch.zeros_like(places))
        return self.dropout(self.LayerNorm(self.word_embeddings(input_ids) + kinds + self.position_embeddings(places)))


class Text(nn.Module):
    """Embeddings and layers."""

    def __init__(self, config: BertConfig, fusion: int | None = None) -> None:
        super().__init__()
        first = config.num_hidden_layers if fusion is None else fusion
        plain, fused = BertConfig(**config.to_dict()), BertConfig(**config.to_dict())
        fused.is_decoder = fused.add_cross_attention = True  # the only way to cross-attention; masks are ours
        plain._attn_implementation = fused._attn_implementation = "simfl"
        self.embeddings = Words(plain)
        self.layer = nn.ModuleList(BertLayer(plain if n < first else fused) for n in range(config.num_hidden_layers))
        self.first = first

    def forward(
        self, input_ids: Tensor, bias: Tensor, seen: Tensor | None = None, real: Tensor | None = None
    ) -> Tensor:
        """States [B, L, D]; `bias` is the additive mask [B or 1, 1, 1 or L, L].

        `seen` are states to look at [B, N, D], `real` the additive mask over them, none if all are real.
        """
        h = self.embeddings(input_ids)
        for number, layer in enumerate(self.layer):
            h = layer(h, bias) if number < self.first else layer(h, bias, seen, real)
        return h
