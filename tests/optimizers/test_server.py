"""Server optimizers against their closed forms under a constant delta c (Reddi et al. 2021, Algorithm 2)."""

import pytest
import torch

from simfl.errors import ConfigError
from simfl.optimizers import SERVER_OPTIMIZERS
from simfl.optimizers.server import Adagrad, Adam, Momentum, Sgd, Yogi

C = torch.tensor([0.5, -2.0, 0.0], dtype=torch.float64)
START = torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)


def run(optimizer, deltas):
    """Weights and state after a list of deltas."""
    weights, state = {"w": START}, {}
    for delta in deltas:
        weights, state = optimizer.step(weights, {"w": delta}, state)
    return weights["w"], state


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-15)


def test_server_sgd_with_rate_one_is_federated_averaging():
    assert run(Sgd(), [C, C])[0].tolist() == [2.0, -3.0, 1.0]
    assert run(Sgd(learning_rate=0.5), [C])[0].tolist() == [1.25, 0.0, 1.0]


def test_server_momentum_as_moving_average():
    # m_t = (1 − beta^t) c, so w_T = w_0 + eta Σ (1 − beta^t) c; beta .9, T 3: Σ = .1 + .19 + .271 = .561
    w, state = run(Momentum(beta=0.9, learning_rate=2.0), [C] * 3)
    close(w, START + 2.0 * 0.561 * C)
    close(state["momentum"]["w"], 0.271 * C)


def test_server_momentum_as_sum():
    # m: 1, 1.9, 2.71 times c; their sum is 5.61
    w, state = run(Momentum(beta=0.9, form="sum"), [C] * 3)
    close(w, START + 5.61 * C)
    close(state["momentum"]["w"], 2.71 * C)


def test_server_momentum_with_beta_zero_is_sgd():
    for form in ("ema", "sum"):
        assert torch.equal(run(Momentum(beta=0.0, form=form), [C, -C, C])[0], run(Sgd(), [C, -C, C])[0])


def test_the_printed_rate_of_fedavgm_hardly_moves_the_model():
    # paper 000: beta .9, eta .001, 10 rounds: .001 · Σ_{t=1..10} (1 − .9^t) = .0041381 of one delta
    w, _ = run(Momentum(beta=0.9, learning_rate=0.001), [C] * 10)
    torch.testing.assert_close((w - START)[1] / C[1], torch.tensor(0.0041381, dtype=torch.float64), rtol=1e-5, atol=0)


@pytest.mark.parametrize("t", [1, 2, 5])
def test_fedadam_under_a_constant_delta(t):
    # m_t = (1 − .9^t) c, v_t = .99^t v0 + (1 − .99^t) c²
    w, state = run(Adam(learning_rate=0.1, tau=0.01, v0=0.25), [C] * t)
    m = [(1 - 0.9**s) * C for s in range(1, t + 1)]
    v = [0.99**s * 0.25 + (1 - 0.99**s) * C**2 for s in range(1, t + 1)]
    close(state["momentum"]["w"], m[-1])
    close(state["second"]["w"], v[-1])
    close(w, START + sum(0.1 * a / (b.sqrt() + 0.01) for a, b in zip(m, v, strict=True)))


def test_the_first_step_of_fedadam_without_v0_is_a_sign():
    # v0 = 0, tau → 0: .1 c / √(.01 c²)
    w, _ = run(Adam(learning_rate=0.03, tau=1e-30, v0=0.0), [C])
    close(w, START + 0.03 * torch.sign(C))


def test_v_starts_at_tau_squared():
    for optimizer in (Adam(tau=0.1), Yogi(tau=0.1), Adagrad(tau=0.1)):
        _, state = run(optimizer, [torch.zeros(3, dtype=torch.float64)])
        decay = 0.99 if isinstance(optimizer, Adam) else 1.0  # a zero delta leaves Yogi's and Adagrad's v alone
        close(state["second"]["w"], torch.full((3,), 0.01 * decay, dtype=torch.float64))


def test_fedyogi_moves_v_by_a_step_of_the_size_of_the_square():
    # v0 = 1; c² = .25, 4, 0: v = 1 − .01·.25, 1 + .01·4, 1
    _, state = run(Yogi(v0=1.0), [C])
    close(state["second"]["w"], torch.tensor([0.9975, 1.04, 1.0], dtype=torch.float64))


def test_fedyogi_from_zero_takes_the_first_step_of_fedadam():
    assert torch.equal(run(Yogi(v0=0.0), [C])[0], run(Adam(v0=0.0), [C])[0])


def test_fedadagrad_sums_squares_and_has_no_momentum_by_default():
    # v_t = v0 + t c²; w = eta Σ c / (√v_t + tau)
    w, state = run(Adagrad(learning_rate=0.1, tau=0.5, v0=0.0), [C, C])
    close(state["second"]["w"], 2 * C**2)
    close(w, START + 0.1 * (C / (C.abs() + 0.5) + C / (2**0.5 * C.abs() + 0.5)))


def test_adaptive_optimizers_with_eps_inside_the_root():
    w, _ = run(Adam(learning_rate=1.0, tau=0.04, v0=0.0, eps_inside_root=True), [C])
    close(w, START + 0.1 * C / (0.01 * C**2 + 0.04).sqrt())


@pytest.mark.parametrize("name", ["adam", "yogi"])
def test_bias_correction_makes_every_step_a_sign_under_a_constant_delta(name):
    optimizer = SERVER_OPTIMIZERS[name](learning_rate=0.1, tau=1e-30, v0=0.0, bias_correction=True)
    w, state = run(optimizer, [C])
    close(w, START + 0.1 * torch.sign(C))
    assert state["count"]["steps"].item() == 1
    if name == "adam":  # m_t/(1 − .9^t) = c, v_t/(1 − .99^t) = c² for every t
        close(run(optimizer, [C] * 4)[0], START + 0.4 * torch.sign(C))


def test_bias_correction_of_fedadagrad_leaves_the_sum_unchanged():
    # m_1 / (1 − .9) = c, v_1 = c²
    w, _ = run(Adagrad(learning_rate=0.1, beta1=0.9, tau=1e-30, v0=0.0, bias_correction=True), [C])
    close(w, START + 0.1 * torch.sign(C))


def test_fedadam_with_bias_correction_equals_torchs_adam():
    torch.manual_seed(0)
    deltas = list(torch.randn(6, 3, dtype=torch.float64))
    w = torch.nn.Parameter(START.clone())
    reference = torch.optim.Adam([w], lr=0.1, betas=(0.9, 0.99), eps=1e-3)
    for delta in deltas:
        w.grad = -delta
        reference.step()
    close(run(Adam(learning_rate=0.1, tau=1e-3, v0=0.0, bias_correction=True), deltas)[0], w.detach())


every_optimizer = pytest.mark.parametrize("name", sorted(SERVER_OPTIMIZERS))


@every_optimizer
def test_a_server_step_changes_nothing_in_place(name):
    optimizer, weights = SERVER_OPTIMIZERS[name](), {"w": torch.ones(2), "buffer": torch.tensor(3)}
    delta = {"w": torch.tensor([1.0, -1.0])}
    after, state = optimizer.step(weights, delta, {})
    frozen = {group: {n: t.clone() for n, t in tensors.items()} for group, tensors in state.items()}
    optimizer.step(after, delta, state)
    assert torch.equal(weights["w"], torch.ones(2))
    assert all(torch.equal(t, frozen[group][n]) for group, tensors in state.items() for n, t in tensors.items())


@every_optimizer
def test_weights_without_a_delta_are_unchanged(name):
    weights = {"counter": torch.tensor(3), "w": torch.ones(2)}
    after, _ = SERVER_OPTIMIZERS[name]().step(weights, {"w": torch.ones(2)}, {})
    assert list(after) == ["counter", "w"]
    assert after["counter"] is weights["counter"]


@every_optimizer
def test_a_server_step_without_tensors(name):
    optimizer = SERVER_OPTIMIZERS[name]()
    weights, state = optimizer.step({}, {}, {})
    assert optimizer.step(weights, {}, state)[0] == {}


@every_optimizer
def test_server_optimizers_keep_float32(name):
    optimizer, weights, state = SERVER_OPTIMIZERS[name](), {"w": torch.ones(2)}, {}
    for _ in range(2):
        weights, state = optimizer.step(weights, {"w": torch.ones(2)}, state)
    assert weights["w"].dtype == torch.float32


@pytest.mark.parametrize(
    ("cls", "settings", "line"),
    [
        (Momentum, {"form": "emma"}, "server.form: unknown 'emma'; did you mean 'ema'?"),
        (Momentum, {"beta": 1.0}, "server.beta: 1.0 given; allowed: 0 up to, not including, 1"),
        (Adam, {"beta2": -0.1}, "server.beta2: -0.1 given; allowed: 0 up to, not including, 1"),
        (Yogi, {"tau": 0.0}, "server.tau: 0.0 given; allowed: above 0, or 0 with v0 above 0"),
        (Adagrad, {"v0": -1.0}, "server.v0: -1.0 given; allowed: 0 and more"),
    ],
)
def test_settings_out_of_range_are_refused(cls, settings, line):
    with pytest.raises(ConfigError) as error:
        cls(**settings)
    assert str(error.value) == line
