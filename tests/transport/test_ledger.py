"""Bytes under the three rules for tied weights, against the published figures of the PFL-DocVQA 2024 competition."""

import pytest

from simfl.errors import ConfigError
from simfl.transport.ledger import charge, row, totals

EMBEDDING, ALL = 24_674_304, 250_333_440  # VT5-base: T5's word embedding; everything that is trained
ALIASES = {"encoder.embed_tokens.weight": "shared.weight", "decoder.embed_tokens.weight": "shared.weight"}
FLOATS = {"shared.weight": EMBEDDING, "rest": ALL - EMBEDDING}
BOTH = {name: 4 * count for name, count in FLOATS.items()}
REST = {"rest": BOTH["rest"]}


@pytest.mark.parametrize(
    ("rule", "charged"), [("once", 1_001_333_760), ("of_trained", 1_198_728_192), ("always", 1_198_728_192)]
)
def test_a_message_of_the_baseline(rule, charged):
    # 250,333,440 · 4 B, and twice the embedding's 24,674,304 · 4 B
    assert charge(BOTH, ALIASES, FLOATS, FLOATS, rule) == charged


@pytest.mark.parametrize(("rule", "tied_weights"), [("once", 0), ("of_trained", 0), ("always", 2)])
def test_with_a_frozen_embedding_only_the_kits_rule_still_charges_its_aliases(rule, aliases):
    assert charge(REST, ALIASES, FLOATS, ["rest"], rule) == BOTH["rest"] + aliases * 4 * EMBEDDING


def test_a_trained_owner_that_stays_private_is_charged_raw():
    assert charge(REST, ALIASES, FLOATS, FLOATS, "of_trained") == BOTH["rest"] + 2 * 4 * EMBEDDING


def test_an_alias_costs_what_its_encoded_owner_costs():
    payload = {"shared.weight": 13_879_296, "rest": 10}  # NF4: 24,674,304 / 2 + 4 · 24,674,304 / 64
    assert charge(payload, ALIASES, FLOATS, FLOATS, "always") == 3 * 13_879_296 + 10


def test_without_aliases_every_rule_charges_the_payload():
    assert {charge({"a": 3, "b": 4}, {}, {}, [], rule) for rule in ("once", "of_trained", "always")} == {7}


def test_an_unknown_rule_is_refused():
    with pytest.raises(ConfigError, match=r"^ledger.tied_weights: unknown 'one'; did you mean 'once'\?$"):
        charge({}, {}, {}, [], "one")


def baseline_rows(rounds=10, clients=2):
    """Ten rounds of two clients, both modes: 40 messages."""
    charged = charge(BOTH, ALIASES, FLOATS, FLOATS, "always")
    return [
        row("main", r, c, direction, "weights", ALL, sum(BOTH.values()), charged)
        for r in range(1, rounds + 1)
        for c in range(clients)
        for direction in ("download", "upload")
    ]


def test_the_baseline_run_has_its_published_total():
    total = totals(baseline_rows())
    assert total["charged"]["total"]["B"] == 40 * 1_198_728_192
    assert round(total["charged"]["total"]["GiB"], 3) == 44.656
    assert round(total["charged"]["download"]["GiB"], 3) == 22.328
    assert total["payload"]["total"]["MB"] == 40_053.3504
    assert total["logical"] == total["payload"]


def test_totals_of_nothing_are_zero():
    assert totals([])["payload"] == {d: {"B": 0, "MB": 0, "GiB": 0} for d in ("download", "upload", "total")}


def test_a_row_holds_plain_values_and_four_logical_bytes_a_float():
    assert row("p", 1, 0, "upload", "weights", 5, 3, 3) == {
        "phase": "p",
        "round": 1,
        "client": 0,
        "direction": "upload",
        "part": "weights",
        "floats": 5,
        "logical_bytes": 20,
        "payload_bytes": 3,
        "charged_bytes": 3,
    }
