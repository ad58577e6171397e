"""Write the table of docs/explanation/fidelity.md: `python docs/make_figures.py`; `--check` tests that it is current.

The script imports the simfl of its own repository and computes the plans of the included experiments.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from simfl import config, files  # noqa: E402
from simfl.plans.plan import RunPlan, plan  # noqa: E402
from simfl.sweeps import file  # noqa: E402

FILE = ROOT / "docs/explanation/fidelity.md"
MARKED = re.compile(r"(?<=<!-- figures -->\n).*(?=<!-- /figures -->)", re.DOTALL)
SAME = "–"


@dataclass(frozen=True)
class Figure:
    """A published figure and the function that reads it from the plan of an experiment."""

    experiment: str  # path under experiments/ without suffix; `:RUN` for a run of a sweep; overrides after spaces
    name: str
    published: str
    computed: Callable[[RunPlan], str]
    reason: str = SAME  # of a difference


def message(found: RunPlan) -> str:
    """Return the payload bytes of an upload of the last phase."""
    return f"{found.phases[-1].message['upload']['bytes']:,} B"


def charged(found: RunPlan) -> str:
    """Return the charged bytes per message."""
    return f"{found.charged['upload'] * 2 // found.messages:,} B"


def gib(found: RunPlan) -> str:
    """Return the charged bytes of the run in GiB."""
    return f"{found.charged['total'] / 2**30:.3f} GiB"


def mb(found: RunPlan) -> str:
    """Return the payload bytes of the run in MB."""
    return f"{found.bytes['total'] / 1e6:.2f} MB"


def gb(found: RunPlan) -> str:
    """Return the payload bytes of the run in GB."""
    return f"{found.bytes['total'] / 1e9:.2f} GB"


def mib(found: RunPlan) -> str:
    """Return the payload bytes of an upload of the last phase in MiB."""
    return f"{found.phases[-1].message['upload']['bytes'] / 2**20:.2f} MiB"


def shared(found: RunPlan) -> str:
    """Return the number of shared values, in millions."""
    return f"{found.model['shared'] / 1e6:.2f} M"


def trained(found: RunPlan) -> str:
    """Return the number of trained values, in millions."""
    return f"{found.model['trained'] / 1e6:.2f} M"


def sigma(found: RunPlan) -> str:
    """Return the noise multiplier."""
    assert found.privacy is not None
    return f"{found.privacy.noise_multiplier:.4f}"


def clients(found: RunPlan) -> str:
    """Return the number of clients of each size, in the order of the sizes."""
    sizes = found.sizes.sizes.tolist()
    return " / ".join(str(sizes.count(size)) for size in dict.fromkeys(sizes))


GIBIBYTES = "The competition's GB are GiB, cut to two digits; its log counts the word embedding under three names."
ASTER = "The printed MB are MiB, about .35 more than weights and running statistics."
ALBEF = "The paper counts the head of .62 M, which is personal and never sent."
VILT = "The paper's 100 % is close to layers and patches (87.41 M); simfl shares all parameters except the head."
VAULT = "The paper counts the heads, BERT's pooler and ViLT's word embedding, which are not used."
SIGMA = "The kit's value costs epsilon {}, which exceeds its budget; simfl computes sigma from epsilon."

FIGURES = (
    Figure("pfl_docvqa/track1_baseline", "message, charged", "1.12 GB", charged, GIBIBYTES),
    Figure("pfl_docvqa/track1_baseline", "message, tied weights counted once", "1.0 GB", message),
    Figure("pfl_docvqa/track1_baseline", "total", "44.65 GB", gib, GIBIBYTES),
    Figure("pfl_docvqa/track1_lora", "message", "13.68 MB", message),
    Figure("pfl_docvqa/track1_lora", "total", "0.38 GB", mb),
    Figure("pfl_docvqa/track1_lora model.adapters.rank=8", "message", "not printed", message),
    Figure("pfl_docvqa/track1_tuned", "total", "55 MB", mb),
    Figure("pfl_docvqa/track1_nf4", "message", "1.92 MB", message),
    Figure("pfl_docvqa/track1_nf4", "total", "7.7 MB", mb),
    Figure(
        "pfl_docvqa/track1_fedshampoo", "total", "10.01 GB", gib,
        "Truncated to two digits; it matches if the embedding and both box tables are frozen and not charged.",
    ),
    Figure("pfl_docvqa/track2_baseline", "total", "22.32 GB", gib, GIBIBYTES),
    Figure("pfl_docvqa/track2_baseline", "sigma, epsilon 1", "1.145", sigma, SIGMA.format("1.0057")),
    Figure("pfl_docvqa/track2_baseline privacy.epsilon=4", "sigma, epsilon 4", "0.637", sigma),
    Figure("pfl_docvqa/track2_baseline privacy.epsilon=8", "sigma, epsilon 8", "0.468", sigma, SIGMA.format("8.0039")),
    Figure(
        "fedocvqa/fedavg_k10", "trained", "220 M", trained,
        "The paper prints the size of T5-base; simfl adds patches (.59), box tables (1.57), a token, distance tables.",
    ),
    Figure("fedocvqa/fedavg_k3", "clients of WTQ / DocVQA / TabFact", "1 / 1 / 1", clients),
    Figure("fedocvqa/fedavg_k10", "clients of WTQ / DocVQA / TabFact", "1 / 4 / 5", clients),
    Figure("fedocvqa/fedavg_k30", "clients of WTQ / DocVQA / TabFact", "2 / 13 / 15", clients),
    Figure("fedocvqa/fedavg_k10", "total, C = 1", "not printed", gb),
    Figure("fedocvqa/fsp_k3", "total, C = 1", "not printed", gb, "Half of it is self-pretraining (ten rounds)."),
    Figure("fedocr/real_aster", "values", "20.99 M", shared),
    Figure("fedocr/real_aster", "message", "80.52 MB", mib, ASTER),
    Figure("fedocr/real_hash_1", "values", "13.34 M", shared),
    Figure("fedocr/real_hash_1", "message", "51.37 MB", mib, ASTER),
    Figure("fedocr/real_hash_1_2", "values", "6.70 M", shared),
    Figure("fedocr/real_hash_1_2", "message", "26.05 MB", mib, ASTER),
    Figure("fedocr/real_hash_1_4", "values", "3.38 M", shared),
    Figure("fedocr/real_hash_1_4", "message", "13.38 MB", mib, ASTER),
    Figure("fedocr/real_hash_1_8", "values", "1.72 M", shared),
    Figure("fedocr/real_hash_1_8", "message", "7.05 MB", mib, ASTER),
    Figure("fedvqa/gqa_fedavg", "trained", "not printed", trained, "Three layers and a classifier of 1642 answers."),
    Figure("fedvqa/gqa_fedavg", "total", "not printed", gb),
    Figure("feddat/domain:vilt_lora", "values per message", ".60 M", shared, "LoRA .59, and the biases of q and v."),
    Figure("feddat/domain:vilt_prompt", "values per message", ".60 M", shared),
    Figure("feddat/domain:vilt_bias", "values per message", ".10 M", shared),
    Figure("feddat/domain:vilt_adapter", "values per message", ".89 M", shared),
    Figure("feddat/domain:vilt_full", "values per message", "87.40 M", shared, VILT),
    Figure("feddat/domain:vault_lora", "values per message", ".60 M", shared, "As with ViLT."),
    Figure("feddat/domain:vault_prompt", "values per message", ".60 M", shared),
    Figure("feddat/domain:vault_bias", "values per message", ".21 M", shared),
    Figure("feddat/domain:vault_adapter", "values per message", "1.79 M", shared),
    Figure("feddat/domain:vault_full", "values per message", "227.77 M", shared, VAULT),
    Figure("feddat/domain:albef_lora", "values per message", "1.52 M", shared),
    Figure("feddat/domain:albef_prompt", "values per message", ".92 M", shared, ALBEF),
    Figure("feddat/domain:albef_bias", "values per message", ".93 M", shared, ALBEF),
    Figure("feddat/domain:albef_adapter", "values per message", "2.86 M", shared, ALBEF),
    Figure("feddat/domain:albef_full", "values per message", "290.34 M", shared, ALBEF),
)  # fmt: skip


@functools.cache
def planned(experiment: str) -> RunPlan:
    """Return the plan of an included experiment, or of a run of an included sweep, after overrides."""
    name, *overrides = experiment.split(" ")
    name, _, run = name.partition(":")
    path = ROOT / "experiments" / f"{name}.yaml"
    if run:
        (point,) = file.load(path, overrides, only=(run,)).points
        return plan(point.experiment, files.cache_folder())
    return plan(config.load(path, overrides), files.cache_folder())


def table() -> str:
    """Return the table, in the order of the papers."""
    lines = ["| experiment | figure | published | simfl | reason for a difference |", "|---|---|---:|---:|---|"]
    for figure in FIGURES:
        name, *overrides = figure.experiment.split(" ")
        shown = f"`{name}`" + "".join(f" `{text}`" for text in overrides)
        computed = figure.computed(planned(figure.experiment))
        lines.append(f"| {shown} | {figure.name} | {figure.published} | {computed} | {figure.reason} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the table between its markers, or exit with an error if it is not up to date."""
    before = FILE.read_text(encoding="utf-8")
    after = MARKED.sub(lambda _: table(), before)
    if "--check" in sys.argv:
        sys.exit(0 if before == after else f"{FILE} is not up to date; run {Path(__file__).name}")
    FILE.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
