"""Writers of small sample files: images, object arrays, JSON and PDFs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def write_image(path: Path, size: tuple[int, int] = (40, 30), colour: tuple[int, int, int] = (200, 30, 30)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def write_npy(path: Path, entries: Sequence[Any]) -> Path:
    """Save an object array with pickle, as the official files are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.empty(len(entries), object)
    array[:] = entries
    np.save(path, array, allow_pickle=True)
    return path


def write_lines(path: Path, entries: Sequence[Any]) -> Path:
    """Write one JSON value a line, and texts unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = [e if isinstance(e, str) else json.dumps(e, ensure_ascii=False) for e in entries]
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return path


def write_json(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return path


Line = tuple[float, float, str]  # left and baseline in points from the lower left, and the text


def write_pdf(
    path: Path,
    pages: Sequence[Sequence[Line]],
    page: str = "",
    attached: tuple[str, bytes] | None = None,
    outline: Sequence[tuple[str, int]] = (),
) -> Path:
    """Write a PDF of 200 x 400 point pages in Helvetica 10; `page` extends each page's dictionary."""
    objects: list[bytes] = [b"", b"", b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>"]

    def add(body: bytes) -> int:
        objects.append(body)
        return len(objects)

    kids = []
    for rows in pages:
        text = "".join(f"BT /F 10 Tf {x} {y} Td ({t}) Tj ET\n" for x, y, t in rows).encode("cp1252")
        content = add(b"<</Length %d>>stream\n%s\nendstream" % (len(text), text))
        kids.append(
            add(f"<</Type/Page/Parent 2 0 R/Contents {content} 0 R{page}/Resources<</Font<</F 3 0 R>>>>>>".encode())
        )
    root = "/Type/Catalog/Pages 2 0 R"
    if attached:
        body = add(b"<</Type/EmbeddedFile/Length %d>>stream\n%s\nendstream" % (len(attached[1]), attached[1]))
        spec = add(f"<</Type/Filespec/F({attached[0]})/UF({attached[0]})/EF<</F {body} 0 R>>>>".encode())
        root += f"/Names<</EmbeddedFiles<</Names[({attached[0]}) {spec} 0 R]>>>>"
    if outline:
        first, top = len(objects) + 2, len(objects) + 1
        last = first + len(outline) - 1
        add(f"<</Type/Outlines/First {first} 0 R/Last {last} 0 R/Count {len(outline)}>>".encode())
        for i, (title, number) in enumerate(outline):
            links = (f"/Prev {first + i - 1} 0 R" if i else "") + (
                f"/Next {first + i + 1} 0 R" if first + i < last else ""
            )
            add(f"<</Title({title})/Parent {top} 0 R{links}/Dest[{kids[number]} 0 R/Fit]>>".encode())
        root += f"/Outlines {top} 0 R"
    objects[0] = f"<<{root}>>".encode()
    listed = " ".join(f"{kid} 0 R" for kid in kids)
    objects[1] = f"<</Type/Pages/Kids[{listed}]/Count {len(kids)}/MediaBox[0 0 200 400]>>".encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_file(objects))
    return path


def _file(objects: list[bytes]) -> bytes:
    out, starts = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        starts.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % start for start in starts)
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    tail = b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, len(out))
    return out + head + table + tail
