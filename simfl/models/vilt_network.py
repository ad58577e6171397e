"""The network of ViLT: one transformer over the words of a question and the patches of an image (Kim et al. 2021).

    [words + places + kind 0, patches + places + kind 1] -> blocks -> norm -> first state -> pooler -> head

transformers' parts without its forward, which chooses patches at random and by their number: here the image is a square
of fixed size, so that nothing in `forward` looks at values. An example may have several pairs of text and image (two
images, or one for each choice); they run side by side.

Shapes: B examples, P pairs each, L text tokens, N patches, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import ViltConfig
from transformers.models.vilt.modeling_vilt import ViltEmbeddings, ViltPooler

from simfl.models.base import mixed
from simfl.models.heads import Heads, HeadSpec
from simfl.models.prompt import with_prompt, with_value
from simfl.models.transformer import QUERIES_AND_VALUES, additive, initialise, transformer
from simfl.protocol import Outputs, Task

CONFIG = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "image_size", "patch_size",
    "vocab_size", "max_position_embeddings", "type_vocab_size", "modality_type_vocab_size",
)  # fmt: skip


class ViltNetwork(nn.Module):
    """Embeddings, blocks, pooler, heads; `features` are the first pair's pooled state [B, D]."""

    heads = ("head.*",)
    queries_and_values = QUERIES_AND_VALUES

    def __init__(
        self, dims: Mapping[str, Any], heads: Mapping[str, HeadSpec], task: Task, *, dropout: float, bf16: bool
    ) -> None:
        super().__init__()
        self.config = ViltConfig(**{key: dims[key] for key in CONFIG}, hidden_dropout_prob=dropout)
        self.embeddings = ViltEmbeddings(self.config)
        self.image_dropout = nn.Dropout(dropout)  # transformers uses one module for both
        self.layers = transformer(dims, dropout)
        self.layernorm = nn.LayerNorm(self.config.hidden_size, eps=self.config.layer_norm_eps)
        self.pooler = ViltPooler(self.config)
        self.head = Heads(heads, self.config.hidden_size, task)
        self.prompts = nn.ModuleDict()
        self.bf16 = bf16
        initialise(self, self.config.hidden_size)

    def adapter_places(self) -> list[tuple[nn.Module, int]]:
        """After each feed-forward's residual."""
        return [(layer, self.config.hidden_size) for layer in self.layers]

    def prompt_places(self) -> dict[str, int]:
        """Among the words and among the patches."""
        return {"text": self.config.hidden_size, "image": self.config.hidden_size}

    def blocks(self) -> list[str]:
        """Names of the transformer blocks, first to last."""
        return [f"layers.{number}" for number in range(len(self.layers))]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        pixel_values: Tensor,
        head: Tensor | None = None,
        num_answers: Tensor | None = None,
    ) -> Outputs:
        """Logits [B, answers].

        `input_ids`, `attention_mask` [B, L] or [B, P, L], `pixel_values` uint8 [B, 3, S, S] or [B, P, 3, S, S], the
        number of each example's `head` [B], the length of its client's answer list `num_answers` [B].
        """
        pairs = input_ids.shape[1] if input_ids.dim() == 3 else 1
        ids, mask = input_ids.reshape(-1, input_ids.shape[-1]), attention_mask.reshape(-1, attention_mask.shape[-1])
        pixels = pixel_values.reshape(-1, *pixel_values.shape[-3:])
        with mixed(input_ids, self.bf16):
            kind = 1 + self._second(input_ids, pairs, head).flatten().to(torch.int64)
            real = mask.to(torch.float32)
            hidden = self.encode(self.words(ids, real), real, pixels, kind)
            pooled = self.pooler(hidden).unflatten(0, (-1, pairs))
            logits = self.head(pooled, head, num_answers)
        return Outputs(logits.float(), pooled[:, 0].float())

    def words(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Embedded pieces [B·P, L, D], before their places are added; `mask` [B·P, L] is 1 for real ones."""
        return self.embeddings.text_embeddings.word_embeddings(input_ids)

    def encode(self, words: Tensor, mask: Tensor, pixels: Tensor, kind: Tensor) -> Tensor:
        """Last states [B·P, 1 + L + N, D] of words [B·P, L, D], their mask [B·P, L], pixels [B·P, 3, S, S] and the kind
        of each image [B·P], 1 or 2."""
        text, image = self._text(words), self._image(pixels)
        kinds = self.embeddings.token_type_embeddings
        text = text + kinds(torch.zeros_like(text[..., 0], dtype=torch.int64))
        image = image + kinds(kind[:, None].expand(-1, image.shape[1]))
        hidden = torch.cat([text, image], 1)
        seen = torch.cat(
            [with_value(self.prompts, "text", mask, 1.0), torch.ones_like(image[..., 0], dtype=mask.dtype)], 1
        )
        bias = additive(seen)
        for layer in self.layers:
            hidden = layer(hidden, bias)
        return self.layernorm(hidden)

    def _second(self, input_ids: Tensor, pairs: int, head: Tensor | None) -> Tensor:
        """Which images [B, P] are the second of two; true only where the example's head reads two."""
        position = torch.arange(pairs, device=input_ids.device).expand(len(input_ids), -1)
        second = torch.zeros_like(position, dtype=torch.bool)
        for number, name in enumerate(self.head):
            if self.head.reads[name] == "two":
                mine = torch.full_like(position, head is None and number == 0, dtype=torch.bool)
                second = second | (position == 1) & (mine if head is None else (head == number)[:, None])
        return second

    def _text(self, words: Tensor) -> Tensor:
        table = self.embeddings.text_embeddings
        places = torch.arange(words.shape[1], device=words.device).expand(len(words), -1)
        text = words + table.token_type_embeddings(torch.zeros_like(places)) + table.position_embeddings(places)
        return with_prompt(self.prompts, "text", table.dropout(table.LayerNorm(text)))

    def _image(self, pixels: Tensor) -> Tensor:
        table = self.embeddings
        patches = table.patch_embeddings(pixels.to(torch.float32) / 127.5 - 1.0).flatten(2).transpose(1, 2)
        image = torch.cat([table.cls_token.expand(len(patches), -1, -1), patches], 1) + table.position_embeddings
        return with_prompt(self.prompts, "image", self.image_dropout(image))
