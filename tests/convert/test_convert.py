"""Training scripts that become experiments: ten usual shapes, of which none is executed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from simfl import config
from simfl.cli import main
from simfl.convert.convert import Conversion, convert
from simfl.convert.script import UNKNOWN, Script
from simfl.errors import ConfigError
from simfl.session.options import RunOptions
from simfl.simulation import run

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))
FACTS: dict[str, dict[str, Any]] = {  # of each script: values of the experiment by path
    "trainer_classification": {
        "model": {"name": "hf", "weights": "distilbert-base-uncased"},
        "data.path": {"train": "reviews_train.csv", "validation": "reviews_val.csv"},
        "data.columns": {"text": "review", "label": "label"},
        "local": {
            "epochs": 1, "batch_size": 32, "optimizer": {"name": "adamw", "weight_decay": 0.01}, "learning_rate": 2e-5,
            "clip_norm": 1.0, "schedule": {"name": "polynomial", "unit": "progress"},
        },
        "rounds": 4, "seed": 7, "left": "compute_metrics",
    },
    "trainer_lora": {
        "model.adapters": {
            "kind": "lora", "rank": 16, "alpha": 32, "dropout": 0.05, "targets": ["*q_proj", "*v_proj"],
        },
        "model.dtype": "bfloat16", "model.checkpointing": True, "local.steps": 200, "local.batch_size": 16,
        "objective": {"name": "chat", "prompt": "{question}", "answer": "answers"}, "left": "bf16=True",
    },
    "sft": {
        "model.base": "nf4", "data.path": "chats.jsonl", "tracking": {"wandb": {"project": "sft"}},
        "objective": {"name": "chat", "max_tokens": 256, "prompt": "{question}", "loss_on": "all"},
        "left": "all-linear",
    },
    "trainer_images": {
        "model": {"name": "vit", "weights": "google/vit-base-patch16-224"}, "data.path": "photos", "left": "fp16=True",
    },
    "loop_module": {
        "seed": 3, "rounds": 4, "local.batch_size": 20, "local.clip_norm": 2.0, "local.learning_rate": 0.1,
        "local.optimizer": {"name": "sgd", "momentum": 0.9, "weight_decay": 1e-4}, "left": "",
    },
    "loop_argparse": {"rounds": 5, "local.batch_size": 25, "local.learning_rate": 0.05, "left": ""},
    "torchvision_mnist": {"rounds": 14, "local.optimizer": "adadelta", "left": "label_smoothing"},
    "finetune_folder": {
        "data": {"name": "image_folder", "path": "flowers", "image_size": 96, "layout": "split/class"}, "rounds": 10,
        "left": "RandomHorizontalFlip",
    },
    "accelerate_loop": {
        "model.weights": "google/bert_uncased_L-2_H-128_A-2", "local.batch_size": 32, "rounds": 2,
        "data.columns": {"text": "sentence1", "label": "label"}, "left": "save_to_disk('data/glue')",
    },
    "regression": {"local.optimizer": {"name": "rmsprop", "alpha": 0.95}, "left": "MSELoss: no objective"},
}  # fmt: skip


def converted(name: str, folder: Path) -> tuple[Conversion, dict[str, Any]]:
    """Return the conversion of a script that is copied to a folder, and its experiment."""
    shutil.copy(Path(__file__).parent / "scripts" / f"{name}.py.txt", folder / f"{name}.py")
    found = convert(folder / f"{name}.py")
    file = folder / f"{name}.yaml"
    file.write_text(found.files[file])
    config.load(file)
    experiment: Any = config.read_yaml(file)
    return found, experiment


def at(experiment: dict[str, Any], path: str) -> Any:
    """Return the value at a path, of which the first part may be a key of the only phase."""
    value: Any = {**experiment["phases"][0], **experiment}
    for part in path.split("."):
        value = value[part]
    return value


@pytest.mark.parametrize("name", FACTS)
def test_a_script_becomes_a_valid_experiment(name: str, tmp_path: Path) -> None:
    found, experiment = converted(name, tmp_path)
    facts = dict(FACTS[name])
    left = facts.pop("left")
    assert {path: at(experiment, path) for path in facts} == facts
    assert any(left in one.text for one in found.left) if left else not found.left
    for path, text in found.files.items():
        if path.suffix == ".py":
            compile(text, str(path), "exec")
            assert "SystemExit" not in text  # statements of the script that do not build data or model are left out


def test_all_scripts_have_facts() -> None:
    assert {path.name.partition(".")[0] for path in SCRIPTS} == set(FACTS)


@pytest.mark.parametrize("name", ["loop_module", "loop_argparse"])
def test_a_converted_loop_trains(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(Path(__file__).parent / "scripts" / f"{name}.py.txt", tmp_path / f"{name}.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["convert", f"{name}.py"]) == 0
    experiment = config.load(Path(f"{name}.yaml"))
    summary = run(experiment, RunOptions(tmp_path / "run", backend="inline"))
    assert summary["final"]["loss"] < summary["initial"]["loss"]


def test_a_conversion_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(Path(__file__).parent / "scripts" / "regression.py.txt", tmp_path / "a.py")
    assert main(["convert", str(tmp_path / "a.py"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "simfl/convert/1"
    assert [Path(name).name for name in found["files"]] == ["a.yaml", "a_parts.py"]
    assert found["left"][0]["text"].startswith("MSELoss")
    assert main(["convert", str(tmp_path / "a.py")]) == 2
    assert "exists already; give another name with --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import lightning as L\n", "uses lightning; read are scripts of transformers' Trainer"),
        ("print(1)\n", "no model was found; read are `from_pretrained`"),
        ("def f(:\n", r":1: not Python"),
    ],
)
def test_other_scripts_are_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        convert(tmp_path / "a.py")
    assert "\n" not in str(caught.value)


def test_values_are_known_without_running(tmp_path: Path) -> None:
    lines = (
        "import argparse", "p = argparse.ArgumentParser()", "p.add_argument('--lr', '-l', default=1e-3)",
        "a = p.parse_args()", "class C:", "    wide = 4 * 8", "c = C()", "d = dict(x=2)", "n = 2", "n = 3",
        "values(a.lr, c.wide, C.wide, d['x'], d.x, n, f())",
    )  # fmt: skip
    (tmp_path / "a.py").write_text("\n".join(lines))
    script = Script.read(tmp_path / "a.py")
    (call,) = script.named("values")
    assert [script.value(one) for one in call.node.args] == [1e-3, 32, 32, 2, 2, UNKNOWN, UNKNOWN]
