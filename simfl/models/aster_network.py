"""The network of ASTER (Shi et al. 2018): straighten a picture of a word, read it as a row of vectors, spell it.

    picture -> rectifier -> encoder -> context (BiLSTM) -> decoder (attention GRU) -> one class a letter

Shapes: B pictures, S vectors of width D, T letters with the end, C classes. Class C (beyond the last) is the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from simfl.models.base import mixed
from simfl.models.rectifier import Rectifier
from simfl.models.recurrent import BiLstm, GruStep
from simfl.models.word_encoder import ResNet, ShuffleNet, draw_convolutions
from simfl.protocol import Outputs

ENCODERS: dict[str, type[ResNet] | type[ShuffleNet]] = {"resnet": ResNet, "shufflenet": ShuffleNet}
SHAPE = (32, 100)  # of what the encoder reads


class Attention(nn.Module):
    """Where to look: softmax over the row of w tanh(U s + V x)."""

    def __init__(self, state: int, width: int, hidden: int) -> None:
        super().__init__()
        self.state = nn.Linear(state, hidden)
        self.feature = nn.Linear(width, hidden)
        self.score = nn.Linear(hidden, 1)

    def forward(self, seen: Tensor, state: Tensor) -> Tensor:
        """Weights [B, S] for V x `seen` [B, S, hidden] and s `state` [B, D]."""
        return self.score(torch.tanh(self.state(state)[:, None] + seen)).squeeze(-1).softmax(-1)


class Decoder(nn.Module):
    """One letter a step, from the last letter and what attention picks; left to right only."""

    def __init__(self, width: int, state: int, classes: int) -> None:
        super().__init__()
        self.attention = Attention(state, width, state)
        self.embedding = nn.Embedding(classes + 1, state)
        self.gru = GruStep(width + state, state)
        self.fc = nn.Linear(state, classes)
        self.start = classes

    def forward(self, row: Tensor, labels: Tensor) -> Tensor:
        """Teacher-forced states [B, T, state] for a row [B, S, D] and `labels` [B, T] (−100 is padding)."""
        before = functional.pad(labels[:, :-1].clamp_min(0), (1, 0), value=self.start)
        seen, state = self.attention.feature(row), self.first(row)
        states = []
        for step in range(labels.shape[1]):
            state = self.step(row, seen, state, before[:, step])
            states.append(state)
        return torch.stack(states, 1)

    def first(self, row: Tensor) -> Tensor:
        """The state before the first letter."""
        return torch.zeros(len(row), self.gru.hidden_size, dtype=self.gru.bias_hh_l0.dtype, device=row.device)

    def step(self, row: Tensor, seen: Tensor, state: Tensor, letter: Tensor) -> Tensor:
        """The state [B, state] after a letter [B]."""
        picked = (self.attention(seen, state)[..., None] * row).sum(1)
        return self.gru(torch.cat([self.embedding(letter), picked], -1), state)


class AsterNetwork(nn.Module):
    """Rectifier, encoder, context, decoder; `features` are the mean of the row [B, D]."""

    heads = ("decoder.fc.*",)
    queries_and_values = ("state", "feature")  # of the attention: what is looked for, and where
    lora_spares = ("rectifier.",)

    def __init__(
        self, dims: Mapping[str, Any], *, encoder: str, rectify: bool, context: bool, margin: float, norm: str,
        bf16: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.rectifier = Rectifier(dims["stn"], dims["stn_dense"], 20, margin, norm) if rectify else None
        self.encoder = ENCODERS[encoder](dims[encoder], dims["blocks"][encoder], norm)
        draw_convolutions(self.encoder)
        width, self.slice = self.encoder.width, min(self.encoder.width, dims["slice"])
        self.context = BiLstm(self.slice, dims["lstm"], 2) if context else None
        read = 2 * dims["lstm"] if context else width
        self.decoder = Decoder(read, dims["state"], dims["classes"])
        self.rows = nn.ModuleDict({"encoder": nn.Identity()} | ({"context": nn.Identity()} if context else {}))
        self.hidden_sizes = {"encoder": width, "context": read}
        self.end, self.bf16 = dims["end"], bf16

    def adapter_places(self) -> list[tuple[nn.Module, int]]:
        """After the encoder and after the context, where a picture is a row of vectors."""
        return [(place, self.hidden_sizes[name]) for name, place in self.rows.items()]

    def blocks(self) -> list[str]:
        """Names of the parts, first to last: those of the encoder, the context, the decoder."""
        parts = [f"encoder.{name}" for name, _ in self.encoder.named_children() if name != "maxpool"]
        return [*parts, *(["context"] if self.context is not None else []), "decoder"]

    def forward(self, pixel_values: Tensor, labels: Tensor) -> Outputs:
        """Teacher-forced logits [B, T, C] of uint8 pictures [B, 3, H, W] with `labels` [B, T] (−100 is padding)."""
        with mixed(pixel_values, self.bf16):
            row = self.encode(pixel_values)
            states = self.decoder(row, labels)
            logits = self.decoder.fc(states)
        mask = (labels >= 0).to(torch.float32)
        return Outputs(logits.float(), row.float().mean(1), states.float(), mask)

    def encode(self, pixel_values: Tensor) -> Tensor:
        """The row of vectors [B, S, D] of uint8 pictures."""
        row: Tensor = self.rows["encoder"](self.encoder(self._straight(pixel_values)))
        if self.context is None:
            return row
        read: Tensor = self.rows["context"](self.context(row.unflatten(-1, (-1, self.slice)).flatten(1, 2)))
        return read

    def _straight(self, pixel_values: Tensor) -> Tensor:
        """Pixels [B, 3, 32, 100], in float32: a point of the spline needs more digits than bf16 has."""
        with mixed(pixel_values, False):
            pixels = pixel_values.to(torch.float32) / 127.5 - 1.0
            if self.rectifier is not None:
                straight: Tensor = self.rectifier(pixels)
                return straight
            return functional.interpolate(pixels, SHAPE, mode="bilinear", align_corners=True)

    @torch.no_grad()
    def read(self, pixel_values: Tensor, beams: int, max_letters: int) -> tuple[Tensor, Tensor]:
        """Letters [B, n] (the end behind each word, n ≤ max_letters) and the chance of each word [B], by beam search.

        A word that has ended stays as it is and competes with its chance; there is no reward for length.
        """
        with mixed(pixel_values, self.bf16):
            return self._search(pixel_values, beams, max_letters)

    def _search(self, pixel_values: Tensor, beams: int, max_letters: int) -> tuple[Tensor, Tensor]:
        count, row = len(pixel_values), self.encode(pixel_values).repeat_interleave(beams, 0)
        seen, state = self.decoder.attention.feature(row), self.decoder.first(row)
        letter = torch.full((count * beams,), self.decoder.start, device=row.device)
        total = torch.full((count, beams), -torch.inf, device=row.device)
        total[:, 0] = 0.0  # all beams are alike at first
        words = torch.zeros(count, beams, 0, dtype=torch.int64, device=row.device)
        done = torch.zeros(count, beams, dtype=torch.bool, device=row.device)
        base = torch.arange(count, device=row.device)[:, None] * beams
        for _ in range(max_letters):
            state = self.decoder.step(row, seen, state, letter)
            chance = self.decoder.fc(state).float().log_softmax(-1).unflatten(0, (count, beams))
            ended = torch.full_like(chance[0, 0], -torch.inf)
            ended[self.end] = 0.0
            chance = torch.where(done[..., None], ended, chance)
            total, best = (total[..., None] + chance).flatten(1).topk(beams, 1)
            parent, new = best // chance.shape[-1], best % chance.shape[-1]
            words = torch.cat([words.gather(1, parent[..., None].expand_as(words)), new[..., None]], -1)
            done = done.gather(1, parent) | (new == self.end)
            state, letter = state[(base + parent).flatten()], new.flatten()
            if bool(done[:, 0].all()):  # the best of each picture has ended, and others can only lose
                break
        return words[:, 0], total[:, 0].exp()
