"""Examples as the unit of privacy: per-example gradients against those of opacus, and the release of a step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import Toy, experiment, run, traces
from torch import nn
from torch.testing import assert_close

from simfl.experiment import Local, Privacy
from simfl.models.mlp import Mlp
from simfl.optimizers.local import LocalOptimizer
from simfl.protocol import Outputs
from simfl.run_context import RunContext
from simfl.training.batches import poisson_batches
from simfl.training.dp_records import clipped_sum, example_gradients
from simfl.training.executor import Executor
from simfl.training.forward import StepInputs
from simfl.training.plan import num_steps


def private(sigma: float = 1.0, clip: float = 0.5, **settings: Any) -> Any:
    privacy = Privacy(unit="record", clip=clip, noise_multiplier=sigma, noise_seed=0)
    return experiment("dp_sgd", privacy=privacy, weighting="uniform", data=Toy(sizes=(20, 16, 12)), **settings)


@pytest.mark.filterwarnings("ignore:Full backward hook")  # opacus hooks layers whose inputs need no gradient
def test_clipped_example_gradients_match_opacus(tmp_path: Path) -> None:
    from opacus import GradSampleModule

    given = replace(private(), model=Mlp(hidden_sizes=(16,), dropout=0.0))
    context = RunContext(given, tmp_path).phase_context(0, 3)
    module, batch = context.network.module, Executor(context).batch(torch.arange(12))
    own = {name: p.detach() for name, p in module.named_parameters()}
    (micro,) = context.phase.algorithm.micro_steps()
    update: Any = None
    inputs = StepInputs(batch, own, {"weights": own}, {}, update, torch.tensor(0))
    each, sums, _ = example_gradients(context, micro, inputs, own)

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.inner(x)
            return out.logits if isinstance(out, Outputs) else out

    theirs = GradSampleModule(Logits(), loss_reduction="sum")
    loss = nn.functional.cross_entropy(theirs(batch["x"]), batch["label"], reduction="sum")
    loss.backward()
    found = {name.split("inner.", 1)[1]: p.grad_sample for name, p in theirs.named_parameters()}
    assert_close(each, {name: found[name] for name in each}, rtol=1e-4, atol=1e-6)
    assert float(sums.sum()) == pytest.approx(float(loss.detach()), rel=1e-5)
    norms = torch.stack([g.flatten(1).square().sum(1) for g in found.values()]).sum(0).sqrt()
    factors = (0.5 / norms).clamp_max(1.0)
    by_hand = {name: torch.einsum("b,b...->...", factors, found[name]) for name in each}
    assert_close(clipped_sum(each, 0.5), by_hand, rtol=1e-4, atol=1e-6)


def test_a_step_samples_each_example_independently() -> None:
    rows, local = np.arange(100, 140), Local(LocalOptimizer("sgd"), 0.1, batch_size=10, epochs=50)
    table = poisson_batches(rows, local, 1, "visit")
    assert len(table) == num_steps(40, local) == 200
    sizes = (table >= 0).sum(1)
    assert np.mean(sizes) == pytest.approx(10, abs=6 * np.sqrt(40 * 0.25 * 0.75 / 200))
    assert len(set(sizes.tolist())) > 5
    assert all(len(set(row[row >= 0])) == (row >= 0).sum() for row in table)
    assert set(table[table >= 0]) == set(rows)


def test_without_noise_and_clip_a_step_divides_the_sum_by_the_expected_batch(tmp_path: Path) -> None:
    # one client, one step at rate 1: every example is sampled, so the sum over B = n is the mean gradient
    given = replace(private(sigma=0.0, clip=1e6), model=Mlp(hidden_sizes=(16,), dropout=0.0), data=Toy(sizes=(8,)))
    plain = replace(given, privacy=None, phases=(replace(given.phases[0], algorithm=_fedavg()),))
    one = replace(given.phases[0], participation=1.0, rounds=1)
    two = replace(plain.phases[0], participation=1.0, rounds=1)
    a = run(replace(given, phases=(one,)), tmp_path / "a")
    b = run(replace(plain, phases=(two,)), tmp_path / "b")
    assert a["final"]["accuracy"] == pytest.approx(b["final"]["accuracy"], abs=0.02)


def _fedavg() -> Any:
    from simfl.algorithms.fedavg import FedAvg

    return FedAvg()


@pytest.mark.slow
def test_equal_runs_are_bit_identical_and_other_noise_changes_the_weights(tmp_path: Path) -> None:
    run(private(), tmp_path / "a")
    run(private(), tmp_path / "b")
    run(private(sigma=2.0), tmp_path / "c")
    assert traces(tmp_path / "a") == traces(tmp_path / "b")
    assert traces(tmp_path / "a")["weights_sha256"] != traces(tmp_path / "c")["weights_sha256"]


def test_adam_with_kept_state_steps_with_noisy_gradients(tmp_path: Path) -> None:
    given = private(optimizer="adam", keep_optimizer=True, learning_rate=1e-3)
    run(given, tmp_path / "a")
    run(given, tmp_path / "b")
    assert traces(tmp_path / "a") == traces(tmp_path / "b")
