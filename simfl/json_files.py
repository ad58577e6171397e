"""JSON files in which an altered byte is noticed: sealed files, and append-only files of lines with checksums.

A sealed file has a format number and the hash of its content. A line of an append-only file is a JSON object whose last
key is `crc`, the CRC-32 of the object without it. A process that is killed while it writes leaves a line without an
end; `JsonLines.repair` removes it before more lines are appended. Any other change is damage.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simfl import files
from simfl.errors import DamagedFile

JsonObject = dict[str, Any]

FORMAT, SHA256 = "format", "sealed_sha256"  # keys of a sealed file
CHECKSUM = re.compile(rb', "crc": "([0-9a-f]{8})"\}$')


def seal(content: Mapping[str, object], number: int) -> JsonObject:
    """Return the content, as JSON reads it back, with the format number first and the hash last."""
    body: JsonObject = json.loads(json.dumps({FORMAT: number, **content}))
    return body | {SHA256: _sha256(body)}


def is_intact(content: Mapping[str, object]) -> bool:
    """Return whether the hash in sealed content is that of the content."""
    return content.get(SHA256) == _sha256({name: value for name, value in content.items() if name != SHA256})


def body_of(content: Mapping[str, object]) -> JsonObject:
    """Return what was sealed: the content without format number and hash."""
    return {name: value for name, value in content.items() if name not in (FORMAT, SHA256)}


def describe_format(found: object, expected: int) -> str:
    """Describe a format number that is not the expected one; empty if it is."""
    if found == expected and not isinstance(found, bool):
        return ""
    shown = "no format number" if found is None else f"format {found}"
    return f"{shown} found, format {expected} expected"


def encode_line(values: Mapping[str, object]) -> bytes:
    """Return a line with its checksum; the values are not empty."""
    text = json.dumps(values).encode()
    return text[:-1] + b', "crc": "%08x"}\n' % zlib.crc32(text)


def is_intact_line(line: bytes) -> bool:
    """Return whether the checksum of a line without its end matches, which only lines of `encode_line` have."""
    found = CHECKSUM.search(line)
    return found is not None and int(found[1], 16) == zlib.crc32(b"}", zlib.crc32(line[: found.start()]))


def decode_line(line: bytes) -> JsonObject | None:
    """Return the values of a line without its end; None if the checksum does not match, or it is no JSON object."""
    found = CHECKSUM.search(line)
    text = line[: found.start()] + b"}" if found else b""
    if found is None or int(found[1], 16) != zlib.crc32(text):
        return None
    try:
        values: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


class JsonLines:
    """An append-only file of JSON lines, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        """Start to read at the first line."""
        self.path, self.position, self.number = path, 0, 0  # end and number of the last line that was read

    def append(self, *rows: Mapping[str, object], sync: bool = False) -> None:
        """Append lines; `sync` forces them to the disk. RunError if the disk refuses."""
        try:
            with open(self.path, "ab") as file:
                file.write(b"".join(map(encode_line, rows)))
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            raise files.disk_error(self.path, error) from error

    def lines(self) -> Iterator[JsonObject]:
        """Yield the complete lines that were appended since the last call.

        Raises:
            DamagedFile: A line was altered.
        """
        for values, _ in self.numbered():
            yield values

    def numbered(self) -> Iterator[tuple[JsonObject, bytes]]:
        """Yield each new line as values and as bytes with its end; see `lines`."""
        for line in self.unread().split(b"\n")[:-1]:
            values = decode_line(line)
            if values is None:
                raise DamagedFile(f"{self.path}: line {self.number + 1} is damaged")
            self.position, self.number = self.position + len(line) + 1, self.number + 1
            yield values, line + b"\n"

    def cut_off(self) -> str:
        """Describe what follows the last complete line: text that a crash cut off; empty if there is none.

        Raises:
            DamagedFile: A line was altered, or its end was.
        """
        *lines, rest = self.unread().split(b"\n")
        for line in lines:
            if not is_intact_line(line):
                raise DamagedFile(f"{self.path}: line {self.number + 1} is damaged")
            self.position, self.number = self.position + len(line) + 1, self.number + 1
        if not rest:
            return ""
        if decode_line(rest[:-1]) is not None:
            raise DamagedFile(f"{self.path}: the end of line {self.number + 1} is damaged")
        return f"{self.path}: line {self.number + 1} is incomplete, as a crash leaves it"

    def repair(self) -> str:
        """Remove what a crash cut off at the end, and return one line that says so; empty if there was nothing.

        Raises:
            DamagedFile: A line was altered.
            RunError: The disk refuses.
        """
        if not (found := self.cut_off()):
            return ""
        if decode_line(self.unread()) is not None:  # only its end is missing
            self._write_at_end(b"\n")
            return ""
        self.truncate()
        return f"{found}; removed"

    def truncate(self) -> None:
        """Remove everything after the last line that was read."""
        try:
            with open(self.path, "r+b") as file:
                file.truncate(self.position)
                os.fsync(file.fileno())
        except OSError as error:
            raise files.disk_error(self.path, error) from error

    def _write_at_end(self, text: bytes) -> None:
        try:
            with open(self.path, "ab") as file:
                file.write(text)
        except OSError as error:
            raise files.disk_error(self.path, error) from error

    def unread(self) -> bytes:
        """Return everything after the last line that was read; empty if there is no file."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.position)
                return file.read()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise files.disk_error(self.path, error) from error


def _sha256(body: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
