"""The contract of algorithms, tried on small experiments with five uneven clients in both execution modes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from simfl import config, simulation
from simfl.algorithms.base import Algorithm
from simfl.config.overrides import with_settings
from simfl.contract.data import UnevenClients
from simfl.errors import ConfigError, SimflError
from simfl.protocol import BASE
from simfl.runs import tables
from simfl.runs.results import Run
from simfl.runs.tables import TABLES, TIMES
from simfl.session.options import RunOptions

MODES = ("sequential", "vectorized")
TOLERANCE = 1e-3  # of the length of the weights; rounding alone gives about 1e-7
ADAM: Mapping[str, object] = {
    "local.optimizer": "adamw",
    "local.learning_rate": 0.02,
    "local.schedule": {"name": "cosine", "unit": "client_update", "floor": 0.1},
}


def check_algorithm(algorithm: Algorithm) -> Iterator[str]:
    """Yield one line for each rule that an algorithm breaks."""
    modes = MODES[:1] if algorithm.privacy_unit == "record" else MODES  # examples are clipped one client at a time
    for mode in modes:
        with TemporaryDirectory() as folder:
            try:
                yield from _check_mode(algorithm, mode, Path(folder))
            except ConfigError:
                raise
            except SimflError as error:
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                yield f"execution.mode {mode}: {' '.join(dict.fromkeys((lines[0], lines[-1])))}"
                return
    if modes == MODES:
        with TemporaryDirectory() as folder:
            yield from _check_modes_agree(algorithm, Path(folder))
    with TemporaryDirectory() as folder:
        yield from _check_divided_batches(algorithm, Path(folder))
    if algorithm.fedavg_limit and algorithm.fedavg_settings is None:
        yield "fedavg_settings: not declared, though fedavg_limit is; give the settings at which it is FedAvg"
    if algorithm.supported_sgd_settings() is None and algorithm.privacy_unit is None:
        with TemporaryDirectory() as folder:
            run = _run(algorithm, "vectorized", Path(folder), ADAM)
            yield from _check_learning(run, "with AdamW and a cosine schedule")


def _check_mode(algorithm: Algorithm, mode: str, folder: Path) -> Iterator[str]:
    whole = _run(algorithm, mode, folder / "whole")
    yield from _check_learning(whole, mode)
    yield from _check_messages(whole, mode)
    _run(algorithm, mode, folder / "resumed", until_round=2)
    resumed = _run(algorithm, mode, folder / "resumed", resume=True)
    if _hashes(resumed) != _hashes(whole):
        yield f"{mode}: a stopped and resumed run differs; keep no state outside of the returned State"
    if algorithm.fedavg_settings is not None:
        at_limit = _run(algorithm, mode, folder / "limit", algorithm.fedavg_settings)
        fedavg = _run(algorithm, mode, folder / "fedavg", algorithm.fedavg_settings, as_fedavg=True)
        yield from _check_equal(at_limit, fedavg, f"{mode}: at fedavg_settings")
    if mode == "vectorized":
        yield from _check_models(algorithm, mode, folder / "models")


def _check_modes_agree(algorithm: Algorithm, folder: Path) -> Iterator[str]:
    """Check that both execution modes end with the same weights, to rounding."""
    ends = [_run(algorithm, mode, folder / mode).snapshot().server.weights for mode in MODES]
    distance = sum(float((ends[1][name] - tensor).square().sum()) for name, tensor in ends[0].items()) ** 0.5
    length = sum(float(tensor.square().sum()) for tensor in ends[0].values()) ** 0.5
    if not distance <= TOLERANCE * length:
        yield (
            f"sequential and vectorized: the global weights differ by {distance / length:.2g} of their length;"
            " a loss must not depend on whether it runs under torch.func.vmap"
        )


def _check_divided_batches(algorithm: Algorithm, folder: Path) -> Iterator[str]:
    """Check that batches can be divided among workers, unless the algorithm declares that they cannot."""
    divided = {"execution.data_parallel": 2, "rounds": algorithm.least_rounds()}
    if algorithm.needs_whole_batch or len(algorithm.micro_steps()) > 1:
        return
    try:
        given = with_settings(_experiment(algorithm, "sequential"), {**algorithm.example, **divided})
        config.parse(given)
    except ConfigError:  # refused before a run, as it needs single local steps or gradients of examples
        return
    try:
        _run(algorithm, "sequential", folder, divided)
    except SimflError as error:
        cause = str(error).splitlines()[-1].strip()
        yield f"needs_whole_batch: not declared, though a batch cannot be divided: {cause}"


def _check_models(algorithm: Algorithm, mode: str, folder: Path) -> Iterator[str]:
    models = {"evaluate.models": [*algorithm.eval_models, "local"], "rounds": algorithm.least_rounds()}
    scores = set(_run(algorithm, mode, folder, models).summary["final"])
    wanted = {"accuracy" if name == "global" else f"{name}.accuracy" for name in (*algorithm.eval_models, "local")}
    if missing := sorted(wanted - scores):
        yield f"eval_models: no score {missing}; eval_weights must return every model"


def _check_learning(run: Run, where: str) -> Iterator[str]:
    tensors = run.snapshot().tensors()
    if broken := [name for name, t in tensors.items() if t.is_floating_point() and not torch.isfinite(t).all()]:
        yield f"{where}: tensors that are not finite after 3 rounds: {broken}"
    losses = [row["loss"] for row in run.rounds().to_pylist()]
    if not losses[-1] < losses[0]:
        yield f"{where}: the training loss does not fall: {losses}; give settings of a small model in `example`"


def _check_messages(run: Run, where: str) -> Iterator[str]:
    """Check that exactly the declared parts travel, and that the weights are those of the shared tensors."""
    (phase,), server, ledger = run.experiment.phases, run.snapshot().server, run.ledger().to_pylist()
    algorithm = phase.algorithm
    expected = {"upload": set(algorithm.reduce), "download": set(algorithm.download(server))}
    expected["download"] |= {BASE} if algorithm.changes_base else set()
    for direction, parts in expected.items():
        sent = {row["part"] for row in ledger if row["direction"] == direction}
        adds = direction == "upload" and algorithm.has_contributions()  # whose parts are not sent
        if sent != parts and not (adds and sent <= parts):
            yield f"{where}: the {direction} has the parts {sorted(sent)}; declared: {sorted(parts)}"
    names = tuple(server.weights)
    for row in ledger:
        chosen = algorithm.downloads if row["direction"] == "download" else algorithm.travels
        own = chosen(names, row["round"] - 1)
        floats = sum(algorithm.num_downloaded(name, server.weights[name].numel()) for name in own)
        fewer = algorithm.client_ranks() is not None
        fewer |= row["direction"] == "download" and type(algorithm).travels is not Algorithm.travels
        if row["part"] == "weights" and row["floats"] != floats and not (fewer and row["floats"] < floats):
            yield f"{where}: {row['direction']} of weights: {row['floats']} values; the shared tensors have {floats}"
            return


def _check_equal(run: Run, fedavg: Run, where: str) -> Iterator[str]:
    found, expected = run.snapshot().server.weights, fedavg.snapshot().server.weights
    if found.keys() != expected.keys():
        yield f"{where}: other tensors are communicated than by FedAvg: {sorted(found.keys() ^ expected.keys())}"
    elif differing := [name for name in found if not torch.equal(found[name], expected[name])]:
        yield f"{where}: the global weights are not bit-identical to FedAvg's: {differing}"


def _run(
    algorithm: Algorithm,
    mode: str,
    folder: Path,
    settings: Mapping[str, object] | None = None,
    as_fedavg: bool = False,
    until_round: int | None = None,
    resume: bool = False,
) -> Run:
    given = with_settings(_experiment(algorithm, mode), {**algorithm.example, **(settings or {})})
    if as_fedavg:
        given = with_settings(given, {"algorithm": "fedavg"})
    rounds = itertools.count()

    def until() -> str:
        return "stopped" if next(rounds) == until_round else ""

    simulation.run(config.parse(given), RunOptions(folder, "inline", resume=resume, until=until))
    return Run(folder)


def _experiment(algorithm: Algorithm, mode: str) -> dict[str, object]:
    """Return the experiment of the contract; `Algorithm.example` changes its settings."""
    name = f"{type(algorithm).__module__}:{type(algorithm).__qualname__}"
    phase = {
        "objective": "classification",
        "algorithm": {"name": name},
        "rounds": 3,
        "participation": 0.8,
        "personal_params": ["head.bias"],
        "local": {"optimizer": "sgd", "learning_rate": 0.2, "batch_size": 8},
    }
    return {
        "name": "contract",
        "data": {"name": f"{UnevenClients.__module__}:{UnevenClients.__qualname__}"},
        "partition": {"by": "official"},
        "model": {"name": "mlp", "hidden_sizes": [16], "dropout": 0.2},
        "phases": [phase],
        "evaluate": {"every": 0},
        "checkpoint": {"rounds": 1, "seconds": 0},
        "execution": {"mode": mode, "clients_per_batch": 4},
    }


def _hashes(run: Run) -> dict[str, object]:
    names = [name for name in TABLES if name != TIMES]
    rows = {name: tables.sha256(tables.read(run.folder / f"{name}.parquet")) for name in names}
    return rows | {key: run.summary[key] for key in ("weights_sha256", "state_sha256")}
