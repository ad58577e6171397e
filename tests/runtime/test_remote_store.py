"""Client memory that travels with the work."""

import pytest
import torch

from simfl.client_state import EMPTY, FileClientStore
from simfl.errors import RunError
from simfl.runtime.ray.remote_store import RemoteClientStore

STATE = {"algorithm:control": {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}}


def test_what_is_written_has_the_digest_of_the_store(tmp_path):
    carried = RemoteClientStore()
    with carried.work({}) as new:
        digest = carried.write(STATE)
    assert digest == FileClientStore(tmp_path).put(STATE)
    assert list(new) == [digest]


def test_what_was_brought_is_read_and_does_not_stay():
    carried = RemoteClientStore()
    with carried.work({"a" * 64: STATE}) as new:
        assert torch.equal(carried.get("a" * 64)["algorithm:control"]["w"], STATE["algorithm:control"]["w"])
        assert new == {}
    with pytest.raises(RunError, match="client memory aaaaaaaaaaaa did not come with the work"):
        carried.get("a" * 64)


def test_remembering_nothing_needs_nothing():
    carried = RemoteClientStore()
    with carried.work({}) as new:
        assert carried.write({}) == EMPTY
        assert carried.get(EMPTY) == {}
    assert new == {}


def test_a_piece_of_work_begins_without_what_the_last_one_made():
    carried = RemoteClientStore()
    with carried.work({}) as first:
        carried.write(STATE)
    with carried.work({}) as second:
        pass
    assert len(first) == 1
    assert second == {}
