"""Byte accounting of messages: one row for each phase, round, client, direction and part.

Three counts of the same message. `logical_bytes`: its values in float32. `payload_bytes`: the encoded length.
`charged_bytes`: the payload under a rule for tied weights. The PFL-DocVQA 2024 kit, whose figures are the published
ones, sends a tied tensor once more for each of its names and so charges T5's word embedding three times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from simfl.aggregation.columns import Columns
from simfl.errors import ConfigError, nearest
from simfl.protocol import Weights

RULES = ("once", "of_trained", "always")
DIRECTIONS = ("download", "upload")
FLOAT_BYTES = 4

Row = dict[str, int | str]


@dataclass(frozen=True)
class TiedWeights:
    """The rule by which tied tensors are charged.

    A tied tensor has an owner, the first of its names, and further names. With `once` it is charged once; with
    `of_trained` once more for each further name of a trained owner; with `always` for each further name even if its
    owner is frozen, as in the kit (whose filter knows only the names of parameters). A further name costs the payload
    of its owner, or raw float32 if the owner is not sent.

    Attributes:
        rule: `once`, `of_trained` or `always`.
        owners: Further name -> owner.
        num_values: Owner -> number of values.
        trained: Names of the trained tensors.

    Raises:
        ConfigError: The rule is unknown.
    """

    rule: str = "once"
    owners: Mapping[str, str] = field(default_factory=dict)
    num_values: Mapping[str, int] = field(default_factory=dict)
    trained: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ConfigError(f"ledger.tied_weights: unknown rule {self.rule!r}; {nearest(self.rule, RULES)}")

    def charge(self, payload: Mapping[str, int]) -> int:
        """Return the bytes charged for the weights of one message. `payload`: encoded bytes by tensor."""
        charged = sum(payload.values())
        for owner in self.owners.values():
            if self.rule == "always" or (self.rule == "of_trained" and owner in self.trained):
                charged += payload[owner] if owner in payload else FLOAT_BYTES * self.num_values[owner]
        return charged


NOTHING_TIED = TiedWeights()


class LedgerEntry:
    """The rows of one part of a phase's messages in one direction."""

    def __init__(self, phase: int, part: str, tensors: Weights, tied_weights: TiedWeights) -> None:
        """Count the values of `tensors`, the part of any of the messages."""
        self.phase, self.part = phase, part
        self.tied_weights = tied_weights if part == "weights" else NOTHING_TIED
        self.num_values = sum(t.numel() for t in tensors.values())
        # many messages share a payload; by identity, with the payload itself so that it stays alive
        self._known: dict[int, tuple[Mapping[str, int], int, int]] = {}

    def row(
        self, round_number: int, client: int, direction: str, payload: Mapping[str, int], num_values: int | None = None
    ) -> Row:
        """Return the row of one message.

        Args:
            round_number: Round of the phase, from 0.
            client: Number of the client.
            direction: `download` or `upload`.
            payload: Encoded bytes by tensor.
            num_values: Number of values, if it is not that of all tensors.
        """
        count = self.num_values if num_values is None else num_values
        if id(payload) not in self._known:
            self._known[id(payload)] = payload, sum(payload.values()), self.tied_weights.charge(payload)
        _, total, charged = self._known[id(payload)]
        assert direction in DIRECTIONS, direction
        return {
            "phase": self.phase,
            "round": round_number + 1,
            "client": client,
            "direction": direction,
            "part": self.part,
            "floats": count,
            "logical_bytes": FLOAT_BYTES * count,
            "payload_bytes": total,
            "charged_bytes": charged,
        }


def totals(rows: Iterable[Columns]) -> dict[str, dict[str, dict[str, float]]]:
    """Return sums of rows: logical | payload | charged -> download | upload | total -> B (int), MB, GB."""
    sums = {count: dict.fromkeys(DIRECTIONS, 0) for count in ("logical", "payload", "charged")}
    for block in rows:
        for direction in DIRECTIONS:
            own = block.where("direction", direction)
            for count, directions in sums.items():
                directions[direction] += own.total(f"{count}_bytes")
    return {
        count: {name: units(value) for name, value in {**directions, "total": sum(directions.values())}.items()}
        for count, directions in sums.items()
    }


def units(num_bytes: int) -> dict[str, float]:
    """Return a number of bytes as bytes, megabytes (10^6) and gigabytes (10^9)."""
    return {"B": num_bytes, "MB": num_bytes / 1e6, "GB": num_bytes / 1e9}
