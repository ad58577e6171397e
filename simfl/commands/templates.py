"""The experiments that come with simfl, to start one's own from."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from simfl import __version__, config, files
from simfl.config.fields import read
from simfl.config.inheritance import OTHER, SWEEP
from simfl.config.yaml_text import dumped
from simfl.constraints import FileName
from simfl.errors import ConfigError, nearest

PACKAGED = Path(__file__).parents[1] / "experiments"  # in a wheel; see setup.py
CHECKOUT = Path(__file__).parents[2] / "experiments"
NAME = re.compile(r"^name:.*$", re.MULTILINE)
OF_SWEEPS = re.compile(rf"^({'|'.join(SWEEP)}):", re.MULTILINE)  # keys that a file of one run has not


def templates() -> dict[str, Path]:
    """Every experiment by its name: its path without the ending, such as `sroie/full`. Sweeps are left out."""
    folder = PACKAGED if PACKAGED.is_dir() else CHECKOUT
    files = [path for path in sorted(folder.rglob("*.yaml")) if not OF_SWEEPS.search(path.read_text(encoding="utf-8"))]
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in files}


def summary(path: Path) -> str:
    """The first sentence of the comment that an experiment begins with."""
    comment = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# "))
    return re.split(r"(?<=\.)(?<!et al\.)\s", " ".join(comment), maxsplit=1)[0]


def write_new(file: Path, template: str) -> None:
    """A copy of a template, named after its file; ConfigError if it exists already or there is no such template."""
    known = templates()
    if template not in known:
        raise ConfigError(f"--from: unknown {template!r}; {nearest(template, known)}")
    if file.exists():
        raise ConfigError(f"{file}: is there already")
    name = read(FileName, file.stem, "FILE")
    text = _standalone(known[template])
    text = f"# From {template} of simfl {__version__}.\n" + NAME.sub(f"name: {name}", text, count=1)
    files.write(file, lambda out: out.write(text.encode()))


def _standalone(path: Path) -> str:
    """The text of an experiment's file; of one that names another, its comment and all that both say."""
    text = path.read_text(encoding="utf-8")
    if not re.search(rf"^{OTHER}:", text, re.MULTILINE):
        return text
    comment = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines(keepends=True))
    return "".join(comment) + dumped(config.whole(path))
