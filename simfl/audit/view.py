"""The attacker's view of a run: the tensors that were sent, decoded, and nothing else.

    messages   the uploads of one client, as the server decodes them; under secure aggregation, masked integers
    averages   the change of the global model in each round, as clients decode their downloads, and of the final model
    model      the final model

Messages and downloads are not stored by a run, so its rounds are repeated, bit-identical to the run, and the bytes of
each message are compared with the run's ledger. The final model is in the newest checkpoint.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simfl.debug.rerun import PlannedRound, Rerun
from simfl.errors import ConfigError, RunError
from simfl.experiment import Experiment
from simfl.protocol import Parts, Weights
from simfl.runs.results import Run
from simfl.training.executor import Observer, OptimizerStep
from simfl.weights import subtract

Report = Callable[[str], None]


@dataclass(frozen=True)
class Seen:
    """The tensors that an attacker sees of one round.

    Attributes:
        phase: The phase, from 0.
        round: The round of the phase, from 1; for the final model, the number of its rounds.
        client: The client that sent the message; None for averages and the final model.
        parts: Decoded parts by name. The part `weights` of a message and of an average is an update; that of the final
            model holds its tensors.
        received: The trained tensors that clients received in this round, decoded.
        payload: Encoded bytes of the message by part, as in the ledger; empty for the final model.
        trained_rows: Rows of the training split that the client trained on, int64, ascending, by which attacks are
            judged; no attacker sees them. None for averages and the final model.
    """

    phase: int
    round: int
    client: int | None
    parts: Parts
    received: Weights
    payload: dict[str, int]
    trained_rows: np.ndarray | None = None


@dataclass(frozen=True)
class AttackerView:
    """The tensors that an attacker sees of a run.

    Attributes:
        kind: `messages`, `averages` or `model`.
        seen: One entry per round in which something was sent.
    """

    kind: str
    seen: tuple[Seen, ...]


def refuse_single_uploads(experiment: Experiment, what: str) -> None:
    """Raise ConfigError for what needs single uploads, in an experiment whose server sees their sum alone."""
    if experiment.secure_aggregation is not None:
        raise ConfigError(f"{what}: needs single uploads, but with secure_aggregation the server sees masked ones only")


def model_view(run: Run) -> AttackerView:
    """Return the view of an observer of the final model alone."""
    snapshot = run.snapshot()
    weights = snapshot.model
    return AttackerView("model", (Seen(snapshot.phase, snapshot.round, None, {"weights": weights}, {}, {}),))


def messages_view(
    run: Run, client: int, rounds: Sequence[int], phase: int = 0, report: Report = lambda text: None
) -> AttackerView:
    """Return the view of a server that looks at the uploads of one client.

    Args:
        run: The run.
        client: The client, from 0.
        rounds: Rounds of the phase, from 1; those in which the client was not sampled show nothing.
        phase: The phase, from 0.
        report: Receives messages about progress.

    Raises:
        RunError: The run cannot be repeated, a message is not the one of its ledger, or the client sent none.
    """
    seen: list[Seen] = []
    with tempfile.TemporaryDirectory(prefix="simfl-audit-") as scratch:
        rerun = Rerun(run, Path(scratch), report)
        for number in sorted(set(rounds)):
            planned = rerun.go_to(phase, number)
            if client in planned.clients:
                seen.append(_message(rerun, planned, client))
    if not seen:
        raise RunError(f"--client: client {client} was not sampled in the rounds {', '.join(map(str, rounds))}")
    return AttackerView("messages", tuple(seen))


def averages_view(run: Run, phase: int = 0, report: Report = lambda text: None) -> AttackerView:
    """Return the view of an observer of every model that clients receive in a phase, and of the model at its end.

    Raises:
        RunError: The run cannot be repeated, or has not finished the phase.
    """
    final = run.snapshot()
    if final.phase < phase + 1 and final.round < run.experiment.phases[phase].rounds:
        raise RunError(f"{run.folder}: phase {phase} has not ended")
    with tempfile.TemporaryDirectory(prefix="simfl-audit-") as scratch:
        rerun = Rerun(run, Path(scratch), report)
        models = list(_downloads(rerun, phase))
    last = {name: t for name, t in final.model.items() if name in models[0].received}
    ends = [*(one.received for one in models[1:]), last]
    seen = (
        Seen(phase, one.round, None, {"weights": subtract(end, one.received)}, one.received, one.payload)
        for one, end in zip(models, ends, strict=True)
    )
    return AttackerView("averages", tuple(seen))


def _downloads(rerun: Rerun, phase: int) -> Iterator[Seen]:
    for number in range(1, rerun.experiment.phases[phase].rounds + 1):
        planned = rerun.go_to(phase, number)
        rows = [row for row in _sent_by_plan(planned) if row["direction"] == "download"]
        payload = _payload(rows)
        _compare(rerun, planned, None, payload)
        received = _copied(planned.received["weights"])
        yield Seen(phase, number, None, {}, received, payload)


class _Server(Observer):
    """An observer that keeps the decoded upload of one client, and the rows of its batches."""

    def __init__(self, client: int) -> None:
        self.client, self.arrived, self.rows = client, Parts(), set[int]()

    def stepped(self, step: OptimizerStep) -> None:
        """Keep the rows of the client's batches."""
        for unit in step.units:
            if unit.client == self.client and step.step < unit.num_steps:
                self.rows.update(row for row in unit.batches[step.step].tolist() if row >= 0)

    def sent(self, client: int, upload: Parts, arrived: Parts) -> None:
        """Keep the decoded upload."""
        if client == self.client:
            self.arrived = {part: _copied(tensors) for part, tensors in arrived.items()}


def _message(rerun: Rerun, planned: PlannedRound, client: int) -> Seen:
    server = _Server(client)
    result = rerun.train(rerun.smallest_cohort(planned, client), planned.received, server)
    rows_sent = [*_sent_by_plan(planned), *result.ledger]
    payload = _payload([row for row in rows_sent if row["client"] == client and row["direction"] == "upload"])
    _compare(rerun, planned, client, payload)
    before, received = planned.before, _copied(planned.received["weights"])
    rows = np.array(sorted(server.rows), np.int64)
    return Seen(before.phase, before.round + 1, client, server.arrived, received, payload, rows)


def _sent_by_plan(planned: PlannedRound) -> list[dict[str, int | str]]:
    """Return the ledger rows of the downloads and of the protocol of secure aggregation."""
    return [dict(row) for row in (*planned.plan.download_rows, *planned.plan.protocol_rows)]


def _copied(tensors: Weights) -> Weights:
    """Return copies on the CPU."""
    return {name: t.detach().cpu().clone() for name, t in tensors.items()}


def _payload(rows: Sequence[dict[str, int | str]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        found[str(row["part"])] = found.get(str(row["part"]), 0) + int(row["payload_bytes"])
    return found


def _compare(rerun: Rerun, planned: PlannedRound, client: int | None, payload: dict[str, int]) -> None:
    """Raise RunError if the bytes of a message are not those in the run's ledger."""
    phase, number = planned.before.phase, planned.before.round + 1
    direction = "download" if client is None else "upload"
    rows = [row for row in rerun.recorded("ledger", phase, number) if row["direction"] == direction]
    recorded = _payload([row for row in rows if client is None or row["client"] == client])
    if recorded and recorded != payload:
        raise RunError(
            f"{rerun.run.folder}: round {number} of phase {phase}: the ledger has {recorded} bytes of this {direction},"
            f" its repetition {payload}"
        )
