"""Writes docs/algorithms.md from the table of algorithms: `python docs/make_algorithms.py`.

What travels, what is remembered and what a step costs is not claimed but found out, by one visit to a small model.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import torch

from simfl.algorithms import ALGORITHMS
from simfl.algorithms.base import Algorithm
from simfl.config.catalogue import Entry, entry
from simfl.config.fields import shown
from simfl.optimizers import SCHEDULES, SERVER_OPTIMIZERS
from simfl.protocol import EXTRA, ClientUpdate, Facts, Outputs, Parts, Server, State

FILE = Path(__file__).parent / "algorithms.md"
D = 1009  # values of the model; a prime, so that multiples of it are told from other numbers
HEAD = """# Algorithms

Written by `python docs/make_algorithms.py` from the table in `simfl/algorithms`; a test holds it current. Where papers
and published codes disagree, [fidelity.md](fidelity.md) says what is done here.

*d* is the number of values that travel in FedAvg: all trained tensors but the private ones. Other numbers are of a
model with 4 features and a client with 3 examples. Every method goes with every server optimizer, codec, partition
and adapter kind, and trains in both ways (`sequential`, `vectorized`); a model with running statistics trains in `sequential` alone.
Combinations that cannot be meant are refused before the run (`simfl/config/rules.py`). The last column says at which
setting, or when, a method's global model is FedAvg's to the bit; a test shows each. `local` (each client's
model as it was before its last upload) can be scored for every method.

Baselines are no algorithms but one line of a phase: `pooled: true` is centralized training on a round's examples, with
as many steps as its clients would take; `communicate: false` lets clients train alone. Fine-tuning after the last round
is a second phase with `communicate: false` and `participation: 1.0`.
"""


def main() -> None:
    """Write the file, or with `--check` say whether it is current."""
    text = document()
    if "--check" in sys.argv:
        sys.exit(0 if FILE.read_text(encoding="utf-8") == text else f"{FILE} is not current; run {Path(__file__).name}")
    FILE.write_text(text, encoding="utf-8")


def document() -> str:
    """The whole text."""
    rows = [
        "| name | down | up | client memory | a local step | local optimizer | models | is FedAvg |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows += [f"| [{name}](#{name}) | " + " | ".join(_facts(kind())) + " |" for name, kind in ALGORITHMS.items()]
    parts = [HEAD, "\n".join(rows) + "\n", *(_section(name, kind) for name, kind in ALGORITHMS.items())]
    parts += ["## Server optimizers\n", *(_settings(entry(n, k, "optimizer"), 3) for n, k in SERVER_OPTIMIZERS.items())]
    parts += ["## Learning-rate schedules\n", *(_settings(entry(name, kind), 3) for name, kind in SCHEDULES.items())]
    return "\n".join([*parts])


def _section(name: str, kind: type[Algorithm]) -> str:
    paper = (inspect.getdoc(inspect.getmodule(kind)) or "").partition("\n")[0]
    rest = (inspect.getdoc(kind) or "").partition("\n")[2].strip()
    return _settings(entry(name, kind), 2, f"*{paper.rstrip('.')}.*\n\n", f"{rest}\n\n" if rest else "")


def _settings(found: Entry, level: int, before: str = "", after: str = "") -> str:
    lines = [f"{'#' * level} {found.name}\n", f"{before}{found.summary}\n"]
    lines += [after.rstrip("\n") + "\n"] if after else []
    if found.settings:
        lines += ["| setting | default | meaning |", "|---|---|---|"]
        lines += [f"| `{s.name}` | `{_plain(s.default)}` | {s.meaning.replace('|', 'or')} |" for s in found.settings]
        lines += [""]
    return "\n".join(lines)


def _plain(value: object) -> str:
    return str(value.get("name")) if isinstance(value, dict) else shown(value).strip("'")


def _facts(algorithm: Algorithm) -> tuple[str, ...]:
    """The cells of one row."""
    received, sent, memory = _one_visit(algorithm)
    steps = algorithm.micro_steps()
    runs = [name for step in steps for name in step.runs]
    passes = f"{len(runs)} pass{'es' if len(runs) > 1 else ''}, {len(steps)} gradient{'s' if len(steps) > 1 else ''}"
    allowed = algorithm.sgd_with()
    optimizer = "any" if allowed is None else " ".join(["plain sgd", *(f"+ `{key}`" for key in allowed)])
    models = ", ".join(algorithm.offered_models)
    kept = [_sizes(memory), *(f"tensors `{glob}`" for glob in algorithm.private)]
    remembered = ", ".join(cell for cell in kept if cell) or "none"
    return _sizes(received), _sizes(sent), remembered, passes, optimizer, models, algorithm.limit or "–"


def _sizes(parts: Parts | State) -> str:
    """The groups with their numbers of values, as multiples of d where they are."""
    return ", ".join(f"{name} {_size(sum(t.numel() for t in group.values()))}" for name, group in parts.items())


def _size(values: int) -> str:
    times, rest = divmod(values, D)
    return ("*d*" if times == 1 else f"{times}·*d*") if times and not rest else str(values)


def _one_visit(algorithm: Algorithm) -> tuple[Parts, Parts, State]:
    """What a client receives, sends and remembers, for a model of D values and 3 examples."""
    weights = {"w": torch.zeros(D)}
    server = Server(weights, algorithm.init_server(weights))
    received, ones = algorithm.download(server), torch.ones(())
    visit = ClientUpdate(
        *(ones.to(torch.int64) if name in ("client", "key", "round", "step") else ones for name in ClientUpdate._fields)
    )
    visit = visit._replace(examples=3 * ones)
    state = algorithm.prepare(received, algorithm.init_client(received, visit), visit)
    sample = Outputs(torch.zeros(1, 2), torch.zeros(1, 4))
    trained = dict(weights)
    for group, tensors in algorithm.extra(Facts(sample, weights, sample), received, state, visit).items():
        trained |= {f"{EXTRA}/{group}/{name}": tensor for name, tensor in tensors.items()}
    sent = algorithm.upload(trained, received, state, visit)
    return received, sent, algorithm.remember(sent, trained, received, state, visit)


if __name__ == "__main__":
    main()
