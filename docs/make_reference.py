"""Write the reference pages, AGENTS.md and llms.txt from the package: `python docs/make_reference.py`.

`--check` compares instead of writing, and exits with code 1 if a page is not current. Pages: every key of an experiment
file and every setting of a component (yaml.md, components.md), the command line (commands.md), and the error index
(errors.md).
"""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Literal, Union, get_args, get_origin, get_type_hints

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs/site")]

import click  # noqa: E402
import error_messages  # noqa: E402
import machine_readers  # noqa: E402

from simfl.cli import commands  # noqa: E402
from simfl.config import catalogue  # noqa: E402
from simfl.config.fields import DEFAULT_LIMITS, default, described, written  # noqa: E402
from simfl.config.registries import REGISTRIES, RegistrySpec, registry_of  # noqa: E402
from simfl.experiment import Experiment  # noqa: E402
from simfl.optimizers.local import LocalOptimizer  # noqa: E402

NO_PAGE = "-"  # section of a table whose mappings have no tables of their own
TABLE = ["| key | type | default | allowed | meaning |", "|---|---|---|---|---|"]
YAML_HEAD = """# Keys of an experiment file

Written by `python docs/make_reference.py` from the dataclasses of `simfl/experiment.py`; a test checks that the page is
current. `[]` stands for the entries of a list, NAME for a key of your own. A key that takes a component is given its
name, or a mapping with its name and [settings](components.md). Keys that only a sweep has are under
[sweeps](../how-to/sweeps.md#sweep-files); `experiment: FILE`
[extends another file](../how-to/sweeps.md#experiments-that-extend-another-one).
"""
COMPONENTS_HEAD = """# Settings of components

Written by `python docs/make_reference.py` from the registries; a test checks that the page is current. The same facts
for one component: `simfl list NAME`, with `--json` for programs. A class of your own takes the place of a name as
`package.module:Class`.
"""
COMMANDS_HEAD = """# Command line

Written by `python docs/make_reference.py` from the commands; a test checks that the page is current. `simfl COMMAND
--help` prints the same. Exit codes are under [failure handling](../explanation/failures.md#exit-codes).
"""


def yaml_page() -> str:
    """Return the page of all keys of an experiment file."""
    lines = [YAML_HEAD]
    for path, section in sections(Experiment, ""):
        lines += [f"## {path or 'Top level'}", "", (section.__doc__ or "").partition("\n")[0], "", *TABLE]
        lines += [row(*one, path) for one in settings(section)]
        lines.append("")
    return "\n".join(lines)


def sections(section: type, path: str) -> Iterator[tuple[str, type]]:
    """Return the dataclasses below a section with the paths of their keys, the section first."""
    yield path, section
    hints = get_type_hints(section, include_extras=True)
    for field in fields(section):
        for suffix, found in nested(hints[field.name]):
            yield from sections(found, f"{path}.{field.name}{suffix}".lstrip("."))


def nested(hint: object, suffix: str = "") -> Iterator[tuple[str, type]]:
    """Return the sections in a type: of a list's entries with `[]`, of a mapping's values with `.NAME`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        for one in arguments:
            yield from nested(one, suffix)
    elif origin is tuple:
        yield from nested(arguments[0], suffix + "[]")
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        yield from nested(arguments[1], suffix + ".NAME")
    elif isinstance(hint, type) and is_dataclass(hint) and hint is not LocalOptimizer and not registry_of(hint):
        yield suffix, hint


def settings(component: type, key: str = "") -> Iterator[tuple[str, object, object, str]]:
    """Return name, type, default and meaning of the fields of a dataclass; `key`, which names it, is left out."""
    hints = get_type_hints(component, include_extras=True)
    meanings = {one.name: one.meaning for one in catalogue.entry("", component, key).settings}
    for field in fields(component):
        if field.name != key:
            yield field.name, hints[field.name], default(field), meanings[field.name]


def row(name: str, hint: object, value: object, meaning: str, section: str = "") -> str:
    """Return a row of a table of keys; a key with keys of its own links to their table."""
    below = list(nested(hint))
    words = f"[keys](#{slug(f'{section}.{name}{below[0][0]}'.lstrip('.'))})" if below and section != NO_PAGE else ""
    words += " or null" if words and type(None) in get_args(hint) else ""
    cells = (f"`{name}`", kind(hint), shown(value), words or allowed(hint), f"{meaning[:1].upper()}{meaning[1:]}.")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def shown(value: object) -> str:
    """Return the default of a field as YAML; that of a component is its name."""
    plain = None if value is MISSING else written(value)
    if isinstance(plain, dict) and plain:
        registry = next((found for base in type(value).__mro__ if (found := registry_of(base))), None)
        return f"`{plain[registry.key]}`" if registry else "see its keys"
    return "required" if value is MISSING else f"`{json.dumps(plain, ensure_ascii=False)}`"


def slug(heading: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def kind(hint: object) -> str:
    """Return the YAML type of a field."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return kind(arguments[0])
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(kind(one) for one in arguments))
    if origin is Literal:
        return " or ".join(dict.fromkeys(kind(type(one)) for one in arguments))
    if origin is tuple:
        return f"list of {kind(arguments[0])}" if arguments else "list"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "mapping"
    if isinstance(hint, type) and (registry_of(hint) or hint is LocalOptimizer):
        return "component"
    names = {bool: "boolean", int: "integer", float: "number", str: "text", type(None): "null"}
    return names.get(hint, "mapping" if is_dataclass(hint) else "any")  # type: ignore[call-overload]


def allowed(hint: object) -> str:
    """Return the allowed values of a field in words; a component is a link to those of its registry."""
    hint = DEFAULT_LIMITS.get(hint, hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(allowed(one) for one in arguments))
    if origin is tuple:
        return f"list: {allowed(arguments[0])}" if arguments else "list"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"names with {allowed(arguments[1])}"
    if hint is LocalOptimizer:
        return "[optimizers](components.md#optimizers)"
    if isinstance(hint, type) and (registry := registry_of(hint)):
        name = next(name for name, spec in REGISTRIES.items() if spec is registry)
        return f"[{name}](components.md#{name.replace('_', '-')})"
    if origin is Literal:
        return ", ".join(f"`{json.dumps(one)}`" if not isinstance(one, str) else f"`{one}`" for one in arguments)
    if isinstance(hint, type) and is_dataclass(hint):
        return f"keys {', '.join(f'`{one.name}`' for one in fields(hint))}"
    return described(hint)


def components_page() -> str:
    """Return the page of all components and their settings."""
    lines = [COMPONENTS_HEAD]
    for name, spec in sorted(REGISTRIES.items()):
        lines += [f"## {name.replace('_', ' ')}", "", f"Key of the name: `{spec.key}`.", ""]
        for component, cls in sorted(spec.components.items()):
            lines += component_lines(name, component, cls, spec)
    lines += ["## optimizers", "", "Those of torch.optim, in lower case, with torch's settings.", ""]
    for entry in catalogue.entries("optimizers"):
        given = ", ".join(f"`{one.name}`" for one in entry.settings)
        lines.append(f"- `{entry.name}`: {given}")
    return "\n".join([*lines, ""])


def component_lines(registry: str, name: str, cls: type, spec: RegistrySpec) -> list[str]:
    """Return the entry of a component: its summary and the table of its settings."""
    found = list(settings(cls, spec.key))
    lines = [f"### {registry}: {name}", "", (cls.__doc__ or "").partition("\n")[0], ""]
    return [*lines, *TABLE, *(row(*one, NO_PAGE) for one in found), ""] if found else lines


def commands_page() -> str:
    """Return the page of all commands with their arguments and options."""
    lines = [COMMANDS_HEAD]
    for path, command in tree(commands, "simfl"):
        context = click.Context(command, info_name=path)
        usage = " ".join([path, *command.collect_usage_pieces(context)])
        lines += [f"## {path}", "", *(command.help or "").replace("\b\n", "").splitlines(), "", f"    {usage}", ""]
        records = [one.get_help_record(context) for one in command.params if isinstance(one, click.Option)]
        if found := [record for record in records if record]:
            lines += ["| option | meaning |", "|---|---|"]
            lines += [f"| `{name}` | {text} |".replace("\n", " ") for name, text in map(_cells, found)]
            lines.append("")
    return "\n".join(lines)


def _cells(record: tuple[str, str]) -> tuple[str, str]:
    return record[0].replace("|", "\\|"), record[1].replace("|", "\\|").replace("[default", "\\[default")


def tree(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Return the commands below a group with their names, in the order of `simfl --help`."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name in command.list_commands(click.Context(command)):
        yield from tree(command.commands[name], f"{path} {name}")


PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/yaml.md": yaml_page,
    "docs/reference/components.md": components_page,
    "docs/reference/commands.md": commands_page,
    "docs/reference/errors.md": error_messages.errors_page,
    "AGENTS.md": machine_readers.agents,
    "llms.txt": machine_readers.llms,
}


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them with `--check`."""
    stale = []
    for name, text in {name: build() for name, build in PAGES.items()}.items():
        path = ROOT / name
        if "--check" in arguments:
            stale += [name] if not path.exists() or path.read_text(encoding="utf-8") != text else []
        else:
            path.write_text(text, encoding="utf-8")
    if stale:
        print(f"not current: {', '.join(stale)}; run python docs/make_reference.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
