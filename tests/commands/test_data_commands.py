"""`simfl data` and `simfl partition`, with small files and with the included specs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from PIL import Image

from simfl import files
from simfl.cli import main
from simfl.config import partitions
from simfl.data import DATA
from simfl.data.partition.manifest import Partition, manifest_sha256
from simfl.errors import DataError

SPECS = sorted((Path(__file__).parents[2] / "partitions").glob("*.yaml"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path) -> Path:
    """Return a folder with six images of two domains and three classes."""
    for domain in ("photo", "sketch"):
        for number, kind in enumerate(("cat", "dog", "owl")):
            path = tmp_path / "pictures" / domain / kind / "0.png"
            path.parent.mkdir(parents=True)
            Image.new("RGB", (8, 8), (number * 90, len(domain) * 30, 0)).save(path)
    return tmp_path / "pictures"


@pytest.fixture
def spec(folder, tmp_path) -> Path:
    data = f"{{name: image_folder, path: {folder}, layout: domain/class, image_size: 8}}"
    path = tmp_path / "specs" / "by_domain.yaml"
    path.parent.mkdir()
    path.write_text(f"name: by_domain\ndata: {data}\npartition: {{by: natural, column: domain}}\n")
    return path


def test_data_list_shows_every_data_set_and_its_required_settings(capsys):
    assert main(["data", "list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in DATA)
    assert main(["data", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["data"]}
    assert rows["due"]["required"] == ["path"]
    assert rows["gqa"]["published"]["train"] == 943000


PYTHON_DATA = """
from dataclasses import dataclass

from simfl.data.readers.image_folder import ImageFolder


def sound():
    return {"train": [{"x": [float(k), 1.0], "y": k % 2} for k in range(4)]}


def faulty():
    page = {"question": "?", "answers": "a", "words": ["a", None], "boxes": [[0, 0, 1, 1], [9, 9, 10, 10]]}
    return {"train": [{**page, "image": b"no image"}]}


@dataclass(frozen=True)
class Pictures(ImageFolder):
    "Pictures in folders."
"""


def test_data_check_reads_data_from_python_and_from_experiments(tmp_path, folder, capsys, monkeypatch):
    (tmp_path / "checked_data.py").write_text(PYTHON_DATA)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["data", "check", "checked_data:sound"]) == 0
    assert "no problem found" in capsys.readouterr().out
    arguments = ["--set", f"path={folder}", "--set", "layout=domain/class", "--set", "image_size=8"]
    assert main(["data", "check", "checked_data:Pictures", *arguments]) in (0, 1)
    assert "domains" in capsys.readouterr().out
    file = tmp_path / "e.yaml"
    file.write_text(
        "{name: e, data: {name: own, of: 'checked_data:sound'}, partition: {by: iid, clients: 2}, model: mlp, phases:"
        " [{objective: classification, rounds: 1, clients_per_round: 1, local: {optimizer: sgd, learning_rate: 1}}]}"
    )
    assert main(["data", "check", str(file)]) == 0
    assert not (tmp_path / "cache").exists()


def test_data_check_lists_all_faults_of_data_from_python(tmp_path, capsys, monkeypatch):
    (tmp_path / "checked_data.py").write_text(PYTHON_DATA)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["data", "check", "checked_data:faulty", "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    faults = {finding["message"]: finding["example"] for finding in findings if finding["is_error"]}
    assert set(faults) == {"words that are null", "boxes outside of the page", "images that cannot be read"}
    assert "word 1 (None) has the box [9, 9, 10, 10]" in faults["boxes outside of the page"]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (["nowhere"], "'nowhere' is no file or folder, no package.module:name, and no .yaml file of an exp"),
        (["nowhere", "--as", "image_folder"], "Path 'nowhere' does not exist."),
        (["os:nowhere"], "TARGET: os has no 'nowhere'"),
        (["..:a"], "TARGET: '..:a' is not package.module:name"),
    ],
)
def test_data_check_refuses_an_unknown_target_in_one_line(target, said, capsys):
    assert main(["data", "check", *target]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1


def test_data_check_counts_examples_and_finds_no_problem(folder, capsys):
    arguments = ["data", "check", str(folder), "--as", "image_folder", "--set", "layout=domain/class"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["split", "examples", "labels", "domains"]
    assert shown[1].split() == ["train", "6", "3", "2"]
    assert shown[-1] == "no problem found"


def test_data_check_reports_problems_with_exit_code_1(folder, capsys):
    twin = folder.parent / "split" / "train" / "cat" / "0.png"
    for part in ("train", "test"):
        path = folder.parent / "split" / part / "cat" / "0.png"
        path.parent.mkdir(parents=True)
        path.write_bytes((folder / "photo" / "cat" / "0.png").read_bytes())
    assert twin.is_file()
    assert (
        main(["data", "check", str(folder.parent / "split"), "--as", "image_folder", "--set", "layout=split/class"])
        == 1
    )
    assert "!  test   1      equal images also in train" in capsys.readouterr().out


def test_data_check_refuses_unknown_formats_and_broken_files_in_one_line(folder, capsys):
    assert main(["data", "check", str(folder), "--as", "image_foldr"]) == 2
    assert capsys.readouterr().err == "simfl: data: unknown 'image_foldr'; did you mean 'image_folder'?\n"
    (folder / "photo" / "cat" / "0.png").write_bytes(b"x")
    assert main(["data", "check", str(folder), "--as", "image_folder", "--set", "layout=domain/class"]) == 2
    assert "photo/cat/0.png: not a readable image" in capsys.readouterr().err


def test_data_build_stores_a_data_set_and_prints_its_card(tmp_path, capsys):
    assert main(["data", "build", "prototypes", "--set", "examples=20", "--set", "shape=[1, 2, 2]"]) == 0
    shown = capsys.readouterr().out
    assert "train  20" in shown
    assert "sha256  " in shown
    assert list((tmp_path / "cache").glob("prototypes-*"))


def test_partition_build_writes_the_same_manifest_each_time(spec, tmp_path, capsys):
    assert main(["partition", "build", str(spec)]) == 0
    first = spec.with_name("by_domain.json").read_bytes()
    assert "2 clients hold 6 of 6 examples" in capsys.readouterr().out
    assert main(["partition", "build", str(spec), "--out", str(tmp_path / "again.json")]) == 0
    assert (tmp_path / "again.json").read_bytes() == first
    body = json.loads(first)
    assert body["spec"]["by"] == "natural"
    assert body["spec"]["split"] == "train"
    assert manifest_sha256(first) == body["sha256"]
    assert len(Partition.read(first, body["data_sha256"])) == 2


def test_a_built_manifest_is_used_by_an_experiment(spec, folder):
    assert main(["partition", "build", str(spec)]) == 0
    manifest = {"by": "manifest", "path": str(spec.with_name("by_domain.json"))}
    spec.write_text(spec.read_text().replace("{by: natural, column: domain}", json.dumps(manifest)))
    built = partitions.build(partitions.load(spec), files.cache_folder())
    assert built.partition.sizes.tolist() == [3, 3]


def test_partition_show_prints_clients_and_a_summary(spec, capsys):
    assert main(["partition", "show", str(spec), "--of", "class"]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert shown[1] == ["0", "photo", "3", "0", "3", "1.58", "0.000"]
    assert ["entropy", "1.585"] in shown


def test_partition_show_compares_two_specs(spec, tmp_path, capsys):
    other = tmp_path / "specs" / "iid.yaml"
    other.write_text(
        spec.read_text().replace("by_domain", "iid").replace("{by: natural, column: domain}", "{by: iid, clients: 3}")
    )
    assert main(["partition", "show", "--compare", str(spec), str(other), "--json"]) == 0
    summaries = json.loads(capsys.readouterr().out)["partitions"]
    assert {name: numbers["clients"] for name, numbers in summaries.items()} == {"by_domain": 2, "iid": 3}
    assert main(["partition", "show", str(spec), "--compare", str(spec), str(other)]) == 2


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_partition_show_draws_a_figure(spec, tmp_path):
    assert main(["partition", "show", str(spec), "--png", str(tmp_path / "out" / "a.png")]) == 0
    assert Image.open(tmp_path / "out" / "a.png").size[0] > 300


def test_a_wrong_partition_spec_is_refused_in_one_line(spec, capsys):
    for line, message in (
        ("splt: train", "simfl: splt: a partition spec has no key 'splt' (given 'train'); did you mean 'split'?\n"),
        ("split: tain", "simfl: split: image_folder has no split 'tain'; did you mean 'train'?\n"),
        ("disjoint: {test: [id]}", "simfl: disjoint.test: the data has no such split; allowed: train\n"),
    ):
        broken = spec.with_name("broken.yaml")
        broken.write_text(f"{spec.read_text()}{line}\n")
        assert main(["partition", "build", str(broken)]) == 2
        assert capsys.readouterr().err == message


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_included_partition_spec_has_the_name_of_its_file(path):
    spec = partitions.load(path)
    assert spec.name == path.stem


@pytest.mark.parametrize("name", ["sroie_provider", "scene_text_source"])
def test_specs_of_real_data_assign_every_example(name, real_data, monkeypatch):
    monkeypatch.setenv("SIMFL_REAL_DATA", str(real_data))
    spec = partitions.load(next(path for path in SPECS if path.stem == name))
    built = partitions.build(spec, files.cache_folder())
    assert built.partition.sizes.min() > 0
    assert built.partition.sizes.sum() == len(built.split)


def test_a_leak_that_a_spec_forbids_stops_the_build(real_data, monkeypatch):
    monkeypatch.setenv("SIMFL_REAL_DATA", str(real_data))
    path = next(path for path in SPECS if path.stem == "scene_text_source")
    both = partitions.load(path, ["data.train=[IC13_test]", "data.test=[IC13_test_857]"])
    with pytest.raises(DataError, match=r"disjoint\.test: train and test share 8\d\d of content"):
        partitions.build(both, files.cache_folder())
