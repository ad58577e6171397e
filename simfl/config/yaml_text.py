"""YAML as plain values, and plain values as YAML. Nothing else knows YAML."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from simfl.errors import ConfigError


def read_yaml(path: Path) -> object:
    """The plain content of a YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file in UTF-8") from None
    return parsed(text, str(path))


def parsed(text: str, where: str) -> object:
    """The plain content of a text; `where` begins the error."""
    try:
        return _yaml().load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        what = ", ".join(part for part in (error.context, error.problem) if part)
        if twice := re.match('found duplicate key "(.*?)" with value', str(error.problem), re.DOTALL):
            what = f"the key {twice[1]!r} stands there twice"
        raise ConfigError(f"{where}{place}: {what}") from None
    except YAMLError as error:
        raise ConfigError(f"{where}: {str(error).splitlines()[0]}") from None


def dumped(given: Any) -> str:
    """Plain values as YAML, keys in their order."""
    text = io.StringIO()
    _yaml().dump(given, text)
    return text.getvalue()


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)  # the pure reader follows YAML 1.2: 2e-4 is a number, `on` is a word
    yaml.default_flow_style = None  # innermost mappings and lists on one line
    yaml.width = 120
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # its hint is its default, None
    return yaml
