"""Published sizes of data sets, and expected client sizes before any data are read."""

from __future__ import annotations

import numpy as np
import pytest

from simfl.data.base import Published
from simfl.data.partition.by_data_set import DataSets
from simfl.data.partition.nested import AnswerLists, Nested, Subsample
from simfl.data.partition.partitioners import Iid, Natural, Official, Provider
from simfl.data.readers.coco_qa import CocoQa
from simfl.data.readers.fldocvqa import Fldocvqa
from simfl.data.readers.gqa import Gqa
from simfl.data.readers.joined import Joined
from simfl.data.readers.pfl_docvqa import PflDocvqa
from simfl.data.readers.scene_text import SceneText
from simfl.data.readers.vizwiz import VizWiz
from simfl.data.readers.vqa_v2 import VqaV2
from simfl.errors import ConfigError

THREE = Published(90, by={"dataset": {"a": 20, "b": 30, "c": 40}}, documents={"a": 10, "b": 10, "c": 20})
OFFICIAL = Published(70, clients=(30, 40), groups=(3, 5))


def test_pfl_docvqa_publishes_its_official_clients_and_providers():
    published = PflDocvqa("nowhere").published()
    assert published.examples == sum(published.clients) == 221_319
    assert (published.clients[4], published.groups[4]) == (32_472, 429)


def test_scene_text_sizes_follow_from_folder_names():
    assert SceneText("nowhere", train=("IC03_train", "ArT")).published().by == {
        "source": {"IC03_train": 1150, "ArT": 30271}
    }
    assert SceneText("nowhere", train=("IC03_train", "mine")).published() is None
    assert SceneText("nowhere", train=("ArT",), limit=100).published().examples == 100


def test_gqa_sizes_by_scene_leave_out_unseen_scenes():
    published = Gqa("nowhere", scenes="s", scene_map="m", unseen=("Home",)).published()
    assert "Home" not in published.by["scene"]
    assert published.by["scene"]["Sports"] == 14_784
    assert Gqa("nowhere", questions="all").published() is None


def test_joined_sizes_are_values_of_the_column_dataset():
    parts = {"art": VizWiz("nowhere"), "abstract": VqaV2("nowhere", scenes="abstract"), "coco": CocoQa("nowhere")}
    assert Joined(parts).published().by == {"dataset": {"art": 20_523, "abstract": 60_000, "coco": 70_862}}
    assert Joined({**parts, "own": SceneText("nowhere")}).published() is None


def test_fldocvqa_with_a_client_file_has_no_published_sizes():
    assert Fldocvqa("nowhere").published().documents == Fldocvqa.TRAIN_DOCUMENTS
    assert Fldocvqa("nowhere", partition="clients.json").published() is None


@pytest.mark.parametrize(
    ("rule", "published", "sizes"),
    [
        (Iid(clients=4), THREE, [22.5] * 4),
        (Provider(clients=3), THREE, [30] * 3),
        (Official(), OFFICIAL, [30, 40]),
        (Official(clients=3), THREE, [30] * 3),
        (Natural(column="dataset"), THREE, [20, 30, 40]),
        (Natural(column="dataset", values=("c", "a")), THREE, [40, 20]),
        (DataSets(clients=4, order=("a", "b", "c")), THREE, [20, 30, 20, 20]),
        (Nested(column="dataset", inner=Iid(clients=2)), THREE, [10, 10, 15, 15, 20, 20]),
        (Subsample(of=Natural(column="dataset"), examples=25), THREE, [20, 25, 25]),
        (Subsample(of=Official(), fraction=0.5), OFFICIAL, [15, 20]),
        (AnswerLists(of=Official()), OFFICIAL, [30, 40]),
    ],
)
def test_partitions_divide_published_sizes(rule, published, sizes):
    assert np.asarray(rule.expected(published)).tolist() == sizes


@pytest.mark.parametrize("rule", [Iid(), Official(), Natural(column="scene"), Subsample(of=Iid(), examples=3)])
def test_expected_sizes_are_unknown_without_a_number_of_clients(rule):
    assert rule.expected(THREE) is None


def test_official_rejects_another_number_of_clients_than_published():
    with pytest.raises(ConfigError, match=r"^partition.clients: 3 requested, the data has 2 clients$"):
        Official(clients=3).expected(OFFICIAL)
