"""Privacy units: groups of a client, trained separately, clipped as a whole and summed into one upload."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fakes import Toy, experiment, run, traces
from torch.testing import assert_close

from simfl.data.partition.partitioners import Official
from simfl.experiment import Experiment, Local, Privacy
from simfl.models.mlp import Mlp
from simfl.optimizers.local import LocalOptimizer
from simfl.privacy import clipped
from simfl.protocol import Weights
from simfl.run_context import RunContext
from simfl.runs import checkpoint
from simfl.runs.snapshot import Snapshot
from simfl.training.optimizer_step import clip
from simfl.weights import norm, subtract

SIZES = (12, 9, 6)


def grouped(mode: str = "sequential", **privacy: Any) -> Experiment:
    """Return three clients of three groups each, all sampled, with uniform weights and one full batch per group."""
    made = experiment(
        "fedavg",
        mode=mode,
        clients_per_batch=4,
        rounds=1,
        participation=1.0,
        weighting="uniform",
        batch_size=16,
        data=Toy(sizes=SIZES),
    )
    return replace(
        made, model=Mlp(hidden_sizes=(8,)), privacy=Privacy(**privacy), deterministic=True
    )  # no TF32 on a GPU


def moved(given: Experiment, folder: Path) -> Weights:
    """Return the change of the global model in the round."""
    run(given, folder)
    found = checkpoint.latest(folder / "checkpoints")
    assert found is not None
    after = Snapshot.restore(found).server.weights
    start = {n: p.detach() for n, p in RunContext(given, folder / "cache").module.named_parameters()}
    return subtract(after, start)


def by_hand(given: Experiment, folder: Path, clip: float, divisor: int | None = None) -> Weights:
    """Return the mean over clients of one SGD step per group, clipped, summed and divided by the number of groups."""
    setting = RunContext(given, folder / "cache")
    partition = Official(groups="group").split(setting.split("train"), given.seed)
    examples, module = setting.phase_context(0, 3).load_examples(), setting.module.train()
    total: Weights = {}
    for client in range(3):
        groups = partition.groups(client)
        for _, rows in groups:
            batch = examples.take(torch.from_numpy(rows))
            loss = torch.nn.functional.cross_entropy(module(batch["x"]).logits, batch["label"])
            gradients = torch.autograd.grad(loss, list(module.parameters()))
            step = {n: -0.1 * g for (n, _), g in zip(module.named_parameters(), gradients, strict=True)}
            factor = min(1.0, clip / float(norm(step)))
            for name, t in step.items():
                total[name] = total.get(name, 0) + factor * t / (divisor or len(groups)) / 3
    return total


def test_a_round_of_groups_by_hand(tmp_path: Path) -> None:
    given = grouped(clip=0.05)
    assert_close(moved(given, tmp_path), by_hand(given, tmp_path, clip=0.05), rtol=1e-4, atol=1e-7)


def test_without_a_clip_the_upload_is_the_mean_of_the_groups(tmp_path: Path) -> None:
    given = grouped()
    assert_close(moved(given, tmp_path), by_hand(given, tmp_path, clip=1e9), rtol=1e-4, atol=1e-7)


def test_the_denominator_is_the_requested_number_even_if_a_client_has_fewer_groups(tmp_path: Path) -> None:
    given = grouped(clip=0.05, groups_per_client=5)
    assert_close(moved(given, tmp_path), by_hand(given, tmp_path, clip=0.05, divisor=5), rtol=1e-4, atol=1e-7)


def test_both_execution_modes_agree_on_groups(tmp_path: Path) -> None:
    one, all_at_once = (moved(grouped(mode, clip=0.05), tmp_path / mode) for mode in ("sequential", "vectorized"))
    assert_close(one, all_at_once, rtol=1e-4, atol=1e-7)


def test_sampled_groups_are_fewer_and_the_same_each_time(tmp_path: Path) -> None:
    given = grouped(clip=0.05, groups_per_client=2)
    first, second = (run(given, tmp_path / name) for name in ("a", "b"))
    assert first["weights_sha256"] == second["weights_sha256"]
    assert traces(tmp_path / "a") == traces(tmp_path / "b")
    assert first["weights_sha256"] != run(grouped(clip=0.05), tmp_path / "c")["weights_sha256"]


def test_with_client_privacy_the_whole_update_is_clipped(tmp_path: Path) -> None:
    given = grouped(unit="client", clip=1e-3)
    alone = replace(given, phases=(replace(given.phases[0], participation=0.4),))  # one of three
    assert_close(norm(moved(alone, tmp_path)), torch.tensor(1e-3), rtol=1e-3, atol=0.0)


def test_the_gradient_of_each_client_is_clipped_separately() -> None:
    # norms √(9 + 16) = 5 and 0.5; with a limit of 1 the first client's is a fifth
    gradients = {"scale": torch.tensor([3.0, 0.3]), "bias": torch.tensor([[4.0], [0.4]])}
    found = clip(gradients, Local(LocalOptimizer("sgd"), 0.1, clip_norm=1.0))
    assert_close(found["scale"], torch.tensor([0.6, 0.3]))
    assert_close(found["bias"], torch.tensor([[0.8], [0.4]]))


def test_clipping_does_not_change_short_and_zero_updates() -> None:
    # norms 5, 0.5 and 0; with a limit of 1 the first is (3, 4) / 5
    updates = {"a": torch.tensor([[3.0], [0.3], [0.0]]), "b": torch.tensor([[4.0], [0.4], [0.0]])}
    found = clipped(updates, 1.0)
    assert_close(found.norms, torch.tensor([5.0, 0.5, 0.0], dtype=torch.float64))
    assert_close(found.total, {"a": torch.tensor([0.9]), "b": torch.tensor([1.2])})
    short = {name: t[1:] for name, t in updates.items()}
    assert clipped(short, 1.0).total == {"a": torch.tensor([0.3]), "b": torch.tensor([0.4])}
