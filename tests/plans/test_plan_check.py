"""Every run is held to its plan: rows, bytes and totals; what is left out, and what a difference looks like."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import SIZES, Faulty, Normalised, Stopping, Toy, experiment, run, then

from simfl import cache
from simfl.algorithms import ALGORITHMS
from simfl.algorithms.base import Algorithm
from simfl.codecs.nf4 import Nf4
from simfl.codecs.sparse import TopK
from simfl.codecs.svd import Svd
from simfl.experiment import Codecs, LedgerRule
from simfl.models.lora import Lora
from simfl.models.mlp import Mlp
from simfl.plans.check import MATCHES, Tables, compare, messages_of, sketched, tables_of
from simfl.plans.plan import plan
from simfl.run_context import RunContext
from simfl.runs import tables

CHANGES, WHOLE = Codecs(Nf4(), Nf4()), Codecs(Nf4(encode="weights"), Nf4(encode="weights"))
ADAPTED = Mlp((16, 16), adapters=Lora(rank=2, targets=("linear",)))
CASES = {
    "fedavg": experiment(),
    "scaffold": experiment("scaffold"),
    "fednova, whose parts have one value": experiment("fednova"),
    "a control with another codec": experiment("scaffold", codec=CHANGES),
    "lora in nf4": experiment(model=ADAPTED, codec=WHOLE),
    "changes, and rounds missed": experiment(clients_per_round=3, rounds=6, codec=CHANGES),
    "running statistics": experiment(
        model=Normalised(), data=Toy(sizes=(6, 9, 6, 9, 3, 3, 6, 9, 12, 15)), batch_size=3
    ),
    "poisson": experiment(poisson=0.2, rounds=6),
    "two phases": then(experiment(rounds=2), experiment("feddc", rounds=2, codec=CHANGES)),
    "a private head": experiment(personal_params=("head.*",)),
    "nothing travels": experiment(communicate=False),
    "one pool": experiment(centralized=True),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_is_as_planned_row_by_row_and_in_all(case, tmp_path):
    summary = run(CASES[case], tmp_path / "run")
    assert summary["plan"] == MATCHES
    found = plan(CASES[case], cache.folder())
    assert (found.bytes, found.charged) == (summary["bytes"], summary["charged"])
    rows = tables.rows(tmp_path / "run/ledger.parquet")
    sent = {(row["phase"], row["round"], row["client"], row["direction"]) for row in rows if row["floats"]}
    assert found.messages == len(sent)
    assert found.steps == sum(row["steps"] for row in tables.rows(tmp_path / "run/clients.parquet"))


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"feddat"}))
def test_every_algorithm_can_be_planned(name):
    """FedDAT's adapters are planned in the tests of figures."""
    case = experiment(name)
    found = messages_of(sketched(case, RunContext(case, cache.folder()).dataset), 0, 10)
    assert [row["part"] for row in found.up] == list(case.phases[0].algorithm.reduce)


def test_missed_rounds_are_planned_where_packets_are_cheaper_than_the_whole():
    """A client that comes back pays for each packet it missed: more than one, less than the whole."""
    (phase,) = plan(CASES["changes, and rounds missed"], cache.folder()).phases
    one, whole = (sum(row[name] for row in phase.download) for name in ("payload_bytes", "logical_bytes"))
    assert one < whole
    assert 18 * one < phase.bytes["download"] < 18 * whole  # 6 rounds of 3 clients


def test_a_poisson_plan_tells_the_draw_of_the_seed_and_what_is_expected():
    case = experiment(poisson=0.2, rounds=6)
    plans = [plan(replace(case, seed=seed), cache.folder()).phases[0] for seed in range(30)]
    assert {phase.expected for phase in plans} == {2 * 0.2 * 10 * 6}
    assert len({phase.messages for phase in plans}) > 3
    # 60 draws of .2 each time: 12 visits with variance 9.6, so a mean of 30 seeds is within 3·√(9.6/30) of 12
    assert abs(sum(phase.messages / 2 for phase in plans) / 30 - 12) < 3 * (9.6 / 30) ** 0.5


def test_bytes_that_depend_on_values_are_held_to_a_bound(tmp_path):
    case = experiment(codec=Codecs(TopK(), Svd()))
    summary = run(case, tmp_path / "run")
    assert summary["plan"].startswith(f"{MATCHES}; bytes of ")
    assert summary["bytes"]["total"] <= plan(case, cache.folder()).bytes["total"]


def test_a_skipped_client_has_sent_nothing(tmp_path):
    case = experiment(Faulty(), on_error="skip")
    missed = sum(3 in [row["client"] for row in exchange] for exchange in downloads(case)[1:2])
    summary = run(case, tmp_path / "run")
    assert missed == 1
    assert summary["plan"] == f"{MATCHES}; 1 skipped visits sent nothing"


def downloads(case):
    """The rows of clients that get something, round by round, by the plan."""
    found = messages_of(sketched(case, RunContext(case, cache.folder()).dataset), 0, 10)
    return [[{"client": client} for client in exchange.download] for exchange in found.rounds()]


def test_a_run_that_was_stopped_and_goes_on_is_as_planned_in_both_sittings(tmp_path):
    case = experiment(rounds=3)
    first = run(case, tmp_path / "run", display=Stopping(2))
    assert (first["status"], first["rounds"], first["plan"]) == ("interrupted", 2, MATCHES)
    assert run(case, tmp_path / "run", resume=True)["plan"] == MATCHES


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("planned") / "run"
    run(experiment(), folder)
    return tables.rows(folder / "ledger.parquet"), tables.rows(folder / "clients.parquet")


def held(rows, visits, case=None):
    return compare(
        case or experiment(), RunContext(experiment(), cache.folder()).dataset, len(SIZES), Tables(rows, visits, 3)
    )


def changed(rows, place, **values):
    return [{**row, **values} if i == place else row for i, row in enumerate(rows)]


def test_a_difference_is_named_by_its_first_place(ledger):
    rows, visits = ledger
    last = max(i for i, row in enumerate(rows) if row["round"] == 2 and row["direction"] == "upload")
    client = rows[last]["client"]
    assert held(rows, visits) == MATCHES
    assert held(changed(rows, last, payload_bytes=1), visits) == (
        f"differs: phase 0, round 2, client {client}, upload of weights: 1 payload bytes, planned 1,172"
    )


def test_a_message_too_many_or_too_few_is_a_difference(ledger):
    rows, visits = ledger
    client = rows[0]["client"]
    assert held(rows[1:], visits) == (
        f"differs: phase 0, round 1, client {client}, download of weights: planned and not sent"
    )
    extra = [{**rows[0], "part": "control"}, *rows]
    assert held(extra, visits) == (
        f"differs: phase 0, round 1, client {client}, download of control: sent and not planned"
    )


def test_another_rule_for_tied_weights_is_not_seen_where_nothing_is_tied(ledger):
    assert held(*ledger, case=experiment(ledger=LedgerRule("always"))) == MATCHES


def test_an_algorithm_that_needs_values_has_no_plan_and_its_run_ends_well(tmp_path):
    summary = run(experiment(Picky()), tmp_path / "run")
    assert summary["status"] == "completed"
    assert summary["plan"].startswith("not made: phases.0.algorithm: Picky cannot be planned from shapes alone: ")


class Picky(Algorithm):
    """It sends another tensor where one has a positive sum."""

    def upload(self, trained, received, state, visit):
        return {"weights": {n: t if float(t.sum()) > 0 else -t for n, t in received["weights"].items()}}


def test_the_tables_of_a_run_are_read_part_by_part(tmp_path):
    run(experiment(), tmp_path / "run")
    made = tables_of(tmp_path / "run", 3)
    assert [row["round"] for row in made.ledger] == sorted(
        row["round"] for row in tables_of(tmp_path / "run", 3).ledger
    )
