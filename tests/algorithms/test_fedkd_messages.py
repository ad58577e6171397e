"""FedKD as published: low-rank deltas in both directions, with more energy from round to round."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import experiment, model, run, traces
from torch.testing import assert_close

from simfl.codecs.svd import Svd
from simfl.config.fields import read
from simfl.experiment import Codecs, Experiment
from simfl.models.mlp import Mlp
from simfl.runs import tables

SHAPES = ((32, 12), (24, 32), (5, 24))  # of the model's matrices
BIASES = 4 * (32 + 24 + 5)
WHOLE = 4 * sum(p * q for p, q in SHAPES) + BIASES
POSSIBLE = {  # of the bytes of each matrix: rank and factors, or the matrix where that is shorter
    shape: {min(4 + 4 * r * (sum(shape) + 1), 4 + 4 * shape[0] * shape[1]) for r in range(min(shape) + 1)}
    for shape in SHAPES
}


def case(codec: Codecs, mode: str = "vectorized") -> Experiment:
    return experiment("fedkd", mode, codec=codec, rounds=4, participation=1.0, model=Mlp(hidden_sizes=(32, 24)))


def sent(folder: Path) -> dict[tuple[str, int], set[int]]:
    """Payloads by direction and round."""
    found: dict[tuple[str, int], set[int]] = {}
    for row in tables.read(folder / "ledger.parquet").to_pylist():
        found.setdefault((row["direction"], row["round"]), set()).add(row["payload_bytes"])
    return found


@pytest.mark.parametrize("mode", ["sequential", "vectorized"])
def test_fedkd_sends_low_ranks_in_both_directions_after_the_first_download(mode: str, tmp_path: Path) -> None:
    codec = Codecs(download=Svd(energy=0.8, final_energy=0.9), upload=Svd(energy=0.8, final_energy=0.9))
    run(case(codec, mode), tmp_path)
    found = sent(tmp_path)
    assert found["download", 1] == {WHOLE}
    sums = {BIASES + a + b + c for a in POSSIBLE[32, 12] for b in POSSIBLE[24, 32] for c in POSSIBLE[5, 24]}
    for round_number in (2, 3, 4):
        assert len(found["download", round_number]) == 1  # encoded once for all
    for payloads in found.values():
        assert payloads <= sums | {WHOLE}
    assert max(found["upload", 1]) < WHOLE


def test_fedkd_keeps_more_energy_in_later_rounds(tmp_path: Path) -> None:
    few = Codecs(upload=Svd(energy=0.5, final_energy=0.5))
    more = Codecs(upload=Svd(energy=0.5, final_energy=0.99))
    run(case(few), tmp_path / "few")
    run(case(more), tmp_path / "more")
    same, other = sent(tmp_path / "few"), sent(tmp_path / "more")
    assert same["upload", 1] == other["upload", 1]  # both begin with half of it
    assert sum(same["upload", 4]) < sum(other["upload", 4])


def test_fedkd_with_all_energy_is_fedkd_at_full_rank(tmp_path: Path) -> None:
    whole = Svd(energy=1.0, final_energy=1.0)
    run(case(Codecs()), tmp_path / "plain")
    run(case(Codecs(download=whole, upload=whole)), tmp_path / "svd")
    plain, low = model(tmp_path / "plain"), model(tmp_path / "svd")
    for name, tensor in plain.items():
        assert_close(low[name], tensor, atol=1e-4, rtol=1e-4)


def test_two_fedkd_runs_are_bit_identical(tmp_path: Path) -> None:
    codec = Codecs(download=Svd(), upload=Svd(error_feedback=True))
    for name in ("a", "b"):
        run(case(codec), tmp_path / name)
    assert traces(tmp_path / "a") == traces(tmp_path / "b")


def test_fedkd_settings_of_the_paper_in_yaml() -> None:
    text = {"upload": {"name": "svd", "energy": 0.95}, "download": {"name": "svd", "final_energy": 0.98}}
    assert read(Codecs, text, "codec") == Codecs(download=Svd(), upload=Svd())
