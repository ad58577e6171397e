"""Text that others wrote, or that may hold a password, made safe to show and to store.

A run folder, a data set and a log of somebody else can hold control characters that a terminal obeys (it can hide
lines, change its title, or reorder text), and URLs can hold passwords. `printable` makes both visible as text; the
command line sends everything that it prints through it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MASK = "***"
USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:/{1,2})(?:[^\s/@'\"<>]*@)+")
SLASHED = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:/{1,2})[^\s/:@'\"<>]+:(?!\d+/)[^\s@'\"<>]*@")  # a "/" in the password
SECRET_PARAMETER = re.compile(
    r"([?&;][\w.-]*(?:token|secret|password|passwd|signature|credential|sig|api_?key|access_?key)[\w.-]*=)[^&;#\s'\"<>]+",
    re.IGNORECASE,
)
PASSWORD = re.compile(r"(:/{1,2}[^\s/:@]*):(?!\d+/).*@")
COLOURS = re.compile("\x1b\\[[0-9;]*m")
# C0 without newline and tab, DEL, C1; marks that reorder or hide text; line separators; halves of surrogate pairs
UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def mask_secrets(text: str) -> str:
    """Replace user names and passwords in URLs, and values of parameters such as `token=`, by `***`."""
    if ":/" not in text:
        return text
    for pattern in (USERINFO, SLASHED):
        text = pattern.sub(rf"\1{MASK}@", text)
    return SECRET_PARAMETER.sub(rf"\1{MASK}", text)


def has_secret(text: str) -> bool:
    """Return whether `mask_secrets` would mask something."""
    return mask_secrets(text) != text


def without_password(url: str) -> str:
    """Return a URL without the password and the secret parameters, but with the user name."""
    return SECRET_PARAMETER.sub(r"\1", PASSWORD.sub(r"\1@", url))


def escape_controls(text: str) -> str:
    r"""Replace characters that a terminal obeys by their escapes, such as `\x1b`; newlines and tabs stay."""
    return UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def printable(text: str) -> str:
    """Return text that is safe in a terminal or a log: without secrets of URLs and without control characters."""
    return escape_controls(mask_secrets(text))


class LossyStream:
    """A text stream that drops what it cannot write because its reader is gone: a closed terminal or pipe."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text and return its length."""
        with _reader_may_be_gone():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        with _reader_may_be_gone():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _reader_may_be_gone() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EIO, errno.EPIPE):
            raise


class SafeStream:
    """A text stream whose texts are made printable; a Rich console, which does this itself, bypasses it.

    Colours are removed. A carriage return at the start of a text stays: progress bars of libraries begin with one.
    """

    def __init__(self, stream: Any) -> None:
        self.rich_proxied_file = LossyStream(stream)  # the attribute by which Rich finds the stream that it writes to

    def write(self, text: str) -> int:
        """Write a text and return its length."""
        body = text.removeprefix("\r")
        start = text[: len(text) - len(body)]
        self.rich_proxied_file.write(start + printable(COLOURS.sub("", body)))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def safe_streams(system: Any) -> Iterator[None]:
    """Make what is printed within the block printable; `system` is the module `sys`."""
    before = system.stdout, system.stderr
    system.stdout, system.stderr = (SafeStream(stream) for stream in before)
    try:
        yield
    finally:
        system.stdout, system.stderr = before
