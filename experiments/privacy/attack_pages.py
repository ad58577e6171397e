"""Inversion of the questions and pages behind one upload: a table of the README.

    python experiments/privacy/attack_pages.py [--processes 12]

One step of SGD on one example is the easiest case; each line changes one setting. Means over four uploads.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
MARKED = re.compile(r"(?<=<!-- attack pages -->\n).*(?=<!-- /attack pages -->)", re.DOTALL)
CLIENTS = 4
BASE = """
name: pages
seed: 1
data:
  {name: provider_invoices, providers: 16, unseen: 1, train: 16, valid: 10, test: 10, unseen_documents: 1, questions: 4,
   clients: 4, max_lines: 1, image_width: 64}
partition: {by: provider, clients: 4}
model: {name: layout_t5, size: small, weights: vt5_tiny, dropout: 0}
phases:
  - objective: {name: docvqa, max_tokens: 128}
    algorithm: fedavg
    rounds: 1
    participation: 1.0
    weighting: uniform
    local: {steps: 1, batch_size: 1, optimizer: sgd, learning_rate: 0.1}
evaluate: {every: 0, limit: 1}
"""
PRIVATE = ["phases.0.algorithm=group_dp", "execution.mode=vectorized"]
CASES = {
    "one example, one step": [],
    "batch of 2": ["phases.0.local.batch_size=2"],
    "batch of 4": ["phases.0.local.batch_size=4"],
    "batch of 16": ["phases.0.local.batch_size=16"],
    "4 local steps": ["phases.0.local.steps=4"],
    "16 local steps": ["phases.0.local.steps=16"],
    "AdamW": ["phases.0.local.optimizer=adamw", "phases.0.local.learning_rate=1e-3"],
    "codec float16": ["codec={upload: float16}"],
    "codec int8": ["codec={upload: int8}"],
    "codec topk, 1 %": ["codec={upload: {name: topk, keep: 0.01}}"],
    "clip": [*PRIVATE, "privacy={unit: group, clip: 0.1, groups_per_client: 1, noise_multiplier: 0}"],
    "clip and noise 0.01": [*PRIVATE, "privacy={unit: group, clip: 0.1, groups_per_client: 1, noise_multiplier: 0.01}"],
    "clip and noise 1": [*PRIVATE, "privacy={unit: group, clip: 0.1, groups_per_client: 1, noise_multiplier: 1}"],
}
COLUMNS = ("embedding", "span", "patch")


def case(name: str) -> dict[str, Any]:
    """Make the run of a case and attack the upload of each client."""
    import torch

    from simfl import config, simulation
    from simfl.audit.inversion import invert
    from simfl.runs.results import Run
    from simfl.session.options import RunOptions

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="simfl-pages-") as folder:
        file = Path(folder) / "pages.yaml"
        file.write_text(BASE)
        simulation.run(config.load(file, CASES[name]), RunOptions(Path(folder) / "run", backend="inline"))
        found = [invert(Run(Path(folder) / "run"), client, 1).attacks for client in range(CLIENTS)]
    means: dict[str, Any] = {}
    for column in COLUMNS:
        own = [one for attacks in found for one in attacks if one.name == column]
        if own:
            means[column] = (np.mean([one.roc.auc.value for one in own]), np.mean([one.recall for one in own]))
        if own and column == "patch":
            means["recovered"] = np.mean([one.recovered or 0.0 for one in own])
    return means


def table(found: dict[str, dict[str, Any]]) -> str:
    """Return the table, one line for each case."""
    titles = {
        "embedding": "tokens by the embedding: AUC, found",
        "span": "tokens by the span: AUC, found",
        "patch": "patches of pages: AUC, found",
    }
    lines = ["| upload | " + " | ".join(titles.values()) + " | patches recovered |", "|---" * 5 + "|"]
    for name, means in found.items():
        cells = [f"{means[c][0]:.2f}, {100 * means[c][1]:.0f} %" if c in means else "-" for c in titles]
        recovered = f"{100 * means['recovered']:.0f} %" if "recovered" in means else "-"
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {recovered} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Attack all cases in several processes and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=CASES)
    given = parser.parse_args()
    names = given.only or list(CASES)
    with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
        found = dict(zip(names, pool.map(case, names), strict=True))
    print(table(found))
    readme = HERE / "README.md"
    if not given.only:
        readme.write_text(MARKED.sub(lambda _: table(found), readme.read_text()))


if __name__ == "__main__":
    main()
