"""Federated runs of every backbone at tiny size on a toy task: the loss falls, the metric beats guessing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fakes import Toy, experiment, run
from toy_vqa import ANSWERS, Corners
from toy_words import Bars

from simfl.data.partition.partitioners import Official, Provider
from simfl.experiment import Evaluate, Experiment
from simfl.models import MODELS
from simfl.models.albef import Albef
from simfl.models.aster import Aster
from simfl.models.cnn import Cnn
from simfl.models.layout_t5 import LayoutT5
from simfl.models.mlp import Mlp
from simfl.models.vault import Vault
from simfl.models.vilt import Vilt
from simfl.models.vit import ViT
from simfl.models.vt5 import VT5
from simfl.objectives.docvqa import DocVqa
from simfl.objectives.ranking import Ranking
from simfl.objectives.recognition import Recognition
from simfl.objectives.vqa import Vqa
from simfl.optimizers.local import LocalOptimizer
from simfl.runs import tables


@dataclass(frozen=True)
class Case:
    """Settings of a run, and the score of guessing the most frequent answer."""

    settings: dict[str, Any]
    guessing: float
    modes: tuple[str, ...] = ("sequential", "vectorized")


VQA = {"data": Corners(), "partition": Provider(clients=3), "objective": Vqa()}
PAGES = VQA | {"objective": DocVqa(max_tokens=32, max_answer=8), "rounds": 4, "epochs": 4, "learning_rate": 5e-3}
LISTED = VQA | {"objective": Ranking(answers=ANSWERS, soft="any"), "rounds": 4, "epochs": 4, "learning_rate": 5e-3}
IMAGES = {"data": Toy(shape=(1, 16, 16)), "rounds": 4, "epochs": 3}
WORDS: dict[str, Any] = {
    "data": Bars(), "partition": Official(), "objective": Recognition(height=32, width=64, max_letters=4, beams=2),
    "rounds": 3, "epochs": 4, "learning_rate": 5e-3, "batch_size": 8,
}  # fmt: skip
VT5_SMALL = VT5(d_model=64, d_ff=128, num_layers=2, num_heads=2)
SHUFFLED = Aster(encoder="shufflenet", norm="group", size="tiny", context=False)
ASTER: dict[str, Any] = {"size": "tiny", "context": False}  # a BiLSTM of 100 steps needs ten times as long to learn
CASES = {
    "albef": Case({"model": Albef()} | LISTED, guessing=0.4),
    # batch norm requires `sequential`; with group norm ASTER runs in `vectorized`
    "aster": Case({"model": Aster(**ASTER)} | WORDS, guessing=0.35, modes=("sequential",)),
    "aster with group norms": Case(
        {"model": Aster(norm="group", **ASTER)} | WORDS, guessing=0.35, modes=("vectorized",)
    ),
    "aster with shufflenet": Case({"model": Aster(encoder="shufflenet", **ASTER)} | WORDS, 0.35, modes=("sequential",)),
    "aster with shufflenet and group norms": Case({"model": SHUFFLED} | WORDS, 0.35, modes=("vectorized",)),
    "cnn": Case({"model": Cnn(channels=(8, 8), hidden=16)} | IMAGES | {"learning_rate": 1e-2}, guessing=0.3),
    "layout_t5": Case({"model": LayoutT5()} | PAGES, guessing=0.2),
    "mlp": Case({"model": Mlp(hidden_sizes=(16,))} | IMAGES | {"learning_rate": 1e-2}, guessing=0.3),
    "vault": Case({"model": Vault(), "rounds": 4, "epochs": 3} | VQA, guessing=0.4),
    "vilt": Case({"model": Vilt(), "rounds": 4, "epochs": 3} | VQA, guessing=0.4),
    "vit": Case({"model": ViT(image_size=16)} | IMAGES, guessing=0.3),
    "vt5": Case({"model": VT5_SMALL} | PAGES, guessing=0.2),
}
FAST = (
    ("albef", "vectorized"),
    ("cnn", "sequential"),
    ("mlp", "vectorized"),
    ("vilt", "vectorized"),
    ("vit", "sequential"),
)
RUNS = [
    pytest.param(name, mode, marks=() if (name, mode) in FAST else pytest.mark.slow)
    for name, case in CASES.items()
    for mode in case.modes
]


def given(case: Case, mode: str) -> Experiment:
    usual: dict[str, Any] = {
        "optimizer": LocalOptimizer("adamw"), "learning_rate": 2e-3, "batch_size": 16, "participation": 1.0,
        "evaluate": Evaluate(every=0),
    }  # fmt: skip
    return experiment(mode=mode, clients_per_batch=4, **usual | case.settings)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # fused attention has no vmap rule on the CPU
@pytest.mark.parametrize(("name", "mode"), RUNS)
def test_a_tiny_backbone_learns_a_toy_task(name: str, mode: str, tmp_path: Path) -> None:
    case = CASES[name]
    summary = run(given(case, mode), tmp_path)
    loss = tables.read(tmp_path / "rounds.parquet")["loss"].to_pylist()
    metric = next(iter(summary["final"].values()))
    assert loss[-1] < 0.8 * loss[0]
    assert metric > case.guessing + 0.15, (metric, loss)


def test_every_registered_model_is_trained_in_both_modes() -> None:
    assert {type(case.settings["model"]) for case in CASES.values()} == set(MODELS.values()) - {
        MODELS["own"],
        MODELS["hf"],
    }
    every = {type(case.settings["model"]): set[str]() for case in CASES.values()}
    for case in CASES.values():
        every[type(case.settings["model"])] |= set(case.modes)
    assert all(modes == {"sequential", "vectorized"} for modes in every.values())
