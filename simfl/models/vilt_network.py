"""The network of ViLT: one transformer over the words of a question and the patches of an image (Kim et al. 2021).

    [words + positions + type 0, patches + positions + type 1] -> blocks -> norm -> first state -> pooler -> head

It uses transformers' layers without transformers' forward, which samples patches at random and depends on their number:
here the image is a square of fixed size, so `forward` does not branch on values. An example may have several pairs of
text and image (two images, or one for each choice), which run as one batch.

Shapes: B examples, P pairs each, L text tokens, N patches, D width.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import ViltConfig
from transformers.models.vilt.modeling_vilt import ViltEmbeddings, ViltPooler

from simfl.models.base import bf16_autocast
from simfl.models.heads import Heads, HeadSpec
from simfl.models.prompt import insert_prompt, insert_value
from simfl.models.transformer import QUERIES_AND_VALUES, additive_mask, init_weights, vit_blocks
from simfl.protocol import Outputs, Task

CONFIG_KEYS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "image_size", "patch_size",
    "vocab_size", "max_position_embeddings", "type_vocab_size", "modality_type_vocab_size",
)  # fmt: skip


class ViltNetwork(nn.Module):
    """Embeddings, blocks, pooler and heads; `features` are the first pair's pooled state [B, D]."""

    heads = ("head.*",)
    queries_and_values = QUERIES_AND_VALUES

    def __init__(
        self, sizes: Mapping[str, int], heads: Mapping[str, HeadSpec], task: Task, *, dropout: float, bf16: bool
    ) -> None:
        super().__init__()
        self.config = ViltConfig(**{key: sizes[key] for key in CONFIG_KEYS}, hidden_dropout_prob=dropout)
        self.embeddings = ViltEmbeddings(self.config)
        self.image_dropout = nn.Dropout(dropout)  # transformers applies one module to both modalities
        self.layers = vit_blocks(sizes, dropout)
        self.layernorm = nn.LayerNorm(self.config.hidden_size, eps=self.config.layer_norm_eps)
        self.pooler = ViltPooler(self.config)
        self.head = Heads(heads, self.config.hidden_size, task)
        self.prompts = nn.ModuleDict()
        self.bf16 = bf16
        init_weights(self, self.config.hidden_size)

    def adapter_places(self) -> list[tuple[nn.Module, int]]:
        """Return the blocks, after whose feed-forward residual a bottleneck is added, and their width."""
        return [(layer, self.config.hidden_size) for layer in self.layers]

    def prompt_places(self) -> dict[str, int]:
        """Return the modalities that take prompts, and the width of a token."""
        return {"text": self.config.hidden_size, "image": self.config.hidden_size}

    def blocks(self) -> list[str]:
        """Return the names of the transformer blocks, first to last."""
        return [f"layers.{number}" for number in range(len(self.layers))]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        pixel_values: Tensor,
        head: Tensor | None = None,
        num_answers: Tensor | None = None,
    ) -> Outputs:
        """Classify pairs of text and image.

        Args:
            input_ids: [B, L] or [B, P, L].
            attention_mask: Of the same shape.
            pixel_values: uint8 [B, 3, S, S] or [B, P, 3, S, S].
            head: Number of each example's head [B]; the first head if None.
            num_answers: Length of the answer list of each example's client [B]; all answers if None.

        Returns:
            Logits [B, answers] and features [B, D].
        """
        pairs = input_ids.shape[1] if input_ids.dim() == 3 else 1
        ids, mask = input_ids.reshape(-1, input_ids.shape[-1]), attention_mask.reshape(-1, attention_mask.shape[-1])
        pixels = pixel_values.reshape(-1, *pixel_values.shape[-3:])
        with bf16_autocast(input_ids, self.bf16):
            image_type = 1 + self._is_second(input_ids, pairs, head).flatten().to(torch.int64)
            real = mask.to(torch.float32)
            hidden = self.encode(self.words(ids, real), real, pixels, image_type)
            pooled = self.pooler(hidden).unflatten(0, (-1, pairs))
            logits = self.head(pooled, head, num_answers)
        return Outputs(logits.float(), pooled[:, 0].float())

    def words(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Embed tokens [B·P, L] as [B·P, L, D], without positions; `mask` [B·P, L] is 1 for real ones."""
        return self.embeddings.text_embeddings.word_embeddings(input_ids)

    def encode(self, words: Tensor, mask: Tensor, pixels: Tensor, image_type: Tensor) -> Tensor:
        """Compute the last states of pairs.

        Args:
            words: [B·P, L, D].
            mask: [B·P, L].
            pixels: [B·P, 3, S, S].
            image_type: Type of each image [B·P], 1 or 2.

        Returns:
            States [B·P, 1 + L + N, D].
        """
        text, image = self._embed_text(words), self._embed_image(pixels)
        types = self.embeddings.token_type_embeddings
        text = text + types(torch.zeros_like(text[..., 0], dtype=torch.int64))
        image = image + types(image_type[:, None].expand(-1, image.shape[1]))
        hidden = torch.cat([text, image], 1)
        visible = torch.cat(
            [insert_value(self.prompts, "text", mask, 1.0), torch.ones_like(image[..., 0], dtype=mask.dtype)], 1
        )
        bias = additive_mask(visible)
        for layer in self.layers:
            hidden = layer(hidden, bias)
        return self.layernorm(hidden)

    def _is_second(self, input_ids: Tensor, pairs: int, head: Tensor | None) -> Tensor:
        """Mark the images [B, P] that are the second of two; True only if the example's head reads two."""
        position = torch.arange(pairs, device=input_ids.device).expand(len(input_ids), -1)
        second = torch.zeros_like(position, dtype=torch.bool)
        for number, name in enumerate(self.head):
            if self.head.reads[name] == "two":
                selected = torch.full_like(position, head is None and number == 0, dtype=torch.bool)
                selected = selected if head is None else (head == number)[:, None]
                second = second | (position == 1) & selected
        return second

    def _embed_text(self, words: Tensor) -> Tensor:
        table = self.embeddings.text_embeddings
        positions = torch.arange(words.shape[1], device=words.device).expand(len(words), -1)
        text = words + table.token_type_embeddings(torch.zeros_like(positions)) + table.position_embeddings(positions)
        return insert_prompt(self.prompts, "text", table.dropout(table.LayerNorm(text)))

    def _embed_image(self, pixels: Tensor) -> Tensor:
        table = self.embeddings
        patches = table.patch_embeddings(pixels.to(torch.float32) / 127.5 - 1.0).flatten(2).transpose(1, 2)
        image = torch.cat([table.cls_token.expand(len(patches), -1, -1), patches], 1) + table.position_embeddings
        return insert_prompt(self.prompts, "image", self.image_dropout(image))
