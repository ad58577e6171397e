"""AGENTS.md and llms.txt, written from the catalogue, the commands and the pages of the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from simfl.config import catalogue
from simfl.config.registries import REGISTRIES

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"^- \[([^]]+)\]\(([^)#]+)\): (.+)$", re.MULTILINE)
EXAMPLE = """name: mine
data: {name: table, path: mine.csv, columns: {text: review, label: stars, client: shop}}
partition: {by: natural, column: client}
model: {name: hf, weights: FOLDER_OR_HUB_ID, adapters: {kind: lora, rank: 8}}
phases:
  - objective: text_classification
    algorithm: fedavg
    rounds: 10
    clients_per_round: 4
    local: {optimizer: adamw, learning_rate: 1e-3, epochs: 1, batch_size: 16}
"""
SUMMARY = (
    "simfl simulates federated learning on Ray and torch, for research on federated multimodal models. An experiment is"
    " one YAML file or Python mapping; results are bit-identical across workers, interruptions and resumes; every byte"
    " of a message is counted."
)
FACTS = """
- An experiment names components: data, partition, model, objective, algorithm, codec, optimizer. `simfl list` shows
  all, `simfl list NAME --json` the settings of one, `simfl explain KEY --json` one key. Never guess a
  key: an unknown key or value is refused in one line, with the nearest allowed one.
- `simfl data check PATH`, `simfl plan FILE` and `simfl run FILE --backend inline` check, in seconds and in this order,
  data, settings (bytes, memory, steps) and training. `--set phases.0.rounds=2` shortens a run.
- Exit codes: 0 done, 1 a client or run failed, 2 an error of the user in one line, 3 Ray lost (resume), 130
  interrupted.
- Results: `runs/NAME/summary.json`; from Python `run = simfl.load("runs/NAME")`, then `run.summary`, `run.rounds()`.
- A class of your own takes the place of a name: `algorithm: {name: "mymodule:MyClass"}`;
  `simfl new FILE --kind algorithm` writes one with a test, and `simfl.contract.check(MyClass)` tests it.
"""
RULES = """
## Working on simfl itself

- `make setup` creates .venv, `make test` runs the fast tests, `make check` format, lint, types, layers, language,
  spelling and the documentation site; `make help` lists all jobs. Run one file of tests with
  `.venv/bin/python -m pytest -q tests/FILE`.
- Start reading at `simfl/rounds.py` and `simfl/simulation.py`, then docs/explanation/design.md. Imports point down
  (tests/test_layers.py). Functions are short; data are frozen dataclasses; the comment behind a field is its
  documentation.
- One component, one file, registered in the `__init__.py` of its folder. Every component keeps its contract
  (`simfl/contract`), has a row in the documentation and works from YAML; CONTRIBUTING.md has the table.
- User errors are one line: where, what was given, what is allowed. They are raised before a run folder exists.
- Pages that begin with "Written by" are generated: `make pages`. So are this file and llms.txt.
- Results of existing experiments stay bit-identical; `benchmarks/golden_runs.py` compares them.
"""


def llms() -> str:
    """Return llms.txt: a summary, and the pages with a sentence each (https://llmstxt.org)."""
    lines = ["# simfl", "", f"> {SUMMARY}", FACTS, "An experiment:", "", "```yaml", EXAMPLE + "```", ""]
    for folder in ("tutorial", "how-to", "reference", "explanation"):
        lines += [f"## {folder.capitalize()}", ""]
        lines += [f"- [{title}](docs/{folder}/{target}): {text}" for title, target, text in listed(folder)]
        lines.append("")
    lines += ["## Components", "", *components(), ""]
    return "\n".join(lines)


def agents() -> str:
    """Return AGENTS.md: facts for programs that use or change simfl."""
    lines = [
        "# simfl for coding agents", "",
        "Written by `python docs/make_reference.py`; a test checks that it is current.", "",
        SUMMARY, "", "## Using simfl", FACTS, "```yaml", EXAMPLE + "```", "",
        "All keys: docs/reference/yaml.md. Settings of all components: docs/reference/components.md. Commands:"
        " docs/reference/commands.md. Errors with cause and cure: docs/reference/errors.md. All pages: llms.txt.", "",
        "### Components", "", *components(), RULES.rstrip(), "",
    ]  # fmt: skip
    return "\n".join(lines)


def components() -> Iterator[str]:
    """Return a line for each registry with the names of its components."""
    for name in (*sorted(REGISTRIES), "optimizers"):
        yield f"- **{name}**: {', '.join(entry.name for entry in catalogue.entries(name))}"


def listed(folder: str) -> list[tuple[str, str, str]]:
    """Return title, file and sentence of the pages that an index page lists."""
    return LINK.findall((ROOT / f"docs/{folder}/index.md").read_text(encoding="utf-8"))
