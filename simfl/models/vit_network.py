"""The network of ViT: patches through transformers' blocks, a linear head over the class token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from transformers import ViTConfig
from transformers.models.vit.modeling_vit import ViTEmbeddings

from simfl.models.base import mixed
from simfl.models.mlp import as_float
from simfl.models.prompt import with_prompt
from simfl.models.transformer import QUERIES_AND_VALUES, initialise, transformer
from simfl.protocol import Outputs


class ImageEncoder(nn.Module):
    """Embeddings, blocks and the last norm of a ViT; ALBEF's and others' too."""

    def __init__(self, dims: Mapping[str, Any], dropout: float, eps: float = 1e-12) -> None:
        super().__init__()
        width = dims["hidden_size"]
        self.embeddings = ViTEmbeddings(
            ViTConfig(
                hidden_size=width, image_size=dims["image_size"], patch_size=dims["patch_size"],
                hidden_dropout_prob=dropout,
            )
        )  # fmt: skip
        self.layers = transformer(dims, dropout, eps)
        self.layernorm = nn.LayerNorm(width, eps=eps)

    def encode(self, pixels: Tensor, prompts: nn.ModuleDict) -> Tensor:
        """States [B, 1 + N, D] of pixels [B, 3, S, S], the class token first."""
        hidden = with_prompt(prompts, "image", self.embeddings(pixels))
        for layer in self.layers:
            hidden = layer(hidden)
        return self.layernorm(hidden)


class ViTNetwork(ImageEncoder):
    """A ViT that reads images of the data's shape; `features` are the class token [B, D]."""

    heads = ("head.*",)
    queries_and_values = QUERIES_AND_VALUES

    def __init__(
        self, dims: Mapping[str, Any], shape: tuple[int, ...], classes: int, *, dropout: float, bf16: bool
    ) -> None:
        super().__init__(dims, dropout)
        self.shape, self.side, self.bf16 = tuple(shape), dims["image_size"], bf16
        self.head = nn.Linear(dims["hidden_size"], classes)
        self.prompts = nn.ModuleDict()
        initialise(self, dims["hidden_size"])

    def adapter_places(self) -> list[tuple[nn.Module, int]]:
        """After each feed-forward's residual."""
        return [(layer, self.layernorm.normalized_shape[0]) for layer in self.layers]

    def prompt_places(self) -> dict[str, int]:
        """Among the patches."""
        return {"image": self.layernorm.normalized_shape[0]}

    def blocks(self) -> list[str]:
        """Names of the transformer blocks, first to last."""
        return [f"layers.{number}" for number in range(len(self.layers))]

    def forward(self, x: Tensor) -> Outputs:
        """`x` [B, C, H, W] or flat [B, C·H·W] of the data's shape, bytes or floats in [0, 1]; grey too."""
        x = x.reshape(len(x), *self.shape) if x.dim() == 2 else x
        pixels = as_float(x).expand(-1, 3, -1, -1) * 2.0 - 1.0
        if pixels.shape[2:] != (self.side, self.side):
            pixels = functional.interpolate(pixels, (self.side, self.side), mode="bilinear", align_corners=False)
        with mixed(x, self.bf16):
            hidden = self.encode(pixels, self.prompts)[:, 0]
            logits = self.head(hidden)
        return Outputs(logits.float(), hidden.float())
