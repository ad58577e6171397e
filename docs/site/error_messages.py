"""Error messages of the package, read from its source, and their kinds with cause and cure.

A message is the text of an error class of `simfl.errors` in the source, with `…` for its values. Every message belongs
to the first kind whose pattern it matches; a test refuses messages without a kind and kinds without a message.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Kind(NamedTuple):
    """A kind of error: messages that match the pattern have one cause and one cure."""

    name: str
    pattern: str  # of the text
    cause: str
    cure: str
    where: str = ""  # pattern of the module; empty: everywhere


class Message(NamedTuple):
    """An error message in the source."""

    error: str  # class
    module: str
    text: str  # with … for its values


KINDS = (
    Kind(
        "A package is not installed",
        r"pip install|is not installed",
        "The setting needs an optional package; the core of simfl installs without it.",
        "Run the command at the end of the message, in the environment of simfl.",
    ),
    Kind(
        "Renamed",
        r"renamed to",
        "The key or value had this name in an earlier version.",
        "Write the new name, which the message gives. Old names are not accepted.",
    ),
    Kind(
        "Unknown name",
        r"unknown|has no key|there is no |no such|has no split|has no (column|…)",
        "A component, key, split, column or file of this name does not exist.",
        "Take the suggestion of `did you mean`, or one of the allowed names. `simfl list` shows all components, `simfl"
        " list NAME` the settings of one.",
    ),
    Kind(
        "No effect",
        r"(has|have) no effect",
        "The setting would be ignored in this combination; simfl refuses it, so that no run differs from its file.",
        "Remove the setting, or change the one that makes it useless, which the message names.",
    ),
    Kind(
        "A secret in a setting",
        r"holds a user or a password|requires a token|Ray takes a token",
        "A password or token would be written to the run folder.",
        "Put it into a variable of the environment; [Security](../explanation/security.md#secrets) names them.",
    ),
    Kind(
        "Given twice",
        r"duplicate|given twice|is listed twice|both|second (split|…)|same name|give (exactly )?one of",
        "Two settings, files or rows say the same thing, perhaps differently.",
        "Keep one of them.",
    ),
    Kind(
        "Spent or missing privacy budget",
        r"epsilon|delta of|noise|clipped|min_(groups|clients|examples)",
        "The privacy settings are incomplete, do not fit each other, or the budget is spent.",
        "Give the values that the message names; `simfl plan` shows the epsilon before the run. Nothing is released"
        " beyond `privacy.epsilon`. [Differential privacy](../explanation/privacy.md) defines each setting.",
        where="privacy",
    ),
    Kind(
        "Memory",
        r"out of memory|memory|reduce local.batch_size",
        "A training step does not fit on the device, even alone on a fresh worker.",
        "Reduce `local.batch_size` or `execution.clients_per_batch`, set `model.checkpointing: true`, or take fewer"
        " workers per GPU. `simfl plan FILE --card 80GB` shows what fits before the run.",
        where="runtime|simulation|plans",
    ),
    Kind(
        "More workers, GPUs or space than there are",
        r"but Ray has|but the driver has|no GPU is free|are free|no Ray cluster|Ray has free|port",
        "The machine or cluster has less than was asked for, or is not reachable at this address.",
        "Ask for less, wait, or correct `--address`; `simfl doctor` shows what simfl finds on this machine.",
        where="runtime",
    ),
    Kind(
        "Lost Ray, or no answer",
        r"",
        "Ray or a worker has ended, does not start, or does not answer; the network or the machine may be the cause.",
        "Resume the run with `--resume`; the result is the same, bit for bit. `--backend inline` shows the error of a"
        " worker in this process. [Failure handling](../explanation/failures.md) lists each case.",
        where="runtime",
    ),
    Kind(
        "A damaged run folder",
        r"damaged|altered|was … at the start|is missing|no checkpoint|does not match its hash",
        "A file of the run is missing or was changed after simfl wrote it.",
        "Restore the file from a copy. A damaged checkpoint costs nothing if an earlier one exists, from which"
        " `--resume` starts; otherwise run the experiment again.",
        where="runs|cards|json_files|tracking|reports|sweeps|debug|client_state|privacy/randomness",
    ),
    Kind(
        "A folder that is in use or taken",
        r"holds a|holds …|exists|is using|is writing|another --out|writes nothing|not an empty",
        "The folder belongs to another run or sweep, or another process is writing it.",
        "Give another `--out`, continue with `--resume`, or stop the other process.",
    ),
    Kind(
        "A setting is missing",
        r"missing|needed|is required|: empty|not given|does not exist",
        "A required key, argument or file is absent.",
        "Add it as the message says; `simfl list sections` and the"
        " [reference of all keys](../reference/yaml.md) show what is required.",
    ),
    Kind(
        "A value of the wrong type or range",
        r"is not |is no |are not |must be|is neither|allowed:|given, but|given;|given for",
        "The value is not what the key accepts, or does not fit other values.",
        "Write a value that the message allows. In YAML `1e-3` is a number and `'1e-3'` text; lists have brackets.",
        where=r"^(?!simfl/data/io|simfl/data/readers)",
    ),
    Kind(
        "An unreadable file of data",
        r"readable|not JSON|not UTF-8|UTF-8|not CSV|not a CSV|damaged|pickl|plain|cannot be read|contains|not a table",
        "A file is damaged, compressed, in another encoding, or in another format than the reader expects.",
        "Open the file at the row that the message names, or let `simfl data check PATH` find the format; save it"
        " as UTF-8.",
        where="data|images|objectives|virtual_time",
    ),
    Kind(
        "Rows that do not fit each other",
        r"differ|has shape|has type|words have|match|boxes|labels|entries|lines|values|length|numbers|tokens",
        "Rows of one data set have different fields, shapes, types or counts.",
        "Correct the rows that the message names; `simfl data check` lists all of them at once.",
        where="data|objectives|virtual_time",
    ),
    Kind(
        "Columns and splits",
        r"column|split|question|label|parts|classes|groups|domain|prompt",
        "simfl does not find the columns or splits that the task needs, or cannot tell which column is which.",
        "Name the columns under `data.columns`, as in `columns: {text: review, label: stars}`, and the splits as the"
        " message says. `simfl data check` shows what was read and what was ignored.",
        where="data|objectives|run_context|audit|session",
    ),
    Kind(
        "Other faults of data",
        r"",
        "The content of the data does not meet the format or the request.",
        "Correct the file, row or setting that the message names; [Data](../reference/data.md) describes each reader.",
        where="data/|images|objectives|virtual_time/traces",
    ),
    Kind(
        "A partition that is not possible",
        r"partition",
        "The data cannot be divided among so many clients with these sizes or columns.",
        "Change `partition.clients`, `alpha` or the minimum size; `simfl partition show SPEC` shows the result.",
    ),
    Kind(
        "A model that does not fit",
        r"",
        "Weights, sizes, adapters or inputs of the model do not fit each other or the data.",
        "Change the setting that the message names. `simfl list NAME` shows the settings of a model, and"
        " [Models](../reference/models.md) what each reads.",
        where="models|parameter_groups|weights|training|contract|codecs|algorithms|optimizers|plans|factorizations|run_context",
    ),
    Kind(
        "Python objects and modules",
        r"module|import|Python object|decorator|class of|program|settings: …",
        "A component of your own is not found, or is not a frozen dataclass of the right kind.",
        'Write `name: "module:Class"`, start simfl in the folder of `module.py`, and derive the class from its'
        " interface. `simfl list module:Class` shows how simfl reads it.",
    ),
    Kind(
        "The text of an experiment file",
        r"",
        "The YAML text, `experiment:` or an option `--set` cannot be read.",
        "Correct the line that the message names; `--set` takes `path=value`, as in `--set phases.0.rounds=2`.",
        where="config|yaml",
    ),
    Kind(
        "Conversion of a script",
        r"",
        "`simfl convert` cannot read the script, or finds no training in it that an experiment can describe.",
        "Write the experiment by hand, as in [the first hour](../tutorial/first_hour.md); the message names the line.",
        where="convert",
    ),
    Kind(
        "Schedulers and clusters",
        r"",
        "Slurm, Kubernetes or Ray refused the job, or its settings contradict each other.",
        "Read the reason after the colon; `simfl submit --dry-run` prints what would be submitted."
        " [Clusters](../how-to/clusters.md) has an example of each.",
        where="submit",
    ),
    Kind(
        "Sweeps, tables and reports",
        r"",
        "A sweep file, search or table names settings, runs or scores that do not exist together.",
        "Correct the key that the message names; [Sweeps](../how-to/sweeps.md) describes each.",
        where="sweeps|reports|tracking|commands",
    ),
    Kind(
        "Rounds that cannot be carried out",
        r"",
        "The sampled clients, their state or the order of rounds do not allow the next step.",
        "Change the number of clients, `time` or `privacy.too_few` as the message says.",
        where="rounds|simulation|sampling|session|asynchronous|virtual_time|client_state|transport|secure_aggregation",
    ),
    Kind(
        "Repetition, audit and verification",
        r"",
        "A repeated client update, audit or card does not agree with the run, or the run does not support it.",
        "The message names the round, client or file. See [debugging](../how-to/debugging.md),"
        " [audits](../how-to/audit.md) and [cards](../how-to/cards.md).",
        where="debug|audit|cards|evaluation",
    ),
    Kind(
        "Results of a run",
        r"",
        "The folder has no such result yet, or the run cannot give it.",
        "Let the run finish, or name what it has; [Tracking and run folders](../how-to/tracking.md) lists the files.",
        where="runs|files|api|cli",
    ),
)


def kind_of(message: Message) -> Kind | None:
    """Return the first kind that a message belongs to; None if there is none."""
    fits = (kind for kind in KINDS if re.search(kind.where, message.module) and re.search(kind.pattern, message.text))
    return next(fits, None)


def error_classes() -> set[str]:
    """Return the names of the error classes of `simfl.errors`."""
    tree = ast.parse((ROOT / "simfl/errors.py").read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef)} - {"Problems"}


def messages() -> Iterator[Message]:
    """Return every message whose text is in the source; errors that pass on the text of another have none."""
    known = error_classes()
    for path in sorted((ROOT / "simfl").rglob("*.py")):
        module = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known and node.args:
                text = template(node.args[0])
                if text and re.search(r"\w", text):
                    yield Message(node.func.id, module, text)


def template(node: ast.expr) -> str:
    """Return the text of an expression, with … for each value; empty if it has none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        text = "".join(str(piece.value) if isinstance(piece, ast.Constant) else "…" for piece in node.values)
        return re.sub("…(?:…)+", "…", text)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    if isinstance(node, ast.IfExp):
        return template(node.body)
    return ""


HEAD = """# Error index

Written by `python docs/make_reference.py`; a test checks that every message of the package has a kind. An error that a
user can cause is one line, `simfl: WHERE: what is wrong; what is allowed`, and
[exit code 2](../explanation/failures.md#exit-codes). WHERE is the key of the experiment (`phases.0.local.steps`), the
option (`--out`), or the file and row. From
Python, the same line is the text of an exception of `simfl.errors`.

Find your message by its words; `…` stands for values. The site has a list of all messages besides.
"""


def errors_page() -> str:
    """Return the page of kinds, each with cause, cure and examples from the source."""
    found = by_kind()
    lines = [HEAD]
    for kind in KINDS:
        examples = list(dict.fromkeys(message.text for message in found[kind.name]))[:3]
        lines += [f"## {kind.name}", "", *(f"- {code(text)}" for text in examples), ""]
        lines += [f"**Cause.** {kind.cause}", "", f"**Cure.** {kind.cure}", ""]
    return "\n".join(lines)


def page() -> str:
    """Return the page of all messages, by kind."""
    lines = [
        "# All error messages",
        "",
        "Every message in the source, with `…` for its values; cause and cure are in the",
    ]
    lines += ["[error index](errors.md).", ""]
    for name, found in by_kind().items():
        lines += [f"## {name}", "", "| message | class | module |", "|---|---|---|"]
        lines += [f"| {code(one.text)} | {one.error} | {one.module} |" for one in found]
        lines.append("")
    return "\n".join(lines)


@cache
def by_kind() -> dict[str, list[Message]]:
    """Return the messages of each kind, in the order of the kinds."""
    found = defaultdict(list)
    for message in messages():
        kind = kind_of(message)
        if kind is None:
            raise SystemExit(f"docs/site/error_messages.py: no kind fits {message}")
        found[kind.name].append(message)
    return {kind.name: found[kind.name] for kind in KINDS}


def code(text: str) -> str:
    """Return a message as code in a line of Markdown."""
    flat = " ".join(text.split()).replace("|", "\\|")
    return f"`` {flat} ``" if "`" in flat else f"`{flat}`"
