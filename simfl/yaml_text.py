"""Reading and writing of YAML; no other module parses it."""

from __future__ import annotations

import io
import re
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from simfl.errors import ConfigError


def read_yaml(path: Path) -> object:
    """Return the plain content of a YAML file; ConfigError if it cannot be read or parsed."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file in UTF-8") from None
    return parsed(text, str(path))


def parsed(text: str, where: str) -> object:
    """Return the plain content of a YAML text; error messages start with `where`."""
    try:
        return _yaml().load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        if duplicate := re.match('found duplicate key "(.*?)" with value', str(error.problem), re.DOTALL):
            problem = f"duplicate key {duplicate[1]!r}"
        raise ConfigError(f"{where}{position}: {problem}") from None
    except YAMLError as error:
        raise ConfigError(f"{where}: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise ConfigError(f"{where}: mappings and lists are nested too deeply") from None
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:  # a value that its tag does not fit
        reason = str(error).partition(";")[0] or type(error).__name__
        raise ConfigError(f"{where}: a value cannot be read ({reason.splitlines()[0]})") from None


def dumped(given: object) -> str:
    """Return plain values as YAML, with keys in their order."""
    text = io.StringIO()
    _yaml().dump(given, text)
    return text.getvalue()


def in_one_line(given: object) -> str:
    """Return plain values as YAML in one line, such as `{name: table, columns: {text: review}}`."""
    text, yaml = io.StringIO(), _yaml()
    yaml.default_flow_style, yaml.width = True, 1 << 20
    yaml.dump(given, text)
    return text.getvalue().strip().removesuffix("...").strip()


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)  # the pure parser follows YAML 1.2: 2e-4 is a number, `on` is a string
    yaml.default_flow_style = None  # write the innermost mappings and lists on one line
    yaml.width = 120
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # ruamel hints it as None, its default
    return yaml
