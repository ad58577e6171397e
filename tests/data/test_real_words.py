"""Five real clients; no word of ICDAR 2013 is in ICDAR 2003."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simfl.data.readers.real_words import RealWords, _normalize
from simfl.errors import ConfigError, DataError


def test_real_words_are_divided_without_leaks(real_data: Path, tmp_path: Path) -> None:
    dataset = RealWords(path=str(real_data), lines=300).load(tmp_path)
    texts: dict[str, set[str]] = {}
    for split in dataset.splits.values():
        for source, text in zip(*(split.examples[c].to_pylist() for c in ("source", "text")), strict=True):
            texts.setdefault(source, set()).add(_normalize(text.encode()))
    assert set(texts) == {"IIIT5K", "SVT", "IC03", "IC13", "SROIE"}
    assert not texts["IC03"] & texts["IC13"]
    ids = [id for split in dataset.splits.values() for id in split.examples["id"].to_pylist()]
    assert len(ids) == len(set(ids))
    receipts = {
        name: {id.split("-")[1] for id in split.examples["id"].to_pylist() if id.startswith("SROIE")}
        for name, split in dataset.splits.items()
    }
    assert receipts["train"]
    assert not receipts["train"] & receipts["test"]
    dropped: Any = dataset.card["dropped"]
    assert sum(sum(counts.values()) for counts in dropped.values()) == 704  # words of 860 that IC13 has too
    sizes = {name: len(split) for name, split in dataset.splits.items()}
    assert sum(sizes.values()) == 2000 + 3000 + 257 + 647 + 860 - 704 + 1095 + 300


def test_real_words_names_missing_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"scene_text/IIIT5K_train/data\.mdb is missing"):
        RealWords(path=str(tmp_path)).load(tmp_path)
    with pytest.raises(ConfigError, match=r"data.valid, data.test: 0.5, 0.5 given, their sum must be below 1"):
        RealWords(path=str(tmp_path), valid=0.5, test=0.5).load(tmp_path)
