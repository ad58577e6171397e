"""Export of a trained model of transformers: a folder that `from_pretrained` loads without simfl."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from simfl.errors import RunError
from simfl.models.hf import quiet_transformers
from simfl.models.hf_tokenizer import HfTokenizer
from simfl.models.peft_method import TRAINED
from simfl.models.saved_adapters import merged_copy

CARD = "README.md"


def require_empty(folder: Path) -> None:
    """Raise RunError if a folder exists and holds anything, or is a file."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder}: it exists and is not an empty folder; give another one")


def write_model(folder: Path, module: nn.Module, tokenizer: object, merge: bool, card: list[str]) -> list[str]:
    """Write a model of transformers, its tokenizer or processor, and a model card; return the names of the files.

    Args:
        folder: The folder; it is created.
        module: The model. Adapters are written next to their base, as peft stores them.
        tokenizer: Of the experiment's model; written if it is one of transformers.
        merge: Whether adapters are merged into the weights.
        card: Lines of the model card, in Markdown.

    Raises:
        RunError: The model is none of transformers.
    """
    model: Any = module
    if not callable(getattr(model, "save_pretrained", None)):
        raise RunError(
            f"the model, {type(module).__name__}, is none of transformers; `Run.model` returns it as a module"
        )
    with quiet_transformers("export"):
        (merged_copy(model) if merge and hasattr(model, TRAINED) else model).save_pretrained(folder)
    if isinstance(tokenizer, HfTokenizer) and tokenizer.processor is not None:
        tokenizer.processor.save(folder)
    elif isinstance(tokenizer, HfTokenizer):
        tokenizer.tokenizer.save_pretrained(folder)
    (folder / CARD).write_text("\n".join(card) + "\n", encoding="utf-8")
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def card_lines(name: str, which: str, facts: Mapping[str, object], private: bool) -> list[str]:
    """Return the lines of a model card: the facts of a run, and what they say about privacy."""
    lines = [f"# {name}", "", f"{which}, trained by federated learning in simulation and exported by simfl.", ""]
    lines += ["| fact | value |", "|---|---|", *(f"| {fact} | {value} |" for fact, value in facts.items()), ""]
    statement = "The run had a `privacy` section. `privacy.md` of the run states what it guarantees, if anything."
    return [*lines, statement if private else "It was trained without differential privacy: it may reveal its data."]
