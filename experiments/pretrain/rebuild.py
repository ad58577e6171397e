"""Rebuild the bundled start from nothing: tokenizer, documents, training, and the files in `simfl/starts/vt5_tiny`.

    python experiments/pretrain/rebuild.py [--stage page] [--out build/pretrain] [--device cuda] [--ship]

The tokenizer and the prepared documents must come out as they are committed, or it ends here. With `--ship` the stage's
files replace the bundled ones and the card gets their hashes; its scores and seconds are for you to write anew.
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

START = TOKENIZER.parent
PREPARED = "a754d7325683fa3b97baefb9c0e871ca5e09605c21dc6125a5ba238c50798d94"
FILES = ("model.safetensors", "config.json", "curve.csv")


def sha256(path: Path) -> str:
    """Of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check(name: str, found: str, expected: str) -> None:
    """End here if what was made is not what is committed."""
    print(f"{name} {found}", flush=True)
    if found != expected:
        sys.exit(f"{name}: expected {expected}; are the packages those of constraints.txt?")


def prepared_in(path: Path) -> dict[str, np.ndarray]:
    """The prepared documents, from an earlier call or made now."""
    if path.is_file():
        return dict(np.load(path))
    made = prepare(COUNT)
    np.savez_compressed(path, **made)
    return made


def ship(stage: Path, start: Path = START) -> None:
    """Put a stage's files in place of the bundled start's; its card names their hashes."""
    for name in FILES:
        shutil.copyfile(stage / name, start / name)
    card = start / "card.md"
    text = card.read_text(encoding="utf8")
    for name in FILES:
        text = re.sub(rf"(\| `{re.escape(name)}` \| `)[0-9a-f]{{64}}", rf"\g<1>{sha256(start / name)}", text)
    card.write_text(text, encoding="utf8")


def main() -> None:
    """Make, check, train, ship."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", choices=NAMES, default="page")
    parser.add_argument("--out", type=Path, default=Path("build/pretrain"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--ship", action="store_true")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    tokenizer.train().save(str(given.out / "tokenizer.json"))
    check("tokenizer", sha256(given.out / "tokenizer.json"), sha256(TOKENIZER))
    prepared = prepared_in(given.out / "prepared.npz")
    check("prepared", digest(prepared), PREPARED)
    pretrain(given.out, prepared, torch.device(given.device), given.stage)
    print(f"{given.stage} {sha256(given.out / given.stage / 'model.safetensors')}")
    if given.ship:
        ship(given.out / given.stage)


if __name__ == "__main__":
    main()
