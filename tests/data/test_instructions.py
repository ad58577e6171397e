"""Instruction data: hub layouts of FlowerTune's data sets, and the tasks that a program writes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simfl.data.benchmarks.instruction_tasks import DOMAINS, InstructionTasks
from simfl.data.benchmarks.random_stream import RandomStream
from simfl.data.readers import instructions
from simfl.data.readers.instructions import Instructions
from simfl.errors import ConfigError, DataError

FLOWERTUNE = {
    "general": "vicgalle/alpaca-gpt4",
    "finance": "FinGPT/fingpt-sentiment-train",
    "medical": "medalpaca/medical_meadow_medical_flashcards",
    "code": "lucasmccabe-lmi/CodeAlpaca-20k",
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small copies of the four data sets in the files that their repositories have; `snapshot_download` finds them."""
    rows = [
        {"instruction": f"Name {i}.", "input": "" if i % 2 else f"of {i}", "output": f"It is {i}."} for i in range(60)
    ]
    for domain, name in FLOWERTUNE.items():
        (tmp_path / name / "data").mkdir(parents=True)
        (tmp_path / name / "dataset_infos.json").write_text("{}")
        if domain == "medical":  # one JSON list at the top
            path = tmp_path / name / "medical_meadow_wikidoc_medical_flashcards.json"
            path.write_text(json.dumps(rows))
        else:
            extra = [row | {"text": "###"} for row in rows] if domain == "general" else rows
            pq.write_table(
                pa.Table.from_pylist(extra), tmp_path / name / "data/train-00000-of-00001-6ef3991c06080e14.parquet"
            )

    def download(name: str, repo_type: str, allow_patterns: list[str]) -> str:
        assert repo_type == "dataset"
        return str(tmp_path / name)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    return tmp_path


def test_the_four_data_sets_of_flowertune_are_read_by_hub_id(hub):
    data = Instructions(FLOWERTUNE, test=0.2, valid=0.1).load(hub / "cache")
    sizes = data.card["examples"]
    assert set(sizes["train"]) == set(sizes["test"]) == set(FLOWERTUNE)
    for domain in FLOWERTUNE:
        assert sum(sizes[split].get(domain, 0) for split in sizes) == 60
    rows = [row for split in data.splits.values() for row in split.examples.to_pylist()]
    assert {row["question"] for row in rows} == {f"Name {i}." if i % 2 else f"Name {i}.\n\nof {i}" for i in range(60)}
    assert len({row["id"] for row in rows}) == 240
    again = Instructions(FLOWERTUNE, test=0.2, valid=0.1, limit=10).load(hub / "cache")
    kept = {row["id"] for split in again.splits.values() for row in split.examples.to_pylist()}
    assert len(kept) == 40
    assert kept < {row["id"] for row in rows}


def test_repeated_instructions_and_those_without_answer_are_dropped_and_counted(tmp_path):
    rows = [{"q": f"Name {i % 3}.", "a": "" if i == 2 else str(i)} for i in range(5)]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    columns = {"instruction": "q", "output": "a"}
    given = Instructions({"own": "own.jsonl"}, str(tmp_path), columns, valid=0.01, test=0.01)
    data = given.load(tmp_path / "cache")
    assert sum(map(len, data.splits.values())) == 2
    assert data.card["dropped"] == {"own: no answer": 1, "own: repeated instruction": 2}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parts": {"own": "no such"}}, "data.parts.own: 'no such' is no folder, file or hub id"),
        ({"parts": {}}, "data.parts: it is empty"),
        ({"columns": {"answer": "a"}}, "data.columns: unknown column 'answer'"),
        ({"columns": {"output": "answr"}}, "has no column 'answr'; did you mean 'answer'"),
        ({"valid": 0.5, "test": 0.5}, "leave nothing to train on"),
    ],
)
def test_unfit_settings_are_refused_in_one_line(tmp_path, settings, message):
    (tmp_path / "own.json").write_text(json.dumps([{"instruction": "Name it.", "answer": "x"}]))
    given = {"parts": {"own": str(tmp_path)}} | settings
    with pytest.raises(ConfigError) as found:
        Instructions(**given).load(tmp_path / "cache")
    assert message in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("content", ["[{", '[{"instruction": 3, "output": "x"}]', '{"instruction": "x"}'])
def test_damaged_files_are_refused_with_their_name(tmp_path, content):
    (tmp_path / "own.json").write_text(content)
    with pytest.raises(DataError, match=r"own\.json"):
        Instructions({"own": str(tmp_path)}).load(tmp_path / "cache")


def test_written_tasks_are_right_and_no_content_is_in_two_splits(tmp_path):
    data = InstructionTasks(train=40, valid=8, test=8, unseen=8).load(tmp_path)
    assert {name: len(split) for name, split in data.splits.items()} == {
        "train": 160,
        "valid": 32,
        "test": 32,
        "unseen": 32,
    }
    questions = [row["question"] for split in data.splits.values() for row in split.examples.to_pylist()]
    assert len(set(questions)) == len(questions)
    again = InstructionTasks(train=40, valid=8, test=8, unseen=8).load(tmp_path / "again")
    assert again.sha256 == data.sha256


def test_functions_of_the_code_tasks_do_what_their_instructions_say():
    values = [-7, -2, 0, 3, 8, 12, 30]
    random, checked = RandomStream("test", "code"), 0
    for _ in range(60):
        task = DOMAINS["code"](random)
        if "the even numbers" not in task.content or "squared" not in task.content:
            continue
        space: dict = {}
        exec(task.answer, space)
        squares = [x * x for x in values if x % 2 == 0]
        rules = {"sum": sum, "list": list, "largest": max, "smallest": min, "count": len}
        kind = task.content.split("the ")[1].split(" of")[0]
        assert space["f"](values) == rules[kind](squares)
        checked += 1
    assert checked


def test_the_module_says_where_its_data_come_from():
    for name in FLOWERTUNE.values():
        assert name in str(instructions.__doc__)
