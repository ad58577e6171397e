"""Question templates in four languages, with slots for a label and, in tables, for the first cell of a row."""

from __future__ import annotations

ASK = """
what is the {label}?
{label}?
what is {label}?
what does it say under {label}?
find the {label}
what is the value of {label}?
give the {label} shown on the page
which value stands next to {label}?
how much is the {label}?
when is the {label}?
who is the {label}?
read the field {label}
{label}
was ist {label}?
wie lautet {label}?
was steht unter {label}?
wie lautet die {label} auf der rechnung?
welcher wert steht bei {label}?
wie hoch ist {label}?
quel est le {label}?
quelle est la {label} de cette page?
quel est {label} ?
que vaut {label}?
wat is de {label}?
wat is het {label}?
welke waarde staat bij {label}?
hoe hoog is {label}?
"""
ASK_ROW = """
what is the {label} of {key}?
{label} of {key}?
what is the {label} for {key}?
how much is the {label} of {key}?
{key}: {label}?
was ist {label} von {key}?
wie lautet {label} für {key}?
welcher wert steht bei {key} unter {label}?
quel est le {label} de {key}?
quelle est la {label} pour {key}?
wat is de {label} van {key}?
wat is {label} voor {key}?
"""


def split_template(template: str) -> tuple[list[str], list[str], list[str], bool, str]:
    """Return the words before, between and after the slots, whether the key comes first, and the marks of the slots."""
    swapped = "{key}" in template and template.index("{key}") < template.index("{label}")
    first, second = ("{key}", "{label}") if swapped else ("{label}", "{key}")
    before, _, rest = template.partition(first)
    between, _, after = rest.partition(second) if second in template else ("", "", rest)
    mark = after[:1] if after[:1] in ("?", ":") else ""
    glued = between[:1] if between[:1] == ":" else ""
    return before.split(), between[len(glued) :].split(), after[len(mark) :].split(), swapped, glued + "|" + mark


def templates() -> tuple[list[str], list[str]]:
    """Return the templates of questions about a label, and of questions about a row of a table."""
    return ASK.strip().split("\n"), ASK_ROW.strip().split("\n")


def prompt_words() -> list[str]:
    """Return every word of the prompts except labels and keys."""
    parts = [part for bank in templates() for text in bank for part in split_template(text)[:3]]
    return ["question:", "context:", *(word for part in parts for word in part)]
