"""The source of the random draws on which a guarantee rests: noise, sampled clients and groups, batches of records.

A private run draws a secret key of 256 bits from the operating system and keeps it in its folder, in `noise.key`, which
only its owner may read. A draw is a function of the key and of its name, so a run that is interrupted and resumed on
the same platform is bit-identical, and its repeated rounds are the releases that were already paid for. A run that is
resumed on another platform, whose results may differ in their last bits, draws a new key: no noise is added to two
different values. Whoever knows the key can remove the noise.

With `privacy.noise_seed` the key is a hash of that seed and of everything that the releases depend on. Such runs are
for tests. With `privacy.secure` there is no key: every draw comes from the operating system.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from simfl import files
from simfl.errors import RunError
from simfl.seeds import SeedName

KEY_FILE = "noise.key"
KEY_BYTES = 32
WARNING = "secret: whoever reads these keys can remove the noise of the run"
Draw = Callable[[str, int, np.ndarray], None]  # fills an array with standard normals, given tensor name and block index


@dataclass(frozen=True)
class Randomness:
    """A source of random draws: a secret key, a key made from a seed, or the operating system."""

    source: Literal["key", "seed", "system"]
    key: bytes = field(default=b"", repr=False)
    stored: tuple[tuple[int, bytes], ...] = field(default=(), repr=False)  # all keys of a run, each since a step

    @staticmethod
    def fresh() -> Randomness:
        """Return a new key from the operating system's entropy."""
        return Randomness("key", secrets.token_bytes(KEY_BYTES))

    @staticmethod
    def from_system() -> Randomness:
        """Return the source whose draws come from the operating system and cannot be repeated."""
        return Randomness("system")

    @staticmethod
    def from_seed(seed: int, facts: Mapping[str, object]) -> Randomness:
        """Return a key made from a seed and from the facts that the releases of a run depend on, for tests."""
        text = json.dumps([seed, facts], sort_keys=True, default=repr)
        return Randomness("seed", hashlib.blake2b(text.encode(), digest_size=KEY_BYTES).digest())

    def at(self, step: int) -> Randomness:
        """Return the source of the draws after `step` finished rounds of the run.

        Raises:
            RunError: The run folder has no key of that round.
        """
        if not self.stored:
            return self
        found = [key for since, key in self.stored if since <= step]
        if not found:
            raise RunError(
                f"{KEY_FILE}: the key of round {step + 1} is missing; noise that depends on it cannot be made"
            )
        return Randomness(self.source, found[-1])

    @property
    def is_repeatable(self) -> bool:
        """True if a draw can be made again by its name."""
        return self.source != "system"

    @property
    def key_id(self) -> str:
        """A name of the key that does not reveal it; empty without a key."""
        return hashlib.blake2b(b"id" + self.key, digest_size=6).hexdigest() if self.key else ""

    def sampling_seed(self, seed: int) -> int:
        """Return the seed of sampling: secret, but the experiment's `seed` in a run for tests."""
        if self.source != "key":
            return seed
        return int.from_bytes(hashlib.blake2b(f"sampling {seed}".encode(), key=self.key, digest_size=16).digest())

    def generator(self, *name: SeedName) -> np.random.Generator:
        """Return the generator of the draw with this name, with a key of 128 bits.

        It reuses one object per thread, and is valid until this thread calls the function again.
        """
        digest = hashlib.blake2b(json.dumps(name).encode(), key=self.key, digest_size=16).digest()
        if not hasattr(_REUSED, "generator"):
            _REUSED.bits = np.random.Philox(0)  # with a seed, since without one it reads the system's entropy
            _REUSED.generator, _REUSED.state = np.random.Generator(_REUSED.bits), _REUSED.bits.state
        state = _REUSED.state
        state["state"]["key"][:] = np.frombuffer(digest, "<u8")
        _REUSED.bits.state = state  # resets counter and buffer
        generator: np.random.Generator = _REUSED.generator
        return generator


_REUSED = threading.local()


def normals(randomness: Randomness, *name: SeedName) -> Draw:
    """Return a draw of standard normals; repeatable by this name, the tensor's name and the index of the block."""
    if not randomness.is_repeatable:
        return _system_normals

    def draw(tensor: str, index: int, out: np.ndarray) -> None:
        randomness.generator(*name, tensor, index).standard_normal(out=out)

    return draw


def _system_normals(tensor: str, index: int, out: np.ndarray) -> None:
    """Draw half the sum of four normals (Box and Muller), each from 53 bits of the system's source."""
    bits = np.frombuffer(os.urandom(8 * 4 * len(out)), np.uint64).reshape(4, len(out)) >> 11
    uniform = (bits.astype(np.float64) + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2 * np.log(uniform[:2])), 2 * np.pi * uniform[2:]
    out[:] = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)]).sum(0) / 2


@dataclass(frozen=True)
class StoredKey:
    """A key of a run folder: it is used from a step of the run on, by sessions on one platform."""

    step: int  # finished rounds of the run
    platform: str
    randomness: Randomness


def read_keys(folder: Path) -> list[StoredKey]:
    """Read the keys of a run folder, in their order; empty if there are none.

    Raises:
        RunError: The file is damaged.
    """
    path = folder / KEY_FILE
    try:
        found = json.loads(path.read_text())["keys"]
        return [StoredKey(one["step"], one["platform"], Randomness("key", bytes.fromhex(one["key"]))) for one in found]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: damaged ({type(error).__name__}); delete it to draw a new key") from None


def stored_key(folder: Path, step: int, platform: str | None) -> Randomness:
    """Return the key of a run from a step on; draw and store one if the last one is of another platform.

    Args:
        folder: The run folder.
        step: Finished rounds of the run.
        platform: What the last bits of results depend on; None: they differ from session to session.
    """
    keys = read_keys(folder)
    if keys and platform is not None and keys[-1].platform == platform:
        (folder / KEY_FILE).chmod(0o600)  # a copy from a URL has other access rights
        return _last(keys)
    keys = [*(one for one in keys if one.step <= step), StoredKey(step, platform or "", Randomness.fresh())]
    _write_keys(folder, keys)
    return _last(keys)


def key_at(folder: Path, step: int) -> Randomness:
    """Return the key with which a run trained the round after `step` finished rounds.

    Raises:
        RunError: The folder has no key.
    """
    found = [one for one in read_keys(folder) if one.step <= step]
    if not found:
        raise RunError(f"{folder / KEY_FILE}: missing; without the key no round of a private run can be repeated")
    return _last(found)


def _last(keys: list[StoredKey]) -> Randomness:
    """Return the last key, which knows those before it."""
    return replace(keys[-1].randomness, stored=tuple((one.step, one.randomness.key) for one in keys))


def _write_keys(folder: Path, keys: list[StoredKey]) -> None:
    stored = [{"step": one.step, "platform": one.platform, "key": one.randomness.key.hex()} for one in keys]
    text = json.dumps({"warning": WARNING, "keys": stored}, indent=1).encode()
    path = folder / KEY_FILE
    temp = files.temp_path(path)
    try:
        with open(os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temp, path)
        files.sync_folder(folder)
    except OSError as error:
        temp.unlink(missing_ok=True)
        raise files.disk_error(path, error) from error
