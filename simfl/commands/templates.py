"""The command `simfl new`: experiments included in simfl that it copies, and templates of components."""

from __future__ import annotations

import importlib.util
import itertools
import keyword
import re
from pathlib import Path

import click

from simfl import __version__, files
from simfl.commands.output import json_option, print_json
from simfl.errors import ConfigError, nearest

PACKAGED = Path(__file__).parents[1] / "experiments"  # in a wheel, see setup.py
CHECKOUT = Path(__file__).parents[2] / "experiments"
NAME = re.compile(r"^name:.*$", re.MULTILINE)
SKELETONS = Path(__file__).parent / "skeletons"
KINDS = ("algorithm", "data", "model", "experiment")


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--from", "template", metavar="NAME", help="Experiment included in simfl.")
@click.option("--kind", type=click.Choice(KINDS), help="Write a commented template and a test instead.")
@click.option("--list", "as_list", is_flag=True, help="List the included experiments.")
@json_option
def new(file: Path | None, template: str | None, kind: str | None, as_list: bool, as_json: bool) -> None:
    """Write a copy of an included experiment to FILE, or a template of your own component with a test."""
    if as_list and as_json:
        print_json("new-list", {"experiments": {name: summary(path) for name, path in templates().items()}})
    elif as_list:
        width = max(len(name) for name in templates())
        for name, path in templates().items():
            click.echo(f"{name:<{width}}  {summary(path)}")
    elif file is not None and kind is not None and template is None:
        paths = write_skeleton(file, kind)
        click.echo(f"{paths[0]} and {paths[1]} written; test it with: python -m pytest {paths[1]}")
    elif file is None or template is None or kind is not None:
        raise ConfigError(
            f"new: write `simfl new FILE --from NAME`, or `simfl new FILE --kind {'|'.join(KINDS)}`; `simfl new --list`"
            " lists the names"
        )
    else:
        write_new(file, template)
        click.echo(f"{file} written; run it with: simfl run {file}")


def templates() -> dict[str, Path]:
    """Return every included experiment by name, its path without the suffix, such as `sroie/full`; no sweeps."""
    from simfl.config.inheritance import SWEEP

    sweep = re.compile(rf"^({'|'.join(SWEEP)}):", re.MULTILINE)
    folder = PACKAGED if PACKAGED.is_dir() else CHECKOUT
    found = [path for path in sorted(folder.rglob("*.yaml")) if not sweep.search(path.read_text(encoding="utf-8"))]
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in found}


def summary(path: Path) -> str:
    """Return the first sentence of the comment at the top of an experiment file."""
    comment = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# "))
    return re.split(r"(?<=\.)(?<!et al\.)\s", " ".join(comment), maxsplit=1)[0]


def write_new(file: Path, template: str) -> None:
    """Write a copy of a template, with the name of its file.

    Raises:
        ConfigError: The file exists, its name is invalid, or there is no such template.
    """
    from simfl.config.fields import read
    from simfl.constraints import FileName

    known = templates()
    if template not in known:
        raise ConfigError(f"--from: unknown {template!r}; {nearest(template, known)}")
    if file.exists():
        raise ConfigError(f"{file}: the file exists already")
    name = read(FileName, file.stem, "FILE")
    text = _standalone(known[template])
    text = f"# From {template} of simfl {__version__}.\n" + NAME.sub(f"name: {name}", text, count=1)
    files.write(file, lambda out: out.write(text.encode()))


def _standalone(path: Path) -> str:
    """Return the text of an experiment file; if it extends another one, its comment and the merged settings."""
    from simfl import config
    from simfl.config.inheritance import BASE
    from simfl.yaml_text import dumped

    text = path.read_text(encoding="utf-8")
    if not re.search(rf"^{BASE}:", text, re.MULTILINE):
        return text
    comment = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines(keepends=True))
    return "".join(comment) + dumped(config.whole(path))


def write_skeleton(file: Path, kind: str) -> tuple[Path, Path]:
    """Write a commented template of a component or an experiment, and a test for it; return their paths.

    Raises:
        ConfigError: A file exists, or its name is no name of a Python module.
    """
    suffix, stem = ".yaml" if kind == "experiment" else ".py", file.stem
    if not stem.isidentifier() or keyword.iskeyword(stem) or file.suffix not in ("", suffix):
        raise ConfigError(f"FILE: {file.name!r} given; allowed: a name of a Python module with the ending {suffix}")
    if importlib.util.find_spec(stem) is not None and not file.with_suffix(".py").exists():
        raise ConfigError(f"FILE: a Python module {stem!r} exists already; take another name")
    paths = file.with_suffix(suffix), file.with_name(f"test_{stem}.py")
    if taken := [path for path in paths if path.exists()]:
        raise ConfigError(f"{taken[0]}: the file exists already")
    title = "".join(part[:1].upper() + part[1:] for part in stem.split("_"))
    for path, name in zip(paths, (f"{kind}{suffix}", f"{kind}_test.py"), strict=True):
        text = (SKELETONS / f"{name}.txt").read_text(encoding="utf-8").format(stem=stem, title=title)
        files.write(path, lambda out, text=text: out.write(text.encode()))  # type: ignore[misc]
    return paths
