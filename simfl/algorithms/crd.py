"""CRD: Tian, Krishnan and Isola 2020, "Contrastive representation distillation", with the received model as teacher.

u, v   embeddings of the student's and the teacher's features, of length 1       n    the client's examples
M      their banks, an example's moving average each [n, width]                  K    negatives, at most n − 1
h(a)   exp(a/tau)/Z, Z fixed by the first batch: its mean of exp(a/tau), times n
loss = CE − weight·Σ over (u, M_v) and (v, M_u) of ( log h⁺/(h⁺ + K/n) + Σ_K log (K/n)/(h⁻ + K/n) )
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear, normalize

from simfl.algorithms.base import Algorithm
from simfl.algorithms.chance import uniform
from simfl.algorithms.distill import RECEIVED, begun
from simfl.constraints import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt
from simfl.protocol import EXTRA, Batch, ClientUpdate, Forward, Loss, ModelInfo, Outputs, Parts, State, Weights

SIDES = ("student", "teacher")
OTHER = {"student": "teacher", "teacher": "student"}


@dataclass(frozen=True)
class Crd(Algorithm):
    """Pulls an example's features to the teacher's of the same example, away from those of others; weight 0 is FedAvg.

    Both embeddings and both banks are the client's own and stay with it. Negatives are drawn from its other examples,
    with replacement; no more count than there are.
    """

    weight: NonNegativeFloat = 0.8  # of the contrast; the public reference
    width: PositiveInt = 128  # of the embeddings
    negatives: PositiveInt = 16384  # K, cut to the client's other examples
    temperature: PositiveFloat = 0.07  # tau
    momentum: Fraction = 0.5  # share of the old entry when a bank is updated
    from_round: PositiveInt = 2  # of the phase: at first the received model has nothing to teach
    fedavg_limit: ClassVar[str] = "weight = 0, and before `from_round`"
    needs_features: ClassVar[bool] = True
    needs_positions: ClassVar[bool] = True

    def forwards(self) -> dict[str, Forward]:
        return {"student": Forward(), "teacher": RECEIVED}

    def init_client(self, received: Parts, update: ClientUpdate) -> State:
        count, bound = max(int(update.num_examples), 1), (3.0 / self.width) ** 0.5
        each = update._replace(step=torch.zeros_like(update.step))
        names = torch.arange(count, device=update.key.device)
        draw = {side: uniform(each, 2 * names + i, self.width) for i, side in enumerate(SIDES)}
        unset = torch.zeros((), device=update.key.device)
        return {
            "bank": {side: bound * (2.0 * bits - 1.0) for side, bits in draw.items()},
            "scale": {side: unset.clone() for side in SIDES},
        }

    def extra_params(self, model: ModelInfo, received: Parts, state: State, update: ClientUpdate) -> dict[str, Weights]:
        if "embed" in state:
            return {"embed": state["embed"]}
        assert model.outputs is not None
        size = model.outputs.require("features").flatten(1).shape[1]
        tensors, each = {}, update._replace(step=torch.zeros_like(update.step))
        for i, side in enumerate(SIDES):  # as torch initialises a linear layer
            rows = uniform(each, torch.arange(self.width + 1, device=update.key.device) - 1000003 * (i + 1), size)
            tensors[f"{side}.weight"] = (2.0 * rows[:-1] - 1.0) * size**-0.5
            tensors[f"{side}.bias"] = (2.0 * rows[-1].repeat(-(-self.width // size))[: self.width] - 1.0) * size**-0.5
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
        chosen, real = self._chosen(batch["position"], state, update)
        embedded = self._embedded(outputs, trained)
        contrast = torch.zeros_like(batch["mask"])
        for side in SIDES:
            scores = self._scores(state["bank"][OTHER[side]], chosen, embedded[side])
            scale = self._scale(scores.detach(), real, batch["mask"], state["scale"][side], update)
            contrast = contrast + noise_contrast(scores / scale, real, update.num_examples.clamp_min(1.0))
        return Loss.from_outputs(
            outputs["student"], example_terms=self.weight * begun(update, self.from_round) * contrast
        )

    def needs_after_step(self) -> bool:
        """Its banks move with every step."""
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
        """The banks after a step, with the embeddings it made; at the first one, the scale too."""
        place, teaching = batch["position"], begun(update, self.from_round)
        chosen, real = self._chosen(place, state, update)
        embedded = self._embedded(outputs, trained)
        bank, scale = {}, {}
        for side in SIDES:
            scores = self._scores(state["bank"][OTHER[side]], chosen, embedded[side])
            scale[side] = teaching * self._scale(scores, real, batch["mask"], state["scale"][side], update)
            old = state["bank"][side][place]
            new = normalize(self.momentum * old + (1.0 - self.momentum) * embedded[side], dim=-1)
            change = (teaching * batch["mask"])[:, None] * (new - old)
            bank[side] = state["bank"][side].index_add(0, place, change)
        return state | {"bank": bank, "scale": scale}

    def update_state(self, sent: Parts, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> State:
        prefix = f"{EXTRA}/embed/"
        embed = {name.removeprefix(prefix): t for name, t in trained.items() if name.startswith(prefix)}
        return {"bank": state["bank"], "scale": state["scale"], "embed": embed}

    def _embedded(self, outputs: dict[str, Outputs], trained: Weights) -> Weights:
        found = {}
        for side in SIDES:
            features = outputs[side].require("features").flatten(1)
            weight, bias = (trained[f"{EXTRA}/embed/{side}.{name}"] for name in ("weight", "bias"))
            found[side] = normalize(linear(features, weight, bias), dim=-1)
        return found

    def _chosen(self, place: Tensor, state: State, update: ClientUpdate) -> tuple[Tensor, Tensor]:
        """Rows of the bank [B, 1 + K], an example's own first, and which of the K negatives count [K]."""
        count = update.num_examples.clamp_min(1.0)
        most = min(self.negatives, state["bank"]["student"].shape[0] - 1)
        ahead = 1 + (uniform(update, place, most) * (count - 1.0)).floor().to(torch.int64)
        others = (place[:, None] + ahead) % count.to(torch.int64)
        real = (torch.arange(most, device=place.device) < count - 1.0).to(count.dtype)
        return torch.cat([place[:, None], others], dim=1), real

    def _scores(self, bank: Tensor, chosen: Tensor, embedded: Tensor) -> Tensor:
        """exp(a/tau) of each example with its chosen entries, [B, 1 + K]."""
        return ((bank[chosen] * embedded[:, None]).sum(-1) / self.temperature).exp()

    def _scale(self, scores: Tensor, real: Tensor, mask: Tensor, kept: Tensor, update: ClientUpdate) -> Tensor:
        """Z: what is kept, or from this first batch."""
        counts = mask[:, None] * torch.cat([real.new_ones(1), real])
        first = (scores * counts).sum() / counts.sum().clamp_min(1.0) * update.num_examples.clamp_min(1.0)
        return torch.where(kept > 0, kept, first.clamp_min(1e-12))


def noise_contrast(chances: Tensor, real: Tensor, count: Tensor) -> Tensor:
    """−log of telling the first of `chances` [B, 1 + K] from noise, and each real negative [K] to be noise; [B]."""
    noise = real.sum() / count  # K·(1/n)
    own, others = chances[:, 0], chances[:, 1:] * real  # a negative that does not count: log 1 − log 1
    floor = torch.where(real > 0, noise, 1.0)
    return (own + noise).log() - own.log() + ((others + floor).log() - floor.log()).sum(-1)
