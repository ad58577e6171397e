"""Random small modules: each is refused before training, or trained with the same result in every way of running it."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import Killed, Stopping, Toy, experiment, model, run, scatter, traces
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from simfl.data.partition.partitioners import Official
from simfl.errors import ConfigError
from simfl.experiment import Evaluate, Execution
from simfl.models.own import OwnModel
from simfl.runs.results import Run

WIDTH, CLASSES, INPUTS = 6, 5, 12
SIZES = (6, 8, 5, 9, 11, 15)  # examples per client; with batches of 3, some are of 2


class Ema(nn.Module):
    """Divides by a running scale, kept as `where` says."""

    scale: Any

    def __init__(self, where: str, written: str) -> None:
        super().__init__()
        self.where, self.written = where, written
        if where == "buffer":
            self.register_buffer("scale", torch.ones(1))
        elif where == "parameter":
            self.scale = nn.Parameter(torch.ones(1), requires_grad=False)
        elif where == "attribute":
            self.scale = torch.ones(1)
        elif where == "number":
            self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        if self.where == "lazy" and not hasattr(self, "scale"):
            self.register_buffer("scale", torch.ones(1))
        if self.training:
            now = x.detach().abs().mean()
            if self.where == "number":
                self.scale = 0.9 * self.scale + 0.1 * float(now)
            elif self.written == "replaced" and self.where != "parameter":
                self.scale = 0.9 * self.scale + 0.1 * now
            else:
                self.scale.data.mul_(0.9).add_(0.1 * now)
        return x / self.scale


class Codebook(nn.Module):
    """Adds the nearest of four codes, which follow the inputs; counts how often each was used."""

    codes: Tensor
    used: Tensor
    started: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.arange(4.0)[:, None].repeat(1, WIDTH) / 4)
        self.register_buffer("used", torch.zeros(4, dtype=torch.int64))
        self.register_buffer("started", torch.tensor(False))

    def forward(self, x: Tensor) -> Tensor:
        nearest = torch.cdist(x.detach(), self.codes).argmin(1)
        if self.training:
            with torch.no_grad():
                if not self.started:
                    self.codes.add_(x.mean(0))
                    self.started.fill_(True)
                self.used.add_(torch.bincount(nearest, minlength=4))
                self.codes.index_add_(0, nearest, 0.01 * (x - self.codes[nearest]))
        return x + self.codes[nearest]


class Observer(nn.Module):
    """Clamps to the smallest and largest value seen so far."""

    least: Tensor
    most: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("least", torch.tensor(float("inf")))
        self.register_buffer("most", torch.tensor(float("-inf")))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.least = torch.minimum(self.least, x.detach().min())
            self.most = torch.maximum(self.most, x.detach().max())
        return torch.maximum(torch.minimum(x, self.most), self.least)


class Warmup(nn.Module):
    """Multiplies by a factor that grows with the number of calls."""

    calls: Any

    def __init__(self, counter: Any) -> None:
        super().__init__()
        if isinstance(counter, Tensor):
            self.register_buffer("calls", counter)
        else:
            self.calls = counter

    def forward(self, x: Tensor) -> Tensor:
        calls = self.calls["n"] if isinstance(self.calls, dict) else self.calls
        if self.training:
            if isinstance(self.calls, dict):
                self.calls["n"] += 1
            else:
                self.calls = self.calls + 1
        return x * (1 + 0.1 * calls / (1 + calls))


class Cast(nn.Module):
    """A linear layer in another dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH).to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.to(self.linear.weight.dtype)).to(x.dtype)


class Noise(nn.Module):
    """Draws from one of the process's generators."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        if self.source == "torch":
            return x + 0.1 * torch.randn_like(x)
        if self.source == "dropout":
            return functional.dropout(x, 0.2, True)
        return x * (1 + 0.1 * (random.random() if self.source == "python" else np.random.rand()))  # noqa: NPY002


class Remembering(nn.Module):
    """Keeps its last output, which nothing reads, or whose mean evaluation reads."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.reads, self.last = reads, torch.zeros(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.last = x.detach().mean(0)
            return x
        return x + self.last if self.reads else x


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "cumulative batch norm": lambda: nn.BatchNorm1d(WIDTH, momentum=None),
    "batch norm without statistics": lambda: nn.BatchNorm1d(WIDTH, track_running_stats=False),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "dropout": lambda: nn.Dropout(0.3),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH)),
    "float64": lambda: Cast(torch.float64),
    "bfloat16": lambda: Cast(torch.bfloat16),
    "codebook": Codebook,
    "observer": Observer,
    "counting buffer": lambda: Warmup(torch.tensor(0)),
    "counting number": lambda: Warmup(0),
    "counting dictionary": lambda: Warmup({"n": 0}),
    "log": lambda: Remembering(False),
    "last output": lambda: Remembering(True),
    "tanh": nn.Tanh,
}
LAYERS |= {
    f"{written} {where}": partial(Ema, where, written)
    for where in ("buffer", "parameter", "attribute", "lazy", "number")
    for written in ("changed", "replaced")
}
LAYERS |= {f"draws of {source}": partial(Noise, source) for source in ("torch", "numpy", "python", "dropout")}


class RandomModule(nn.Module):
    """A chain of random layers; at times with a tied weight."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        torch.manual_seed(seed)
        self.names = draw.sample(sorted(LAYERS), draw.randint(1, 4))
        self.first, self.last = nn.Linear(INPUTS, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.layers = nn.ModuleList(LAYERS[name]() for name in self.names)
        if draw.random() < 0.3:
            self.twin = nn.Linear(WIDTH, WIDTH, bias=False)
            self.other = nn.Linear(WIDTH, WIDTH, bias=False)
            self.other.weight = self.twin.weight

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        for layer in self.layers:
            x = layer(x)
        if hasattr(self, "twin"):
            x = torch.tanh(self.other(torch.tanh(self.twin(x))))
        return self.last(x)


def case(module: nn.Module, mode: Any = "sequential") -> Any:
    return experiment(
        data=Toy(sizes=SIZES),
        partition=Official(groups="group"),
        model=OwnModel(module),
        rounds=2,
        clients_per_round=3,
        batch_size=3,
        execution=Execution(mode=mode, clients_per_batch=4 if mode == "vectorized" else 1),
        evaluate=Evaluate(samples=8),
    )


def gap(first: dict[str, Tensor], second: dict[str, Tensor], start: dict[str, Tensor]) -> float:
    """Return the largest distance relative to the longest way travelled."""
    travelled = max(float((first[name].double() - start[name].double()).abs().max()) for name in first)
    return max(float((first[name].double() - second[name].double()).abs().max()) for name in first) / travelled


def check(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a module in every way; return `refused` or `trained`."""
    module = RandomModule(seed)
    module.eval()
    start = {name: t.clone() for name, t in module.state_dict().items()}
    with suppress(ConfigError):
        run(case(module), folder / "whole")
    if not (folder / "whole").exists():
        return "refused"
    whole, final = traces(folder / "whole"), model(folder / "whole")

    results = Run(folder / "whole", case(module))
    saved = results.model()
    inputs = torch.from_numpy(np.stack(results.context.split("valid").examples["features"].to_pylist())).float()
    with torch.no_grad():
        confidences = saved(inputs).softmax(-1).max(-1).values
    samples = [row for row in results.samples().to_pylist() if row["step"] == 2]
    assert samples
    for row in samples:
        assert row["predicted_confidence"] == pytest.approx(float(confidences[row["row"]]), abs=1e-5), "saved = scored"

    with monkeypatch.context() as patched:
        scatter(patched)
        with suppress(Killed):
            run(case(module), folder / "other", display=Stopping(1, error=Killed))
        run(case(module), folder / "other", resume=True)
    assert traces(folder / "other") == whole, "one worker = three workers, resumed = uncut"
    with suppress(ConfigError):  # this mode is refused
        run(case(module, "vectorized"), folder / "vectorized")
        assert gap(final, model(folder / "vectorized"), start) < 1e-5, "sequential = vectorized"
    return "trained"


@pytest.mark.parametrize("seed", range(12))
def test_a_random_module_is_refused_or_gives_one_result(seed, tmp_path, monkeypatch):
    check(seed, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 150))
def test_many_random_modules_are_refused_or_give_one_result(seed, tmp_path, monkeypatch):
    check(seed, tmp_path, monkeypatch)
