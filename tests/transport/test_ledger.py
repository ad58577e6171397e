"""Bytes under the three rules for tied weights, against the published figures of the PFL-DocVQA 2024 competition."""

import pytest
import torch

from simfl.aggregation.columns import Columns
from simfl.errors import ConfigError
from simfl.transport.ledger import LedgerEntry, TiedWeights, totals

EMBEDDING, ALL = 24_674_304, 250_333_440  # VT5-base: T5's word embedding; everything that is trained
OWNERS = {"encoder.embed_tokens.weight": "shared.weight", "decoder.embed_tokens.weight": "shared.weight"}
NUM_VALUES = {"shared.weight": EMBEDDING, "rest": ALL - EMBEDDING}
BOTH = {name: 4 * count for name, count in NUM_VALUES.items()}
REST = {"rest": BOTH["rest"]}


def tied(rule, trained=NUM_VALUES):
    return TiedWeights(rule, OWNERS, NUM_VALUES, frozenset(trained))


@pytest.mark.parametrize(
    ("rule", "charged"), [("once", 1_001_333_760), ("of_trained", 1_198_728_192), ("always", 1_198_728_192)]
)
def test_a_message_of_the_baseline_has_its_published_size(rule, charged):
    # 250,333,440 · 4 B, and twice the embedding's 24,674,304 · 4 B
    assert tied(rule).charge(BOTH) == charged


@pytest.mark.parametrize(("rule", "names"), [("once", 0), ("of_trained", 0), ("always", 2)])
def test_only_the_kits_rule_charges_further_names_of_a_frozen_embedding(rule, names):
    assert tied(rule, ["rest"]).charge(REST) == BOTH["rest"] + names * 4 * EMBEDDING


def test_a_trained_owner_that_is_not_sent_is_charged_in_float32():
    assert tied("of_trained").charge(REST) == BOTH["rest"] + 2 * 4 * EMBEDDING


def test_a_further_name_costs_the_payload_of_its_owner():
    payload = {"shared.weight": 13_879_296, "rest": 10}  # NF4: 24,674,304 / 2 + 4 · 24,674,304 / 64
    assert tied("always").charge(payload) == 3 * 13_879_296 + 10


def test_without_tied_weights_every_rule_charges_the_payload():
    assert {TiedWeights(rule).charge({"a": 3, "b": 4}) for rule in ("once", "of_trained", "always")} == {7}


def test_an_unknown_rule_is_refused():
    with pytest.raises(ConfigError, match=r"^ledger.tied_weights: unknown rule 'one'; did you mean 'once'\?$"):
        TiedWeights("one")


def baseline_rows(rounds=10, clients=2):
    """Return the rows of ten rounds of two clients, downloads and uploads: 40 messages."""
    values = {name: torch.empty(count, device="meta") for name, count in NUM_VALUES.items()}
    entry = LedgerEntry(0, "weights", values, tied("always"))
    return [
        entry.row(number, client, direction, BOTH)
        for number in range(rounds)
        for client in range(clients)
        for direction in ("download", "upload")
    ]


def test_the_baseline_run_has_its_published_total():
    total = totals([Columns.of(baseline_rows())])
    assert total["charged"]["total"]["B"] == 40 * 1_198_728_192
    assert round(total["charged"]["total"]["B"] / 2**30, 3) == 44.656  # published in GiB
    assert round(total["charged"]["download"]["B"] / 2**30, 3) == 22.328
    assert total["payload"]["total"]["MB"] == 40_053.3504
    assert total["payload"]["total"]["GB"] == 40.0533504
    assert total["logical"] == total["payload"]


def test_totals_without_rows_are_zero():
    assert totals([])["payload"] == {d: {"B": 0, "MB": 0, "GB": 0} for d in ("download", "upload", "total")}


def test_a_row_counts_four_logical_bytes_per_value():
    entry = LedgerEntry(2, "control", {"w": torch.zeros(5)}, tied("always"))
    assert entry.row(0, 0, "upload", {"w": 3}) == {
        "phase": 2,
        "round": 1,
        "client": 0,
        "direction": "upload",
        "part": "control",
        "floats": 5,
        "logical_bytes": 20,
        "payload_bytes": 3,
        "charged_bytes": 3,
    }
