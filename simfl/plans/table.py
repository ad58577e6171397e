"""A plan as a person reads it."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from simfl.plans.memory import Memory
from simfl.plans.messages import Message
from simfl.plans.plan import Count, PhasePlan, Plan
from simfl.plans.speed import Pace
from simfl.tracking.progress import size
from simfl.transport.ledger import DIRECTIONS, units


def show(plan: Plan, pace: Pace | None, console: Console) -> None:
    """Print it: the model, every message by part, what crosses in all, memory, work."""
    phases = plan.phases
    rounds = sum(phase.rounds for phase in phases)
    many = f"{len(phases)} phases, " if len(phases) > 1 else ""
    console.print(
        f"{plan.experiment.name}: {many}{rounds} rounds, {len(plan.holdings)} clients",
        highlight=False, style="bold", markup=False,
    )  # fmt: skip
    for title, table in (("messages", _messages(plan)), ("in all", _totals(plan)), ("besides", _besides(plan, pace))):
        console.print(f"\n{title}", style="bold")
        console.print(table)


def _messages(plan: Plan) -> Table:
    several = len(plan.phases) > 1
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in (["phase"] if several else []) + ["", "part"]:
        table.add_column(name)
    for name in ("values", "bytes", "charged"):
        table.add_column(name, justify="right")
    for phase in plan.phases:
        for direction, message in zip(DIRECTIONS, (phase.download, phase.upload), strict=True):
            for i, row in enumerate(_lines(phase, direction, message)):
                table.add_row(*([phase.name] if several else []), "" if i else direction, *row)
    return table


def _lines(phase: PhasePlan, direction: str, message: Message) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for row in message:
        most = "≤ " if (direction, row["part"]) in phase.varying else ""
        payload, charged = int(row["payload_bytes"]), int(row["charged_bytes"])
        rows.append((str(row["part"]), f"{row['floats']:,}", f"{most}{payload:,}", f"{most}{charged:,}"))
    return rows


def _totals(plan: Plan) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("")
    for name in ("B", "MB", "GiB"):
        table.add_column(name, justify="right")
    for mode in (*DIRECTIONS, "total"):
        table.add_row(mode, *_in_units(plan.bytes, mode))
    if plan.charged != plan.bytes:
        for mode in (*DIRECTIONS, "total"):
            table.add_row(f"{mode}, charged", *_in_units(plan.charged, mode))
    return table


def _in_units(counts: Count, mode: str) -> tuple[str, str, str]:
    found = units(counts[mode])
    return f"{counts[mode]:,}", f"{found['MB']:,.1f}", f"{found['GiB']:,.3f}"


def _besides(plan: Plan, pace: Pace | None) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    model = ", ".join(f"{value:,} {name}" for name, value in plan.model.items())
    table.add_row("model", f"{model} (numbers of values)")
    table.add_row("messages", _count_of_messages(plan))
    table.add_row("local steps", _steps(plan))
    if pace is not None and plan.steps is not None:
        unlike = f"; but other {', '.join(pace.unlike)} there" if pace.unlike else ""
        table.add_row("time", f"{pace.hours(plan.steps):.2f} h at {pace.steps_per_second:.2f} steps/s{unlike}")
    if plan.privacy is not None:
        table.add_row("privacy", _privacy(plan))
    largest = max((phase.memory for phase in plan.phases), key=lambda memory: memory.worker)
    table.add_row("memory: server", size(max(phase.memory.server for phase in plan.phases)))
    table.add_row("memory: worker", _worker(largest))
    table.add_row("memory: client", f"{size(max(p.memory.client for p in plan.phases))} on the disk between its visits")
    return table


def _privacy(plan: Plan) -> str:
    assert plan.privacy is not None
    assert plan.experiment.privacy is not None
    epsilon, unit, view = plan.privacy["epsilon"], plan.experiment.privacy.unit, plan.experiment.privacy.view
    spent = "no bound on epsilon, as nothing is noised" if epsilon is None else f"epsilon {epsilon:.4f}"
    rest = f"delta {plan.privacy['delta']:g}, noise multiplier {plan.privacy['noise_multiplier']:.4f}"
    return f"{spent} for a {unit}, {rest}, sampling rate {plan.privacy['sampling_rate']:g} (view: {view})"


def _count_of_messages(plan: Plan) -> str:
    drawn, expected = (sum(getattr(phase, name) for phase in plan.phases) for name in ("messages", "expected"))
    chance = any(phase.poisson is not None for phase in plan.experiment.phases)
    return f"{drawn:,}" + (f" with seed {plan.experiment.seed}; {expected:,.1f} expected" if chance else "")


def _steps(plan: Plan) -> str:
    if plan.steps is None:
        return f"not known: {plan.holdings.source}"
    about = "" if plan.holdings.exact else "about "
    return f"{about}{plan.steps:,.0f}, by {plan.holdings.source}"


def _worker(memory: Memory) -> str:
    without = ", without activations" if memory.activations is None else ""
    each = f"{size(memory.resident)} and {size(memory.each)} for each client side by side{without}"
    if memory.card is None:
        return f"{size(memory.worker)} for {memory.clients_per_batch}: {each}"
    if memory.clients_per_batch == 0:
        return f"{each}; not one fits {size(memory.card)}"
    return f"{each}; cohorts of {memory.clients_per_batch} fit {size(memory.card)}"
