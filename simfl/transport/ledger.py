"""What crossed the border, in bytes: one row for each phase, round, client, direction and part.

Three counts of the same message. `logical_bytes`: its values in float32. `payload_bytes`: what was really encoded.
`charged_bytes`: under a rule for tied weights, since the PFL-DocVQA 2024 kit, whose figures are the published ones,
sends a tied tensor once more for each of its names and so charges T5's word embedding three times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from simfl.errors import ConfigError, nearest

RULES = ("once", "of_trained", "always")
DIRECTIONS = ("download", "upload")
FLOAT_BYTES = 4

Row = dict[str, int | str]


def charge(
    payload: Mapping[str, int],
    aliases: Mapping[str, str],
    floats: Mapping[str, int],
    trained: Collection[str],
    rule: str,
) -> int:
    """The bytes charged for one part of one message.

    `payload`: tensor sent -> encoded bytes. `aliases`: further name -> the tensor it is tied to, its owner; empty for a
    part that is not the model's weights. `floats`: owner -> number of values. `trained`: names of the trained tensors.

    once: a tied tensor travels once. of_trained: once more for each alias of a trained owner. always: for each alias,
    though its owner be frozen, as the kit does (its filter knows only names that are parameters). An alias costs what
    its owner's payload costs, or raw float32 if the owner is not sent.
    """
    if rule not in RULES:
        raise ConfigError(f"ledger.tied_weights: unknown {rule!r}; {nearest(rule, RULES)}")
    charged = sum(payload.values())
    for owner in aliases.values():
        if rule == "always" or (rule == "of_trained" and owner in trained):
            charged += payload[owner] if owner in payload else FLOAT_BYTES * floats[owner]
    return charged


def row(
    phase: int, round: int, client: int, direction: str, part: str, floats: int, payload_bytes: int, charged_bytes: int
) -> Row:
    """One row. `floats`: values sent, aliases left out; `client` counts from 0, `round` from 1."""
    assert direction in DIRECTIONS, direction
    return {
        "phase": phase,
        "round": round,
        "client": client,
        "direction": direction,
        "part": part,
        "floats": floats,
        "logical_bytes": FLOAT_BYTES * floats,
        "payload_bytes": payload_bytes,
        "charged_bytes": charged_bytes,
    }


def totals(rows: Iterable[Mapping[str, int | str]]) -> dict[str, dict[str, dict[str, float]]]:
    """Sums of rows: logical | payload | charged -> download | upload | total -> B (int), MB, GB."""
    sums = {count: dict.fromkeys(DIRECTIONS, 0) for count in ("logical", "payload", "charged")}
    rows = list(rows)
    for direction in DIRECTIONS:
        own = [entry for entry in rows if entry["direction"] == direction]
        for count, directions in sums.items():
            key = f"{count}_bytes"
            directions[direction] = sum(int(entry[key]) for entry in own)
    return {
        count: {name: units(value) for name, value in {**directions, "total": sum(directions.values())}.items()}
        for count, directions in sums.items()
    }


def units(num_bytes: int) -> dict[str, float]:
    """Return a number of bytes as bytes, megabytes (10^6) and gigabytes (10^9)."""
    return {"B": num_bytes, "MB": num_bytes / 1e6, "GB": num_bytes / 1e9}
