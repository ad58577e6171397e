"""Every run is compared with its plan: rows, bytes, totals, what is not compared, and reported differences."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fakes import SIZES, Faulty, Normalised, Stopping, Toy, experiment, run, then

from simfl import files
from simfl.algorithms import ALGORITHMS
from simfl.algorithms.base import Algorithm
from simfl.algorithms.fedex_lora import FedExLora
from simfl.codecs.nf4 import Nf4
from simfl.codecs.sparse import TopK
from simfl.codecs.svd import Svd
from simfl.experiment import Codecs, LedgerRule
from simfl.models.lora import Lora
from simfl.models.mlp import Mlp
from simfl.plans.check import MATCHES, RunTables, compare, messages_of, meta_context, tables_of
from simfl.plans.plan import plan
from simfl.run_context import RunContext
from simfl.runs import tables
from simfl.runs.parts import TableParts

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
    "a personal head": experiment(personal_params=("head.*",)),
    "no communication": experiment(communicate=False),
    "centralized": experiment(centralized=True),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_matches_its_plan_in_every_row_and_in_total(case, tmp_path):
    summary = run(CASES[case], tmp_path / "run")
    assert summary["plan"] == MATCHES
    found = plan(CASES[case], files.cache_folder())
    assert (found.bytes, found.charged) == (summary["bytes"], summary["charged"])
    rows = tables.rows(tmp_path / "run/ledger.parquet")
    sent = {(row["phase"], row["round"], row["client"], row["direction"]) for row in rows if row["floats"]}
    assert found.messages == len(sent)
    assert found.steps == sum(row["steps"] for row in tables.rows(tmp_path / "run/clients.parquet"))


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"feddat"}))
def test_every_algorithm_can_be_planned(name):
    """FedDAT needs adapters; its plans are tested in test_plan_figures.py."""
    case = experiment(name)
    found = messages_of(meta_context(case, RunContext(case, files.cache_folder()).dataset), 0, 10)
    parts = [row["part"] for row in found.up]
    algorithm = case.phases[0].algorithm
    assert parts == [part for part in algorithm.reduce if part in parts or not algorithm.has_contributions()]


def test_a_client_that_missed_rounds_pays_for_the_missed_packets():
    """A client that missed rounds pays for each missed packet: more than one, less than the full weights."""
    (phase,) = plan(CASES["changes, and rounds missed"], files.cache_folder()).phases
    one, whole = (sum(row[name] for row in phase.download) for name in ("payload_bytes", "logical_bytes"))
    assert one < whole
    assert 18 * one < phase.bytes["download"] < 18 * whole  # 6 rounds of 3 clients


def test_a_poisson_plan_has_the_sampled_and_the_expected_messages():
    case = experiment(poisson=0.2, rounds=6)
    plans = [plan(replace(case, seed=seed), files.cache_folder()).phases[0] for seed in range(30)]
    assert {phase.expected for phase in plans} == {2 * 0.2 * 10 * 6}
    assert len({phase.messages for phase in plans}) > 3
    # 60 draws with probability .2: 12 updates with variance 9.6, so the mean of 30 seeds is within 3·√(9.6/30) of 12
    assert abs(sum(phase.messages / 2 for phase in plans) / 30 - 12) < 3 * (9.6 / 30) ** 0.5


def test_bytes_that_depend_on_values_are_within_the_bound(tmp_path):
    case = experiment(codec=Codecs(TopK(), Svd()))
    summary = run(case, tmp_path / "run")
    assert summary["plan"].startswith(f"{MATCHES}; bytes of ")
    assert summary["bytes"]["total"] <= plan(case, files.cache_folder()).bytes["total"]


def test_a_skipped_client_sends_nothing(tmp_path):
    case = experiment(Faulty(), on_error="skip")
    missed = sum(3 in [row["client"] for row in exchange] for exchange in downloads(case)[1:2])
    summary = run(case, tmp_path / "run")
    assert missed == 1
    assert summary["plan"] == f"{MATCHES}; 1 skipped client updates sent nothing"


@dataclass(frozen=True)
class FailingFedEx(FedExLora):
    """FedEx-LoRA in which a client fails in the second round."""

    client: int = 0

    def init_client(self, received, update):
        if (int(update.client), int(update.round)) == (self.client, 1):
            raise RuntimeError("fails")
        return super().init_client(received, update)


def test_the_change_of_the_base_is_smaller_without_a_skipped_client(tmp_path):
    settings = {"on_error": "skip", "rounds": 3, "clients_per_round": 3}
    failing = downloads(experiment(FailingFedEx(), **settings))[1][0]["client"]
    case = experiment(FailingFedEx(client=failing), **settings)
    summary = run(case, tmp_path / "run")
    assert summary["plan"] == f"{MATCHES}; 1 skipped client updates sent nothing"
    assert summary["bytes"]["download"] < plan(case, files.cache_folder()).bytes["download"]


def downloads(case):
    """Return the clients that receive a message in each round, by the plan."""
    found = messages_of(meta_context(case, RunContext(case, files.cache_folder()).dataset), 0, 10)
    return [[{"client": client} for client in exchange.download] for exchange in found.rounds()]


def test_an_interrupted_and_resumed_run_matches_its_plan(tmp_path):
    case = experiment(rounds=3)
    first = run(case, tmp_path / "run", display=Stopping(2))
    assert (first["status"], first["rounds"], first["plan"]) == ("interrupted", 2, MATCHES)
    assert run(case, tmp_path / "run", resume=True)["plan"] == MATCHES


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("planned") / "run"
    run(experiment(), folder)
    return tables.rows(folder / "ledger.parquet"), tables.rows(folder / "clients.parquet")


def compared(rows, updates, case=None):
    context = RunContext(case or experiment(), files.cache_folder())
    return compare(context, len(SIZES), RunTables(rows, updates, 3))


def changed(rows, index, **values):
    return [{**row, **values} if i == index else row for i, row in enumerate(rows)]


def test_the_first_difference_is_reported(ledger):
    rows, updates = ledger
    last = max(i for i, row in enumerate(rows) if row["round"] == 2 and row["direction"] == "upload")
    client = rows[last]["client"]
    assert compared(rows, updates) == MATCHES
    assert compared(changed(rows, last, payload_bytes=1), updates) == (
        f"differs: phase 0, round 2, client {client}, upload of weights: 1 payload bytes, planned 1,172"
    )


def test_a_missing_or_additional_message_is_reported(ledger):
    rows, updates = ledger
    client = rows[0]["client"]
    assert compared(rows[1:], updates) == (
        f"differs: phase 0, round 1, client {client}, download of weights: planned and not sent"
    )
    extra = [{**rows[0], "part": "control"}, *rows]
    assert compared(extra, updates) == (
        f"differs: phase 0, round 1, client {client}, download of control: sent and not planned"
    )


def test_the_rule_for_tied_weights_does_not_matter_without_tied_weights(ledger):
    assert compared(*ledger, case=experiment(ledger=LedgerRule("always"))) == MATCHES


def test_a_run_completes_if_its_algorithm_cannot_be_planned(tmp_path):
    summary = run(experiment(Picky()), tmp_path / "run")
    assert summary["status"] == "completed"
    assert summary["plan"].startswith("not compared: phases.0.algorithm: Picky cannot be planned from shapes: ")


class Picky(Algorithm):
    """An algorithm whose upload depends on the values of tensors."""

    def upload(self, trained, received, state, visit):
        return {"weights": {n: t if float(t.sum()) > 0 else -t for n, t in received["weights"].items()}}


def test_tables_of_a_run_are_read_in_order(tmp_path):
    run(experiment(), tmp_path / "run")
    found = [row["round"] for row in tables_of(TableParts.open(tmp_path / "run" / "tables", None), 3).ledger]
    assert found == sorted(found)
    assert set(found) == {1, 2, 3}
