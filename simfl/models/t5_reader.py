"""T5 over embeddings of text and page, as every T5 that reads documents here has it: encoder, decoder, greedy answers.

Shapes: B examples, L text tokens, S tokens and patches, T answer tokens, d = d_model, V pieces. Nothing in `forward`
looks at values, so it runs under `torch.func`, for clients side by side (`models.grouped`), and in a captured graph.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import T5Config, T5ForConditionalGeneration
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.models.t5.modeling_t5 import T5Attention, T5DenseActDense, T5Stack

import simfl.models.attention  # noqa: F401  (registers "simfl", which keys the dropout of attention)
from simfl.models import rms_norm
from simfl.models.base import mixed
from simfl.models.tokenizer import Tokenizer
from simfl.protocol import Outputs

MASKED = -1e9  # added to the score of a padded key: e^−1e9 is 0 in every precision


class T5Reader(nn.Module):
    """The base: a subclass says how text, boxes and page become the encoder's input.

    T5 applies one dropout twice in each stack, which keyed dropout would not tell apart: a subclass adds
    `encoder_dropout` and `decoder_dropout` behind its own parts, and `prompts` behind these.
    """

    encoder_dropout: nn.Dropout
    decoder_dropout: nn.Dropout
    prompts: nn.ModuleDict
    queries_and_values = ("q", "v")

    def __init__(self, t5: T5Config, *, tied: bool, bf16: bool) -> None:
        super().__init__()
        self.t5 = T5ForConditionalGeneration(t5)
        _lighten(self.t5)
        if not tied:
            self.t5.lm_head.weight = nn.Parameter(self.t5.lm_head.weight.detach().clone())
        self.bf16 = bf16
        self.text: Tokenizer | None = None  # set by the component that builds it; turns pieces into answers

    def adapter_places(self) -> list[tuple[nn.Module, int]]:
        """Where a bottleneck adapter can hang, after each feed-forward's residual, and the width there."""
        blocks = [*self.t5.encoder.block, *self.t5.decoder.block]
        return [(block.layer[-1], self.t5.config.d_model) for block in blocks]

    def prompt_places(self) -> dict[str, int]:
        """In front of the text and among the patches."""
        return {"text": self.t5.config.d_model, "image": self.t5.config.d_model}

    def blocks(self) -> list[str]:
        """Names of the transformer blocks, first to last."""
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
        """Teacher-forced pass.

        `input_ids`, `attention_mask` [B, L], `boxes` [B, L, 4], `labels` [B, T] (−100 is padding), `pixel_values` uint8
        [B, 3, H, W] or None for text alone. Gives logits [B, T, V] in float32, `features` the mean encoder state
        [B, d], `hidden` the decoder's states [B, T, d], `mask` 1 for real pieces of the answer [B, T].
        """
        with mixed(input_ids, self.bf16):
            memory, mask = self.encode(input_ids, boxes, attention_mask, pixel_values)
            hidden = self._decode(shift_right(labels), memory, mask)
            logits = self.head(hidden)
        keep = (mask[:, 0, 0, :, None] == 0).to(torch.float32)
        features = (memory.float() * keep).sum(1) / keep.sum(1).clamp_min(1.0)
        return Outputs(logits.float(), features, hidden.float(), mask=(labels >= 0).to(torch.float32))

    @abstractmethod
    def embed(
        self, input_ids: Tensor, boxes: Tensor, attention_mask: Tensor, pixel_values: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The encoder's input [B, S, d], what of it is real [B, S], and its position bias [B or 1, H, S, S]."""

    def encode(
        self, input_ids: Tensor, boxes: Tensor, attention_mask: Tensor, pixel_values: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Encoder states [B, S, d] and the additive mask over them [B, 1, 1, S]."""
        tokens, visible, bias = self.embed(input_ids, boxes, attention_mask, pixel_values)
        mask = (1.0 - visible)[:, None, None, :] * MASKED
        stack = self.t5.encoder
        # a GPU's attention reads each where it lies (see models.fused_attention); elsewhere, and where the bias is
        # trained, one sum serves all blocks
        apart = tokens.is_cuda and not bias.requires_grad
        bias, hides = (bias, mask) if apart else (bias + mask.to(bias.dtype), None)
        hidden = stack.dropout(tokens)
        for block in stack.block:
            hidden = block(hidden, hides, bias)[0]
        return self.encoder_dropout(stack.final_layer_norm(hidden)), mask

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
        with mixed(input_ids, self.bf16):
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


class FeedForward(nn.Module):
    """Takes the place of transformers' `T5DenseActDense`, which widens what is between its layers to float32."""

    def __init__(self, dense: T5DenseActDense) -> None:
        super().__init__()
        self.wi, self.wo, self.dropout, self.act = dense.wi, dense.wo, dense.dropout, dense.act

    def forward(self, hidden: Tensor) -> Tensor:
        """[…, d] to the same."""
        out: Tensor = self.wo(self.dropout(self.act(self.wi(hidden))))
        return out


def _lighten(t5: nn.Module) -> None:
    """Layers that read and write less, in place of those of transformers that compute the same, with their tensors."""
    rms_norm.install(t5)
    for block in t5.modules():
        for name, child in block.named_children():
            if isinstance(child, T5DenseActDense):
                setattr(block, name, FeedForward(child))


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
        return functional.embedding(buckets, table).permute(2, 0, 1)[None].contiguous()  # read row by row
    return table[:, buckets].permute(0, 3, 1, 2).repeat_interleave(batch // len(table), 0)
