"""Prompt tuning: learned tokens prepended to text and patches (`prompt` of FedDAT, Chen et al. 2024).

    prompt = W_2 tanh(W_1 E)        E [tokens, D], W_1 to D/4, W_2 back to D

Each place has its own generator; the published code makes both of ViLT's from the one for text by mistake. The tokens
follow the class token of their modality, or come first if it has none, as in T5's text.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from simfl.constraints import PositiveInt
from simfl.errors import ConfigError, nearest
from simfl.models.adapters import Adapter


class PromptTokens(nn.Module):
    """Generator of the learned tokens; 299,712 parameters for 5 tokens of width 768 and reduction 4."""

    def __init__(self, tokens: int, width: int, reduction: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.embedding = nn.Embedding(tokens, width)
        self.down = nn.Linear(width, max(width // reduction, 1))
        self.up = nn.Linear(max(width // reduction, 1), width)

    def forward(self, batch: int) -> Tensor:
        """Return the tokens [batch, tokens, D]."""
        index = torch.arange(self.tokens, device=self.embedding.weight.device).expand(batch, -1)
        return self.up(torch.tanh(self.down(self.embedding(index))))


@dataclass(frozen=True)
class Prompt(Adapter):
    """Learned tokens in the input of the backbone, for each modality."""

    tokens: PositiveInt = 5  # for each modality
    reduction: PositiveInt = 4  # width of a token over width of the hidden layer that makes it
    places: tuple[str, ...] = ()  # modalities, such as text and image; none: all that the model has

    def attach(self, module: nn.Module) -> None:
        """Fill `module.prompts` at its `prompt_places()`; raise ConfigError if the model or a modality has none."""
        widths: dict[str, int] = getattr(module, "prompt_places", dict)()
        if not widths:
            raise ConfigError(f"adapters.kind: {type(module).__name__} has no place for prompts")
        for place in self.places or widths:
            if place not in widths:
                raise ConfigError(f"adapters.places: no place {place!r}; {nearest(place, widths)}")
            module.get_submodule("prompts").add_module(place, PromptTokens(self.tokens, widths[place], self.reduction))

    def own_params(self) -> tuple[str, ...]:
        """Return globs of the generators."""
        return ("prompts.*",)


def insert_prompt(prompts: nn.ModuleDict, place: str, x: Tensor, after: int = 1) -> Tensor:
    """Insert the prompt tokens of `place`, if any, after the first `after` tokens of `x` [B, L, D]."""
    if place not in prompts:
        return x
    return torch.cat([x[:, :after], prompts[place](len(x)).to(x.dtype), x[:, after:]], 1)


def insert_value(prompts: nn.ModuleDict, place: str, x: Tensor, value: float, after: int = 1) -> Tensor:
    """Insert `value` for each token that `insert_prompt` inserts, into a per-token tensor such as a mask [B, L, …]."""
    if place not in prompts:
        return x
    generator = prompts[place]
    assert isinstance(generator, PromptTokens)
    rows = torch.full_like(x[:, :1], value).expand(-1, generator.tokens, *x.shape[2:])
    return torch.cat([x[:, :after], rows, x[:, after:]], 1)
