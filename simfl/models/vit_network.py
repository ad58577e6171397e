"""The network of ViT: patches through transformers' blocks, a linear head over the class token."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional
from transformers import ViTConfig
from transformers.models.vit.modeling_vit import ViTEmbeddings

from simfl.models.base import bf16_autocast, to_float
from simfl.models.prompt import insert_prompt
from simfl.models.transformer import QUERIES_AND_VALUES, init_weights, vit_blocks
from simfl.protocol import Outputs


class ImageEncoder(nn.Module):
    """Embeddings, blocks and the last norm of a ViT; also the image encoder of ALBEF."""

    def __init__(self, sizes: Mapping[str, int], dropout: float, eps: float = 1e-12) -> None:
        super().__init__()
        width = sizes["hidden_size"]
        self.embeddings = ViTEmbeddings(
            ViTConfig(
                hidden_size=width, image_size=sizes["image_size"], patch_size=sizes["patch_size"],
                hidden_dropout_prob=dropout,
            )
        )  # fmt: skip
        self.layers = vit_blocks(sizes, dropout, eps)
        self.layernorm = nn.LayerNorm(width, eps=eps)

    def encode(self, pixels: Tensor, prompts: nn.ModuleDict) -> Tensor:
        """Map pixels [B, 3, S, S] to states [B, 1 + N, D], the class token first."""
        hidden = insert_prompt(prompts, "image", self.embeddings(pixels))
        for layer in self.layers:
            hidden = layer(hidden)
        return self.layernorm(hidden)


class ViTNetwork(ImageEncoder):
    """A ViT that reads images of the data's shape; `features` are the class token's states [B, D]."""

    heads = ("head.*",)
    queries_and_values = QUERIES_AND_VALUES

    def __init__(
        self, sizes: Mapping[str, int], shape: tuple[int, ...], classes: int, *, dropout: float, bf16: bool
    ) -> None:
        super().__init__(sizes, dropout)
        self.shape, self.side, self.bf16 = tuple(shape), sizes["image_size"], bf16
        self.head = nn.Linear(sizes["hidden_size"], classes)
        self.prompts = nn.ModuleDict()
        init_weights(self, sizes["hidden_size"])

    def adapter_places(self) -> list[tuple[nn.Module, int]]:
        """Return the blocks, after whose feed-forward residual a bottleneck is added, and their width."""
        return [(layer, self.layernorm.normalized_shape[0]) for layer in self.layers]

    def prompt_places(self) -> dict[str, int]:
        """Return the modality that takes prompts, and the width of a token."""
        return {"image": self.layernorm.normalized_shape[0]}

    def blocks(self) -> list[str]:
        """Return the names of the transformer blocks, first to last."""
        return [f"layers.{number}" for number in range(len(self.layers))]

    def forward(self, x: Tensor) -> Outputs:
        """Classify `x` [B, C, H, W] or flat [B, C·H·W] of the data's shape, grey or colour.

        Pixels are uint8, or floats in [0, 1].
        """
        x = x.reshape(len(x), *self.shape) if x.dim() == 2 else x
        pixels = to_float(x).expand(-1, 3, -1, -1) * 2.0 - 1.0
        if pixels.shape[2:] != (self.side, self.side):
            pixels = functional.interpolate(pixels, (self.side, self.side), mode="bilinear", align_corners=False)
        with bf16_autocast(x, self.bf16):
            hidden = self.encode(pixels, self.prompts)[:, 0]
            logits = self.head(hidden)
        return Outputs(logits.float(), hidden.float())
