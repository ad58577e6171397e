"""Files gguf of language models, converted once to the layout of transformers: configuration, tokenizer, safetensors.

Reading a quantized file takes some 25 seconds for 135 million parameters, in every process that builds the model; the
converted folder is read in less than one. The values are those of the file, as float32.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from simfl.errors import ConfigError, RunError, nearest
from simfl.files import cache_folder, disk_error, in_turn, make_folder, temp_path
from simfl.models.pretrained import reading

VERSION = 1  # of the conversion; part of the name of the converted folder
DIGITS = 16  # of the digest, in the name of the converted folder


def find_gguf(folder: Path, name: str | None) -> Path | None:
    """Return the file that `name` says, or the only one in a folder without a configuration; None if there is none.

    Raises:
        ConfigError: There is no such file, or there are several and none is named.
    """
    files = sorted(folder.glob("*.gguf"))
    if name is not None:
        if not (folder / name).is_file():
            hint = nearest(name, [file.name for file in files]) if files else "it has no file gguf"
            raise ConfigError(f"model.gguf: {folder} has no file {name!r}; {hint}")
        return folder / name
    if not files or (folder / "config.json").is_file():
        return None
    if len(files) > 1:
        raise ConfigError(f"model.gguf: {folder} has {len(files)} such files; name one: {_names(files)}")
    return files[0]


def converted_folder(path: Path) -> Path:
    """Return the folder of the cache that holds a file gguf in the layout of transformers; convert it if need be.

    The folder is named by the digest of the file. Of several processes one converts, the others wait.

    Raises:
        ConfigError: The package gguf is not installed, or transformers cannot read the file.
        RunError: The cache cannot be written.
    """
    digest = _digest(path)
    folder = cache_folder() / "gguf" / f"{path.stem}-{digest}-v{VERSION}"
    if folder.is_dir():
        return folder
    if find_spec("gguf") is None:
        raise ConfigError(f"model.weights: {path.name} needs the package gguf; pip install 'simfl[gguf]'")
    make_folder(folder.parent)
    lock, waiting = folder.parent / f"{folder.name}.lock", f"waiting for another process, which converts {path.name}"
    with _on_disk(folder), in_turn(lock, lambda: _say(waiting)):
        if not folder.is_dir():
            _say(f"converting {path.name} once, into {folder}")
            _convert(path, folder)
    return folder


@contextmanager
def _on_disk(folder: Path) -> Iterator[None]:
    """Raise RunError with one line if the disk refuses in the block."""
    try:
        yield
    except OSError as error:
        raise disk_error(folder, error) from error


def _convert(path: Path, folder: Path) -> None:
    """Write configuration, weights and tokenizer of the file into a new folder; also where a plan builds on `meta`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    temp = temp_path(folder)
    options: dict[str, Any] = {"gguf_file": path.name, "trust_remote_code": False}
    try:
        with reading(path), torch.device("cpu"), redirect_stderr(StringIO()):  # a progress bar that nothing turns off
            model = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **options)
            tokenizer = AutoTokenizer.from_pretrained(path.parent, **options)
        model.hf_quantizer = None  # the weights are float32 now; it would refuse to save them
        model.config.quantization_config = None
        try:
            model.save_pretrained(temp)
        except SafetensorError as error:  # which wraps the error of a full disk
            raise RunError(f"{folder}: {error}") from error
        tokenizer.save_pretrained(temp)
        temp.rename(folder)
    finally:
        shutil.rmtree(temp, ignore_errors=True)


def _digest(path: Path) -> str:
    with reading(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]


def _names(files: list[Path]) -> str:
    return ", ".join(file.name for file in files[:5])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
