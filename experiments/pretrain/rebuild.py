"""Rebuild the bundled weights `vt5_tiny` from scratch: tokenizer, documents, training, and the files of its folder.

    python experiments/pretrain/rebuild.py [--stage page] [--out build/pretrain] [--device cuda] [--ship]

The script stops if the tokenizer or the prepared documents differ from the committed ones. With `--ship` the files of
the stage replace the bundled ones, and the card gets their hashes; update its scores and times by hand.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import tokenizer
import torch
from corpus import COUNT
from prepare import TOKENIZER, digest, prepare
from stages import NAMES
from train import pretrain

BUNDLED = TOKENIZER.parent
PREPARED = "a754d7325683fa3b97baefb9c0e871ca5e09605c21dc6125a5ba238c50798d94"
FILES = ("model.safetensors", "config.json", "curve.csv")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check(name: str, found: str, expected: str) -> None:
    """Exit if a rebuilt file differs from the committed one."""
    print(f"{name} {found}", flush=True)
    if found != expected:
        sys.exit(f"{name}: expected {expected}; check the package versions against constraints.txt")


def load_or_prepare(path: Path) -> dict[str, np.ndarray]:
    """Return the prepared documents from `path`, or prepare and save them there."""
    if path.is_file():
        return dict(np.load(path))
    arrays = prepare(COUNT)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]  # numpy types ** as a flag
    return arrays


def ship(stage: Path, bundled: Path = BUNDLED) -> None:
    """Replace the bundled files by those of a stage, and the hashes in the card."""
    for name in FILES:
        shutil.copyfile(stage / name, bundled / name)
    card = bundled / "card.md"
    text = card.read_text(encoding="utf8")
    for name in FILES:
        text = re.sub(rf"(\| `{re.escape(name)}` \| `)[0-9a-f]{{64}}", rf"\g<1>{sha256(bundled / name)}", text)
    card.write_text(text, encoding="utf8")


def main() -> None:
    """Rebuild, check, train and, with `--ship`, replace the bundled files."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", choices=NAMES, default="page")
    parser.add_argument("--out", type=Path, default=Path("build/pretrain"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--ship", action="store_true")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    tokenizer.train().save(str(given.out / "tokenizer.json"))
    check("tokenizer", sha256(given.out / "tokenizer.json"), sha256(TOKENIZER))
    prepared = load_or_prepare(given.out / "prepared.npz")
    check("prepared", digest(prepared), PREPARED)
    pretrain(given.out, prepared, torch.device(given.device), given.stage)
    print(f"{given.stage} {sha256(given.out / given.stage / 'model.safetensors')}")
    if given.ship:
        ship(given.out / given.stage)


if __name__ == "__main__":
    main()
