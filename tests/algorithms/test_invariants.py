"""Server state is the mean of client states, with lossy codecs and partial participation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes import SIZES, experiment, run
from torch.testing import assert_close

from simfl.algorithms.base import Algorithm
from simfl.algorithms.feddc import FedDC
from simfl.algorithms.feddyn import FedDyn
from simfl.algorithms.scaffold import Scaffold
from simfl.client_state import FileClientStore
from simfl.codecs.nf4 import Nf4
from simfl.experiment import Codecs
from simfl.runs.results import Run

LOSSY = Codecs(upload=Nf4())
CASES: dict[str, tuple[Algorithm, tuple[str, ...]]] = {
    "scaffold": (Scaffold(), ("control",)),
    "scaffold i": (Scaffold(option="i"), ("control",)),
    "feddyn": (FedDyn(alpha=0.1), ("gradient",)),
    "feddc": (FedDC(), ("drift", "control")),
}


@pytest.mark.parametrize("name", CASES)
def test_server_state_is_the_mean_of_client_states_under_a_lossy_codec(name: str, tmp_path: Path) -> None:
    algorithm, keys = CASES[name]
    # uniform, since FedDyn's mean is of r_k·h_k
    given = experiment(algorithm, "vectorized", codec=LOSSY, clients_per_round=4, rounds=4, weighting="uniform")
    run(given, tmp_path)
    snapshot, store = Run(tmp_path).snapshot(), FileClientStore(tmp_path / "client_states")
    memories = [store.get(snapshot.client_state(k)) for k in range(len(SIZES))]
    assert sum(bool(memory) for memory in memories) > 4  # not the same four each time
    for key in keys:
        for tensor, server in snapshot.server.state[key].items():
            kept = [m[f"algorithm:{key}"][tensor] for m in memories if m]
            assert_close(torch.stack(kept).sum(0) / len(SIZES), server, atol=1e-6, rtol=1e-4)
