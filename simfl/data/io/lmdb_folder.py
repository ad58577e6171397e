"""LMDB folders, opened to be read."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simfl.errors import DataError


@contextmanager
def opened(folder: Path) -> Iterator[Any]:
    """What gets the value of a key, or None. DataError if the folder is no LMDB."""
    try:
        lmdb = importlib.import_module("lmdb")
    except ImportError as error:
        raise DataError(f"{folder}: reading it needs lmdb; pip install 'simfl[readers]'") from error
    try:
        environment = lmdb.open(os.fspath(folder), readonly=True, lock=False, readahead=False, meminit=False)
    except lmdb.Error as error:
        raise DataError(f"{folder}: not a readable LMDB ({error})") from error
    with environment, environment.begin() as transaction:
        yield transaction.get
