"""CRD: the contrastive loss by hand, negatives, memory banks, and a client with one example."""

from __future__ import annotations

import math

import pytest
import torch
from hand import update
from torch import Tensor
from torch.testing import assert_close

from simfl.algorithms.crd import Crd, noise_contrast
from simfl.keyed_random import step_uniform
from simfl.protocol import ModelInfo, Outputs

GENERATOR = torch.Generator().manual_seed(0)
SMALL = Crd(embedding_size=4, negatives=3, from_round=1)
PARTS: dict[str, dict[str, Tensor]] = {"weights": {}}


def at(examples: float, step: int = 0, key: int = 12345, round: int = 1):
    facts = {"num_examples": torch.tensor(examples), "key": torch.tensor(key), "step": torch.tensor(step)}
    return update(round=round)._replace(**facts)


def first_step(examples: int, batch: int, crd: Crd = SMALL):
    """Return outputs, trained tensors and state of a client at its first step."""
    passes = {}
    for side in ("student", "teacher"):
        made = Outputs(torch.zeros(batch, 2), torch.randn(batch, 6, generator=GENERATOR))
        passes[side] = Outputs(made.logits, made.features, loss_sums=torch.zeros(batch), loss_weights=torch.ones(batch))
    state = crd.init_client(PARTS, at(examples))
    extra = crd.extra_params(ModelInfo(passes["student"], {}), PARTS, state, at(examples))["embed"]
    return passes, {f"extra/embed/{name}": t for name, t in extra.items()}, state


def test_noise_contrast_by_hand() -> None:
    # h⁺ = 2, h⁻ = 1, K/n = 1/4: log (2.25/2) + log (1.25/.25)
    loss = noise_contrast(torch.tensor([[2.0, 1.0]]), torch.ones(1), torch.tensor(4.0))
    assert loss.item() == pytest.approx(math.log(2.25 / 2) + math.log(5))


def test_negatives_beyond_the_clients_examples_do_not_count() -> None:
    scores = torch.tensor([[2.0, 1.0, 7.0]])
    cut = noise_contrast(scores, torch.tensor([1.0, 0.0]), torch.tensor(2.0))
    assert_close(cut, noise_contrast(scores[:, :2], torch.ones(1), torch.tensor(2.0)))


def test_crd_draws_negatives_uniformly_from_the_clients_other_examples() -> None:
    crd, state = Crd(negatives=300), {"bank": {"student": torch.zeros(400, 1)}}
    rows, real = crd._candidates(torch.tensor([2, 4]), state, at(5.0))
    assert real.sum().item() == 4  # n − 1, although negatives is 300 and the bank is padded
    for position, drawn in zip((2, 4), rows, strict=True):
        counts = torch.bincount(drawn[1:], minlength=5)
        assert drawn[0] == position
        assert counts[position] == 0
        assert (counts[[k for k in range(5) if k != position]] > 50).all()


def test_step_uniform_depends_on_key_step_and_name_alone() -> None:
    names = torch.tensor([7, 8])
    step = torch.tensor(0)
    drawn = step_uniform(torch.tensor(12345), step, names, 1000)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert_close(drawn.mean(), torch.tensor(0.5), atol=0.03, rtol=0)
    assert torch.equal(step_uniform(torch.tensor(12345), step, names.flip(0), 50), drawn.flip(0)[:, :50])
    others = [
        step_uniform(torch.tensor(12345), step + 1, names, 1000),
        step_uniform(torch.tensor(12346), step, names, 1000),
        drawn.flip(0),
    ]
    for other in others:
        assert abs(torch.corrcoef(torch.stack([drawn.flatten(), other.flatten()]))[0, 1]) < 0.08


def test_a_memory_bank_entry_moves_half_way_to_the_embedding_and_padding_leaves_it() -> None:
    passes, trained, state = first_step(examples=5, batch=2)
    batch = {"mask": torch.tensor([1.0, 0.0]), "position": torch.tensor([3, 0])}
    after = SMALL.after_step(passes, (), batch, trained, PARTS, state, at(5.0))
    old, new = state["bank"]["student"], after["bank"]["student"]
    blend = 0.5 * old[3] + 0.5 * SMALL._embedded(passes, trained)["student"][0]
    assert_close(new[3], blend / blend.norm())
    assert torch.equal(new[[0, 1, 2, 4]], old[[0, 1, 2, 4]])


def test_the_normalisation_constant_is_that_of_the_first_batch() -> None:
    passes, trained, state = first_step(examples=5, batch=2)
    batch = {"mask": torch.ones(2), "position": torch.tensor([3, 1])}
    first = SMALL.after_step(passes, (), batch, trained, PARTS, state, at(5.0))
    later = SMALL.after_step(passes, (), batch, trained, PARTS, first, at(5.0, step=1))
    assert first["scale"]["student"] > 0
    assert torch.equal(later["scale"]["student"], first["scale"]["student"])


def test_before_from_round_crd_adds_no_loss_and_keeps_its_banks() -> None:
    crd = Crd(embedding_size=4, negatives=3, from_round=2)
    passes, trained, state = first_step(examples=5, batch=2, crd=crd)
    batch, early = {"mask": torch.ones(2), "position": torch.tensor([3, 1])}, at(5.0, round=0)
    assert crd.loss(passes, batch, trained, PARTS, state, early).total(batch["mask"]).item() == 0.0
    after = crd.after_step(passes, (), batch, trained, PARTS, state, early)
    assert torch.equal(after["bank"]["student"], state["bank"]["student"])
    assert after["scale"]["student"] == 0


def test_a_client_with_one_example_has_no_contrastive_loss_and_finite_gradients() -> None:
    passes, trained, state = first_step(examples=1, batch=1)
    leaves = {name: t.clone().requires_grad_() for name, t in trained.items()}
    batch = {"mask": torch.ones(1), "position": torch.tensor([0])}
    total = SMALL.loss(passes, batch, leaves, PARTS, state, at(1.0)).total(batch["mask"])
    assert total.item() == pytest.approx(0.0, abs=1e-6)
    gradients = torch.autograd.grad(total, list(leaves.values()))
    assert all(torch.isfinite(g).all() for g in gradients)


def test_client_state_holds_banks_normalisation_constant_and_embeddings() -> None:
    passes, trained, state = first_step(examples=5, batch=2)
    kept = SMALL.update_state({}, trained, PARTS, state, at(5.0))
    again = SMALL.extra_params(ModelInfo(passes["student"], {}), PARTS, kept, at(5.0))["embed"]
    assert {name: f"extra/embed/{name}" in trained for name in again} == dict.fromkeys(again, True)
    assert set(kept) == {"bank", "scale", "embed"}


def test_the_contrastive_loss_falls_when_positives_are_close() -> None:
    # bank entries equal to the embedding, against orthogonal ones
    near, far = torch.tensor([[math.e**14, 1.0]]), torch.tensor([[1.0, 1.0]])
    real, count = torch.ones(1), torch.tensor(2.0)
    assert noise_contrast(near, real, count) < noise_contrast(far, real, count)
