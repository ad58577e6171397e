"""Prompt tuning: learnt tokens among the text and among the patches (`prompt` of FedDAT, Chen et al. 2024).

    prompt = W_2 tanh(W_1 E)        E [tokens, D], W_1 to D/4, W_2 back to D

Each place has a generator of its own; the published code makes both of ViLT's from the one for text by mistake. The
tokens stand behind the class token of their modality, and in front of it where it has none, as T5's text.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from simfl.constraints import Count
from simfl.errors import ConfigError, nearest
from simfl.models.adapters_base import Adapter


class PromptTokens(nn.Module):
    """Makes the learnt tokens; 299,712 parameters for 5 tokens of width 768 and reduction 4."""

    def __init__(self, tokens: int, width: int, reduction: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.embedding = nn.Embedding(tokens, width)
        self.down = nn.Linear(width, max(width // reduction, 1))
        self.up = nn.Linear(max(width // reduction, 1), width)

    def forward(self, batch: int) -> Tensor:
        """[batch, tokens, D]."""
        index = torch.arange(self.tokens, device=self.embedding.weight.device).expand(batch, -1)
        return self.up(torch.tanh(self.down(self.embedding(index))))


@dataclass(frozen=True)
class Prompt(Adapter):
    """Learnt tokens in the input of the backbone, for each modality."""

    tokens: Count = 5  # for each modality
    reduction: Count = 4  # width of a token over width of the hidden layer that makes it
    places: tuple[str, ...] = ()  # modalities, such as text and image; none: all that the model has

    def attach(self, module: nn.Module) -> None:
        """Fill `module.prompts` at its `prompt_places()`; ConfigError for a model or a modality without one."""
        widths: dict[str, int] = getattr(module, "prompt_places", dict)()
        if not widths:
            raise ConfigError(f"adapters.kind: {type(module).__name__} has no place for prompts")
        for place in self.places or widths:
            if place not in widths:
                raise ConfigError(f"adapters.places: no place {place!r}; {nearest(place, widths)}")
            module.get_submodule("prompts").add_module(place, PromptTokens(self.tokens, widths[place], self.reduction))

    def trains(self) -> tuple[str, ...]:
        """The generators."""
        return ("prompts.*",)


def with_prompt(prompts: nn.ModuleDict, place: str, x: Tensor, behind: int = 1) -> Tensor:
    """`x` [B, L, D] with the tokens of `place`, if it has any, behind its first so many."""
    if place not in prompts:
        return x
    return torch.cat([x[:, :behind], prompts[place](len(x)).to(x.dtype), x[:, behind:]], 1)


def with_value(prompts: nn.ModuleDict, place: str, x: Tensor, value: float, behind: int = 1) -> Tensor:
    """A mask, or what else is said of each token, [B, L, …], with `value` for the tokens that `with_prompt` puts in."""
    if place not in prompts:
        return x
    generator = prompts[place]
    assert isinstance(generator, PromptTokens)
    rows = torch.full_like(x[:, :1], value).expand(-1, generator.tokens, *x.shape[2:])
    return torch.cat([x[:, :behind], rows, x[:, behind:]], 1)
