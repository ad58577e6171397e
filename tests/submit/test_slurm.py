"""The sbatch script, and its execution with fake Slurm commands on one machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import shim
from test_request import RUN

from simfl.errors import ConfigError
from simfl.submit.request import read
from simfl.submit.slurm import Queue, Slurm


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(RUN)
    return tmp_path


def options(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")]


def test_the_script_contains_the_options_of_sbatch(folder: Path) -> None:
    request = read(folder / "small.yaml", folder, "/shared/a")
    found = options(
        Slurm(nodes=2, cpus=8, gpus=4, time="1:00:00", sbatch=("--partition=gpu", "qos=low")).shown(request)
    )
    assert {"--job-name=small", "--nodes=2", "--cpus-per-task=8", "--gpus-per-node=4", "--time=1:00:00"} <= set(found)
    assert found[-2:] == ["--partition=gpu", "--qos=low"]
    assert f"--chdir={folder}" in found
    assert "--output=/shared/a/slurm-%j.log" in found


def test_the_script_is_valid_bash(folder: Path) -> None:
    request = read(folder / "small.yaml", folder, "/shared/it's", ["phases.0.rounds=2", "data={name: digits}"])
    script = Slurm().shown(request)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    words = "run small.yaml --out '/shared/it'\"'\"'s' --set phases.0.rounds=2 --set 'data={name: digits}'"
    assert f"arguments=({words})\n" in script


def test_a_slurm_job_writes_to_the_first_free_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    script = Slurm().shown(read(Path("small.yaml"), Path(), None))
    assert f"--output={folder}/runs/small/slurm-%j.log" in options(script)
    assert f"arguments=(run small.yaml --out {Path().resolve()}/runs/small)" in script


def test_the_script_checks_variables_without_their_values(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "very-secret")
    script = Slurm().shown(read(folder / "small.yaml", folder, "/a", environment=["WANDB_API_KEY"]))
    assert "very-secret" not in script
    assert ': "${WANDB_API_KEY:?is not set}"' in script


def test_missing_sbatch_is_reported_in_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(ConfigError, match="--to slurm: sbatch is not installed; submit from a login node"):
        Slurm().submit(read(folder / "small.yaml", folder, str(folder / "a")), print, follow=False)


def test_an_error_of_sbatch_is_reported_in_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = shim.lay(folder)
    (folder / "sbatch").write_text("#!/bin/bash\necho 'sbatch: error: invalid partition: gpu' >&2; exit 1\n")
    monkeypatch.setenv("PATH", environment["PATH"])
    with pytest.raises(ConfigError, match="--to slurm: sbatch failed: sbatch: error: invalid partition: gpu"):
        Slurm().submit(read(folder / "small.yaml", folder, str(folder / "a")), print, follow=False)


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_slurm_job_starts_ray_on_two_nodes_and_stops_it(tmp_path: Path) -> None:
    commands, work = tmp_path / "bin", tmp_path / "work"
    commands.mkdir()
    work.mkdir()
    (work / "small.yaml").write_text(RUN)
    words = ["submit", "small.yaml", "--to", "slurm", "--nodes", "2", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-m", "simfl", *words], cwd=work, env={**os.environ, **shim.lay(commands)},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("simfl: exit code 0")
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["status"] == "completed"
    assert "--exclude=node0" in (commands / "srun").read_text()
    started = next(
        json.loads(line)
        for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()
        if json.loads(line)["event"] == "started"
    )
    assert started["workers"] >= 1
    job = next(commands.glob("pid.*")).name.partition(".")[2]
    assert not list(Path("/tmp").glob(f"ray-*-{job}"))


def test_a_failed_slurm_job_fails_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = shim.lay(tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "small.yaml").write_text(RUN)
    shorter = Slurm()
    (tmp_path / "script.sh").write_text("\necho 'simfl: exit code 2'\nexit 2\n")
    monkeypatch.setattr("simfl.submit.slurm.SCRIPT", tmp_path / "script.sh")
    monkeypatch.setattr("simfl.submit.slurm.POLL_SECONDS", 0.1)
    request = read(tmp_path / "small.yaml", tmp_path, str(tmp_path / "out"))
    assert shorter.submit(request, print, follow=True) == 2


def test_path_with_a_space_is_quoted_and_a_line_break_refused(folder: Path) -> None:
    found = options(Slurm().shown(read(folder / "small.yaml", folder, "/tmp/a b/r")))
    assert "--output='/tmp/a b/r/slurm-%j.log'" in found
    with pytest.raises(ConfigError, match="holds a line break"):
        Slurm(sbatch=("comment=a\nb",)).shown(read(folder / "small.yaml", folder, "/a"))


def fake_squeue(folder: Path, monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
    """Make squeue run one line of bash after the other, the last one for ever."""
    lines = "\n".join(f"  {number}) {line};;" for number, line in enumerate(answers))
    path, count = folder / "squeue", folder / "count"
    count.write_text("0")
    path.write_text(
        f"#!/bin/bash\nn=$(cat {count}); echo $((n<{len(answers) - 1}?n+1:n)) > {count}\ncase $n in\n{lines}\nesac\n"
    )
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_failing_squeue_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail, gone = (
        "echo 'slurm_load_jobs error: Socket timed out' >&2; exit 1",
        "echo 'Invalid job id specified' >&2; exit 1",
    )
    running, completing = "echo '7|RUNNING|None'", "echo '7|COMPLETING|None'"
    fake_squeue(tmp_path, monkeypatch, fail, fail, running, fail, completing, gone)
    queue = Queue("7")
    assert [queue.has_ended() for _ in range(6)] == [False] * 5 + [True]
    assert queue.news() == ["Slurm job 7: running", "Slurm job 7: completing"]


def test_a_job_that_slurm_restarts_has_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["RUNNING|None", "PREEMPTED|None", "PENDING|BeginTime", "RUNNING|None", "COMPLETED|None"]
    fake_squeue(tmp_path, monkeypatch, *(f"echo '7|{answer}'" for answer in answers))
    queue = Queue("7")
    assert [queue.has_ended() for _ in range(6)] == [False] * 5 + [True]
    assert "Slurm job 7: pending (BeginTime)" in queue.news()


def test_an_array_ends_with_its_last_element(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, both = (
        "echo '7_0|COMPLETED|None'; echo '7_1|RUNNING|None'",
        "echo '7_0|COMPLETED|None'; echo '7_1|FAILED|None'",
    )
    fake_squeue(tmp_path, monkeypatch, one, one, both)
    queue = Queue("7")
    assert [queue.has_ended() for _ in range(4)] == [False, False, False, True]


def test_squeue_that_keeps_failing_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simfl.submit.slurm.MAX_FAILURES", 1)
    fake_squeue(tmp_path, monkeypatch, "echo 'Unable to contact slurm controller' >&2; exit 1")
    queue = Queue("7")
    assert not queue.has_ended()
    with pytest.raises(
        ConfigError, match=r"squeue fails \(Unable to contact slurm controller\); Slurm job 7 may still"
    ):
        queue.has_ended()
