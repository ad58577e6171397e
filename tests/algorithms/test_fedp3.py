"""FedP³: preferences, the forgotten-knowledge filter and its ablations."""

from __future__ import annotations

import math

import pytest
import torch
from hand import MASK, update
from torch import Tensor
from torch.testing import assert_close

from simfl.algorithms.distill import divergence
from simfl.algorithms.fedp3 import FILTERS, FedP3, entropy, forgotten, preferences
from simfl.errors import ConfigError
from simfl.protocol import Outputs

GENERATOR = torch.Generator().manual_seed(0)
SECOND = update(round=1)
ALL = {"preserve": "pairs"}


def logits(*shape: int) -> Tensor:
    return 3.0 * torch.randn(*shape, generator=GENERATOR)


def lost(teacher: Tensor, student: Tensor, at=SECOND, **settings) -> Tensor:
    passes = {
        "teacher": Outputs(teacher),
        "student": Outputs(student, loss_sums=torch.zeros(len(student)), loss_weights=torch.ones(len(student))),
    }
    mask = torch.ones(len(student))
    return FedP3(**settings).loss(passes, {"mask": mask}, {}, {}, {}, at).total(mask)


def test_preferences_of_two_answers_sum_to_one() -> None:
    matrix = preferences(logits(4, 7).softmax(-1))
    assert_close(matrix + matrix.mT, torch.ones(4, 7, 7))
    assert_close(matrix.diagonal(dim1=1, dim2=2), torch.full((4, 7), 0.5))
    assert matrix.min() >= 0.1192  # 1/(1 + e²), as probabilities differ by at most 1
    assert matrix.max() <= 0.8808


def test_fedp3_loss_by_hand() -> None:
    # p^T = (.75, .25), p^S = (.5, .5): M^T_12 = 1/(1 + e^{-1}), M^S = ½; twice the gap, as both orders count
    teacher, student = torch.tensor([[math.log(3.0), 0.0]]), torch.zeros(1, 2)
    gap = 1 / (1 + math.exp(-1)) - 0.5
    assert lost(teacher, student, weight=0.5).item() == pytest.approx(0.5 * 2 * gap, rel=1e-5)


def test_fedp3_derivative_by_the_students_probability() -> None:
    # ∂M(p_i, p_j)/∂p_j = −2e^{−2x}/(1 + e^{−2x})², x = p_i − p_j
    values = torch.tensor([0.7, 0.1], requires_grad=True)
    preferences(values)[0, 1].backward()
    assert values.grad is not None
    assert values.grad[1].item() == pytest.approx(-2 * math.exp(-1.2) / (1 + math.exp(-1.2)) ** 2)


@pytest.mark.parametrize("compare", ["probabilities", "logits"])
def test_fedp3_loss_and_gradient_are_zero_where_a_round_starts(compare: str) -> None:
    teacher = logits(3, 30)
    student = teacher.clone().requires_grad_()
    loss = lost(teacher, student, compare=compare)
    loss.backward()
    assert loss.item() == 0.0
    assert student.grad is not None
    assert torch.equal(student.grad, torch.zeros_like(student))


def test_a_single_answer_has_no_preference() -> None:
    assert lost(logits(3, 30), logits(3, 30), top=1).item() == 0.0


def test_fedp3_is_invariant_to_a_constant_added_to_all_logits() -> None:
    teacher, student = logits(3, 8), logits(3, 8)
    assert_close(lost(teacher, student + 5.0, compare="logits", **ALL), lost(teacher, student, compare="logits", **ALL))


def test_fedp3_with_top_above_the_number_of_answers_uses_all_pairs() -> None:
    teacher, student = logits(3, 8), logits(3, 8)
    assert_close(lost(teacher, student, top=20), lost(teacher, student, **ALL))


def test_the_forgotten_filter_selects_the_teachers_favourites_when_both_agree() -> None:
    logs = logits(4, 9).log_softmax(-1)
    assert_close(forgotten(logs, logs, SECOND), logs)  # H_T/H_S = 1, whose log is 0


def test_the_forgotten_filter_penalises_the_favourites_of_a_more_certain_student() -> None:
    # H_S < H_T: log(H_T/H_S) > 0; the answer that the student took from the second to the top is not forgotten
    teacher = torch.tensor([[0.4, 0.35, 0.15, 0.1]]).log()
    student = torch.tensor([[0.97, 0.01, 0.01, 0.01]]).log()
    assert entropy(student) < entropy(teacher)
    assert forgotten(teacher, student, SECOND).argmax().item() == 1


def test_the_forgotten_filter_is_finite_for_a_certain_student() -> None:
    sure = torch.tensor([[200.0, 0.0, 0.0]])
    assert torch.isfinite(lost(logits(1, 3), sure, top=2))


def test_each_fedp3_filter_ranks_by_its_own_scores() -> None:
    teacher = torch.tensor([[0.5, 0.3, 0.2]]).log()
    student = torch.tensor([[0.1, 0.6, 0.3]]).log()
    top = {name: rank(teacher, student, SECOND).argmax().item() for name, rank in FILTERS.items() if name != "uniform"}
    assert top == {"forgotten": 0, "ratio": 0, "teacher": 0, "student": 1}
    assert FILTERS["ratio"](teacher, student, SECOND)[0].argsort().tolist() == [1, 2, 0]


def test_the_uniform_filter_draws_new_answers_at_each_step() -> None:
    teacher, student = logits(4, 50), logits(4, 50)
    settings = {"filter": "uniform", "top": 5}
    first = lost(teacher, student, **settings)
    assert torch.equal(lost(teacher, student, **settings), first)
    assert not torch.equal(lost(teacher, student, at=update(round=1, step=1), **settings), first)


def test_fedp3_preserve_divergence_is_the_divergence() -> None:
    teacher, student = logits(3, 8), logits(3, 8)
    expected = divergence(Outputs(teacher), Outputs(student), 2.0).mean()
    assert_close(lost(teacher, student, preserve="divergence", temperature=2.0), expected)


def test_fedp3_starts_in_the_second_round() -> None:
    assert lost(logits(2, 8), logits(2, 8), at=update(round=0)).item() == 0.0


def test_fedp3_counts_only_real_positions_of_a_sequence() -> None:
    teacher, student = logits(1, 3, 5), logits(1, 3, 5)
    facts = {"mask": torch.tensor([[1.0, 0.0, 1.0]]), "loss_sums": torch.zeros(1), "loss_weights": torch.ones(1)}
    passes = {"teacher": Outputs(teacher), "student": Outputs(student, **facts)}
    whole = FedP3().loss(passes, MASK, {}, {}, {}, SECOND).total(MASK["mask"])
    assert_close(whole, torch.stack([lost(teacher[:, t], student[:, t]) for t in (0, 2)]).mean())


def test_fedp3_refuses_a_filter_that_has_no_effect() -> None:
    with pytest.raises(ConfigError, match="filter: teacher of 20 has no effect with preserve: pairs"):
        FedP3(preserve="pairs", filter="teacher")
