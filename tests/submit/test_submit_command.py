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


def test_options_of_the_run_are_passed_on_or_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = ["--to", "ray://head", "--out", "/shared/a", "--dry-run"]
    code, out, _ = said(capsys, *to, "--workers", "4", "--profile")
    assert code == 0
    assert "small.yaml --out /shared/a --workers 4 --profile --address auto" in json.loads(out)["entrypoint"]
    code, _, error = said(capsys, *to, "--only", "a*")
    assert (code, error) == (
        2, "simfl: --only: has no effect on a run; it selects or places the runs of a sweep\n"
    )  # fmt: skip
    assert said(capsys, *to, "--workers", "0")[2] == (
        "simfl: --workers: '0' is not a whole number of at least 1 or auto\n"
    )


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
        ((), "simfl: --to: missing; give ray://HOST, http://HOST:8265, auto, slurm, kuberay\n"),
        (("--to", "slurm", "--time", "1"), "simfl: --time: 1 is too short; give at least 2 minutes: Slurm signals"),
        (("--to", "slurm", "--time", "soon"), "simfl: --time: 'soon' given; allowed: MINUTES, HOURS:MINUTES:SECONDS"),
        (("--to", "slurm", "--min-nodes", "3"), "simfl: --min-nodes: 3 is more than nodes, 1"),
        (("--to", "kuberay", "--label", "team"), "simfl: --label: 'team' given; allowed: KEY=VALUE"),
        (("--to", "kuberay", "--toleration", "a=b=c"), "simfl: --toleration: 'a=b=c' given; allowed: KEY[=VALUE]"),
        (("--to", "kuberay", "--memory", "8 GB"), "simfl: --memory: '8 GB' given; allowed: a quantity of Kubernetes"),
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


def test_a_profile_file_gives_the_options_and_the_command_line_precedes_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "team.yaml").write_text(
        "cluster:\n  to: slurm\n  nodes: 4\n  time: 2:00:00\n  interface: ib0\n  setup: [module load cuda]\n"
        "  sbatch: [partition=gpu]\n"
    )
    code, out, _ = said(capsys, "--cluster", "team.yaml", "--nodes", "2", "--dry-run")
    assert code == 0
    for line in ("#SBATCH --nodes=2", "#SBATCH --time=2:00:00", "#SBATCH --partition=gpu", "module load cuda"):
        assert line in out.splitlines()
    assert "interface=ib0" in out
    (folder / "pods.yaml").write_text(
        "cluster:\n  to: kuberay\n  image: simfl:1\n  claim: a=/shared\n  labels: {kueue.x-k8s.io/queue-name: fl}\n"
    )
    code, out, _ = said(capsys, "--cluster", "pods.yaml", "--out", "/shared/a", "--label", "team=fl", "--dry-run")
    labels = json.loads(out)["items"][1]["metadata"]["labels"]
    assert labels == {"app.kubernetes.io/managed-by": "simfl", "team": "fl"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("clusters: {to: slurm}", "simfl: team.yaml: holds no mapping with the key 'cluster'"),
        ("cluster: {to: slurm}\nnodes: 2", "simfl: team.yaml: unknown key 'nodes'"),
        ("cluster: {nodes: 2}", "simfl: --to: missing; give ray://HOST"),
        ("cluster: {to: slurn}", "simfl: --to: unknown 'slurn'"),
        (
            "cluster: {to: slurm, node: 2}",
            "simfl: team.yaml: cluster.node: slurm has no key 'node' (given 2); did you mean 'nodes'",
        ),
        ("cluster: {to: slurm, nodes: 0}", "simfl: team.yaml: cluster.nodes: 0 is not a whole number of at least 1"),
        ("cluster: {to: slurm, time: '1:30'}", "simfl: team.yaml: cluster.time: 1:30 is too short; give at least 2"),
        ("cluster: {to: slurm, min_nodes: 3}", "simfl: team.yaml: cluster.min_nodes: 3 is more than nodes, 1"),
        ("cluster: {to: slurm, array: 2}", "simfl: --array: needs a sweep"),
        ("cluster: {to: kuberay, memory: 8 GB}", "simfl: team.yaml: cluster.memory: '8 GB' given; allowed: a quantity"),
    ],
)
def test_mistakes_in_a_profile_are_reported_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, line: str
) -> None:
    (folder / "team.yaml").write_text(text + "\n")
    code, out, err = said(capsys, "--cluster", "team.yaml", "--dry-run")
    assert (code, out) == (2, "")
    assert err.startswith(line)
    assert err.count("\n") == 1
