"""The sbatch script, and the following of jobs, with fake commands; tests/clusters has those on a real Slurm."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import shim
from test_request import RUN

from simfl.errors import ConfigError
from simfl.submit.execution import ExecutionOptions
from simfl.submit.ray_node import address_of
from simfl.submit.request import read
from simfl.submit.slurm import Queue, Slurm, seconds_of


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
    running, completing = "echo 'RUNNING|7|None'", "echo 'COMPLETING|7|None'"
    fake_squeue(tmp_path, monkeypatch, fail, fail, running, fail, completing, gone)
    queue = Queue("7")
    assert [queue.has_ended() for _ in range(6)] == [False] * 5 + [True]
    assert queue.news() == ["Slurm job 7: running", "Slurm job 7: completing"]


def test_a_job_that_slurm_restarts_has_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["RUNNING|7|None", "PREEMPTED|7|None", "PENDING|7|BeginTime", "RUNNING|7|None", "COMPLETED|7|None"]
    fake_squeue(tmp_path, monkeypatch, *(f"echo '{answer}'" for answer in answers))
    queue = Queue("7")
    assert [queue.has_ended() for _ in range(6)] == [False] * 5 + [True]
    assert "Slurm job 7: pending (BeginTime)" in queue.news()


def test_an_array_ends_with_its_last_element(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, both = (
        "echo 'COMPLETED|7_0|None'; echo 'RUNNING|7_1|None'",
        "echo 'COMPLETED|7_0|None'; echo 'FAILED|7_1|None'",
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


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [("90", 5400), ("2:30", 150), ("1:00:00", 3600), ("2-0", 172800), ("1-2:03", 93780), ("1-2:03:04", 93784),
     ("UNLIMITED", None)],
)  # fmt: skip
def test_time_limits_are_read_as_sbatch_reads_them(limit: str, seconds: int | None) -> None:
    assert seconds_of(limit) == seconds


@pytest.mark.parametrize(("limit", "warning"), [(None, 120), ("1:00:00", 120), ("3:00", 60), ("2:00", 40)])
def test_the_signal_before_the_limit_leaves_time_to_train(folder: Path, limit: str | None, warning: int) -> None:
    script = Slurm(time=limit).shown(read(folder / "small.yaml", folder, "/a"))
    assert f"--signal=B:USR1@{warning}" in options(script)


def test_an_array_has_an_element_for_each_run(folder: Path) -> None:
    (folder / "many.yaml").write_text("experiment: small.yaml\nseeds: [1, 2, 3]\n")
    script = Slurm(array=2).shown(read(folder / "many.yaml", folder, "/shared/a"))
    assert {"--array=0-2%2", "--output=/shared/a/slurm-%A-%a.log"} <= set(options(script))
    assert "\nlabels=(seed-1 seed-2 seed-3)\n" in script
    assert "\narguments=(sweep many.yaml --out /shared/a --resume)\n" in script


def test_an_array_executes_the_selected_runs_and_no_search(folder: Path) -> None:
    (folder / "many.yaml").write_text("experiment: small.yaml\nseeds: [1, 2, 3]\n")
    given = ExecutionOptions(only=("seed-[13]",), trace=True)
    script = Slurm(array=2).shown(read(folder / "many.yaml", folder, "/shared/a", execution=given))
    assert "--array=0-1%2" in options(script)
    assert "\nlabels=(seed-1 seed-3)\n" in script
    assert "\narguments=(sweep many.yaml --out /shared/a --resume --profile)\n" in script
    with pytest.raises(ConfigError, match="--workers: has no effect with --array"):
        Slurm(array=2).shown(read(folder / "many.yaml", folder, "/shared/a", execution=ExecutionOptions("2")))
    (folder / "find.yaml").write_text(
        "experiment: small.yaml\nsearch: {trials: 2, metric: loss, space: {seed: {int: [1, 3]}}}\n"
    )
    with pytest.raises(ConfigError, match="--array: has no effect on a search"):
        Slurm(array=2).shown(read(folder / "find.yaml", folder, "/shared/a"))
    assert "sweep find.yaml" in Slurm().shown(read(folder / "find.yaml", folder, "/shared/a"))


def test_an_unknown_interface_is_refused_with_those_that_exist() -> None:
    assert address_of("lo") == "127.0.0.1"
    with pytest.raises(ConfigError, match=r"--interface: 'ib7' has no IPv4 address on .*; interfaces: .*lo"):
        address_of("ib7")
