"""CRD: noise contrast by hand, negatives, banks, and a client with nothing to contrast."""

from __future__ import annotations

import math

import pytest
import torch
from hand import update
from torch.testing import assert_close

from simfl.algorithms.chance import uniform
from simfl.algorithms.crd import Crd, noise_contrast
from simfl.protocol import ModelInfo, Outputs

GENERATOR = torch.Generator().manual_seed(0)
SMALL = Crd(width=4, negatives=3, from_round=1)
PARTS = {"weights": {}}


def at(examples: float, step: int = 0, key: int = 12345, round: int = 1):
    facts = {"examples": torch.tensor(examples), "key": torch.tensor(key), "step": torch.tensor(step)}
    return update(round=round)._replace(**facts)


def begin(examples: int, batch: int, crd: Crd = SMALL):
    """Outputs, trained and state of a client at its first step."""
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
    chances = torch.tensor([[2.0, 1.0, 7.0]])
    cut = noise_contrast(chances, torch.tensor([1.0, 0.0]), torch.tensor(2.0))
    assert_close(cut, noise_contrast(chances[:, :2], torch.ones(1), torch.tensor(2.0)))


def test_negatives_are_other_examples_of_the_client_all_about_equally_often() -> None:
    crd, state = Crd(negatives=300), {"bank": {"student": torch.zeros(400, 1)}}
    rows, real = crd._chosen(torch.tensor([2, 4]), state, at(5.0))
    assert real.sum().item() == 4  # n − 1, though 300 were asked and the bank is padded
    for place, chosen in zip((2, 4), rows, strict=True):
        counts = torch.bincount(chosen[1:], minlength=5)
        assert chosen[0] == place
        assert counts[place] == 0
        assert (counts[[k for k in range(5) if k != place]] > 50).all()


def test_random_numbers_depend_on_visit_step_and_name_alone() -> None:
    names = torch.tensor([7, 8])
    drawn = uniform(at(9.0), names, 1000)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert_close(drawn.mean(), torch.tensor(0.5), atol=0.03, rtol=0)
    assert torch.equal(uniform(at(9.0), names.flip(0), 50), drawn.flip(0)[:, :50])
    others = [uniform(at(9.0, step=1), names, 1000), uniform(at(9.0, key=12346), names, 1000), drawn.flip(0)]
    for other in others:
        assert abs(torch.corrcoef(torch.stack([drawn.flatten(), other.flatten()]))[0, 1]) < 0.08


def test_a_bank_moves_half_way_to_the_embedding_and_padding_leaves_it() -> None:
    passes, trained, state = begin(examples=5, batch=2)
    batch = {"mask": torch.tensor([1.0, 0.0]), "position": torch.tensor([3, 0])}
    after = SMALL.after_step(passes, (), batch, trained, PARTS, state, at(5.0))
    old, new = state["bank"]["student"], after["bank"]["student"]
    blend = 0.5 * old[3] + 0.5 * SMALL._embedded(passes, trained)["student"][0]
    assert_close(new[3], blend / blend.norm())
    assert torch.equal(new[[0, 1, 2, 4]], old[[0, 1, 2, 4]])


def test_the_scale_is_that_of_the_first_batch() -> None:
    passes, trained, state = begin(examples=5, batch=2)
    batch = {"mask": torch.ones(2), "position": torch.tensor([3, 1])}
    first = SMALL.after_step(passes, (), batch, trained, PARTS, state, at(5.0))
    later = SMALL.after_step(passes, (), batch, trained, PARTS, first, at(5.0, step=1))
    assert first["scale"]["student"] > 0
    assert torch.equal(later["scale"]["student"], first["scale"]["student"])


def test_before_it_begins_nothing_is_learnt_or_remembered() -> None:
    crd = Crd(width=4, negatives=3, from_round=2)
    passes, trained, state = begin(examples=5, batch=2, crd=crd)
    batch, early = {"mask": torch.ones(2), "position": torch.tensor([3, 1])}, at(5.0, round=0)
    assert crd.loss(passes, batch, trained, PARTS, state, early).total(batch["mask"]).item() == 0.0
    after = crd.after_step(passes, (), batch, trained, PARTS, state, early)
    assert torch.equal(after["bank"]["student"], state["bank"]["student"])
    assert after["scale"]["student"] == 0


def test_a_client_with_one_example_has_nothing_to_contrast() -> None:
    passes, trained, state = begin(examples=1, batch=1)
    leaves = {name: t.clone().requires_grad_() for name, t in trained.items()}
    batch = {"mask": torch.ones(1), "position": torch.tensor([0])}
    total = SMALL.loss(passes, batch, leaves, PARTS, state, at(1.0)).total(batch["mask"])
    assert total.item() == pytest.approx(0.0, abs=1e-6)
    gradients = torch.autograd.grad(total, list(leaves.values()))
    assert all(torch.isfinite(g).all() for g in gradients)


def test_it_remembers_banks_scale_and_embeddings() -> None:
    passes, trained, state = begin(examples=5, batch=2)
    kept = SMALL.update_state({}, trained, PARTS, state, at(5.0))
    again = SMALL.extra_params(ModelInfo(passes["student"], {}), PARTS, kept, at(5.0))["embed"]
    assert {name: f"extra/embed/{name}" in trained for name in again} == dict.fromkeys(again, True)
    assert set(kept) == {"bank", "scale", "embed"}


def test_equal_features_of_distinct_examples_are_the_best_to_tell_apart() -> None:
    # pulling positives together lowers the loss: bank entries equal to the embedding against orthogonal ones
    near, far = torch.tensor([[math.e**14, 1.0]]), torch.tensor([[1.0, 1.0]])
    real, count = torch.ones(1), torch.tensor(2.0)
    assert noise_contrast(near, real, count) < noise_contrast(far, real, count)
