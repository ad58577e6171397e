"""CRD: Tian, Krishnan and Isola 2020, "Contrastive representation distillation", with the received model as teacher.

u, v   embeddings of the student's and the teacher's features, of length 1       n    the client's examples
M      memory banks: a moving average per example [n, embedding_size]            K    negatives, at most n − 1
h(a)   exp(a/tau)/Z, Z fixed by the first batch: its mean of exp(a/tau), times n
loss = CE − weight·Σ over (u, M_v) and (v, M_u) of ( log h⁺/(h⁺ + K/n) + Σ_K log (K/n)/(h⁻ + K/n) )
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear, normalize

from simfl.algorithms.base import Algorithm
from simfl.algorithms.distill import RECEIVED, active_from
from simfl.constraints import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt
from simfl.keyed_random import step_uniform
from simfl.protocol import EXTRA, Batch, ClientUpdate, Forward, Loss, ModelInfo, Outputs, Parts, State, Weights

SIDES = ("student", "teacher")
OTHER = {"student": "teacher", "teacher": "student"}


@dataclass(frozen=True)
class Crd(Algorithm):
    """Pulls an example's features towards the teacher's for the same example and away from those for other examples.

    Both embeddings and both memory banks stay on the client. Negatives are drawn with replacement from its other
    examples, at most as many as there are.
    """

    weight: NonNegativeFloat = 0.8  # of the contrastive term; the value of the public reference
    embedding_size: PositiveInt = 128  # of the projected features
    negatives: PositiveInt = 16384  # K, at most the number of the client's other examples
    temperature: PositiveFloat = 0.07  # tau
    momentum: Fraction = 0.5  # share of the old entry in a new entry of a bank
    from_round: PositiveInt = 2  # of the phase; the model received in the first round is no teacher yet
    fedavg_limit: ClassVar[str] = "weight = 0, and before `from_round`"
    fedavg_settings: ClassVar[Mapping[str, object] | None] = {"algorithm.weight": 0.0}
    example: ClassVar[Mapping[str, object]] = {"algorithm.embedding_size": 8, "algorithm.negatives": 16}
    needs_features: ClassVar[bool] = True
    needs_positions: ClassVar[bool] = True

    def forwards(self) -> dict[str, Forward]:
        """Return the passes of the trained and the received model."""
        return {"student": Forward(), "teacher": RECEIVED}

    def init_client(self, received: Parts, update: ClientUpdate) -> State:
        """Return random banks, and Z = 0 for not set."""
        count, bound = max(int(update.num_examples), 1), (3.0 / self.embedding_size) ** 0.5
        step, names = torch.zeros_like(update.step), torch.arange(count, device=update.key.device)
        draws = {
            side: step_uniform(update.key, step, 2 * names + i, self.embedding_size) for i, side in enumerate(SIDES)
        }
        unset = torch.zeros((), device=update.key.device)
        return {
            "bank": {side: bound * (2.0 * bits - 1.0) for side, bits in draws.items()},
            "scale": {side: unset.clone() for side in SIDES},
        }

    def extra_params(self, model: ModelInfo, received: Parts, state: State, update: ClientUpdate) -> dict[str, Weights]:
        """Return the embeddings; at first random, as torch initialises a linear layer."""
        if "embed" in state:
            return {"embed": state["embed"]}
        assert model.outputs is not None
        size = model.outputs.require("features").flatten(1).shape[1]
        tensors, step = {}, torch.zeros_like(update.step)
        for i, side in enumerate(SIDES):
            names = torch.arange(self.embedding_size + 1, device=update.key.device) - 1000003 * (i + 1)
            rows = step_uniform(update.key, step, names, size)
            tensors[f"{side}.weight"] = (2.0 * rows[:-1] - 1.0) * size**-0.5
            bias = rows[-1].repeat(-(-self.embedding_size // size))[: self.embedding_size]
            tensors[f"{side}.bias"] = (2.0 * bias - 1.0) * size**-0.5
        return {"embed": tensors}

    def loss(
        self,
        outputs: dict[str, Outputs],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> Loss:
        """Return the task loss with the contrastive term."""
        candidates, real = self._candidates(batch["position"], state, update)
        embedded = self._embedded(outputs, trained)
        contrast = torch.zeros_like(batch["mask"])
        for side in SIDES:
            scores = self._scores(state["bank"][OTHER[side]], candidates, embedded[side])
            scale = self._scale(scores.detach(), real, batch["mask"], state["scale"][side], update)
            contrast = contrast + noise_contrast(scores / scale, real, update.num_examples.clamp_min(1.0))
        return Loss.from_outputs(
            outputs["student"], example_terms=self.weight * active_from(update, self.from_round) * contrast
        )

    def needs_after_step(self) -> bool:
        """Return True: every step updates the banks."""
        return True

    def after_step(
        self,
        outputs: dict[str, Outputs],
        gradients: tuple[Weights, ...],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> State:
        """Update the banks with the embeddings of this step, and set Z at the first step."""
        position, active = batch["position"], active_from(update, self.from_round)
        candidates, real = self._candidates(position, state, update)
        embedded = self._embedded(outputs, trained)
        bank, scale = {}, {}
        for side in SIDES:
            scores = self._scores(state["bank"][OTHER[side]], candidates, embedded[side])
            scale[side] = active * self._scale(scores, real, batch["mask"], state["scale"][side], update)
            old = state["bank"][side][position]
            new = normalize(self.momentum * old + (1.0 - self.momentum) * embedded[side], dim=-1)
            change = (active * batch["mask"])[:, None] * (new - old)
            bank[side] = state["bank"][side].index_add(0, position, change)
        return state | {"bank": bank, "scale": scale}

    def update_state(self, sent: Parts, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> State:
        """Keep banks, Z and embeddings."""
        prefix = f"{EXTRA}/embed/"
        embed = {name.removeprefix(prefix): t for name, t in trained.items() if name.startswith(prefix)}
        return {"bank": state["bank"], "scale": state["scale"], "embed": embed}

    def _embedded(self, outputs: dict[str, Outputs], trained: Weights) -> Weights:
        """Return u and v, each [B, embedding_size]."""
        embedded = {}
        for side in SIDES:
            features = outputs[side].require("features").flatten(1)
            weight, bias = (trained[f"{EXTRA}/embed/{side}.{name}"] for name in ("weight", "bias"))
            embedded[side] = normalize(linear(features, weight, bias), dim=-1)
        return embedded

    def _candidates(self, position: Tensor, state: State, update: ClientUpdate) -> tuple[Tensor, Tensor]:
        """Return rows of the bank [B, 1 + K], the example's own first, and a mask [K] of negatives that count."""
        count = update.num_examples.clamp_min(1.0)
        most = min(self.negatives, state["bank"]["student"].shape[0] - 1)
        ahead = 1 + (step_uniform(update.key, update.step, position, most) * (count - 1.0)).floor().to(torch.int64)
        others = (position[:, None] + ahead) % count.to(torch.int64)
        real = (torch.arange(most, device=position.device) < count - 1.0).to(count.dtype)
        return torch.cat([position[:, None], others], dim=1), real

    def _scores(self, bank: Tensor, candidates: Tensor, embedded: Tensor) -> Tensor:
        """Return exp(a/tau) of each example with its candidates, [B, 1 + K]."""
        return ((bank[candidates] * embedded[:, None]).sum(-1) / self.temperature).exp()

    def _scale(self, scores: Tensor, real: Tensor, mask: Tensor, known: Tensor, update: ClientUpdate) -> Tensor:
        """Return Z: the known one, or that of this first batch."""
        counts = mask[:, None] * torch.cat([real.new_ones(1), real])
        first = (scores * counts).sum() / counts.sum().clamp_min(1.0) * update.num_examples.clamp_min(1.0)
        return torch.where(known > 0, known, first.clamp_min(1e-12))


def noise_contrast(scores: Tensor, real: Tensor, count: Tensor) -> Tensor:
    """Return the noise-contrastive loss [B] of scores h [B, 1 + K], the positive first.

    `real` [K] is 1 for negatives that count, `count` is n.
    """
    noise = real.sum() / count  # K·(1/n)
    own, others = scores[:, 0], scores[:, 1:] * real  # a negative that does not count adds log 1 − log 1
    floor = torch.where(real > 0, noise, 1.0)
    return (own + noise).log() - own.log() + ((others + floor).log() - floor.log()).sum(-1)
