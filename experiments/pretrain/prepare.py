"""Prepare the data of the training: two minutes on one core, one file of 32 MB to copy to the GPU machine.

python experiments/pretrain/prepare.py OUT.npz [COUNT]                         words and COUNT invoices (48,000)
python experiments/pretrain/prepare.py experiments/pretrain/invoice_words.txt  before the tokenizer: see words.py
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import tokenizers
from corpus import COUNT, count_words, pack, texts
from questions import prompt_words
from tables import build, kinds

from simfl.models.pretrained import weights_folder

TOKENIZER = weights_folder("vt5_tiny") / "tokenizer.json"


def prepare(count: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Return the arrays; `scale` reduces the number of generated words, for tests."""
    packed = pack(count)
    table = build(tokenizers.Tokenizer.from_file(str(TOKENIZER)), kinds(scale), prompt_words(), texts(packed))
    del packed["text"]  # the table contains it
    return packed | table.save()


def digest(arrays: dict[str, np.ndarray]) -> str:
    """Return the SHA-256 of names and contents, in the order of the names."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    out = Path(sys.argv[1])
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".txt":
        out.write_text(count_words(), encoding="utf8")
    else:
        arrays = prepare(int(sys.argv[2]) if len(sys.argv) > 2 else COUNT)
        np.savez_compressed(out, **arrays)  # type: ignore[arg-type]  # numpy types ** as a flag
        print(f"{out}: {digest(arrays)}")
