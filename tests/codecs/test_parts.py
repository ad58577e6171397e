"""A codec by part and direction, in a run: what travels how, what is remembered, and what cannot be meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import experiment, run, traces

from simfl import config, files
from simfl.client_state import FileClientStore
from simfl.codecs import CODECS
from simfl.codecs.int8 import Int8
from simfl.codecs.nf4 import Nf4
from simfl.codecs.sparse import RandomK, TopK
from simfl.codecs.svd import Svd
from simfl.config.rules import check
from simfl.errors import ConfigError
from simfl.experiment import Codecs, PartCodecs
from simfl.models.mlp import Mlp
from simfl.run_context import RunContext
from simfl.runs import tables
from simfl.runs.results import Run
from simfl.transport.upload import send_uploads

VALUES = 12 * 16 + 16 + 16 * 5 + 5  # of the model


def sizes(folder: Path) -> dict[tuple[str, str], set[int]]:
    """Payloads by direction and part."""
    found: dict[tuple[str, str], set[int]] = {}
    for row in tables.read(folder / "ledger.parquet").to_pylist():
        found.setdefault((row["direction"], row["part"]), set()).add(row["payload_bytes"])
    return found


def test_each_part_has_its_own_codec_per_direction(tmp_path: Path) -> None:
    codec = Codecs(upload=Int8(), parts={"control": PartCodecs(download=Int8(encode="weights"))})
    run(experiment("scaffold", codec=codec, rounds=2), tmp_path)
    whole, bytes_ = 4 * VALUES, VALUES + 4 * 4  # four tensors, a scale each
    assert sizes(tmp_path) == {
        ("download", "weights"): {whole},
        ("download", "control"): {bytes_},
        ("upload", "weights"): {bytes_},
        ("upload", "control"): {bytes_},
    }


def test_one_part_sends_deltas_and_another_whole_weights(tmp_path: Path) -> None:
    codec = Codecs(parts={"control": PartCodecs(download=Int8())})
    run(experiment("scaffold", codec=codec, rounds=3, participation=1.0), tmp_path)
    found = sizes(tmp_path)
    assert found["download", "weights"] == {4 * VALUES}
    assert found["download", "control"] == {
        4 * VALUES,
        VALUES + 4 * 4,
    }  # weights first, then deltas


YAML = {
    "name": "parts",
    "data": "digits",
    "partition": {"by": "iid", "clients": 4},
    "model": "mlp",
    "phases": [
        {
            "objective": "classification",
            "algorithm": "scaffold",
            "rounds": 1,
            "participation": 1.0,
            "local": {"optimizer": "sgd", "learning_rate": 0.1},
            "codec": {"upload": "nf4", "parts": {"control": {"upload": {"name": "int8", "per": "channel"}}}},
        }
    ],
}


def test_yaml_names_codecs_by_part() -> None:
    phase = config.parse(YAML).phases[0]
    assert (phase.codec.of_part("upload", "weights"), phase.codec.of_part("upload", "control")) == (
        Nf4(),
        Int8(per="channel"),
    )
    assert phase.codec.of_part("download", "control") == Codecs().download


@pytest.mark.parametrize(
    ("codec", "expected"),
    [
        (
            Codecs(parts={"controls": PartCodecs(upload=Nf4())}),
            "codec.parts.controls.upload: no such part; did you mean",
        ),
        (Codecs(download=Nf4(error_feedback=True)), "codec.download.error_feedback: has no effect on downloads"),
        (Codecs(parts={"buffers": PartCodecs(download=Nf4())}), "codec.parts.buffers.download: no such part"),
    ],
)
def test_codecs_without_effect_are_refused(codec: Codecs, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(experiment("scaffold", codec=codec))
    assert str(caught.value).startswith(f"phases.0.{expected}")


LOSSY = sorted(name for name, kind in CODECS.items() if not kind.lossless)


@pytest.mark.parametrize("name", LOSSY)
def test_error_feedback_keeps_the_encoding_error_of_any_lossy_codec(name: str, tmp_path: Path) -> None:
    """What a client sent in all is what it meant to send, but for what it still remembers."""
    given = experiment(codec=Codecs(upload=CODECS[name](error_feedback=True)))
    spec = RunContext(given, files.cache_folder()).phase_context(0, 10).messages
    generator = torch.Generator().manual_seed(0)
    meant = [
        {"a": torch.randn(20, 9, generator=generator), "b": torch.randn((), generator=generator)} for _ in range(6)
    ]
    total = {"a": torch.zeros(20, 9), "b": torch.zeros(())}
    memory: dict[str, dict[str, torch.Tensor]] = {}
    for number, upload in enumerate(meant):
        stacked = {"weights": {key: t[None] for key, t in upload.items()}}
        sent, (lost,), _ = send_uploads(spec, number, [3], stacked, {"weights": {}}, [memory])
        memory = {"codec:weights": lost["weights"]}
        total = {key: total[key] + sent["weights"][key][0] for key in total}
    for key, value in total.items():
        rest = memory["codec:weights"][key]
        torch.testing.assert_close(value + rest, sum(upload[key] for upload in meant), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("codec", [RandomK(error_feedback=True), Int8(rounding="stochastic"), Svd(compress="zstd")])
def test_a_cohort_sends_the_bytes_of_its_clients_one_by_one(codec: Any, tmp_path: Path) -> None:
    """In the way `vectorized` the uploads of a cohort are encoded together."""
    spec = RunContext(experiment(codec=Codecs(upload=codec)), files.cache_folder()).phase_context(0, 10).messages
    generator = torch.Generator().manual_seed(0)
    uploads = torch.randn(5, 20, 9, generator=generator)
    memories = [{"codec:weights": {"a": torch.ones(20, 9) * k}} for k in range(5)]
    together, lost_together, rows_together = send_uploads(
        spec, 1, list(range(5)), {"weights": {"a": uploads}}, {"weights": {}}, memories
    )
    for k in range(5):
        own = {"weights": {"a": uploads[k : k + 1]}}
        sent, (lost,), (rows,) = send_uploads(spec, 1, [k], own, {"weights": {}}, [memories[k]])
        assert torch.equal(sent["weights"]["a"][0], together["weights"]["a"][k])
        assert rows == rows_together[k]
        assert lost.keys() == lost_together[k].keys()


@pytest.mark.parametrize("mode", ["sequential", "vectorized"])
def test_runs_with_random_codecs_are_bit_identical_for_any_cohorts(mode: str, tmp_path: Path) -> None:
    codec = Codecs(download=Int8(rounding="stochastic"), upload=RandomK(error_feedback=True))
    case = experiment(mode=mode, codec=codec, rounds=2, model=Mlp(hidden_sizes=(16,)))
    run(case, tmp_path / "a")
    run(case, tmp_path / "b")
    assert traces(tmp_path / "a") == traces(tmp_path / "b")
    kept = Run(tmp_path / "a").snapshot()
    store = FileClientStore(tmp_path / "a" / "client_states")
    assert any("codec:weights" in store.get(kept.client_state(k)) for k in range(10))


def test_topk_without_parts_is_unchanged(tmp_path: Path) -> None:
    """All values kept: the model of a plain run."""
    plain = run(experiment(rounds=2), tmp_path / "plain")
    kept = run(experiment(rounds=2, codec=Codecs(upload=TopK(keep=1.0))), tmp_path / "kept")
    assert plain["weights_sha256"] == kept["weights_sha256"]
