"""The Python interface: objects in place of names, results of a run, and late imports."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import Stopping, Toy, experiment
from torch import nn

import simfl
from simfl import config
from simfl.algorithms.base import Algorithm
from simfl.cli import main
from simfl.debug.replay import replay
from simfl.errors import ConfigError, RunError
from simfl.experiment import Evaluate
from simfl.models.mlp import Mlp
from simfl.models.own import OwnModel
from simfl.objectives.classification import Classification
from simfl.protocol import Loss, Task
from simfl.session.callbacks import NullDisplay


def data(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points of three classes around three corners of a square."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    x = np.array([[0, 0], [0, 3], [3, 0]])[y] + rng.normal(size=(count, 2))
    return x.astype(np.float32), y


run_inline = partial(simfl.run, backend="inline")  # independent of the number of CPUs


def module() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 3))


@dataclass(frozen=True)
class ScaledLoss(Algorithm):
    """FedAvg with a scaled loss."""

    factor: float = 0.5  # factor of the loss

    def loss(self, outputs, batch, trained, received, state, visit):
        student = outputs["student"]
        return Loss(student.loss_sums * self.factor, student.loss_weights)


def given(**settings: Any) -> dict[str, Any]:
    """Return an experiment with Python objects."""
    phase = {
        "objective": Classification(),
        "algorithm": ScaledLoss(0.9),
        "rounds": 3,
        "clients_per_round": 4,
        "local": {"optimizer": "sgd", "learning_rate": 0.2, "batch_size": 8},
    }
    whole = {
        "name": "square",
        "data": {"train": data(120, 1), "valid": data(60, 2)},
        "partition": {"by": "iid", "clients": 8},
        "model": module(),
        "phases": [phase],
        "checkpoint": {"seconds": 0},
    }
    return whole | settings


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store data given from Python in the folder of the test."""
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))


def test_importing_simfl_imports_no_heavy_library() -> None:
    heavy = ["torch", "ray", "pyarrow", "numpy", "transformers"]
    code = f"import sys, simfl; print(sorted(set({heavy}) & set(sys.modules)), simfl.__version__)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == f"[] {simfl.__version__}\n"


def test_every_public_name_of_the_package_can_be_imported() -> None:
    assert {name for name in simfl.__all__ if getattr(simfl, name) is not None} == set(simfl.__all__)
    with pytest.raises(AttributeError, match="module 'simfl' has no attribute 'ran'"):
        simfl.ran  # noqa: B018


def test_python_objects_can_replace_names(tmp_path: Path) -> None:
    run = run_inline(given(), tmp_path / "run")
    assert run.summary["status"] == "completed"
    assert run.summary["final"]["accuracy"] > run.summary["initial"]["accuracy"] + 0.1
    assert [len(table()) for table in (run.rounds, run.clients, run.ledger)] == [3, 12, 24]
    assert run.experiment.phases[0].algorithm == ScaledLoss(0.9)
    assert repr(run).startswith("square: completed after 3 rounds")


@pytest.mark.parametrize(
    "algorithm",
    [ScaledLoss(0.9), {"name": ScaledLoss, "factor": 0.9}, {"name": f"{__name__}:ScaledLoss", "factor": 0.9}],
)
def test_a_component_may_be_an_object_a_class_or_a_name(algorithm: Any) -> None:
    phase = {**given()["phases"][0], "algorithm": algorithm}
    assert config.parse(given(phases=[phase])).phases[0].algorithm == ScaledLoss(0.9)
    assert config.parse(given(phases=[{**phase, "algorithm": ScaledLoss}])).phases[0].algorithm == ScaledLoss()


def test_a_torch_module_trains_equally_in_both_execution_modes(tmp_path: Path) -> None:
    runs = [
        run_inline(given(execution={"mode": mode, "clients_per_batch": 4}), tmp_path / mode)
        for mode in ("sequential", "vectorized")
    ]
    one, other = (run.model().state_dict() for run in runs)
    assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)
    assert runs[1].manifest.identity.mode == "vectorized"


def test_a_torch_module_equals_the_built_in_model_of_the_same_layers(tmp_path: Path) -> None:
    named = experiment("fedavg", model=Mlp((16,), dropout=0.2))
    built = Mlp((16,), dropout=0.2).build(Task(42, 5, (12,)))
    first = run_inline(named, tmp_path / "named")
    second = run_inline(experiment("fedavg", model=OwnModel(built)), tmp_path / "given")
    assert first.summary["weights_sha256"] == second.summary["weights_sha256"]
    assert first.clients().equals(second.clients())


@pytest.mark.slow
def test_ray_workers_receive_python_objects(ray_session: None, tmp_path: Path) -> None:
    inline = run_inline(given(), tmp_path / "inline")
    ray = run_inline(given(), tmp_path / "ray", backend="ray", workers=2)
    for key in ("weights_sha256", "state_sha256", "final"):
        assert inline.summary[key] == ray.summary[key]


def test_a_run_with_python_objects_resumes_only_with_equal_objects(tmp_path: Path) -> None:
    whole = run_inline(given(), tmp_path / "whole").summary
    stopped = run_inline(given(), tmp_path / "run", display=Stopping(1))
    assert stopped.summary["status"] == "interrupted"
    other = module()
    other[0].bias.data[0] += 1e-6
    with pytest.raises(RunError, match=r"the stored run has 'sha256: \w+', this experiment has 'sha256: \w+'"):
        run_inline(given(model=other), tmp_path / "run", resume=True)
    with pytest.raises(RunError, match="sha256"):
        run_inline(given(data={"train": data(120, 3), "valid": data(60, 2)}), tmp_path / "run", resume=True)
    phase = {**given()["phases"][0], "algorithm": ScaledLoss(0.8)}
    with pytest.raises(RunError, match=r":ScaledLoss, factor: 0.9}', this experiment has .*:ScaledLoss, factor: 0.8}'"):
        run_inline(given(phases=[phase]), tmp_path / "run", resume=True)
    assert run_inline(given(), tmp_path / "run", resume=True).summary["weights_sha256"] == whole["weights_sha256"]


def test_the_model_of_a_run_has_the_recorded_score(tmp_path: Path) -> None:
    run = run_inline(given(), tmp_path / "run")
    x, y = data(60, 2)
    with torch.no_grad():
        right = run.model()(torch.tensor(x)).argmax(1).numpy() == y
    assert right.mean() == pytest.approx(run.summary["final"]["accuracy"])
    assert run.model() is not run.model()


def test_a_personal_model_contains_the_personal_parameters_of_its_client(tmp_path: Path) -> None:
    personal = Evaluate(models=("global", "personal"), splits=("valid",))
    made = experiment("ditto", personal_params=("head.*",), evaluate=personal, participation=1.0)
    run = run_inline(made, tmp_path / "run")
    first, second = (run.client_model(k).get_parameter("head.weight") for k in (0, 1))
    assert not torch.equal(first, second)
    valid = Toy().load(tmp_path).splits["valid"]
    x = torch.tensor(np.stack(valid.examples["features"].to_numpy()))
    own = np.array([name.startswith("g1.") for name in valid.examples["group"].to_pylist()])
    with torch.no_grad():
        guess = run.client_model(1)(x[torch.tensor(own)]).logits.argmax(1).numpy()
    rows = run.evaluations().to_pylist()
    rows = [r for r in rows if r["metric"] == "accuracy"]
    (score,) = [r for r in rows if (r["step"], r["model"], r["group"]) == (3, "personal", "1")]
    assert (guess == valid.examples["label"].to_numpy()[own]).mean() == pytest.approx(score["value"])
    with pytest.raises(RunError, match="there is no client 10; clients are 0 to 9"):
        run.client_model(10)


def test_a_loaded_run_asks_for_python_objects_that_it_needs(tmp_path: Path) -> None:
    made = run_inline(given(), tmp_path / "run")
    loaded = simfl.load(tmp_path / "run")
    assert loaded.summary == made.summary
    assert loaded.rounds().equals(made.rounds())
    with pytest.raises(
        ConfigError, match=r"model.of: <torch.*Sequential> was defined in the program that started the run"
    ):
        loaded.model()
    again = simfl.load(tmp_path / "run", given())
    assert torch.equal(again.model()[0].weight, made.model()[0].weight)
    with pytest.raises(RunError, match="the run has 'seed: 42', the experiment given 'seed: 1'"):
        simfl.load(tmp_path / "run", given(seed=1))


def test_a_client_update_of_a_run_with_python_objects_can_be_replayed(tmp_path: Path) -> None:
    run = run_inline(given(), tmp_path / "run")
    visit = run.clients().to_pylist()[5]
    assert replay(simfl.load(tmp_path / "run", given()), visit["round"], visit["client"]).row == visit


SCRIPT = """
import simfl
from torch import nn
from test_api import given


class Net(nn.Linear):
    pass


if __name__ == "__main__":
    simfl.run(given(model=Net), "run")
experiment = given(model=Net)
"""


@pytest.mark.slow
def test_a_run_of_a_script_can_be_replayed_with_the_script_as_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = 'given(model={"of": Net, "settings": {"in_features": 2, "out_features": 3}})'
    (tmp_path / "study.py").write_text(SCRIPT.replace("given(model=Net)", settings))
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "SIMFL_CACHE": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "study.py"], cwd=tmp_path, env=env, check=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    visit = simfl.load("run").clients().to_pylist()[-1]
    asked = ["replay", "run", "--round", str(visit["round"]), "--client", str(visit["client"])]
    assert main([*asked, "--experiment", "study:experiment"]) == 0
    assert capsys.readouterr().out.endswith("bit-identical to the run\n")
    assert main(asked) == 2
    assert "was defined in the program that started the run; pass it again" in capsys.readouterr().err
    assert main([*asked, "--experiment", "study:experimenta"]) == 2
    assert "--experiment: 'study:experimenta' cannot be imported" in capsys.readouterr().err


def test_a_run_in_progress_can_be_loaded(tmp_path: Path) -> None:
    class Looking(NullDisplay):
        seen: list[Any] = []

        def round_done(self, row: dict[str, Any]) -> None:
            run = simfl.load(tmp_path / "run")
            self.seen.append((row["round"], len(run.rounds()), repr(run)))

    run_inline(experiment("fedavg"), tmp_path / "run", display=Looking())
    done, found, text = Looking.seen[-1]
    assert done - 1 <= found <= done  # a thread writes the last one
    assert re.fullmatch(rf"{re.escape(str(tmp_path / 'run'))}: a run with \d+ rounds so far", text)
    with pytest.raises(RunError, match="holds no run"):
        simfl.load(tmp_path)


def test_the_default_folder_has_the_name_of_the_run_and_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    short = experiment("fedavg", rounds=1)
    assert [str(run_inline(short).folder) for _ in range(2)] == ["runs/toy", "runs/toy-2"]
    assert run_inline(short, resume=True).folder == Path("runs/toy-2")


def test_run_accepts_the_path_of_an_experiment_file(tmp_path: Path) -> None:
    file = tmp_path / "toy.yaml"
    file.write_text(config.dump(experiment("fedavg", rounds=1)))
    runs = run_inline(file, tmp_path / "a"), run_inline(experiment("fedavg", rounds=1), tmp_path / "b")
    assert len({run.summary["weights_sha256"] for run in runs}) == 1


def test_workers_are_refused_with_the_inline_backend(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="workers: has no effect with backend inline"):
        run_inline(given(), tmp_path / "run", backend="inline", workers=2)


def test_a_run_does_not_change_the_given_module(tmp_path: Path) -> None:
    mine = module()
    before = copy.deepcopy(mine.state_dict())
    run_inline(given(model=mine), tmp_path / "run")
    assert all(torch.equal(value, before[name]) for name, value in mine.state_dict().items())
