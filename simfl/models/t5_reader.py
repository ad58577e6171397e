"""T5 over embeddings of text and page, shared by all document readers here: encoder, decoder, greedy generation.

Shapes: B examples, L text tokens, S tokens and patches, T answer tokens, d = d_model, V tokens of the vocabulary.
`forward` does not branch on values, so it runs under `torch.func`, for several clients at once
(`models.grouped_layers`), and in a CUDA graph.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import T5Config, T5ForConditionalGeneration
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.models.t5.modeling_t5 import T5Attention, T5DenseActDense, T5Stack

from simfl.models.attention import per_example
from simfl.models.base import bf16_autocast
from simfl.models.fused_attention import aligned, reads_in_place
from simfl.models.rms_norm import install_rms_norm
from simfl.models.tokenizer import Tokenizer
from simfl.models.transformer import MASK_SCORE, additive_mask
from simfl.protocol import Outputs


class T5Reader(nn.Module):
    """The base: a subclass defines how text, boxes and page become the encoder's input.

    T5 applies one dropout module twice in each stack, which keyed dropout could not tell apart. A subclass therefore
    adds `encoder_dropout` and `decoder_dropout` after its own parts, and `prompts` after these.
    """

    encoder_dropout: nn.Dropout
    decoder_dropout: nn.Dropout
    prompts: nn.ModuleDict
    queries_and_values = ("q", "v")

    def __init__(self, t5: T5Config, *, tied: bool, bf16: bool) -> None:
        super().__init__()
        self.t5 = T5ForConditionalGeneration(t5)
        _replace_layers(self.t5)
        if not tied:
            self.t5.lm_head.weight = nn.Parameter(self.t5.lm_head.weight.detach().clone())
        self.bf16 = bf16
        self.tokenizer: Tokenizer | None = None  # set by the model that builds it; decodes answers

    def adapter_places(self) -> list[tuple[nn.Module, int]]:
        """Return the layers that take a bottleneck, after each feed-forward's residual, and the width there."""
        blocks = [*self.t5.encoder.block, *self.t5.decoder.block]
        return [(block.layer[-1], self.t5.config.d_model) for block in blocks]

    def prompt_places(self) -> dict[str, int]:
        """Return the modalities that take prompts, and the width of a token."""
        return {"text": self.t5.config.d_model, "image": self.t5.config.d_model}

    def blocks(self) -> list[str]:
        """Return the names of the transformer blocks, first to last."""
        sides = {"encoder": self.t5.encoder.block, "decoder": self.t5.decoder.block}
        return [f"t5.{side}.block.{number}" for side, blocks in sides.items() for number in range(len(blocks))]

    def forward(
        self,
        input_ids: Tensor,
        boxes: Tensor,
        attention_mask: Tensor,
        labels: Tensor,
        pixel_values: Tensor | None = None,
    ) -> Outputs:
        """Run a teacher-forced pass.

        Args:
            input_ids: [B, L].
            boxes: [B, L, 4].
            attention_mask: [B, L].
            labels: [B, T]; −100 is padding.
            pixel_values: uint8 [B, 3, H, W]; None for text alone.

        Returns:
            Logits [B, T, V] in float32; `features`, the mean encoder state [B, d]; `hidden`, the decoder's states
            [B, T, d]; `mask` [B, T], 1 for real answer tokens.
        """
        with bf16_autocast(input_ids, self.bf16):
            states, mask = self.encode(input_ids, boxes, attention_mask, pixel_values)
            hidden = self._decode(shift_right(labels), states, mask)
            logits = self.head(hidden)
        real = (mask[:, 0, 0, :, None] == 0).to(torch.float32)
        features = (states.float() * real).sum(1) / real.sum(1).clamp_min(1.0)
        return Outputs(logits.float(), features, hidden.float(), mask=(labels >= 0).to(torch.float32))

    @abstractmethod
    def embed(
        self, input_ids: Tensor, boxes: Tensor, attention_mask: Tensor, pixel_values: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the encoder's input [B, S, d], its mask [B, S], and its position bias [B or 1, H, S, S]."""

    def encode(
        self, input_ids: Tensor, boxes: Tensor, attention_mask: Tensor, pixel_values: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return encoder states [B, S, d] and the additive mask over them [B, 1, 1, S]."""
        tokens, visible, bias = self.embed(input_ids, boxes, attention_mask, pixel_values)
        mask = additive_mask(visible)
        stack = self.t5.encoder
        block_mask: Tensor | None = mask
        if not reads_in_place(tokens):  # their sum is computed once for all blocks
            bias, block_mask = per_example(bias, len(tokens)) + mask.to(bias.dtype), None
        hidden = stack.dropout(tokens)
        for block in stack.block:
            hidden = block(hidden, block_mask, bias)[0]
        return self.encoder_dropout(stack.final_layer_norm(hidden)), mask

    def head(self, hidden: Tensor) -> Tensor:
        """Compute logits of decoder states; T5's factor d^−½ also applies to an untied head, as published."""
        return self.t5.lm_head(hidden * self.t5.config.d_model**-0.5)

    def _decode(
        self, tokens: Tensor, states: Tensor, mask: Tensor, cache: EncoderDecoderCache | None = None, past: int = 0
    ) -> Tensor:
        """Return decoder states for `tokens`, which follow `past` cached ones."""
        stack = self.t5.decoder
        length = tokens.shape[1]
        bias = position_bias(stack, length, past + length, past)
        hidden = stack.dropout(self.t5.shared(tokens))
        if not reads_in_place(hidden):  # repeated once for all blocks
            bias = per_example(bias, len(tokens))
        if cache is None:
            bias = bias + causal_mask(length, tokens.device)
        for block in stack.block:
            hidden = block(hidden, None, bias, states, None, mask, cache=cache)[0]
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
        """Generate greedy answers, until all have ended.

        After its end token, an answer is continued with padding, as in transformers' `generate`.

        Returns:
            Tokens [B, n], 0 after the end, n ≤ max_tokens; and the probability of each chosen token [B, n].
        """
        end = self.t5.config.eos_token_id
        with bf16_autocast(input_ids, self.bf16):
            states, mask = self.encode(input_ids, boxes, attention_mask, pixel_values)
            cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
            token = torch.zeros_like(input_ids[:, :1], dtype=torch.int64)
            done = torch.zeros_like(token, dtype=torch.bool)
            tokens, probabilities = [], []
            for step in range(max_tokens):
                logits = self.head(self._decode(token, states, mask, cache, step)).float()
                probability, best = logits.softmax(-1).max(-1)
                token = torch.where(done, 0, best)
                done = done | (token == end)
                tokens.append(token)
                probabilities.append(probability)
                if bool(done.all()):
                    break
        return torch.cat(tokens, 1), torch.cat(probabilities, 1)


class T5FeedForward(nn.Module):
    """Replacement of transformers' `T5DenseActDense`, which casts its inner activations to float32."""

    def __init__(self, dense: T5DenseActDense) -> None:
        super().__init__()
        self.wi, self.wo, self.dropout, self.act = dense.wi, dense.wo, dense.dropout, dense.act

    def forward(self, hidden: Tensor) -> Tensor:
        """Map […, d] to […, d]."""
        out: Tensor = self.wo(self.dropout(self.act(self.wi(hidden))))
        return out


def _replace_layers(t5: nn.Module) -> None:
    """Replace layers of transformers by equivalent ones that read and write less and share their tensors."""
    install_rms_norm(t5)
    for block in t5.modules():
        for name, child in block.named_children():
            if isinstance(child, T5DenseActDense):
                setattr(block, name, T5FeedForward(child))


def shift_right(labels: Tensor) -> Tensor:
    """Return the decoder's input for `labels` [B, T]: the start token 0, then the labels with padding as 0."""
    return functional.pad(labels[:, :-1].clamp_min(0), (1, 0))


def causal_mask(length: int, device: torch.device) -> Tensor:
    """Return the additive mask [T, T] that hides later positions."""
    return torch.full((length, length), MASK_SCORE, device=device).triu(1)


def position_bias(stack: T5Stack, queries: int, keys: int, past: int = 0) -> Tensor:
    """Return T5's relative position bias [1, H, queries, keys], or [clients, …] if each client has its own table."""
    attention: T5Attention = stack.block[0].layer[0].SelfAttention
    table = attention.relative_attention_bias.weight
    if table.is_cuda or table.is_meta:
        return distance_bias(attention, table, queries, keys, past)
    position = torch.arange(keys, device=table.device)
    buckets = _buckets(attention, position[None, :] - position[past : past + queries, None])
    if table.dim() == 2:
        return functional.embedding(buckets, table).permute(2, 0, 1)[None].contiguous()  # attention reads rows
    return table[:, buckets].permute(0, 3, 1, 2)


def distance_bias(attention: T5Attention, table: Tensor, queries: int, keys: int, past: int) -> Tensor:
    """Return the same by one look-up for each distance, whose values are spread over the pairs of positions.

    The gradient is a sum over pairs of equal distance. As a scatter over all pairs it takes a GPU longer than the rest
    of the backward pass. The distance k − q is at place (k − q) mod W, so that rows of W − 1 values, cut from a
    repetition of the W, are shifted by one each. They begin at multiples that a kernel's loads like.
    """
    step = aligned(queries + keys - 1)
    place = torch.arange(step + 1, device=table.device)
    buckets = _buckets(attention, torch.where(place < keys, place, place - step - 1) - past)
    tables = table if table.dim() == 3 else table[None]
    first = torch.arange(len(tables), device=table.device) * tables.shape[1]
    values = functional.embedding(buckets + first[:, None], tables.flatten(0, 1)).transpose(1, 2)  # [n, H, W]
    repeated = values[:, :, None].expand(-1, -1, queries, -1).flatten(2)[..., : queries * step]
    return repeated.unflatten(2, (queries, step))[..., :keys]


def _buckets(attention: T5Attention, distances: Tensor) -> Tensor:
    """Return the rows of the table for distances from query to key."""
    found: Tensor = attention._relative_position_bucket(
        distances,
        bidirectional=not attention.is_decoder,
        num_buckets=attention.relative_attention_num_buckets,
        max_distance=attention.relative_attention_max_distance,
    )
    return found
