"""The network of ASTER (Shi et al. 2018): rectify an image of a word, encode it as a row of vectors, spell the word.

    image -> rectifier -> encoder -> context (BiLSTM) -> decoder (attention GRU) -> one class a letter

The recurrent layers are written out step by step, with the parameters and names of torch's: its LSTM and GRU have no
rule under `torch.func.vmap`, and cuDNN's are not bit-identical from run to run.

Shapes: B images, S vectors of width D, T letters with the end, C classes. Class C, beyond the last, is the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from simfl.models.base import bf16_autocast
from simfl.models.rectifier import Rectifier
from simfl.models.word_encoder import NormKind, ResNet, ShuffleNet, init_convolutions
from simfl.protocol import Outputs

EncoderKind = Literal["resnet", "shufflenet"]
ENCODERS: dict[EncoderKind, type[ResNet] | type[ShuffleNet]] = {"resnet": ResNet, "shufflenet": ShuffleNet}
INPUT_SIZE = (32, 100)  # height and width that the encoder reads
NUM_POINTS = 20  # control points of the rectifier


@dataclass(frozen=True)
class AsterSizes:
    """Widths of the parts."""

    channels: dict[EncoderKind, tuple[int, ...]]  # of the encoder's stages
    blocks: dict[EncoderKind, tuple[int, ...]]  # of the encoder's stages
    lstm_input: int  # wider vectors are split into several of this width
    lstm: int
    state: int  # of the decoder
    rectifier: tuple[int, ...]  # channels of its convolutions
    rectifier_dense: int
    classes: int = 97  # 94 printable characters, the end, padding, unknown
    end: int = 94


@dataclass(frozen=True)
class AsterParts:
    """Choices between parts."""

    encoder: EncoderKind = "resnet"
    rectify: bool = True
    context: bool = True
    margin: float = 0.05
    norm: NormKind = "batch"


class BiLstm(nn.LSTM):
    """A bidirectional LSTM over sequences of one length."""

    def __init__(self, inputs: int, hidden: int, layers: int) -> None:
        super().__init__(inputs, hidden, layers, batch_first=True, bidirectional=True)

    def flatten_parameters(self) -> None:
        """Do nothing: cuDNN, which needs this, is not used."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # takes no initial states
        """Map [B, S, inputs] to [B, S, 2·hidden]."""
        for layer in range(self.num_layers):
            x = torch.cat([self._run(x, f"l{layer}"), self._run(x.flip(1), f"l{layer}_reverse").flip(1)], -1)
        return x

    def _run(self, x: Tensor, name: str) -> Tensor:
        kinds = ("weight_ih", "bias_ih", "weight_hh", "bias_hh")
        weight_in, bias_in, weight, bias = (getattr(self, f"{kind}_{name}") for kind in kinds)
        from_input = functional.linear(x, weight_in, bias_in)
        h = c = torch.zeros_like(from_input[:, 0, : self.hidden_size], dtype=weight.dtype)  # float32 under autocast too
        states = []
        for step in from_input.unbind(1):
            i, f, g, o = (step + functional.linear(h, weight, bias)).chunk(4, -1)  # gates in torch's order
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        return torch.stack(states, 1)


class GruStep(nn.GRU):
    """One step of a GRU."""

    weight_ih_l0: Tensor
    weight_hh_l0: Tensor
    bias_ih_l0: Tensor
    bias_hh_l0: Tensor

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(inputs, hidden, batch_first=True)

    def flatten_parameters(self) -> None:
        """Do nothing: cuDNN, which needs this, is not used."""

    def forward(self, x: Tensor, h: Tensor) -> Tensor:  # type: ignore[override]  # one step instead of a sequence
        """Return the state [B, hidden] after input `x` [B, inputs] in state `h`."""
        from_input = functional.linear(x, self.weight_ih_l0, self.bias_ih_l0).chunk(3, -1)
        from_state = functional.linear(h, self.weight_hh_l0, self.bias_hh_l0).chunk(3, -1)
        reset, update = torch.sigmoid(from_input[0] + from_state[0]), torch.sigmoid(from_input[1] + from_state[1])
        return (1.0 - update) * torch.tanh(from_input[2] + reset * from_state[2]) + update * h


class AdditiveAttention(nn.Module):
    """Attention weights over the row: softmax of w tanh(U s + V x)."""

    def __init__(self, state: int, width: int, hidden: int) -> None:
        super().__init__()
        self.state = nn.Linear(state, hidden)
        self.feature = nn.Linear(width, hidden)
        self.score = nn.Linear(hidden, 1)

    def forward(self, projected: Tensor, state: Tensor) -> Tensor:
        """Return weights [B, S] for V x `projected` [B, S, hidden] and s `state` [B, D]."""
        return self.score(torch.tanh(self.state(state)[:, None] + projected)).squeeze(-1).softmax(-1)


class AttentionDecoder(nn.Module):
    """A letter a step, left to right, from the last letter and the attended vector."""

    def __init__(self, width: int, state: int, classes: int) -> None:
        super().__init__()
        self.attention = AdditiveAttention(state, width, state)
        self.embedding = nn.Embedding(classes + 1, state)
        self.gru = GruStep(width + state, state)
        self.fc = nn.Linear(state, classes)
        self.start = classes

    def forward(self, row: Tensor, labels: Tensor) -> Tensor:
        """Return teacher-forced states [B, T, state] for a row [B, S, D] and `labels` [B, T] (−100 is padding)."""
        inputs = functional.pad(labels[:, :-1].clamp_min(0), (1, 0), value=self.start)
        projected, state = self.attention.feature(row), self.initial_state(row)
        states = []
        for step in range(labels.shape[1]):
            state = self.step(row, projected, state, inputs[:, step])
            states.append(state)
        return torch.stack(states, 1)

    def initial_state(self, row: Tensor) -> Tensor:
        """Return the state before the first letter."""
        return torch.zeros(len(row), self.gru.hidden_size, dtype=self.gru.bias_hh_l0.dtype, device=row.device)

    def step(self, row: Tensor, projected: Tensor, state: Tensor, letter: Tensor) -> Tensor:
        """Return the state [B, state] after a letter [B]."""
        attended = (self.attention(projected, state)[..., None] * row).sum(1)
        return self.gru(torch.cat([self.embedding(letter), attended], -1), state)


class AsterNetwork(nn.Module):
    """Rectifier, encoder, context and decoder; `features` are the mean of the row [B, D]."""

    heads = ("decoder.fc.*",)
    queries_and_values = ("state", "feature")  # layers of the attention
    lora_exclude = ("rectifier.",)

    def __init__(self, sizes: AsterSizes, parts: AsterParts, *, bf16: bool) -> None:
        super().__init__()
        channels, blocks = sizes.channels[parts.encoder], sizes.blocks[parts.encoder]
        self.rectifier = _rectifier(sizes, parts) if parts.rectify else None
        self.encoder = ENCODERS[parts.encoder](channels, blocks, parts.norm)
        init_convolutions(self.encoder)
        width, self.lstm_input = self.encoder.width, min(self.encoder.width, sizes.lstm_input)
        self.context = BiLstm(self.lstm_input, sizes.lstm, 2) if parts.context else None
        row_width = 2 * sizes.lstm if parts.context else width
        self.decoder = AttentionDecoder(row_width, sizes.state, sizes.classes)
        self.rows = nn.ModuleDict({"encoder": nn.Identity()} | ({"context": nn.Identity()} if parts.context else {}))
        self.row_widths = {"encoder": width, "context": row_width}
        self.end, self.bf16 = sizes.end, bf16

    def adapter_places(self) -> list[tuple[nn.Module, int]]:
        """Return the places after the encoder and the context, where an image is a row of vectors, and the widths."""
        return [(place, self.row_widths[name]) for name, place in self.rows.items()]

    def blocks(self) -> list[str]:
        """Return the names of the parts, first to last: those of the encoder, the context, the decoder."""
        parts = [f"encoder.{name}" for name, _ in self.encoder.named_children() if name != "maxpool"]
        return [*parts, *(["context"] if self.context is not None else []), "decoder"]

    def forward(self, pixel_values: Tensor, labels: Tensor) -> Outputs:
        """Run a teacher-forced pass over uint8 images [B, 3, H, W] and `labels` [B, T] (−100 is padding).

        Returns:
            Logits [B, T, C]; `mask` [B, T], 1 for real letters.
        """
        with bf16_autocast(pixel_values, self.bf16):
            row = self.encode(pixel_values)
            states = self.decoder(row, labels)
            logits = self.decoder.fc(states)
        mask = (labels >= 0).to(torch.float32)
        return Outputs(logits.float(), row.float().mean(1), states.float(), mask)

    def encode(self, pixel_values: Tensor) -> Tensor:
        """Map uint8 images to rows of vectors [B, S, D]."""
        row: Tensor = self.rows["encoder"](self.encoder(self._rectify(pixel_values)))
        if self.context is None:
            return row
        with_context: Tensor = self.rows["context"](
            self.context(row.unflatten(-1, (-1, self.lstm_input)).flatten(1, 2))
        )
        return with_context

    def _rectify(self, pixel_values: Tensor) -> Tensor:
        """Return pixels [B, 3, 32, 100] in float32: bf16 has too few digits for the spline's coordinates."""
        with bf16_autocast(pixel_values, False):
            pixels = pixel_values.to(torch.float32) / 127.5 - 1.0
            if self.rectifier is not None:
                rectified: Tensor = self.rectifier(pixels)
                return rectified
            return functional.interpolate(pixels, INPUT_SIZE, mode="bilinear", align_corners=True)

    @torch.no_grad()
    def beam_search(self, pixel_values: Tensor, beams: int, max_letters: int) -> tuple[Tensor, Tensor]:
        """Read words by beam search.

        A finished word keeps its probability and competes with it; length is not rewarded.

        Returns:
            Letters [B, n], with the end after each word, n ≤ max_letters; and the probability of each word [B].
        """
        with bf16_autocast(pixel_values, self.bf16):
            return self._search(pixel_values, beams, max_letters)

    def _search(self, pixel_values: Tensor, beams: int, max_letters: int) -> tuple[Tensor, Tensor]:
        count, row = len(pixel_values), self.encode(pixel_values).repeat_interleave(beams, 0)
        projected, state = self.decoder.attention.feature(row), self.decoder.initial_state(row)
        letter = torch.full((count * beams,), self.decoder.start, device=row.device)
        total = torch.full((count, beams), -torch.inf, device=row.device)
        total[:, 0] = 0.0  # all beams start equal, so only one may continue
        words = torch.zeros(count, beams, 0, dtype=torch.int64, device=row.device)
        done = torch.zeros(count, beams, dtype=torch.bool, device=row.device)
        base = torch.arange(count, device=row.device)[:, None] * beams
        for _ in range(max_letters):
            state = self.decoder.step(row, projected, state, letter)
            scores = self.decoder.fc(state).float().log_softmax(-1).unflatten(0, (count, beams))
            finished = torch.full_like(scores[0, 0], -torch.inf)
            finished[self.end] = 0.0
            scores = torch.where(done[..., None], finished, scores)
            total, best = (total[..., None] + scores).flatten(1).topk(beams, 1)
            parent, new = best // scores.shape[-1], best % scores.shape[-1]
            words = torch.cat([words.gather(1, parent[..., None].expand_as(words)), new[..., None]], -1)
            done = done.gather(1, parent) | (new == self.end)
            state, letter = state[(base + parent).flatten()], new.flatten()
            if bool(done[:, 0].all()):  # the best word of each image is finished; other beams can only lose
                break
        return words[:, 0], total[:, 0].exp()


def _rectifier(sizes: AsterSizes, parts: AsterParts) -> Rectifier:
    return Rectifier(sizes.rectifier, sizes.rectifier_dense, NUM_POINTS, parts.margin, parts.norm)
