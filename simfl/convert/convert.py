"""The conversion: reads a script, and writes an experiment and, where it has code of its own, a module of parts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from simfl import config, files
from simfl.convert.data_script import read_data
from simfl.convert.draft import Draft, Remark
from simfl.convert.script import Script
from simfl.convert.slices import module_source
from simfl.convert.torch_script import read_loop, read_module
from simfl.convert.transformers_script import read_transformers
from simfl.errors import ConfigError
from simfl.yaml_text import dumped

FRAMEWORKS = ("lightning", "pytorch_lightning", "tensorflow", "keras", "jax", "flax", "fastai")


@dataclass(frozen=True)
class Conversion:
    """A converted script."""

    files: dict[Path, str]  # text by path: the experiment, and the module of parts if there is one
    carried: tuple[Remark, ...]
    left: tuple[Remark, ...]  # what the experiment does not have


def convert(path: Path, out: Path | None = None) -> Conversion:
    """Return the experiment that a training script describes; nothing is executed.

    Args:
        path: The script.
        out: Path of the experiment file; by default next to the script, with the ending .yaml.

    Raises:
        ConfigError: The file is no Python, or has no training that simfl knows.
    """
    script = Script.read(path)
    target = out or path.with_suffix(".yaml")
    draft = Draft(re.sub(r"[^\w.-]", "_", target.stem))
    parts = f"{re.sub(r'[^A-Za-z0-9_]', '_', target.stem)}_parts"
    foreign = sorted({name.partition(".")[0] for name in script.aliases.values()} & set(FRAMEWORKS))
    if foreign:
        raise ConfigError(f"{path}: uses {foreign[0]}; read are scripts of transformers' Trainer, trl, and plain torch")
    has_model = read_transformers(script, draft)
    if not has_model or not draft.optimizer:
        objective = draft.objective.get("name")
        read_loop(script, draft)
        draft.objective |= {"name": objective} if objective else {}
    if not has_model and not read_module(script, draft, parts):
        raise ConfigError(
            f"{path}: no model was found; read are `from_pretrained` of transformers, and a torch module whose"
            " parameters an optimizer of torch.optim takes"
        )
    read_data(script, draft, parts)
    if draft.data.get("name") == "own" and not draft.data["of"].startswith(parts):
        draft.data.pop("of")
    content = {target: _experiment(path, draft)}
    if draft.functions:
        content[target.with_name(f"{parts}.py")] = module_source(script, draft.functions)
    config.parse(draft.mapping())  # what is written is valid
    return Conversion(content, tuple(draft.carried), tuple(sorted(draft.left, key=lambda one: one.line)))


def write(found: Conversion) -> None:
    """Write the files of a conversion; ConfigError if one exists."""
    if taken := [path for path in found.files if path.exists()]:
        raise ConfigError(f"{taken[0]}: the file exists already; give another name with --out")
    for path, text in found.files.items():
        files.write(path, lambda file, text=text: file.write(text.encode()))  # type: ignore[misc]


def _experiment(path: Path, draft: Draft) -> str:
    lines = [f"# From {path.name}, by `simfl convert`."]
    lines += [f"# line {one.line}: {one.text}" for one in draft.carried]
    if draft.left:
        lines.append("# Not carried:")
        lines += [f"# line {one.line}: {one.text}" for one in sorted(draft.left, key=lambda one: one.line)]
    lines.append("# The script has no clients: ten IID ones stand for them. By a column: {by: natural, column: NAME}.")
    return "\n".join(lines) + "\n" + dumped(draft.mapping())
