"""The attacker's view of a run: what was sent, decoded, with the bytes of the ledger."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fakes import Toy, experiment, run
from torch.testing import assert_close

from simfl.audit import view
from simfl.codecs.int8 import Int8
from simfl.errors import RunError
from simfl.experiment import Codecs, Privacy
from simfl.runs.results import Run
from simfl.weights import add, subtract

PRIVATE = Privacy(clip=0.05, groups_per_client=2, noise_multiplier=0.7)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with one client per round, whose decoded upload is therefore the average."""
    folder = tmp_path_factory.mktemp("view") / "run"
    given = experiment(
        "group_dp",
        privacy=PRIVATE,
        weighting="uniform",
        clients_per_round=1,
        rounds=3,
        data=Toy(sizes=(6, 6)),
        codec=Codecs(upload=Int8()),
    )
    run(given, folder)
    return Run(folder)


def test_a_message_is_what_the_server_averages(finished: Run) -> None:
    averages = view.averages_view(finished)
    assert [one.round for one in averages.seen] == [1, 2, 3]
    found = [
        view.messages_view(finished, client, [1, 2, 3])
        for client in {r["client"] for r in finished.clients().to_pylist()}
    ]
    messages = sorted((one for each in found for one in each.seen), key=lambda one: one.round)
    assert [one.round for one in messages] == [1, 2, 3]
    for message, average in zip(messages, averages.seen, strict=True):
        assert_close(message.parts["weights"], average.parts["weights"], rtol=1e-5, atol=1e-7)
        assert_close(message.received, average.received)
        assert len({round(v, 7) for v in message.parts["weights"]["head.bias"].tolist()}) <= 256
        rows = [r for r in finished.ledger().to_pylist() if (r["round"], r["direction"]) == (message.round, "upload")]
        assert message.payload == {"weights": sum(r["payload_bytes"] for r in rows)}


def test_the_averages_lead_from_the_initial_to_the_final_model(finished: Run) -> None:
    seen = view.averages_view(finished).seen
    total = seen[0].received
    for one in seen:
        total = add(total, one.parts["weights"])
    (final,) = view.model_view(finished).seen
    assert_close(total, final.parts["weights"], rtol=1e-5, atol=1e-6)
    assert max(float(t.abs().max()) for t in subtract(final.parts["weights"], seen[0].received).values()) > 0


def test_a_client_without_messages_is_an_error(finished: Run) -> None:
    sampled = {r["client"] for r in finished.clients().to_pylist() if r["round"] == 1}
    (other,) = {0, 1} - sampled
    with pytest.raises(RunError, match=f"client {other} was not sampled"):
        view.messages_view(finished, other, [1])


def test_a_message_that_is_not_the_one_of_the_ledger_is_an_error(
    finished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = next(r["client"] for r in finished.clients().to_pylist() if r["round"] == 1)
    real = view._payload
    monkeypatch.setattr(view, "_payload", lambda rows: {k: v + len(rows[0]) % 8 for k, v in real(rows).items()})
    view.messages_view(finished, client, [1])  # the same on both sides
    monkeypatch.setattr(view, "_payload", lambda rows: {**real(rows), "n": id(rows)})
    with pytest.raises(RunError, match="the ledger has"):
        view.messages_view(finished, client, [1])


def test_secure_runs_show_their_final_model_alone(tmp_path: Path) -> None:
    given = experiment(
        "group_dp", privacy=replace(PRIVATE, secure=True), weighting="uniform", rounds=1, data=Toy(sizes=(6, 6))
    )
    run(given, tmp_path / "run")
    found = Run(tmp_path / "run")
    assert torch.isfinite(view.model_view(found).seen[0].parts["weights"]["head.bias"]).all()
    with pytest.raises(RunError, match="no round can be repeated"):
        view.averages_view(found)
