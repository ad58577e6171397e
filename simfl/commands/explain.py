"""The commands `simfl explain` and `simfl completion`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from simfl.commands.output import json_option, line_width, print_json
from simfl.yaml_text import in_one_line

if TYPE_CHECKING:
    from simfl.config.explain import Explanation

SHELLS = ("bash", "zsh", "fish")
LABEL = 12  # columns of the names of facts
FILE_WIDTH = 120  # columns of a file or a pipe


@click.command()
@click.argument("key")
@json_option
def explain(key: str, as_json: bool) -> None:
    """Explain KEY: a key of an experiment file or a component, with type, default, allowed values and an example.

    KEY is a path such as phases.0.local.steps, a name such as learning_rate, a component such as fedprox, or a setting
    of one, such as fedprox.mu.
    """
    from simfl.config.explain import explain

    found = explain(key)
    if as_json:
        print_json("explain", {"explanations": [asdict(one) for one in found]})
    else:
        click.echo("\n\n".join("\n".join(explanation_lines(one)) for one in found))


def explanation_lines(found: Explanation) -> Iterator[str]:
    """Yield the lines of an explanation."""
    yield found.name + (f": {found.meaning}" if found.meaning else "")
    if found.type != "component":
        yield from _line("allowed", found.type)
        yield from _line("default", "none, it is required" if found.required else in_one_line(found.default))
    if found.owners:
        yield from _line("setting of", ", ".join(found.owners))
    for number, setting in enumerate(found.settings):
        yield from _line("" if number else "settings", setting)
    yield from _line("example", found.example)
    yield from _line("documented", ", ".join(found.documented))


def _line(name: str, text: str) -> Iterator[str]:
    width = max((line_width() or FILE_WIDTH) - LABEL - 2, 20)
    first, *others = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
    yield f"  {name:<{LABEL}}{first}"
    yield from (" " * (LABEL + 2) + more for more in others)


COMPLETION = """\b
bash   simfl completion bash > ~/.simfl-completion && echo '. ~/.simfl-completion' >> ~/.bashrc
zsh    simfl completion zsh > ~/.simfl-completion && echo '. ~/.simfl-completion' >> ~/.zshrc
fish   simfl completion fish > ~/.config/fish/completions/simfl.fish
"""


@click.command(epilog=COMPLETION)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands, options and files in SHELL."""
    from click.shell_completion import get_completion_class

    root = click.get_current_context().find_root()
    kind = get_completion_class(shell)
    assert kind is not None, "click completes these shells"
    click.echo(kind(root.command, {}, "simfl", "_SIMFL_COMPLETE").source())
