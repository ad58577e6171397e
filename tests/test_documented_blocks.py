"""Code blocks that are not executed as a whole: YAML has existing keys and values, commands exist with their options.

`test_docs.py` executes the pages that are complete programs. Here are the blocks of all pages: fragments of experiment
files are read key by key, and each command of a shell block is parsed by the command line that would run it.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import get_type_hints

import click
import pytest
from test_docs import PAGES, ROOT

from simfl.cli import commands
from simfl.config.fields import read
from simfl.config.overrides import TOP
from simfl.errors import ConfigError
from simfl.experiment import Experiment, Phase
from simfl.sweeps.file import SWEEP_KEYS
from simfl.yaml_text import parsed

BLOCK = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)  # also without a language
OTHER_FILES = (
    "split",
    "disjoint",
    "of",
    "cluster",
)  # keys of specifications of partitions, and of profiles of clusters
FRONT_PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "AGENTS.md", "llms.txt")]
DOCUMENTS = [*FRONT_PAGES, *PAGES, *sorted((ROOT / "experiments").glob("*/README.md")), ROOT / "benchmarks/RESULTS.md"]
OTHER_PROGRAMS = {
    "apt", "apt-get", "bash", "cat", "cd", "cp", "curl", "docker", "export", "git", "helm", "kind", "kubectl", "ls",
    "mkdir", "nsys", "pre-commit", "printf",
    "prometheus", "ray", "rm", "sbatch", "scancel", "ssh", "squeue", "tensorboard", "uptime", "wandb",
}  # fmt: skip
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
JOBS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.fixture(autouse=True)
def _missing_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept paths that exist only once the commands before have run."""
    monkeypatch.setattr(click.Path, "convert", lambda self, value, param, context: Path(value))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_blocks_name_existing_keys_commands_and_options(document: Path) -> None:
    for language, settings, text in BLOCK.findall(document.read_text(encoding="utf-8")):
        if "file=" in settings:
            continue
        if language == "yaml":
            check_yaml(text)
        elif language == "python":
            compile(text, document.name, "exec")
        elif language in ("bash", "console", ""):
            check_commands(text, only_prompts=language != "bash")


def check_yaml(text: str) -> None:
    """Read the keys of an experiment, a phase, a sweep or a partition; a fragment may leave out required settings."""
    given = parsed(text, "block")
    assert isinstance(given, dict), text
    hints = get_type_hints(Phase, include_extras=True) | get_type_hints(Experiment, include_extras=True)
    for key, value in given.items():
        if key in hints:
            try:
                read(hints[key], value, key)
            except ConfigError as error:
                wrong = [line for line in str(error).splitlines() if ": missing; give" not in line]
                assert wrong == [], text
        else:
            known = (*SWEEP_KEYS, *TOP, *OTHER_FILES, *hints)
            assert key.split(".")[0] in known, f"{key!r} is no key of an experiment, a sweep or a partition:\n{text}"


def check_commands(text: str, only_prompts: bool) -> None:
    """Check each command of a block; in outputs, these are the lines after a prompt."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if only_prompts and not line.startswith("$ "):
            continue
        for command in re.split(r"\s*(?:&&|;)\s+|\s\|\s", re.sub(r"(^|\s)#.*", "", line.removeprefix("$ ")).strip()):
            check_command(command)


def check_command(command: str) -> None:
    words = shlex.split(command, comments=True)
    while words and re.fullmatch(r"[A-Za-z_]+=.*", words[0]):  # variables of the environment
        words = words[1:]
    if not words or Path(words[0]).name in OTHER_PROGRAMS or words[0] in (".", "grep", "head"):
        return
    program, *arguments = [word for word in words if not word.startswith("$")]
    if program == "simfl":
        parse(commands, arguments, command)
    elif program == "make":
        assert [one for one in arguments if "=" not in one and one not in JOBS] == [], command
    elif program == "pip":
        for extras in re.findall(r"\[([\w,]+)\]", command):
            assert [extra for extra in extras.split(",") if extra not in EXTRAS] == [], command
    elif Path(program).name in ("python", "python3", "pytest"):
        check_python(arguments, command)
    else:
        assert (ROOT / program).is_file(), f"unknown program: {command}"


def check_python(arguments: list[str], command: str) -> None:
    """Check that the script or module of a command exists."""
    if arguments[:1] == ["-m"]:
        module = ROOT / arguments[1].replace(".", "/")
        existing = module.is_dir() or module.with_suffix(".py").exists()
        assert existing or arguments[1] in ("pip", "pytest", "venv"), command
    for script in (one for one in arguments if one.endswith(".py") and "/" in one):
        assert (ROOT / script).exists(), command


def parse(command: click.Command, arguments: list[str], line: str) -> None:
    """Parse the arguments of a command without running it."""
    if isinstance(command, click.Group):
        name, *arguments = [one for one in arguments if one != "--version"] or ["--help"]
        if name == "--help":
            return
        assert name in command.commands, f"no such command: {line}"
        parse(command.commands[name], arguments, line)
        return
    try:
        command.make_context(line, arguments)
    except click.exceptions.Exit:  # --help
        pass
    except click.ClickException as error:
        pytest.fail(f"{line}: {error.format_message()}")


LONGEST = 560  # characters that are seen: about five lines of the site


@pytest.mark.parametrize("document", [*FRONT_PAGES[:1], *PAGES], ids=name_of)
def test_pages_are_short_or_have_sections_and_paragraphs_have_at_most_five_lines(document: Path) -> None:
    text = re.sub(r"<!--.*?-->", "", BLOCK.sub("", document.read_text(encoding="utf-8")), flags=re.DOTALL)
    assert text.count("\n") <= 120 or text.count("\n## ") >= 3  # the site lists the sections of a page
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        if not paragraph.lstrip().startswith(("|", "#", "<")):
            seen = re.sub(r"\]\([^)]*\)|[`\[]|\*\*", "", " ".join(paragraph.split()))
            assert len(seen) <= LONGEST, seen
