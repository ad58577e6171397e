"""Trace files in both formats, and one-line errors for those that do not fit."""

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest

from simfl.errors import ConfigError, DataError
from simfl.virtual_time.instants import SECOND
from simfl.virtual_time.profiles import Capacity, Profile, client_profiles
from simfl.virtual_time.traces import Trace

BEHAVIOUR = {  # as in FedScale's client_behave_trace
    3: {"duration": 30, "active": [10, 60], "inactive": [30, 90], "finish_time": 100, "model": "CPH1801"},
    7: {"duration": 50, "active": [0], "inactive": [50], "finish_time": 200, "model": "SM-G950"},
}
CSV = "client,start,end\n0,10,30\n1,0,50\n0,60,90\n"


def written(folder: Path, content: object) -> str:
    if isinstance(content, str):
        path = folder / "trace.csv"
        path.write_text(content)
    else:
        path = folder / "trace.pkl"
        path.write_bytes(pickle.dumps(content))
    return str(path)


def next_seconds(trace: Trace, at: int, clients: int = 2) -> list[int]:
    found = trace.schedule(clients, 1).next_available(np.arange(clients), at * SECOND)
    return [int(one) // SECOND for one in found]


def test_a_csv_trace_ends_and_one_with_a_period_repeats(tmp_path):
    path = written(tmp_path, CSV)
    assert next_seconds(Trace(path), 0) == [10, 0]
    assert next_seconds(Trace(path), 30) == [60, 30]
    assert next_seconds(Trace(path, period=100.0), 95) == [110, 100]
    assert next_seconds(Trace(path), 95)[0] > 10**9  # never again


def test_a_trace_of_fedscale_has_a_period_of_its_own_per_client(tmp_path):
    trace = Trace(written(tmp_path, BEHAVIOUR))
    assert next_seconds(trace, 0) == [10, 0]
    assert next_seconds(trace, 95) == [110, 200]
    until = trace.schedule(2, 1).available_until(np.arange(2), 20 * SECOND)
    assert (until // SECOND).tolist() == [30, 50]


def test_both_formats_agree(tmp_path):
    same = {0: {"active": [10, 60], "inactive": [30, 90], "finish_time": 100}}
    first, second = (
        Trace(written(tmp_path, "client,start,end\n0,10,30\n0,60,90\n"), period=100.0),
        Trace(written(tmp_path, same)),
    )
    for at in range(0, 250, 3):
        assert next_seconds(first, at, 1) == next_seconds(second, at, 1)


def test_random_assignment_draws_traces_by_client(tmp_path):
    trace = Trace(written(tmp_path, BEHAVIOUR), assign="random")
    found = next_seconds(trace, 0, 200)
    assert set(found) == {0, 10}
    assert found[:50] == next_seconds(trace, 0, 50)


def test_the_hash_of_a_file_is_checked(tmp_path):
    path = written(tmp_path, CSV)
    own = hashlib.sha256(CSV.encode()).hexdigest()
    assert next_seconds(Trace(path, sha256=own), 0) == [10, 0]
    with pytest.raises(DataError, match="its SHA-256 is"):
        Trace(path, sha256="0" * 64).schedule(2, 1)


def test_capacities_of_fedscale_are_three_times_the_inference(tmp_path):
    path = written(
        tmp_path, {1: {"computation": 100.0, "communication": 8000.0}, 2: {"computation": 20.0, "communication": 80.0}}
    )
    found = client_profiles(Profile(capacity=Capacity(path)), 2, 1)
    assert found.seconds_per_example is not None
    assert found.seconds_per_example.tolist() == pytest.approx([0.3, 0.06])
    assert found.download.tolist() == found.upload.tolist() == [1e6, 1e4]


def test_capacities_from_csv(tmp_path):
    path = written(tmp_path, "client,seconds_per_example,download,upload\n0,0.5,1000,10\n1,2,5,6\n")
    found = client_profiles(Profile(capacity=Capacity(path)), 2, 1)
    assert found.seconds_per_example is not None
    assert found.seconds_per_example.tolist() == [0.5, 2.0]
    assert (found.download.tolist(), found.upload.tolist()) == ([1000, 5], [10, 6])


@pytest.mark.parametrize(
    ("content", "clients", "message"),
    [
        (CSV, 4, "has no trace of 2 of 4 clients \\(2, 3\\); add them, or set assign: random"),
        (BEHAVIOUR, 3, "has 2 traces, but there are 3 clients; allowed: assign: random"),
        ("client,begin,end\n0,1,2\n", 1, "no column 'start'; needed: client, start, end"),
        ("client,start,end\n0,1,x\n", 1, "line 2: client, start, end are not all numbers"),
        ("client,start,end\n0,10,30\n0,20,40\n", 1, "client 0: \\[20, 40\\] given after 30; allowed: ascending"),
        ("client,start,end\n", 1, "no rows"),
        ([1, 2], 1, "contains list, expected a dictionary of clients"),
        ({1: {"active": [1], "inactive": [2]}}, 1, "client 1: no 'finish_time'"),
        ({1: {"active": [1, 2], "inactive": [2], "finish_time": 9}}, 1, "not two lists of equal length"),
        ({1: {"active": [1], "inactive": [12], "finish_time": 9}}, 1, "ends at 12, after the period of 9 seconds"),
    ],
)
def test_wrong_traces_are_refused_in_one_line(tmp_path, content, clients, message):
    with pytest.raises((ConfigError, DataError), match=message) as error:
        client_profiles(Profile(availability=Trace(written(tmp_path, content))), clients, 1)
    assert str(error.value).startswith("clients.profile.availability.file: ")
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        Trace(str(tmp_path / "none.csv")).schedule(1, 1)
