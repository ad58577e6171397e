"""Writes published beside planned figures into docs/fidelity.md: `python docs/make_figures.py`; `--check` looks."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from simfl import cache, config
from simfl.plans.plan import Plan, plan

ROOT = Path(__file__).parent.parent
FILE = ROOT / "docs" / "fidelity.md"
MARKED = re.compile(r"(?<=<!-- figures -->\n).*(?=<!-- /figures -->)", re.DOTALL)
SAME = "–"


@dataclass(frozen=True)
class Figure:
    """A published number, and the same one by the plan of an experiment."""

    experiment: str  # under experiments/, without its ending; overrides behind it
    what: str
    published: str
    here: Callable[[Plan], str]
    why: str = SAME  # they differ


def message(found: Plan) -> str:
    return f"{found.phases[-1].message['upload']['bytes']:,} B"


def charged(found: Plan) -> str:
    return f"{found.charged['upload'] * 2 // found.messages:,} B"


def gib(found: Plan) -> str:
    return f"{found.charged['total'] / 2**30:.3f} GiB"


def mb(found: Plan) -> str:
    return f"{found.bytes['total'] / 1e6:.2f} MB"


def gb(found: Plan) -> str:
    return f"{found.bytes['total'] / 1e9:.2f} GB"


def mib(found: Plan) -> str:
    return f"{found.phases[-1].message['upload']['bytes'] / 2**20:.2f} MiB"


def travels(found: Plan) -> str:
    return f"{found.model['travelling'] / 1e6:.2f} M"


def trained(found: Plan) -> str:
    return f"{found.model['trained'] / 1e6:.2f} M"


def sigma(found: Plan) -> str:
    assert found.privacy is not None
    return f"{found.privacy['noise_multiplier']:.4f}"


def clients(found: Plan) -> str:
    sizes = found.holdings.sizes.tolist()
    return " / ".join(str(sizes.count(size)) for size in dict.fromkeys(sizes))


GIBIBYTES = "The competition's GB are GiB, cut after two digits; its log counts the word embedding under three names."
ASTER = "Printed MB are MiB, and some .35 more than weights and running statistics."
ALBEF = "Printed with the head of .62 M, which is private and never sent."
VILT = "The printed 100 % is nearest to the layers and the patches alone (87.41 M); here all but the head travels."
VAULT = "Printed with the heads, BERT's pooler and ViLT's words, which nothing reads."
SIGMA = "The kit's value costs epsilon {}, which is over its budget; here sigma is solved for."

FIGURES = (
    Figure("pfl_docvqa/track1_baseline", "a message, charged", "1.12 GB", charged, GIBIBYTES),
    Figure("pfl_docvqa/track1_baseline", "a message, tied weights once", "1.0 GB", message),
    Figure("pfl_docvqa/track1_baseline", "in all", "44.65 GB", gib, GIBIBYTES),
    Figure("pfl_docvqa/track1_lora", "a message", "13.68 MB", message),
    Figure("pfl_docvqa/track1_lora", "in all", "0.38 GB", mb),
    Figure("pfl_docvqa/track1_lora model.adapters.rank=8", "a message", "not printed", message),
    Figure("pfl_docvqa/track1_tuned", "in all", "55 MB", mb),
    Figure("pfl_docvqa/track1_nf4", "a message", "1.92 MB", message),
    Figure("pfl_docvqa/track1_nf4", "in all", "7.7 MB", mb),
    Figure(
        "pfl_docvqa/track1_fedshampoo", "in all", "10.01 GB", gib,
        "Cut after two digits; it fits if the embedding and both box tables are frozen and not charged.",
    ),
    Figure("pfl_docvqa/track2_baseline", "in all", "22.32 GB", gib, GIBIBYTES),
    Figure("pfl_docvqa/track2_baseline", "sigma, epsilon 1", "1.145", sigma, SIGMA.format("1.0057")),
    Figure("pfl_docvqa/track2_baseline privacy.epsilon=4", "sigma, epsilon 4", "0.637", sigma),
    Figure("pfl_docvqa/track2_baseline privacy.epsilon=8", "sigma, epsilon 8", "0.468", sigma, SIGMA.format("8.0039")),
    Figure(
        "fedocvqa/fedavg_k10", "trained", "220 M", trained,
        "Printed are T5-base's; patches (.59), box tables (1.57), a token, two tables of distance come on top.",
    ),
    Figure("fedocvqa/fedavg_k3", "clients of WTQ / DocVQA / TabFact", "1 / 1 / 1", clients),
    Figure("fedocvqa/fedavg_k10", "clients of WTQ / DocVQA / TabFact", "1 / 4 / 5", clients),
    Figure("fedocvqa/fedavg_k30", "clients of WTQ / DocVQA / TabFact", "2 / 13 / 15", clients),
    Figure("fedocvqa/fedavg_k10", "in all, C = 1", "not printed", gb),
    Figure("fedocvqa/fsp_k3", "in all, C = 1", "not printed", gb, "Ten rounds of self-pretraining send as much again."),
    Figure("fedocr/real_aster", "values", "20.99 M", travels),
    Figure("fedocr/real_aster", "a message", "80.52 MB", mib, ASTER),
    Figure("fedocr/real_hash_1", "values", "13.34 M", travels),
    Figure("fedocr/real_hash_1", "a message", "51.37 MB", mib, ASTER),
    Figure("fedocr/real_hash_1_2", "values", "6.70 M", travels),
    Figure("fedocr/real_hash_1_2", "a message", "26.05 MB", mib, ASTER),
    Figure("fedocr/real_hash_1_4", "values", "3.38 M", travels),
    Figure("fedocr/real_hash_1_4", "a message", "13.38 MB", mib, ASTER),
    Figure("fedocr/real_hash_1_8", "values", "1.72 M", travels),
    Figure("fedocr/real_hash_1_8", "a message", "7.05 MB", mib, ASTER),
    Figure("fedvqa/gqa_fedavg", "trained", "not printed", trained, "Three layers and a classifier of 1642 answers."),
    Figure("fedvqa/gqa_fedavg", "in all", "not printed", gb),
    Figure("feddat/vilt_lora", "values of a message", ".60 M", travels, "LoRA .59, and biases of queries and values."),
    Figure("feddat/vilt_prompt", "values of a message", ".60 M", travels),
    Figure("feddat/vilt_bias", "values of a message", ".10 M", travels),
    Figure("feddat/vilt_adapter", "values of a message", ".89 M", travels),
    Figure("feddat/vilt_full", "values of a message", "87.40 M", travels, VILT),
    Figure("feddat/vault_lora", "values of a message", ".60 M", travels, "As with ViLT."),
    Figure("feddat/vault_prompt", "values of a message", ".60 M", travels),
    Figure("feddat/vault_bias", "values of a message", ".21 M", travels),
    Figure("feddat/vault_adapter", "values of a message", "1.79 M", travels),
    Figure("feddat/vault_full", "values of a message", "227.77 M", travels, VAULT),
    Figure("feddat/albef_lora", "values of a message", "1.52 M", travels),
    Figure("feddat/albef_prompt", "values of a message", ".92 M", travels, ALBEF),
    Figure("feddat/albef_bias", "values of a message", ".93 M", travels, ALBEF),
    Figure("feddat/albef_adapter", "values of a message", "2.86 M", travels, ALBEF),
    Figure("feddat/albef_full", "values of a message", "290.34 M", travels, ALBEF),
)  # fmt: skip


@functools.cache
def planned(experiment: str) -> Plan:
    """The plan of an experiment that comes with simfl, with overrides behind its name."""
    name, *overrides = experiment.split(" ")
    return plan(config.load(ROOT / "experiments" / f"{name}.yaml", overrides), cache.folder())


def table() -> str:
    """The rows, in the order of the papers."""
    lines = ["| experiment | figure | published | here | why they differ |", "|---|---|---:|---:|---|"]
    for figure in FIGURES:
        name, *overrides = figure.experiment.split(" ")
        shown = f"`{name}`" + "".join(f" `{text}`" for text in overrides)
        here = figure.here(planned(figure.experiment))
        lines.append(f"| {shown} | {figure.what} | {figure.published} | {here} | {figure.why} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the table between its marks, or say whether it is current."""
    before = FILE.read_text(encoding="utf-8")
    after = MARKED.sub(lambda _: table(), before)
    if "--check" in sys.argv:
        sys.exit(0 if before == after else f"{FILE} is not current; run {Path(__file__).name}")
    FILE.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
