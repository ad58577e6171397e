"""Compiled local steps: as tensor operations, traced, captured and compiled, they equal the eager steps."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import run
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
from training.test_modes import small

from simfl.experiment import Experiment, Local
from simfl.optimizers.local import LocalOptimizer
from simfl.runs import checkpoint
from simfl.runs.snapshot import Snapshot
from simfl.training import compiled
from simfl.training.client_updates import _copy_shared
from simfl.training.context import PhaseContext
from simfl.training.tensor_optimizer import TensorOptimizer, init_moments

ON_CPU = [("mlp", "fedavg"), ("mlp", "scaffold"), ("mlp", "ditto"), ("cnn", "moon"), ("vt5", "feddat")]
ON_GPU = [*ON_CPU, ("mlp", "crd"), ("mlp", "fedkd"), ("cnn", "fedavg"), ("vt5", "fedavg"), ("vt5", "fedp3")]
OPTIMIZERS = [
    LocalOptimizer("sgd", {"momentum": 0.9, "weight_decay": 1e-2, "dampening": 0.1}),
    LocalOptimizer("sgd", {"momentum": 0.9, "nesterov": True}),
    LocalOptimizer("adam", {"weight_decay": 1e-2}),
    LocalOptimizer("adamw", {"betas": (0.8, 0.99), "weight_decay": 0.1}),
]


def model(given: Experiment, folder: Path) -> Snapshot:
    run(given, folder)
    found = checkpoint.latest(folder / "checkpoints")
    assert found is not None
    return Snapshot.restore(found)


def batched(given: Experiment, **cohort: Any) -> Experiment:
    return replace(
        given, deterministic=True, execution=replace(given.execution, mode="vectorized", clients_per_batch=4, **cohort)
    )


def gap(one: Snapshot, other: Snapshot) -> float:
    """Largest difference of any value of the model, over the largest value of its tensor."""
    return max(float((one.model[n] - t).abs().max() / t.abs().max().clamp_min(1e-6)) for n, t in other.model.items())


def everywhere(mode: str) -> Callable[[PhaseContext, str], compiled.CompiledSteps]:
    """Compile local steps on the CPU too."""
    return lambda context, requested: compiled.CompiledSteps(mode)


@pytest.fixture
def traced_for_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the traced step instead of compiling it, since not every machine has a compiler."""
    monkeypatch.setattr(compiled, "compile_step", compiled.trace_step)


@pytest.mark.parametrize(("kind", "name"), ON_CPU)
def test_a_step_of_tensor_operations_equals_the_eager_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    given = batched(small(kind, name))
    written = model(given, tmp_path / "written")
    monkeypatch.setattr("simfl.runtime.worker.compiled_steps", everywhere("eager"))
    assert gap(model(given, tmp_path / "program"), written) < 2e-5


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("mlp", "scaffold"),
        pytest.param("cnn", "moon", marks=pytest.mark.slow),
        pytest.param("vt5", "feddat", marks=pytest.mark.slow),
    ],
)
def test_a_traced_step_equals_the_eager_step_up_to_rounding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, traced_for_compiled: None, kind: str, name: str
) -> None:
    given = batched(small(kind, name))
    monkeypatch.setattr("simfl.runtime.worker.compiled_steps", everywhere("eager"))
    eager = model(given, tmp_path / "eager")
    monkeypatch.setattr("simfl.runtime.worker.compiled_steps", everywhere("compiled"))
    assert gap(model(given, tmp_path / "traced"), eager) < 2e-5


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: f"{o.name} {dict(o.settings)}")
@pytest.mark.parametrize("keep", [False, True])
def test_tensor_optimizers_step_like_those_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: LocalOptimizer, keep: bool
) -> None:
    given = batched(small("mlp", "fedavg", optimizer=optimizer, keep_optimizer=keep, rounds=3, learning_rate=0.01))
    written = model(given, tmp_path / "written")
    monkeypatch.setattr("simfl.runtime.worker.compiled_steps", everywhere("eager"))
    assert gap(model(given, tmp_path / "program"), written) < 2e-5


@pytest.mark.parametrize("optimizer", OPTIMIZERS[2:], ids=lambda o: o.name)
def test_torchs_kernel_steps_like_the_tensor_operations(
    monkeypatch: pytest.MonkeyPatch, optimizer: LocalOptimizer
) -> None:
    draw, local = torch.Generator().manual_seed(0), Local(optimizer, learning_rate=0.01)
    shapes = {"a": (7, 5), "b": (11,), "c": (4, 3, 2)}
    start = {name: torch.randn(3, *shape, generator=draw) for name, shape in shapes.items()}
    steps = [{name: torch.randn(3, *shape, generator=draw) for name, shape in shapes.items()} for _ in range(4)]
    found = []
    for kernel in (False, True):
        monkeypatch.setattr(TensorOptimizer, "_has_kernel", lambda *_, kernel=kernel: kernel)
        weights = {name: t.clone() for name, t in start.items()}
        own = TensorOptimizer(local, weights, init_moments(local, weights, 3), ragged=True, skips_steps=True)
        for number, gradients in enumerate(steps):
            gradients = {**gradients, "a": gradients["a"].mT.contiguous().mT}  # laid out as a product leaves it
            active = torch.tensor([True, number % 2 == 0, number == 3])
            own.step(gradients, active, torch.tensor([0.01, 0.005, 0.02]))
        found.append([*weights.values(), *(t for group in own.moments.values() for t in group.values())])
    assert all(torch.allclose(a, b, rtol=1e-5, atol=2e-6) for a, b in zip(*found, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "name"), ON_GPU)
def test_a_captured_step_is_bit_identical_to_the_eager_step(tmp_path: Path, kind: str, name: str) -> None:
    given = small(kind, name, rounds=3)
    eager = model(batched(given, program="eager"), tmp_path / "eager")
    assert model(batched(given, program="graph"), tmp_path / "graph").weights_sha256 == eager.weights_sha256


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "name"), ON_GPU)
def test_on_a_gpu_both_execution_modes_agree(tmp_path: Path, kind: str, name: str) -> None:
    given = small(kind, name)
    loop = replace(
        given, deterministic=True, execution=replace(given.execution, mode="sequential", clients_per_batch=4)
    )
    assert (
        gap(model(batched(given, program="graph"), tmp_path / "vectorized"), model(loop, tmp_path / "sequential"))
        < 1e-3
    )


def test_programs_are_kept_in_the_cache_unless_the_environment_names_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "given")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", default_cache_dir())  # as torch sets it
    compiled.keep_programs(tmp_path)
    assert os.environ["TRITON_CACHE_DIR"] == "given"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "programs" / "inductor")


COMPILE = """
import sys
from pathlib import Path
import torch
from torch._dynamo.utils import counters
from simfl.training import compiled
compiled.keep_programs(Path(sys.argv[1]))
def step(w, x):
    leaf = w.detach().requires_grad_()
    (slope,) = torch.autograd.grad((x @ leaf).tanh().square().sum(), leaf)
    w.sub_(0.1 * slope)
    return [w]
tensors = [torch.ones(7, 3), torch.ones(4, 7)]
compiled.compile_step(step, tensors)(*tensors)
hits = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
print(float(tensors[0].sum()), hits)
"""


@pytest.mark.slow
@pytest.mark.timeout(1500)  # minutes of a C++ compiler on a busy machine
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_second_process_finds_the_compiled_program(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in compiled.PROGRAM_FOLDERS}
    command = [sys.executable, "-W", "ignore", "-c", COMPILE, str(tmp_path)]
    printed = [
        subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.split()
        for _ in range(2)
    ]
    assert printed[0] == [printed[1][0], "0"]
    assert int(printed[1][1]) >= 1


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.filterwarnings(r"ignore::UserWarning:torch\._inductor")  # the compiler's advice
@pytest.mark.parametrize(("kind", "name"), ON_CPU)
def test_a_compiled_step_equals_the_eager_step_up_to_rounding(tmp_path: Path, kind: str, name: str) -> None:
    given = replace(small(kind, name), deterministic=True)  # `fast` may multiply in TF32 here and not there
    eager = model(batched(given, program="eager"), tmp_path / "eager")
    assert gap(model(batched(given, program="compiled"), tmp_path / "compiled"), eager) < 1e-3


@pytest.mark.gpu
def test_a_resumed_run_with_captured_steps_is_bit_identical(tmp_path: Path) -> None:
    given = batched(small("mlp", "scaffold", rounds=4), program="graph")
    straight = model(given, tmp_path / "straight")
    rounds = iter(["", "", "stopped"])
    run(given, tmp_path / "resumed", until=lambda: next(rounds))
    run(given, tmp_path / "resumed", resume=True)
    found = checkpoint.latest(tmp_path / "resumed" / "checkpoints")
    assert found is not None
    assert Snapshot.restore(found).weights_sha256 == straight.weights_sha256
    assert torch.cuda.is_available()


def test_uploads_share_no_memory_with_the_tensors_of_the_next_update() -> None:
    trained, state = torch.randn(3, 4), torch.randn(3, 2)
    upload = {"weights": {"w": trained, "delta": trained - 1.0}, "notes": {"s": state[:, :1]}}
    copied = _copy_shared(upload, [{"w": trained}, {"s": state}])
    assert copied["weights"]["delta"] is upload["weights"]["delta"]
    kept = {name: t.clone() for name, t in (("w", copied["weights"]["w"]), ("s", copied["notes"]["s"]))}
    trained.zero_()
    state.zero_()
    assert torch.equal(copied["weights"]["w"], kept["w"])
    assert torch.equal(copied["notes"]["s"], kept["s"])
