"""Soft targets, similarity preserving, decoupled distillation: formulas by hand, identities, the starting round."""

from __future__ import annotations

import math

import pytest
import torch
from hand import outputs, update
from torch import Tensor
from torch.nn.functional import log_softmax
from torch.testing import assert_close

from simfl.algorithms import ALGORITHMS
from simfl.algorithms.distill import divergence
from simfl.algorithms.dkd import decoupled
from simfl.algorithms.similarity_preserving import similarities
from simfl.protocol import Outputs

GENERATOR = torch.Generator().manual_seed(0)
SECOND = update(round=1)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR)


def total(name: str, student: Outputs, teacher: Outputs, at=SECOND, mask: Tensor | None = None, **settings) -> Tensor:
    mask = torch.ones(len(student.logits)) if mask is None else mask
    passes = {"student": student, "teacher": teacher}
    return ALGORITHMS[name](**settings).loss(passes, {"mask": mask}, {}, {}, {}, at).total(mask)


def test_soft_targets_loss_by_hand() -> None:
    # at τ = 2: teacher (.75, .25), student (.5, .5); KL = .75 ln 1.5 + .25 ln .5, times 4 and weight .5
    loss = total("soft_targets", outputs([[0.0, 0.0]]), outputs([[math.log(9.0), 0.0]]), weight=0.5, temperature=2.0)
    assert loss.item() == pytest.approx(0.5 * 4.0 * (0.75 * math.log(1.5) + 0.25 * math.log(0.5)))


def test_the_gradient_of_soft_targets_is_the_gap_of_probabilities_times_the_temperature() -> None:
    teacher, student = random(1, 4), random(1, 4).requires_grad_()
    divergence(Outputs(teacher), Outputs(student), 3.0).sum().backward()
    assert student.grad is not None
    assert_close(student.grad, 3.0 * ((student / 3).softmax(-1) - (teacher / 3).softmax(-1)))


def test_a_class_masked_with_minus_infinity_by_both_models_makes_no_nan() -> None:
    logits = torch.tensor([[1.0, -torch.inf, 0.0]], requires_grad=True)
    divergence(Outputs(torch.tensor([[0.0, -torch.inf, 1.0]])), Outputs(logits)).sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad[0, [0, 2]]).all()


@pytest.mark.parametrize("name", ["soft_targets", "similarity_preserving", "dkd"])
def test_distillation_starts_in_the_second_round(name: str) -> None:
    made = {
        "features": random(3, 4),
        "targets": torch.tensor([0, 1, 2]),
        "loss_sums": torch.ones(3),
        "loss_weights": torch.ones(3),
    }
    student, teacher = Outputs(random(3, 4), **made), Outputs(random(3, 4), random(3, 4))
    assert total(name, student, teacher, at=update(round=0)).item() == 1.0
    assert total(name, student, teacher, at=update(round=1)).item() > 1.0
    assert total(name, student, teacher, at=update(round=0), from_round=1).item() > 1.0


def test_similarities_are_invariant_to_scale_and_rotation() -> None:
    mask, features = torch.ones(5), random(5, 3)
    rotation = torch.linalg.qr(random(3, 3)).Q
    assert_close(similarities(2.5 * features, mask), similarities(features, mask))
    assert_close(similarities(features @ rotation, mask), similarities(features, mask))


def test_similarity_preserving_by_hand() -> None:
    # teacher rows (1,0), (0,1): G = I. student (1,0), (1,0): G = 1/√2 everywhere
    # ‖·‖² = 2·(1 − 1/√2)² + 2·(1/√2)², over b² = 4, times weight 8
    student = outputs([[0.0], [0.0]], features=[[1.0, 0.0], [1.0, 0.0]])
    teacher = outputs([[0.0], [0.0]], features=[[1.0, 0.0], [0.0, 1.0]])
    expected = 8.0 / 4.0 * (2 * (1 - 2**-0.5) ** 2 + 2 * 0.5)
    assert total("similarity_preserving", student, teacher, weight=8.0).item() == pytest.approx(expected)


def test_similarity_preserving_ignores_padding_and_batches_of_one() -> None:
    student, teacher = outputs([[0.0]] * 3, random(3, 4).tolist()), outputs([[0.0]] * 3, random(3, 4).tolist())
    one = total("similarity_preserving", student, teacher, mask=torch.tensor([1.0, 0.0, 0.0]))
    assert one.item() == pytest.approx(0.0, abs=1e-9)
    first_two = [
        Outputs(o.logits[:2], o.features[:2], loss_sums=o.loss_sums[:2], loss_weights=o.loss_weights[:2])
        for o in (student, teacher)
    ]
    padded = total("similarity_preserving", student, teacher, mask=torch.tensor([1.0, 1.0, 0.0]))
    assert_close(padded, total("similarity_preserving", first_two[0], first_two[1]))


def test_the_gradient_of_similarities_is_finite_for_zero_features() -> None:
    features = torch.tensor([[0.0, 0.0], [1.0, 2.0]], requires_grad=True)
    similarities(features, torch.ones(2)).sum().backward()
    assert features.grad is not None
    assert torch.isfinite(features.grad).all()


def test_decoupled_distillation_is_soft_targets_when_beta_is_one_minus_the_target_probability() -> None:
    # KL(p^T ‖ p^S) = TCKD + (1 − p^T_t)·NCKD
    teacher, student, right = random(6, 5), random(6, 5), torch.tensor([0, 1, 2, 3, 4, 0])
    binary, among = decoupled(teacher, student, right)
    doubt = 1 - teacher.softmax(-1).gather(-1, right[:, None]).squeeze(-1)
    assert_close(binary + doubt * among, divergence(Outputs(teacher), Outputs(student)))


def test_decoupled_distillation_by_hand() -> None:
    # p^T = (.5, .3, .2), p^S = (.25, .5, .25), t = 0
    teacher, student = torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([[0.25, 0.5, 0.25]]).log()
    binary, among = decoupled(teacher, student, torch.tensor([0]))
    assert binary.item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75))
    assert among.item() == pytest.approx(0.6 * math.log(0.6 * 3 / 2) + 0.4 * math.log(0.4 * 3), rel=1e-4)


def test_decoupled_distillation_of_a_sequence_counts_real_tokens_alone() -> None:
    logits, teacher = random(1, 3, 4), random(1, 3, 4)
    mask, targets = torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([[1, 2, -100]])
    loss = total(
        "dkd",
        Outputs(logits, mask=mask, targets=targets, loss_sums=torch.zeros(1), loss_weights=torch.ones(1)),
        Outputs(teacher),
        temperature=1.0,
        beta=2.0,
    )
    binary, among = decoupled(teacher[0, :2], logits[0, :2], torch.tensor([1, 2]))
    assert_close(loss, (binary + 2.0 * among).mean())


def test_decoupled_distillation_ramps_up_linearly() -> None:
    student = Outputs(random(1, 3), targets=torch.tensor([1]), loss_sums=torch.zeros(1), loss_weights=torch.ones(1))
    teacher = Outputs(random(1, 3))
    whole = total("dkd", student, teacher)
    half = total("dkd", student, teacher, at=update(round=1, steps=4, step=2), ramp_rounds=3.0)
    assert_close(half, 0.5 * whole)  # 1.5 of 3 rounds


def test_the_divergence_of_a_sequence_is_the_mean_over_its_real_positions() -> None:
    teacher, student, mask = random(2, 3, 4), random(2, 3, 4), torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    each = (teacher.softmax(-1) * (log_softmax(teacher, -1) - log_softmax(student, -1))).sum(-1)
    expected = torch.stack([each[0, :2].mean(), each[1, 0]])
    assert_close(divergence(Outputs(teacher), Outputs(student, mask=mask)), expected)
