"""Client states of workers without a shared disk: sent with tasks, returned with results, written by the driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from simfl.client_state import EMPTY, FileClientStore
from simfl.errors import RunError
from simfl.runtime.ray.remote_store import RemoteClientStore, StateTransfer, marker_file

STATE = {"algorithm:control": {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}}


def test_written_state_has_the_digest_of_the_file_store(tmp_path: Path) -> None:
    store = RemoteClientStore()
    with store.task({}) as new:
        digest = store.write(STATE)
    assert digest == FileClientStore(tmp_path).put(STATE)
    assert list(new) == [digest]


def test_received_state_is_read_and_dropped_after_the_task() -> None:
    store = RemoteClientStore()
    with store.task({"a" * 64: STATE}) as new:
        assert torch.equal(store.get("a" * 64)["algorithm:control"]["w"], STATE["algorithm:control"]["w"])
        assert new == {}
    with pytest.raises(RunError, match="client state aaaaaaaaaaaa did not come with the task"):
        store.get("a" * 64)


def test_empty_state_is_not_transferred() -> None:
    store = RemoteClientStore()
    with store.task({}) as new:
        assert store.write({}) == EMPTY
        assert store.get(EMPTY) == {}
    assert new == {}


def test_task_starts_without_the_states_of_the_task_before() -> None:
    store = RemoteClientStore()
    with store.task({}) as first:
        store.write(STATE)
    with store.task({}) as second:
        pass
    assert len(first) == 1
    assert second == {}


@pytest.fixture
def transfer(tmp_path: Path) -> StateTransfer:
    return StateTransfer(tmp_path / "states", "today", lambda state: ("put", state))


def test_states_are_sent_only_to_workers_that_do_not_see_the_folder(transfer: StateTransfer) -> None:
    digest = transfer.store.put(STATE)
    transfer.remote.add(1)
    assert transfer.send(0, [digest]) == {}
    sent: dict[str, Any] = transfer.send(1, [digest, EMPTY, "", digest])
    assert list(sent) == [digest]
    assert torch.equal(sent[digest][1]["algorithm:control"]["w"], STATE["algorithm:control"]["w"])


def test_returned_states_are_written_to_disk(transfer: StateTransfer, tmp_path: Path) -> None:
    digest = FileClientStore(tmp_path / "elsewhere").put(STATE)
    transfer.receive({digest: STATE})
    written = FileClientStore(tmp_path / "states").get(digest)["algorithm:control"]["w"]
    assert torch.equal(written, STATE["algorithm:control"]["w"])


def test_marker_file_exists_until_the_transfer_is_closed(transfer: StateTransfer, tmp_path: Path) -> None:
    marker = marker_file(tmp_path / "states", "today")
    assert marker.exists()
    transfer.close()
    assert not marker.exists()
