"""The network of VT5: T5 over question, words and page image (the PFL-DocVQA competition's baseline, 2023).

    token   = T5 embedding + spatial embedding of its box          page = frozen DiT patches, one linear layer
    encoder reads [tokens, padding, patches], decoder writes the answer

Shapes: B examples, L text tokens, P = patches + 1, S = L + P, T answer tokens, d = d_model, V tokens of the vocabulary.
Padding stands between text and patches, so relative distances across it depend on L, as they depend on the batch in the
published code; from 128 tokens on T5 does not distinguish distances.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import BeitConfig, BeitModel, T5Config

from simfl.models.dropout import KeyedDropPath
from simfl.models.prompt import insert_prompt, insert_value
from simfl.models.t5_reader import T5Reader, position_bias

TABLE_ROWS = 1024  # of each box table


class SpatialEmbedding(nn.Module):
    """Position of a token on its page: the sum of rows of X for left and right and of Y for top and bottom."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.x = nn.Embedding(TABLE_ROWS, width)
        self.y = nn.Embedding(TABLE_ROWS, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        self.projection = nn.Linear(width, width)

    def forward(self, boxes: Tensor) -> Tensor:
        """Map integer `boxes` [B, L, 4] (left, top, right, bottom; 0 … 1023) to [B, L, d]."""
        left, top, right, bottom = boxes.long().unbind(-1)
        position = self.x(left) + self.y(top) + self.x(right) + self.y(bottom)
        return self.projection(self.dropout(self.norm(position)))


class VT5Network(T5Reader):
    """T5, the spatial embedding, the frozen page reader and its projection."""

    def __init__(self, t5: T5Config, vision: BeitConfig, *, tied: bool, frozen_dropout: bool, bf16: bool) -> None:
        super().__init__(t5, tied=tied, bf16=bf16)
        self.spatial_embedding = SpatialEmbedding(t5.d_model, t5.dropout_rate)
        self.visual_projection = nn.Linear(vision.hidden_size, t5.d_model)
        self.vision = BeitModel(vision, add_pooling_layer=False)
        for layer in self.vision.layers:
            layer.drop_path = KeyedDropPath(getattr(layer.drop_path, "drop_prob", 0.0))
        self.encoder_dropout = nn.Dropout(t5.dropout_rate)
        self.decoder_dropout = nn.Dropout(t5.dropout_rate)
        self.prompts = nn.ModuleDict()
        self.frozen_dropout = frozen_dropout

    def train(self, mode: bool = True) -> VT5Network:
        """Set the training mode; the frozen page reader follows only with `frozen_dropout`."""
        super().train(mode)
        if not self.frozen_dropout:
            self.vision.eval()
        return self

    def embed(
        self, input_ids: Tensor, boxes: Tensor, attention_mask: Tensor, pixel_values: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens with their positions, followed by patches if there is a page; their mask; the position bias."""
        tokens = insert_prompt(self.prompts, "text", self.t5.shared(input_ids) + self.spatial_embedding(boxes), 0)
        visible = insert_value(self.prompts, "text", attention_mask.to(tokens.dtype), 1.0, 0)
        if pixel_values is not None:
            page = insert_prompt(self.prompts, "image", self.visual_projection(self.encode_page(pixel_values)))
            tokens = torch.cat([tokens, page.to(tokens.dtype)], 1)
            visible = torch.cat([visible, torch.ones_like(page[..., 0], dtype=visible.dtype)], 1)
        length = tokens.shape[1]
        return tokens, visible, position_bias(self.t5.encoder, length, length)

    def encode_page(self, pixel_values: Tensor) -> Tensor:
        """Map uint8 pages [B, 3, H, W] to patch states [B, P, width of DiT], normalized as in DiT's training."""
        pixels = pixel_values.to(torch.float32) / 127.5 - 1.0
        hidden = self.vision.embeddings(pixels)
        for layer in self.vision.layers:
            hidden = layer(hidden)
        return self.vision.layernorm(hidden)
