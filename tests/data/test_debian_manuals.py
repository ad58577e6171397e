"""Manuals of installed Debian packages, and the error if packages are missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_files import write_pdf

from simfl.data.readers.debian_manuals import PACKAGES, DebianManuals
from simfl.errors import ConfigError, DataError

pytest.importorskip("pypdfium2")
PAGES = [[(20, 350, "Setting up")], [(20, 350, "Using it")]]


def installed(root: Path, *packages: str) -> Path:
    for package in packages:
        for number in range(3):
            write_pdf(root / package / f"{number}.pdf", PAGES, outline=[("Setting up", 0), ("Using it", 1)])
        (root / package / "same.pdf").symlink_to(root / package / "0.pdf")
    return root


def test_unseen_debian_packages_form_their_own_split(tmp_path: Path) -> None:
    root = installed(tmp_path / "doc", "bash-doc", "xfig-doc")
    data = DebianManuals(
        str(root), packages=("bash-doc", "xfig-doc"), unseen=("xfig-doc",), valid=0.0, test=0.0, image_size=8
    )
    dataset = data.load(tmp_path / "cache")
    assert {name: len(split) for name, split in dataset.splits.items()} == {
        "train": 6,
        "unseen": 6,
    }  # links are not read
    assert set(dataset.splits["unseen"].documents["provider"].to_pylist()) == {"xfig-doc"}
    assert [answers[0] for answers in dataset.splits["train"].examples["answers"].to_pylist()[:2]] == [
        "Setting up",
        "Using it",
    ]


def test_missing_debian_packages_are_listed_with_the_install_command(tmp_path: Path) -> None:
    root = installed(tmp_path / "doc", *PACKAGES[2:])
    with pytest.raises(DataError, match=r"lacks 2 packages; apt-get install asymptote-doc bash-doc$"):
        DebianManuals(str(root)).load(tmp_path / "cache")
    with pytest.raises(ConfigError, match=r"data\.unseen: 'bash' given"):
        DebianManuals(str(root), unseen=("bash",)).load(tmp_path / "cache")
