"""The rows that a round adds to a run's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from simfl.runs.record import Rows
from simfl.runs.snapshot import Snapshot
from simfl.training.cohort import CohortResult
from simfl.training.context import PhaseContext
from simfl.transport import ledger


def round_rows(
    stage: PhaseContext,
    after: Snapshot,
    clients: list[int],
    downloads: list[ledger.Row],
    results: Sequence[CohortResult],
    metrics: Mapping[str, float | Tensor],
) -> Rows:
    """The rows of a round. No clock times here: equal runs leave equal tables."""
    trained = [row for result in results for row in result.clients]
    skipped = [client for result in results for client in result.skipped]
    assert len(trained) + len(skipped) == len(clients), "a visit was lost"
    rows = downloads + [row for result in results for row in result.ledger]
    examples = sum(row["examples"] for row in trained)
    totals = ledger.totals(rows)
    loss = sum(row["loss"] * row["examples"] for row in trained) / examples if examples else None
    facts: dict[str, Any] = {
        "phase": stage.index,
        "round": after.round,
        "step": after.step,
        "sampled": len(clients),
        "skipped": len(skipped),
        "examples": examples,
        "local_steps": sum(row["steps"] for row in trained),
        "loss": loss,
    }
    facts |= {f"{way}_bytes": int(count["B"]) for way, count in totals["payload"].items()}
    facts |= {f"charged_{way}_bytes": int(count["B"]) for way, count in totals["charged"].items()}
    facts |= {f"metric:{name}": float(value) for name, value in metrics.items()}
    return {"rounds": [facts], "ledger": list(rows), "clients": trained, "evaluations": [], "samples": []}
