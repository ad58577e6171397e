"""simfl from Python: objects in place of names, what a run gives back, and that nothing heavy is loaded early."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from dataclasses import dataclass
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
from simfl.models.own import Own
from simfl.objectives.classification import Classification
from simfl.protocol import Loss, Task
from simfl.session.callbacks import NullDisplay


def data(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three classes around the corners of a square."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    x = np.array([[0, 0], [0, 3], [3, 0]])[y] + rng.normal(size=(count, 2))
    return x.astype(np.float32), y


def module() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 3))


@dataclass(frozen=True)
class Shy(Algorithm):
    """FedAvg with a loss that is made smaller."""

    factor: float = 0.5  # of the loss

    def loss(self, outputs, batch, trained, received, state, visit):
        student = outputs["student"]
        return Loss(student.sums * self.factor, student.weights)


def given(**settings: Any) -> dict[str, Any]:
    """An experiment of Python objects."""
    phase = {
        "objective": Classification(),
        "algorithm": Shy(0.9),
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
    """Data given from Python are kept beside the test."""
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))


def test_importing_simfl_loads_nothing_heavy() -> None:
    heavy = ["torch", "ray", "pyarrow", "numpy", "transformers"]
    code = f"import sys, simfl; print(sorted(set({heavy}) & set(sys.modules)), simfl.__version__)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == f"[] {simfl.__version__}\n"


def test_an_inline_run_loads_no_ray(tmp_path: Path) -> None:
    code = (
        "import sys, simfl; from test_api import given; "
        f"simfl.run(given(), {str(tmp_path / 'run')!r}); print('ray' in sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    shown = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert shown == "False\n"


def test_the_face_of_the_package_is_complete() -> None:
    assert {name for name in simfl.__all__ if getattr(simfl, name) is not None} == set(simfl.__all__)
    with pytest.raises(AttributeError, match="module 'simfl' has no attribute 'ran'"):
        simfl.ran  # noqa: B018


def test_objects_in_place_of_names_train(tmp_path: Path) -> None:
    run = simfl.run(given(), tmp_path / "run")
    assert run.summary["status"] == "completed"
    assert run.summary["final"]["accuracy"] > run.summary["initial"]["accuracy"] + 0.1
    assert [len(table()) for table in (run.rounds, run.clients, run.ledger)] == [3, 12, 24]
    assert run.experiment.phases[0].algorithm == Shy(0.9)
    assert repr(run).startswith("square: completed after 3 rounds")


@pytest.mark.parametrize(
    "algorithm", [Shy(0.9), {"name": Shy, "factor": 0.9}, {"name": f"{__name__}:Shy", "factor": 0.9}]
)
def test_a_component_is_an_object_a_class_or_a_name(algorithm: Any) -> None:
    phase = {**given()["phases"][0], "algorithm": algorithm}
    assert config.parse(given(phases=[phase])).phases[0].algorithm == Shy(0.9)
    assert config.parse(given(phases=[{**phase, "algorithm": Shy}])).phases[0].algorithm == Shy()


def test_a_module_takes_the_same_path_alone_and_side_by_side(tmp_path: Path) -> None:
    runs = [
        simfl.run(given(execution={"mode": mode, "clients_per_batch": 4}), tmp_path / mode)
        for mode in ("sequential", "vectorized")
    ]
    one, other = (run.model().state_dict() for run in runs)
    assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)
    assert runs[1].manifest["identity"]["mode"] == "vectorized"


def test_a_module_of_the_same_layers_is_the_same_model(tmp_path: Path) -> None:
    named = experiment("fedavg", model=Mlp((16,), dropout=0.2))
    built = Mlp((16,), dropout=0.2).build(Task(42, 5, (12,)))
    first = simfl.run(named, tmp_path / "named")
    second = simfl.run(experiment("fedavg", model=Own(built)), tmp_path / "given")
    assert first.summary["weights_sha256"] == second.summary["weights_sha256"]
    assert first.clients().equals(second.clients())


def test_ray_workers_get_the_objects(ray_session: None, tmp_path: Path) -> None:
    inline = simfl.run(given(), tmp_path / "inline")
    ray = simfl.run(given(), tmp_path / "ray", backend="ray", workers=2)
    for key in ("weights_sha256", "state_sha256", "final"):
        assert inline.summary[key] == ray.summary[key]


def test_a_run_of_objects_is_resumed_with_the_same_objects_alone(tmp_path: Path) -> None:
    whole = simfl.run(given(), tmp_path / "whole").summary
    stopped = simfl.run(given(), tmp_path / "run", display=Stopping(1))
    assert stopped.summary["status"] == "interrupted"
    other = module()
    other[0].bias.data[0] += 1e-6
    with pytest.raises(RunError, match=r"the run there has 'sha256: \w+' where this experiment has 'sha256: \w+'"):
        simfl.run(given(model=other), tmp_path / "run", resume=True)
    with pytest.raises(RunError, match="sha256"):
        simfl.run(given(data={"train": data(120, 3), "valid": data(60, 2)}), tmp_path / "run", resume=True)
    phase = {**given()["phases"][0], "algorithm": Shy(0.8)}
    with pytest.raises(RunError, match=r":Shy, factor: 0.9}' where this experiment has .*:Shy, factor: 0.8}'"):
        simfl.run(given(phases=[phase]), tmp_path / "run", resume=True)
    assert simfl.run(given(), tmp_path / "run", resume=True).summary["weights_sha256"] == whole["weights_sha256"]


def test_the_model_of_a_run_scores_what_the_run_says(tmp_path: Path) -> None:
    run = simfl.run(given(), tmp_path / "run")
    x, y = data(60, 2)
    with torch.no_grad():
        right = run.model()(torch.tensor(x)).argmax(1).numpy() == y
    assert right.mean() == pytest.approx(run.summary["final"]["accuracy"])
    assert run.model() is not run.model()


def test_personal_models_hold_what_only_their_client_has(tmp_path: Path) -> None:
    personal = Evaluate(models=("global", "personal"), splits=("valid",))
    made = experiment("ditto", personal_params=("head.*",), evaluate=personal, participation=1.0)
    run = simfl.run(made, tmp_path / "run")
    heads = [run.client_model(k).head.weight for k in (0, 1)]
    assert not torch.equal(*heads)
    valid = Toy().load(tmp_path).splits["valid"]
    x = torch.tensor(np.stack(valid.examples["features"].to_numpy()))
    own = np.array([name.startswith("g1.") for name in valid.examples["group"].to_pylist()])
    with torch.no_grad():
        guess = run.client_model(1)(x[torch.tensor(own)]).logits.argmax(1).numpy()
    rows = run.evaluations().to_pylist()
    (score,) = [r for r in rows if (r["step"], r["model"], r["group"]) == (3, "personal", "1")]
    assert (guess == valid.examples["label"].to_numpy()[own]).mean() == pytest.approx(score["value"])
    with pytest.raises(RunError, match="no client 10; there are 0 to 9"):
        run.client_model(10)


def test_a_run_is_loaded_from_its_folder_and_asks_for_the_objects_it_needs(tmp_path: Path) -> None:
    made = simfl.run(given(), tmp_path / "run")
    loaded = simfl.load(tmp_path / "run")
    assert loaded.summary == made.summary
    assert loaded.rounds().equals(made.rounds())
    with pytest.raises(ConfigError, match=r"model.of: <torch.*Sequential> lived in the program that started the run"):
        loaded.model()
    again = simfl.load(tmp_path / "run", given())
    assert torch.equal(again.model()[0].weight, made.model()[0].weight)
    with pytest.raises(RunError, match="the run has 'seed: 42', the experiment given 'seed: 1'"):
        simfl.load(tmp_path / "run", given(seed=1))


def test_a_visit_of_a_run_of_objects_is_replayed(tmp_path: Path) -> None:
    run = simfl.run(given(), tmp_path / "run")
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
def test_a_run_by_a_script_is_replayed_through_the_script_as_a_module(
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
    assert capsys.readouterr().out.endswith("bit-equal to the run\n")
    assert main(asked) == 2
    assert "lived in the program that started the run; give it again" in capsys.readouterr().err
    assert main([*asked, "--experiment", "study:experimenta"]) == 2
    assert "--experiment: 'study:experimenta' cannot be imported" in capsys.readouterr().err


def test_a_run_that_goes_on_can_be_looked_at(tmp_path: Path) -> None:
    class Looking(NullDisplay):
        seen: list[Any] = []

        def round_done(self, row: dict[str, Any]) -> None:
            run = simfl.load(tmp_path / "run")
            self.seen.append((len(run.rounds()), repr(run)))

    simfl.run(experiment("fedavg"), tmp_path / "run", display=Looking())
    assert Looking.seen[1] == (2, f"{tmp_path / 'run'}: a run of 2 rounds so far")
    with pytest.raises(RunError, match="no run lies here"):
        simfl.load(tmp_path)


def test_folders_are_named_after_the_run_and_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    short = experiment("fedavg", rounds=1)
    assert [str(simfl.run(short).folder) for _ in range(2)] == ["runs/toy", "runs/toy-2"]
    assert simfl.run(short, resume=True).folder == Path("runs/toy-2")


def test_a_file_is_run_as_from_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "toy.yaml"
    file.write_text(config.dump(experiment("fedavg", rounds=1)))
    runs = simfl.run(file, tmp_path / "a"), simfl.run(experiment("fedavg", rounds=1), tmp_path / "b")
    assert len({run.summary["weights_sha256"] for run in runs}) == 1


def test_what_has_no_effect_inline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="workers: has no effect with backend inline"):
        simfl.run(given(), tmp_path / "run", workers=2)


def test_a_module_is_not_changed_by_a_run(tmp_path: Path) -> None:
    mine = module()
    before = copy.deepcopy(mine.state_dict())
    simfl.run(given(model=mine), tmp_path / "run")
    assert all(torch.equal(value, before[name]) for name, value in mine.state_dict().items())
