"""Jobs are read, checked and packaged before anything is sent."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from simfl.errors import ConfigError
from simfl.submit.execution import ExecutionOptions
from simfl.submit.package import gather
from simfl.submit.request import check_out, read, values

RUN = """
name: small
seed: 1
data: digits
partition: {by: iid, clients: 3}
model: {name: mlp, hidden_sizes: [4]}
phases:
  - objective: classification
    algorithm: fedavg
    rounds: 1
    participation: 1.0
    local: {epochs: 1, batch_size: 8, optimizer: sgd, learning_rate: 0.1}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(RUN)
    (tmp_path / "many.yaml").write_text("experiment: small.yaml\nseeds: [1, 2]\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "idea.py").write_text("x = 1\n")
    return tmp_path


def test_an_experiment_becomes_a_run_and_a_sweep_file_a_sweep(folder: Path) -> None:
    run = read(folder / "small.yaml", folder, "/out")
    assert (run.name, run.arguments) == ("small", ["run", "small.yaml", "--out", "/out"])
    swept = read(folder / "many.yaml", folder, "/out", ["rounds=2"], resume=True)
    assert (swept.name, swept.command) == ("many", "sweep")
    assert swept.command_line == "python -m simfl sweep many.yaml --out /out --resume --set rounds=2 --address auto"


def test_options_of_the_sweep_are_passed_on(folder: Path) -> None:
    given = ExecutionOptions("3", ("seed-2",), gpus_per_run=0.5, trace=True)
    swept = read(folder / "many.yaml", folder, "/out", execution=given)
    passed = "--workers 3 --gpus-per-run 0.5 --only seed-2 --profile"
    assert swept.command_line == f"python -m simfl sweep many.yaml --out /out {passed} --address auto"
    assert swept.labels == ("seed-2",)
    run = read(folder / "small.yaml", folder, "/out", execution=ExecutionOptions("2", trace=True))
    assert run.arguments[4:] == ["--workers", "2", "--profile"]
    with pytest.raises(ConfigError, match=r"--only seed-3: no run has this name; did you mean 'seed-"):
        read(folder / "many.yaml", folder, "/out", execution=ExecutionOptions(only=("seed-3",)))
    with pytest.raises(ConfigError, match="--cpus-per-run: has no effect on a run"):
        read(folder / "small.yaml", folder, "/out", execution=ExecutionOptions(cpus_per_run=2))


def test_a_search_is_sent_with_the_data_of_its_trials(folder: Path) -> None:
    space = "{seed: {int: [1, 3]}}"
    (folder / "find.yaml").write_text(f"experiment: small.yaml\nsearch: {{trials: 2, metric: loss, space: {space}}}\n")
    swept = read(folder / "find.yaml", folder, "/out", execution=ExecutionOptions("2"))
    assert (swept.command, swept.labels, swept.is_search) == ("sweep", ("trial-0000", "trial-0001"), True)


def test_a_wrong_experiment_is_refused_before_submission(folder: Path) -> None:
    with pytest.raises(ConfigError, match="unknown 'fedprx'; did you mean 'fedprox'"):
        read(folder / "small.yaml", folder, "/out", ["phases.0.algorithm=fedprx"])


def test_a_file_outside_the_working_directory_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"small.yaml: is not in the working directory .*mine; give --working-dir"):
        read(folder / "small.yaml", folder / "mine", "/out")


def test_the_base_of_an_experiment_must_be_sent(folder: Path) -> None:
    (folder / "named.yaml").write_text("experiment: small.yaml\nname: named\nrounds: 2\n")
    assert "small.yaml" in read(folder / "named.yaml", folder, "/out").package.files
    with pytest.raises(ConfigError, match=r"small.yaml: is not sent"):
        read(folder / "named.yaml", folder, "/out", exclude=["small.yaml"])
    (folder / "mine" / "far.yaml").write_text("experiment: ../small.yaml\nname: far\n")
    with pytest.raises(ConfigError, match=r"small.yaml: is not in the working directory .*mine; give --working-dir"):
        read(folder / "mine" / "far.yaml", folder / "mine", "/out")


@pytest.mark.parametrize(
    "sweep",
    [
        "experiment: small.yaml\nvariants: [named.yaml]\n",
        "experiment: small.yaml\ngrid: {size: {one: named.yaml}}\n",
        "experiments: [named.yaml]\nseeds: [1]\n",
    ],
)
def test_every_file_of_a_sweep_must_be_sent(folder: Path, sweep: str) -> None:
    """Bases of these files are sent too."""
    (folder / "named.yaml").write_text("experiment: last.yaml\nname: named\nrounds: 2\n")
    (folder / "last.yaml").write_text("experiment: small.yaml\nlocal.batch_size: 3\n")
    (folder / "s.yaml").write_text(sweep)
    assert {"named.yaml", "last.yaml", "small.yaml"} < read(folder / "s.yaml", folder, "/out").package.files.keys()
    for name in ("named.yaml", "last.yaml"):
        with pytest.raises(ConfigError, match=f"{name}: is not sent"):
            read(folder / "s.yaml", folder, "/out", exclude=[name])


def test_a_variant_outside_the_working_directory_is_refused(folder: Path) -> None:
    (folder / "prox.yaml").write_text("algorithm: fedprox\n")
    (folder / "mine" / "base.yaml").write_text(RUN)
    (folder / "mine" / "s.yaml").write_text("experiment: base.yaml\nvariants: [../prox.yaml]\n")
    with pytest.raises(ConfigError, match=r"prox.yaml: is not in the working directory .*mine; give --working-dir"):
        read(folder / "mine" / "s.yaml", folder / "mine", "/out")


def test_an_experiment_file_given_by_an_override_must_be_sent(folder: Path) -> None:
    (folder / "other.yaml").write_text(RUN)
    given = ["experiment=other.yaml"]
    assert read(folder / "many.yaml", folder, "/out", given, exclude=["small.yaml"]).overrides == tuple(given)
    with pytest.raises(ConfigError, match=r"other.yaml: is not sent"):
        read(folder / "many.yaml", folder, "/out", given, exclude=["other.yaml"])


def test_an_excluded_experiment_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="is not sent"):
        read(folder / "small.yaml", folder, "/out", exclude=["small.*"])


def test_absolute_paths_are_required_on_the_cluster(folder: Path) -> None:
    request = read(folder / "small.yaml", folder, "/out", ["data={name: image_folder, path: /data/pictures}"])
    assert request.required_paths == ("/data/pictures",)


def test_a_relative_path_must_be_sent(folder: Path) -> None:
    (folder / "pictures").mkdir()
    (folder / "pictures" / "one.png").write_bytes(b"1")
    given = ["data={name: image_folder, path: pictures}"]
    assert read(folder / "small.yaml", folder, "/out", given).required_paths == ()
    with pytest.raises(ConfigError, match="pictures: is not sent; give an absolute path"):
        read(folder / "small.yaml", folder, "/out", given, exclude=["pictures"])


def test_environment_variables_are_given_by_name_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="--env: 'KEY' is not the name") as failed:
        read(folder / "small.yaml", folder, "/out", environment=["KEY=secret"])
    assert "secret" not in str(failed.value)
    monkeypatch.delenv("ABSENT", raising=False)
    with pytest.raises(ConfigError, match="--env: ABSENT is not set"):
        values(["ABSENT"])


@pytest.mark.parametrize(("out", "line"), [("", "--out: needed"), ("runs/a", "'runs/a' is in the folder of the job")])
def test_the_output_folder_must_persist_after_the_job(folder: Path, out: str, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        check_out(read(folder / "small.yaml", folder, out), "kuberay")
    check_out(read(folder / "small.yaml", folder, "s3://bucket/a"), "kuberay")


def test_runs_caches_and_excluded_files_are_not_sent(folder: Path) -> None:
    for name in ("runs/a/model.bin", ".venv/lib.py", "mine/__pycache__/idea.pyc", "notes/big.bin", "notes/small.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"123")
    found = gather(folder, ["*.bin"])
    assert sorted(found.files) == ["many.yaml", "mine/idea.py", "notes/small.txt", "small.yaml"]
    assert found.files["notes/small.txt"] == 3


def test_files_ignored_by_git_are_not_sent(folder: Path) -> None:
    (folder / ".gitignore").write_text("secret.txt\n")
    (folder / "secret.txt").write_text("x")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    assert "secret.txt" not in gather(folder).files
    assert "small.yaml" in gather(folder).files


def test_a_too_large_package_is_refused_with_its_largest_files(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(bytes(3_000_000))
    with pytest.raises(ConfigError, match=r"3 MB; allowed: 1 MB; the largest files are weights.bin \(3 MB\)"):
        gather(folder, max_bytes=1_000_000)


def test_a_package_is_copied_with_its_folders(folder: Path, tmp_path: Path) -> None:
    gather(folder).copy(tmp_path / "there")
    assert (tmp_path / "there" / "mine" / "idea.py").read_text() == "x = 1\n"
