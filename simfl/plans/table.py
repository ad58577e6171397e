"""Output of `simfl plan` as text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from simfl.formatting import format_bytes
from simfl.plans.memory import MemoryPlan
from simfl.plans.messages import Message
from simfl.plans.plan import Counts, PhasePlan, RunPlan
from simfl.plans.speed import MeasuredSpeed
from simfl.plans.time import CURVE
from simfl.transport.ledger import DIRECTIONS, units

HUGE_EPSILON = 1e5  # from here on without decimals


def show(plan: RunPlan, speed: MeasuredSpeed | None, console: Console) -> None:
    """Print the messages by part, total bytes, memory, local steps, and time if a speed is given."""
    phases = plan.phases
    rounds = sum(phase.rounds for phase in phases)
    several = f"{len(phases)} phases, " if len(phases) > 1 else ""
    console.print(
        f"{plan.experiment.name}: {several}{rounds} rounds, {len(plan.sizes)} clients",
        highlight=False, style="bold", markup=False,
    )  # fmt: skip
    for title, table in (
        ("messages", _messages(plan)),
        ("totals", _totals(plan)),
        ("resources", _resources(plan, speed)),
        *([("virtual time", _time(plan))] if any(phase.time is not None for phase in plan.phases) else []),
    ):
        console.print(f"\n{title}", style="bold")
        console.print(table)


def _messages(plan: RunPlan) -> Table:
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


def _totals(plan: RunPlan) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("")
    for name in ("B", "MB", "GB"):
        table.add_column(name, justify="right")
    for mode in (*DIRECTIONS, "total"):
        table.add_row(mode, *_in_units(plan.bytes, mode))
    if plan.charged != plan.bytes:
        for mode in (*DIRECTIONS, "total"):
            table.add_row(f"{mode}, charged", *_in_units(plan.charged, mode))
    return table


def _in_units(counts: Counts, mode: str) -> tuple[str, str, str]:
    found = units(counts[mode])
    return f"{counts[mode]:,}", f"{found['MB']:,.1f}", f"{found['GB']:,.3f}"


def _resources(plan: RunPlan, speed: MeasuredSpeed | None) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    model = ", ".join(f"{value:,} {name}" for name, value in plan.model.items())
    table.add_row("model", model)
    table.add_row("messages", _num_messages(plan))
    table.add_row("local steps", _steps(plan))
    if speed is not None and plan.steps is not None:
        differences = f"; measured with another {', '.join(speed.differences)}" if speed.differences else ""
        table.add_row("time", f"{speed.hours(plan.steps):.2f} h at {speed.steps_per_second:.2f} steps/s{differences}")
    if plan.privacy is not None:
        table.add_row("privacy", _privacy(plan))
        if plan.privacy.correlation is not None:
            table.add_row("correlated noise", _correlated_noise(plan.phases))
    for text in dict.fromkeys(phase.masks for phase in plan.phases if phase.masks):
        table.add_row("secure aggregation", text)
    largest = max((phase.memory for phase in plan.phases), key=lambda memory: memory.worker)
    table.add_row("memory: server", format_bytes(max(phase.memory.server for phase in plan.phases)))
    table.add_row("memory: worker", _worker(largest))
    table.add_row(
        "memory: client", f"{format_bytes(max(p.memory.client for p in plan.phases))} on disk between updates"
    )
    return table


def _time(plan: RunPlan) -> Table:
    """Return a table of the predicted virtual time of each phase."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for phase in plan.phases:
        found, several = phase.time, f"{phase.name}: " if len(plan.phases) > 1 else ""
        if found is None:
            continue
        whole = max(found.seconds, 1e-9)
        table.add_row(f"{several}makespan", f"{found.seconds:,.1f} s, {found.seconds / phase.rounds:,.2f} s per round")
        if found.parts:
            shares = (f"{name} {value:,.1f} s ({value / whole:.0%})" for name, value in found.parts.items())
            table.add_row("  of which", ", ".join(shares))
        if found.outcomes:
            counts = (f"{count:,} {name}" for name, count in found.outcomes.items() if count)
            table.add_row("  updates", ", ".join(counts))
        if found.curve:
            points = (f"{q:.0%} {value:,.2f}" for q, value in zip(CURVE, found.curve, strict=True))
            table.add_row("  uploads arrive", f"after s: {', '.join(points)}")
        if found.joules:
            table.add_row("  energy", f"{found.joules:,.1f} J of computing")
        if found.flops:
            table.add_row("  training", f"{found.flops:,.0f} floating-point operations per example")
    return table


def _privacy(plan: RunPlan) -> str:
    assert plan.privacy is not None
    assert plan.experiment.privacy is not None
    cost, privacy = plan.privacy, plan.experiment.privacy
    tests = "for tests, nothing is claimed: " if privacy.adds_noise and privacy.noise_seed is not None else ""
    if cost.guaranteed is None:
        if cost.noise_multiplier:
            return f"no guarantee: accountant {privacy.accountant} finds no finite epsilon at delta {cost.delta:g}"
        return "no guarantee: no noise is added to what the observers see"
    shown = f"{cost.guaranteed:.4f}" if cost.guaranteed < HUGE_EPSILON else f"{cost.guaranteed:.3g}"
    bound = f"epsilon {shown} per {privacy.unit} at delta {cost.delta:g}"
    rest = (
        f"{cost.adjacency.replace('_', '-')}, view: {cost.claimed_view}, noise multiplier {cost.noise_multiplier:.4f}"
    )
    if cost.deployment is not None:
        cohort = f"{cost.deployment.clients_per_round:,} of {cost.deployment.clients:,} clients per round"
        return f"{tests}estimate for a deployment with {cohort}, nothing is claimed for this run: {bound} ({rest})"
    formula = ""
    if privacy.view == "formula" and cost.epsilon is not None:
        formula = f"; the formula gives {cost.epsilon:.4f} at rate {cost.sampling_rate:g}, which is no guarantee"
    return f"{tests}{bound} ({rest}){formula}"


def _correlated_noise(phases: Sequence[PhasePlan]) -> str:
    texts = []
    for phase in phases:
        if phase.privacy is not None and (found := phase.privacy.correlation) is not None:
            texts.append(
                f"error of the models {found.model_error:.3g} per parameter (independent noise at equal epsilon:"
                f" {found.independent_error:.3g}); a client takes part at most {found.participations} times, at least"
                f" {found.separation} rounds apart"
            )
    return "; ".join(f"phase {i}: {text}" if len(texts) > 1 else text for i, text in enumerate(texts))


def _num_messages(plan: RunPlan) -> str:
    sampled, expected = (sum(getattr(phase, name) for phase in plan.phases) for name in ("messages", "expected"))
    poisson = any(phase.poisson is not None for phase in plan.experiment.phases)
    return f"{sampled:,}" + (f" with seed {plan.experiment.seed}; {expected:,.1f} expected" if poisson else "")


def _steps(plan: RunPlan) -> str:
    if plan.steps is None:
        return f"unknown: {plan.sizes.source}"
    privacy = plan.experiment.privacy
    is_secret = privacy is not None and privacy.has_secret_sampling
    about = "" if plan.sizes.exact and not is_secret else "about "
    scaled = [phase.scaled_from for phase in plan.phases if phase.scaled_from is not None]
    remark = f"; scaled up from the first {scaled[0]:,} rounds" if scaled else ""
    return f"{about}{plan.steps:,.0f}, from {plan.sizes.source}{remark}"


def _worker(memory: MemoryPlan) -> str:
    without = ", without activations" if memory.step is None else ""
    each = f"{format_bytes(memory.resident)} and {format_bytes(memory.each)} per client{without}"
    if memory.card is None:
        return f"{format_bytes(memory.worker)} with {memory.clients_per_batch} per batch: {each}"
    if memory.clients_per_batch == 0:
        return f"{each}; no client fits {format_bytes(memory.card)}"
    return f"{each}; {memory.clients_per_batch} clients per batch fit {format_bytes(memory.card)}"
