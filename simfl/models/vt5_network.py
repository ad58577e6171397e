"""The network of VT5: T5 over question, words and page image (the PFL-DocVQA competition's baseline, 2023).

    token   = T5 embedding + spatial embedding of its box          page = frozen DiT patches, one linear layer
    encoder reads [tokens, padding, patches], decoder writes the answer

Shapes: B examples, L text tokens, P = patches + 1, S = L + P, T answer tokens, d = d_model, V pieces. Nothing in
`forward` looks at values, so it runs under `torch.func`, for clients side by side (`models.grouped`), and in a
captured graph. Padding stands between text and patches, so relative distances across it depend on L, as they depend
on the batch in the published code; from 128 tokens on T5 does not tell distances apart.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import BeitConfig, BeitModel, T5Config, T5ForConditionalGeneration
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.models.t5.modeling_t5 import T5Attention, T5Stack

import simfl.models.attention  # noqa: F401  (registers "simfl", which keys the dropout of attention)
from simfl.models.drop_path import KeyedDropPath
from simfl.models.tokenizer import Tokenizer
from simfl.protocol import Outputs

TABLE_ROWS = 1024  # of each box table
MASKED = -1e9  # added to the score of a padded key: e^−1e9 is 0 in every precision


class SpatialEmbedding(nn.Module):
    """The place of a token on its page: rows of X for left and right, of Y for top and bottom, summed."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.x = nn.Embedding(TABLE_ROWS, width)
        self.y = nn.Embedding(TABLE_ROWS, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        self.projection = nn.Linear(width, width)

    def forward(self, boxes: Tensor) -> Tensor:
        """Integer `boxes` [B, L, 4] (left, top, right, bottom; 0 … 1023) to [B, L, d]."""
        left, top, right, bottom = boxes.long().unbind(-1)
        place = self.x(left) + self.y(top) + self.x(right) + self.y(bottom)
        return self.projection(self.dropout(self.norm(place)))


class VT5Network(nn.Module):
    """T5, the spatial embedding, the frozen page reader and its projection."""

    def __init__(self, t5: T5Config, vision: BeitConfig, *, tied: bool, frozen_dropout: bool, bf16: bool) -> None:
        super().__init__()
        self.t5 = T5ForConditionalGeneration(t5)
        if not tied:
            self.t5.lm_head.weight = nn.Parameter(self.t5.lm_head.weight.detach().clone())
        self.spatial_embedding = SpatialEmbedding(t5.d_model, t5.dropout_rate)
        self.visual_projection = nn.Linear(vision.hidden_size, t5.d_model)
        self.vision = BeitModel(vision, add_pooling_layer=False)
        for layer in self.vision.layers:
            layer.drop_path = KeyedDropPath(getattr(layer.drop_path, "drop_prob", 0.0))
        self.encoder_dropout = nn.Dropout(
            t5.dropout_rate
        )  # T5 applies one module twice, which keyed dropout would not tell apart
        self.decoder_dropout = nn.Dropout(t5.dropout_rate)
        self.frozen_dropout, self.bf16 = frozen_dropout, bf16
        self.text: Tokenizer | None = None  # set by the component that builds it; turns pieces into answers

    def train(self, mode: bool = True) -> VT5Network:
        """Training mode; the frozen page reader follows only with `frozen_dropout`."""
        super().train(mode)
        if not self.frozen_dropout:
            self.vision.eval()
        return self

    def adapter_places(self) -> list[tuple[nn.Module, int]]:
        """Where a bottleneck adapter can hang, after each feed-forward's residual, and the width there."""
        blocks = [*self.t5.encoder.block, *self.t5.decoder.block]
        return [(block.layer[-1], self.t5.config.d_model) for block in blocks]

    def forward(
        self,
        input_ids: Tensor,
        boxes: Tensor,
        attention_mask: Tensor,
        labels: Tensor,
        pixel_values: Tensor | None = None,
    ) -> Outputs:
        """Teacher-forced pass.

        `input_ids`, `attention_mask` [B, L], `boxes` [B, L, 4], `labels` [B, T] (−100 is padding), `pixel_values` uint8
        [B, 3, H, W] or None for text alone. Gives logits [B, T, V] in float32, `features` the mean encoder state
        [B, d], `hidden` the decoder's states [B, T, d], `mask` 1 for real pieces of the answer [B, T].
        """
        with torch.autocast(input_ids.device.type, torch.bfloat16, enabled=self.bf16):
            memory, mask = self.encode(input_ids, boxes, attention_mask, pixel_values)
            hidden = self._decode(shift_right(labels), memory, mask)
            logits = self.head(hidden)
        keep = (mask[:, 0, 0, :, None] == 0).to(torch.float32)
        features = (memory.float() * keep).sum(1) / keep.sum(1).clamp_min(1.0)
        return Outputs(logits.float(), features, hidden.float(), mask=(labels >= 0).to(torch.float32))

    def encode(
        self, input_ids: Tensor, boxes: Tensor, attention_mask: Tensor, pixel_values: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Encoder states [B, S, d] and the additive mask over them [B, 1, 1, S]."""
        tokens = self.t5.shared(input_ids) + self.spatial_embedding(boxes)
        visible = attention_mask.to(tokens.dtype)
        if pixel_values is not None:
            page = self.visual_projection(self.see(pixel_values))
            tokens = torch.cat([tokens, page.to(tokens.dtype)], 1)
            visible = torch.cat([visible, torch.ones_like(page[..., 0], dtype=visible.dtype)], 1)
        mask = (1.0 - visible)[:, None, None, :] * MASKED
        stack = self.t5.encoder
        length = tokens.shape[1]
        bias = position_bias(stack, length, length, batch=len(tokens)) + mask
        hidden = stack.dropout(tokens)
        for block in stack.block:
            hidden = block(hidden, None, bias)[0]
        return self.encoder_dropout(stack.final_layer_norm(hidden)), mask

    def see(self, pixel_values: Tensor) -> Tensor:
        """Patches of uint8 pages [B, 3, H, W], as DiT was trained to see them: [B, P, width of DiT]."""
        pixels = pixel_values.to(torch.float32) / 127.5 - 1.0
        hidden = self.vision.embeddings(pixels)
        for layer in self.vision.layers:
            hidden = layer(hidden)
        return self.vision.layernorm(hidden)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of decoder states; T5's d^−½ holds for an untied head too, as in the published model."""
        return self.t5.lm_head(hidden * self.t5.config.d_model**-0.5)

    def _decode(
        self, tokens: Tensor, memory: Tensor, mask: Tensor, cache: EncoderDecoderCache | None = None, past: int = 0
    ) -> Tensor:
        stack = self.t5.decoder
        length = tokens.shape[1]
        bias = position_bias(stack, length, past + length, past, batch=len(tokens))
        if cache is None:
            bias = bias + causal(length, tokens.device)
        hidden = stack.dropout(self.t5.shared(tokens))
        for block in stack.block:
            hidden = block(hidden, None, bias, memory, None, mask, cache=cache)[0]
        return self.decoder_dropout(stack.final_layer_norm(hidden))

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor,
        boxes: Tensor,
        attention_mask: Tensor,
        pixel_values: Tensor | None = None,
        max_tokens: int = 19,
    ) -> tuple[Tensor, Tensor]:
        """Greedy answers: pieces [B, n] (0 after the end, n ≤ max_tokens), and the chance of each step's choice [B, n].

        Stops when every answer has ended. Steps after an answer's end feed padding, as transformers' `generate` does.
        """
        end = self.t5.config.eos_token_id
        with torch.autocast(input_ids.device.type, torch.bfloat16, enabled=self.bf16):
            memory, mask = self.encode(input_ids, boxes, attention_mask, pixel_values)
            cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
            token = torch.zeros_like(input_ids[:, :1], dtype=torch.int64)
            done = torch.zeros_like(token, dtype=torch.bool)
            tokens, chances = [], []
            for step in range(max_tokens):
                logits = self.head(self._decode(token, memory, mask, cache, step)).float()
                chance, best = logits.softmax(-1).max(-1)
                token = torch.where(done, 0, best)
                done = done | (token == end)
                tokens.append(token)
                chances.append(chance)
                if bool(done.all()):
                    break
        return torch.cat(tokens, 1), torch.cat(chances, 1)


def shift_right(labels: Tensor) -> Tensor:
    """Decoder input for `labels` [B, T]: the start token 0, then the labels with padding as 0."""
    return functional.pad(labels[:, :-1].clamp_min(0), (1, 0))


def causal(length: int, device: torch.device) -> Tensor:
    """Additive mask [T, T] that hides what comes later."""
    return torch.full((length, length), MASKED, device=device).triu(1)


def position_bias(stack: T5Stack, queries: int, keys: int, past: int = 0, *, batch: int = 1) -> Tensor:
    """T5's relative position bias [1, H, queries, keys]; [batch, …] where each client has a table of its own."""
    attention: T5Attention = stack.block[0].layer[0].SelfAttention
    table = attention.relative_attention_bias.weight
    position = torch.arange(keys, device=table.device)
    buckets = attention._relative_position_bucket(
        position[None, :] - position[past : past + queries, None],
        bidirectional=not attention.is_decoder,
        num_buckets=attention.relative_attention_num_buckets,
        max_distance=attention.relative_attention_max_distance,
    )
    if table.dim() == 2:
        return functional.embedding(buckets, table).permute(2, 0, 1)[None]
    return table[:, buckets].permute(0, 3, 1, 2).repeat_interleave(batch // len(table), 0)
