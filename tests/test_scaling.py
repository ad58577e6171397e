"""Tables of rounds over nodes and over GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import scaling
from benchmarks.scaling_tables import gpus_table, nodes_table


@pytest.fixture(autouse=True)
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scaling.json").write_text("[]")
    monkeypatch.setattr(scaling, "LATEST", tmp_path / "scaling.json")


def node_row(turn: int, nodes: list[int], seconds: float, state: str = "s") -> dict[str, Any]:
    """Return a row of three rounds that do not count, and two that do."""
    return {
        "kind": "nodes", "work": "W2", "turn": turn, "nodes": nodes, "rounds": 5, "state_sha256": state,
        "seconds": [9.0, 9.0, 9.0, seconds, seconds], "seconds_per_round": seconds,
    }  # fmt: skip


def test_one_and_two_nodes_are_compared_within_a_turn() -> None:
    """1 and 2 s on one node, 2 and 2 s on two: medians 1.5 and 2, ratio 4/3; the third turn is incomplete."""
    rows = [node_row(0, [2], 1.0), node_row(0, [1, 1], 2.0), node_row(1, [2], 2.0), node_row(1, [1, 1], 2.0)]
    assert "| W2 | 2 | 5 | 1.500 | 2.000 | 1.33 | 2.00, 1.00 | yes |" in nodes_table([*rows, node_row(2, [2], 9.0)], "")
    assert "| 1.00 | NO |" in nodes_table([node_row(0, [2], 1.0), node_row(0, [1, 1], 1.0, "other")], "")


def test_gpus_are_compared_with_one_gpu_and_deterministic_with_not_deterministic() -> None:
    def row(gpus: int, deterministic: bool, seconds: float, state: str) -> dict[str, Any]:
        return {
            "kind": "gpus", "work": "femnist", "workers": gpus, "deterministic": deterministic,
            "seconds_per_round": seconds, "clients_per_second": 1000 / seconds, "calls_share": 0.9, "work_share": 0.8,
            "gpu_use": None, "state_sha256": state, "device": "a card",
        }  # fmt: skip

    text = gpus_table([row(1, True, 0.5, "a"), row(2, True, 0.25, "a"), row(1, False, 0.25, "b")], "")
    assert "| femnist | true | 1 | 0.500 | 2000 |  | 2.00 | 10% | 80% |  |  |" in text
    assert "| femnist | true | 2 | 0.250 | 4000 | 2.00 |  | 10% | 80% |  | yes |" in text
