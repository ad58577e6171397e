"""Data of a script: `datasets`, image folders, tables, or data sets of torch that a function builds."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from simfl.convert.draft import Draft
from simfl.convert.script import UNKNOWN, Call, Script
from simfl.convert.slices import function_source, sliced

TABLES = ("csv", "json", "parquet")
VALID = re.compile(r"val|valid|dev|eval", re.IGNORECASE)
TEST = re.compile(r"test", re.IGNORECASE)
RANDOM = re.compile(r"\b(\w*\.)?(Random\w+|AutoAugment|RandAugment|TrivialAugmentWide|ColorJitter)\(")


def read_data(script: Script, draft: Draft, parts: str) -> None:
    """Read the source of the data into the draft."""
    for reader in (_from_datasets, _from_folder):
        if (found := reader(script, draft)) is not None:
            draft.data = found
            break
    else:
        _from_loaders(script, draft, parts)
    if not draft.data:
        draft.leave(1, "no data set was found; `simfl data check PATH` prints the line `data:` for a file or a folder")
        draft.data = {"name": "table", "path": "data.csv"}
    _text_columns(script, draft)
    if draft.data.get("name") != "own":
        for call in script.named("map", "filter", "train_test_split", "random_split"):
            if call.last != call.name or call.last == "random_split":
                draft.leave(
                    call.line, f"{call.last}(…) of the data: simfl tokenizes itself; store other changes in the file"
                )


def _from_datasets(script: Script, draft: Draft) -> dict[str, Any] | None:
    for call in script.named("load_from_disk"):
        path = script.value(call.argument("dataset_path", 0))
        if isinstance(path, str):
            draft.carry(call.line, f"data: saved by `datasets` in {path}")
            return {"name": "hf_disk", "path": path}
    for call in script.named("load_dataset"):
        name = script.value(call.argument("path", 0))
        files, folder = script.value(call.argument("data_files")), script.value(call.argument("data_dir"))
        if name == "imagefolder" and isinstance(folder, str):
            draft.carry(call.line, f"data: images in {folder}")
            return {"name": "image_folder", "path": folder, "image_size": 224}
        if name in TABLES and isinstance(files, (str, dict)):
            draft.carry(call.line, f"data: {files}")
            return {"name": "table", "path": files}
        if isinstance(name, str):
            return _of_hub(call, name, script.value(call.argument("name", 1)), draft)
    return None


def _of_hub(call: Call, name: str, part: Any, draft: Draft) -> dict[str, Any]:
    """Return a folder for a data set of the hub, and say how it is filled once."""
    folder = f"data/{name.rpartition('/')[2]}"
    given = f"{name!r}, {part!r}" if isinstance(part, str) else f"{name!r}"
    command = f'python -c "from datasets import load_dataset; load_dataset({given}).save_to_disk({folder!r})"'
    draft.leave(call.line, f"load_dataset({given}) downloads; store it once: {command}")
    return {"name": "hf_disk", "path": folder}


def _from_folder(script: Script, draft: Draft) -> dict[str, Any] | None:
    for call in script.named("ImageFolder"):
        root = script.value(call.argument("root", 0))
        if not isinstance(root, str):
            continue
        path = Path(root)
        split = path.name.lower() in ("train", "training")
        draft.carry(call.line, f"data: images in folders below {path.parent if split else path}")
        _note_transforms(script, draft)
        found = {"name": "image_folder", "path": str(path.parent if split else path), "image_size": _size(script)}
        return found | ({"layout": "split/class"} if split else {})
    return None


def _size(script: Script) -> int:
    for call in script.named("Resize", "RandomResizedCrop", "CenterCrop"):
        value = script.value(call.argument("size", 0))
        number = value[0] if isinstance(value, list) and value else value
        if isinstance(number, int):
            return number
    return 64


def loaders(script: Script) -> dict[str, Call]:
    """Return the data loader of each split, by the names of the loader and of its data set."""
    found: dict[str, Call] = {}
    for call in script.named("DataLoader"):
        if call.argument("dataset", 0) is None:
            continue
        targets = (n.targets[0] for n in script.flow if isinstance(n, ast.Assign) and n.value is call.node)
        told = f"{ast.unparse(next(targets, ast.Name('loader')))} {ast.unparse(_dataset(call))}"
        found.setdefault("valid" if VALID.search(told) else "test" if TEST.search(told) else "train", call)
    return found


def _dataset(call: Call) -> ast.expr:
    return call.argument("dataset", 0) or call.node


def _from_loaders(script: Script, draft: Draft, parts: str) -> None:
    """Add a function that returns the data sets of the script's loaders."""
    splits = {split: (ast.unparse(_dataset(call)), call) for split, call in loaders(script).items()}
    if "train" not in splits:
        return
    if "valid" not in splits and "test" in splits:
        splits["valid"] = splits.pop("test")
    names = {leaf.id for text, _ in splits.values() for leaf in ast.walk(ast.parse(text)) if isinstance(leaf, ast.Name)}
    last = max(call.line for _, call in splits.values())
    body, missing = sliced(script, names, last)
    if missing:
        draft.leave(last, f"the data need {', '.join(sorted(missing))}, which the script computes")
    result = "{" + ", ".join(f'"{split}": {text}' for split, (text, _) in splits.items()) + "}"
    source = function_source("data", "Return the data sets of the splits.", body, result)
    if RANDOM.search(source):
        source = _without_random(source)
        draft.leave(last, "random transforms: give them as phases.0.transform; see docs/how-to/own_data.md")
    draft.functions.append(source)
    draft.data = {"name": "own", "of": f"{parts}:data"}
    draft.carry(last, f"data: {', '.join(text for text, _ in splits.values())}")


def _without_random(source: str) -> str:
    """Return the source of a function without random transforms in lists."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.List):
            node.elts = [one for one in node.elts if not RANDOM.match(ast.unparse(one))]
    return ast.unparse(tree) + "\n"


def _note_transforms(script: Script, draft: Draft) -> None:
    for call in script.calls:
        if RANDOM.match(f"{call.last}("):
            draft.leave(call.line, f"{call.last}: give it as phases.0.transform; see docs/how-to/own_data.md")


def _text_columns(script: Script, draft: Draft) -> None:
    """Name the columns of a table or of saved texts, from the columns that the script's tokenizer reads."""
    if draft.data.get("name") not in ("table", "hf_disk") or draft.objective.get("name") not in (
        "text_classification",
        "chat",
    ):
        return
    read = [
        script.value(node.slice)
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and len(node.value.id) <= len("examples")
    ]
    names = [
        name
        for name in dict.fromkeys(one for one in read if isinstance(one, str))
        if name not in ("input_ids", "attention_mask", "labels", "label", "train", "test", "validation")
    ]
    field = next(
        (
            v
            for c in script.named("SFTConfig", "SFTTrainer")
            if (v := script.value(c.argument("dataset_text_field"))) is not UNKNOWN
        ),
        None,
    )
    if draft.objective["name"] == "text_classification":
        if names and names[0] != "text":
            draft.data["columns"] = {"text": names[0], "label": "label"}
        if len(names) > 1:
            draft.objective["pair"] = names[1]
            draft.data |= {"groups": [names[1]]} if draft.data["name"] == "hf_disk" else {}
    elif len(names) >= 2:
        draft.objective |= {"prompt": "{" + names[0] + "}", "answer": names[1]}
        draft.data |= {"columns": {"question": names[0], "answers": names[1]}}
        draft.objective |= {"prompt": "{question}", "answer": "answers"}
    elif field or names:
        draft.data |= {"columns": {"question": field or names[0]}}
        draft.objective |= {"prompt": "{question}", "loss_on": "all"}
        draft.leave(
            1,
            f"{field or names[0]!r} holds prompt and answer in one text: with two columns, answers alone are learned",
        )
