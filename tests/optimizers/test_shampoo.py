"""Shampoo against closed forms, its update intervals, and blocks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes import experiment, run
from torch.testing import assert_close

from simfl.client_state import FileClientStore
from simfl.experiment import Local
from simfl.optimizers.local import LocalOptimizer
from simfl.optimizers.shampoo import Layout, Shampoo
from simfl.runs.results import Run
from simfl.training.optimizer_step import StackedOptimizer

ALWAYS = {"statistics_every": 1, "roots_every": 1}


def moved(gradients: list[torch.Tensor], lr: float = 1.0, **settings) -> torch.Tensor:
    """Where a tensor of zeros goes."""
    tensor = torch.zeros_like(gradients[0])
    optimizer = Shampoo([tensor], lr=lr, **settings)
    for gradient in gradients:
        tensor.grad = gradient
        optimizer.step()
    return tensor


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_shampoo_step_of_a_scalar_matrix_by_hand() -> None:
    # L = R = 1 + 2² = 5 and L = R = 5 + 1² = 6: steps 2/√5 and 1/√6, as both roots together are the square root
    steps = [torch.tensor([[2.0]]), torch.tensor([[1.0]])]
    assert moved(steps, clip=None, rho=0.0, **ALWAYS).item() == pytest.approx(-(2 / 5**0.5 + 1 / 6**0.5))


def test_shampoo_closed_form_for_diagonal_gradients() -> None:
    # each entry on its own: g/√(1 + Σg² + rho)
    diagonals, rho = [random(4, seed=s) for s in range(3)], 0.01
    expected, squares = torch.zeros(4), torch.ones(4)
    for g in diagonals:
        squares = squares + g.square()
        expected = expected - g / (squares + rho).sqrt()
    found = moved([torch.diag(g) for g in diagonals], clip=None, rho=rho, **ALWAYS)
    assert_close(found, torch.diag(expected), atol=1e-5, rtol=1e-5)


def test_shampoo_treats_a_vector_as_a_diagonal_matrix() -> None:
    vectors = [random(4, seed=s) for s in range(3)]
    matrix = moved([torch.diag(g) for g in vectors], clip=None, **ALWAYS)
    assert_close(moved(vectors, clip=None, **ALWAYS), matrix.diagonal(), atol=1e-5, rtol=1e-5)


def test_shampoo_equals_its_definition_for_any_matrix() -> None:
    g, rho = random(3, 5), 1e-4
    left, right = torch.eye(3) + g @ g.T + rho * torch.eye(3), torch.eye(5) + g.T @ g + rho * torch.eye(5)

    def root(matrix: torch.Tensor) -> torch.Tensor:
        values, vectors = torch.linalg.eigh(matrix.double())
        return (vectors @ torch.diag(values**-0.25) @ vectors.T).float()

    assert_close(moved([g], clip=None, **ALWAYS), -root(left) @ g @ root(right), atol=1e-5, rtol=1e-5)


def test_shampoo_moves_no_entry_further_than_rate_times_clip() -> None:
    assert moved([100.0 * random(6, 6)], lr=0.5, clip=0.2).abs().max().item() == pytest.approx(0.1)


def test_shampoo_is_clipped_sgd_before_the_first_roots() -> None:
    gradients = [random(3, 4, seed=s) for s in range(99)]
    expected = -0.01 * sum(g.clamp(-0.2, 0.2) for g in gradients)
    assert_close(moved(gradients, lr=0.01), expected)


def test_shampoo_updates_statistics_every_ten_steps_and_roots_every_hundred() -> None:
    tensor = torch.zeros(2, 2)
    optimizer, state = Shampoo([tensor], lr=0.0), {}
    for step in range(1, 101):
        tensor.grad = torch.eye(2)
        optimizer.step()
        state = optimizer.state[tensor]
        assert state["left"][0, 0, 0, 0].item() == 1 + step // 10
        assert bool((state["left_root"][0, 0] == torch.eye(2)).all()) == (step < 100)
    assert state["left_root"][0, 0, 0, 0].item() == pytest.approx((11 + 1e-4) ** -0.25)  # 1 + 10 gradients of 1


def test_shampoo_with_average_forgets_old_statistics() -> None:
    # L = .5·1 + .5·4 = 2.5, R the same: 2/√2.5
    step = moved([torch.tensor([[2.0]])], clip=None, rho=0.0, average=0.5, **ALWAYS)
    assert step.item() == pytest.approx(-2 / 2.5**0.5)


def test_shampoo_preconditions_each_block_separately() -> None:
    # 5 × 4 in blocks of at most 2: rows 2 2 1, columns 2 2
    gradients = [random(5, 4, seed=s) for s in range(2)]
    whole = moved(gradients, clip=None, block=2, **ALWAYS)
    for rows in (slice(0, 2), slice(2, 4), slice(4, 5)):
        for columns in (slice(0, 2), slice(2, 4)):
            part = moved([g[rows, columns].clone() for g in gradients], clip=None, **ALWAYS)
            assert_close(whole[rows, columns], part, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [(7,), (5, 4), (3, 2, 3, 3), (1, 9), (4, 1)])
@pytest.mark.parametrize("block", [2, 3, 100])
@pytest.mark.parametrize("lead", [0, 1])
def test_layout_join_undoes_cut(shape: tuple[int, ...], block: int, lead: int) -> None:
    tensor = random(*(2,) * lead, *shape)
    layout = Layout(tensor.shape, block, lead)
    blocks = layout.cut(tensor)
    assert torch.equal(layout.join(blocks), tensor)
    if len(shape) > 1:
        assert max(blocks.shape[-2:]) <= block


def test_shampoo_steps_stacked_clients_as_each_alone() -> None:
    settings = {"statistics_every": 2, "roots_every": 3, "block": 3}
    local = Local(optimizer=LocalOptimizer("shampoo", settings), learning_rate=0.1)
    together = {"w": random(3, 4, 5), "b": random(3, 4)}
    alone = [{name: t[k : k + 1].clone() for name, t in together.items()} for k in range(3)]
    active = [[True, True, step < 4] for step in range(8)]
    stepper = StackedOptimizer(local, together, [{}, {}, {}])
    assert stepper.stacked
    singles = [StackedOptimizer(local, own, [{}]) for own in alone]
    for step in range(8):
        gradient = {name: random(*t.shape, seed=step) for name, t in together.items()}
        stepper.step(gradient, active[step], [0.1, 0.2, 0.1])
        for k, single in enumerate(singles):
            if active[step][k]:
                single.step({n: g[k : k + 1] for n, g in gradient.items()}, [True], [[0.1, 0.2, 0.1][k]])
    for k in range(3):
        assert_close({name: t[k : k + 1] for name, t in together.items()}, alone[k], atol=1e-5, rtol=1e-5)
        assert_close(stepper.states()[k], singles[k].states()[0], atol=1e-4, rtol=1e-4)


def test_shampoo_state_stays_on_the_client(tmp_path: Path) -> None:
    shampoo = LocalOptimizer("shampoo", {"statistics_every": 1, "roots_every": 2})
    given = experiment(optimizer=shampoo, learning_rate=0.1, keep_optimizer=True, participation=1.0)
    run(given, tmp_path)
    found = Run(tmp_path)
    memory = found.snapshot().client_state(1)
    state = FileClientStore(tmp_path / "client_states").get(memory)
    assert state["optimizer0:left"]["head.weight"].shape == (1, 1, 5, 5)
    assert state["optimizer0:step"]["head.weight"].item() == 15  # 3 client updates of 40 examples in batches of 8
    sent = {(row["part"], row["floats"]) for row in found.ledger().to_pylist()}
    assert sent == {("weights", 12 * 16 + 16 + 16 * 5 + 5)}


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"clip": 0.0}, "clip: 0.0 given; allowed: above 0, or null"),
        ({"rho": -1.0}, "rho: -1.0 given; allowed: 0 and more"),
        ({"block": 0}, "statistics_every, roots_every and block: at least 1"),
        ({"average": 1.0}, "average: 1.0 given; allowed: 0 up to, not including, 1, or null"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        Shampoo([torch.zeros(1)], **settings)


def test_shampoo_decomposes_tensors_together_with_the_bits_of_each_alone() -> None:
    shapes = [(40, 24), (24, 40), (40, 40), (40, 24), (5,), (70, 24)]  # blocks of 40 rows at most; sizes recur
    together = [random(*shape, seed=i) for i, shape in enumerate(shapes)]
    alone = [tensor.clone() for tensor in together]
    optimizers = [Shampoo(together, block=40, roots_every=2, statistics_every=1)]
    optimizers += [Shampoo([tensor], block=40, roots_every=2, statistics_every=1) for tensor in alone]
    for step in range(5):
        for i, (one, other) in enumerate(zip(together, alone, strict=True)):
            one.grad = other.grad = random(*shapes[i], seed=100 * step + i)
        for optimizer in optimizers:
            optimizer.step()
    assert all(torch.equal(one, other) for one, other in zip(together, alone, strict=True))
