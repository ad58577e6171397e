"""`simfl submit`: refused options, and dry runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_request import RUN

from simfl.cli import main
from simfl.submit.ray_job import address_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "small.yaml").write_text(RUN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["submit", "small.yaml", *words])
    found = capsys.readouterr()
    return code, found.out, found.err


def test_a_dry_run_prints_the_ray_job(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "very-secret")
    code, out, _ = said(
        capsys, "--to", "ray://head", "--out", "/shared/a", "--set", "phases.0.rounds=2", "--env", "WANDB_API_KEY",
        "--dry-run",
    )  # fmt: skip
    shown = json.loads(out)
    assert code == 0
    assert shown["address"] == "http://head:8265"
    assert shown["entrypoint"] == (
        "python -m simfl run small.yaml --out /shared/a --set phases.0.rounds=2 --address auto"
    )
    assert shown["runtime_env"]["working_dir"] == ["small.yaml"]
    assert "very-secret" not in out


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("ray://head", "http://head:8265"),
        ("ray://head:10001", "http://head:8265"),  # Ray Client's port, by default
        ("ray://head:1234", "http://head:1234"),
        ("http://head:1234", "http://head:1234"),
        ("https://head", "https://head"),
        ("auto", "auto"),
    ],
)
def test_jobs_are_sent_to_the_dashboard(given: str, address: str) -> None:
    assert address_of(given) == address


def test_a_dry_run_prints_the_manifest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--to", "kuberay", "--image", "simfl:1", "--claim", "a=/shared", "--out", "/shared/a", "--dry-run")
    code, out, _ = said(capsys, *words, "--gpus", "2", "--no-token")
    assert code == 0
    assert [item["kind"] for item in json.loads(out)["items"]] == ["ConfigMap", "RayJob"]
    assert "authOptions" not in out


def test_a_dry_run_prints_the_sbatch_script(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "--to", "slurm", "--nodes", "3", "--dry-run")
    assert code == 0
    assert "#SBATCH --nodes=3" in out
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("--to", "slurn"),
            "simfl: --to: unknown 'slurn'; allowed: ray://HOST, http://HOST:8265, auto, slurm, kuberay\n",
        ),
        (("--to", "slurm", "--image", "a"), "simfl: --image: has no effect with --to slurm\n"),
        (("--to", "ray://head", "--nodes", "2"), "simfl: --nodes: has no effect with --to ray://head\n"),
        (("--to", "ray://head"), "simfl: --out: needed with --to ray://head: a folder of the cluster that persists"),
        (("--to", "slurm", "--resume"), "simfl: --out: needed with --resume: the folder of the run or sweep\n"),
        (("--to", "http://127.0.0.1:9", "--out", "/a"), "simfl: --to http://127.0.0.1:9: no Ray cluster accepts jobs"),
    ],
)
def test_wrong_submit_options_are_refused_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], line: str
) -> None:
    code, out, err = said(capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith(line)
    assert err.count("\n") == 1
