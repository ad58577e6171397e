"""Held-out rows of clients: every partitioner, shares and columns, documents, strata, and the manifest."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from simfl.config import fields
from simfl.contract.data import UnevenClients
from simfl.data.base import Published, Split
from simfl.data.partition.base import Holdout
from simfl.data.partition.holdout import assign, expected_sizes
from simfl.data.partition.manifest import Partition, manifest_sha256
from simfl.data.partition.nested import Nested
from simfl.data.partition.partitioners import PARTITIONERS, FromManifest, Iid, Natural, Official, Partitioner
from simfl.errors import ConfigError, DataError

UNEVEN = UnevenClients().load(Path()).splits["train"]  # 68 rows


def read(name: str, **settings: object) -> Partitioner:
    return fields.read(Partitioner, {"by": name, **PARTITIONERS[name].example, **settings}, "partition")


def labelled(labels: list[int], **columns: list) -> Split:
    return Split(pa.table({"label": pa.array(labels, pa.int32())} | columns))


@pytest.mark.parametrize("name", sorted(set(PARTITIONERS) - {"file", "manifest"}))
def test_every_partition_can_hold_out_a_share_of_each_client(name):
    """A quarter of each client's rows, at least one, from clients that have two; training has the others."""
    split = UnevenClients(sizes=(24,) * 5).load(Path()).splits["train"]
    whole, held = assign(read(name), split, 42), assign(read(name, holdout=0.25), split, 42)
    for k in range(len(whole)):
        rows, kept, out = whole.rows(k), held.rows(k), held.held_out(k)
        assert sorted([*kept, *out]) == sorted(rows)
        assert len(out) == (0 if len(rows) < 2 else max(1, round(len(rows) / 4)))
        assert sorted(row for _, own in held.groups(k) for row in own) == (sorted(kept) if held.groups(k) else [])
    assert [whole.meta(k) for k in range(len(whole))] == [held.meta(k) for k in range(len(held))]


def test_the_rows_depend_on_the_seed_alone():
    one, again, other = (assign(Iid(clients=3, holdout=0.3), UNEVEN, seed) for seed in (1, 1, 2))
    assert one.held_out_order.tolist() == again.held_out_order.tolist()
    assert one.held_out_order.tolist() != other.held_out_order.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_labels_keep_their_proportions(seed):
    """Each client has 40 rows of class 0, 20 of class 1 and 4 of class 2; a quarter of each is held out."""
    split = labelled(([0] * 40 + [1] * 20 + [2] * 4) * 2, client=[0] * 64 + [1] * 64)
    partition = assign(Official(holdout=0.25), split, seed)
    labels = split.examples["label"].to_numpy()
    for k in range(2):
        assert np.bincount(labels[partition.held_out(k)]).tolist() == [10, 5, 1]
        assert np.bincount(labels[partition.rows(k)]).tolist() == [30, 15, 3]


def test_strata_are_those_of_another_column_or_none():
    split = labelled([0] * 32, domain=["a", "b"] * 16)
    rule = Holdout(fraction=0.25, stratify="domain")
    rows = assign(Iid(clients=1, holdout=rule), split, 0).held_out(0)
    assert np.bincount(rows % 2).tolist() == [4, 4]
    rows = assign(Iid(clients=1, holdout=replace(rule, stratify=None)), split, 0).held_out(0)
    assert len(rows) == 8
    with pytest.raises(ConfigError, match="no column 'domains'; did you mean 'domain'"):
        assign(Iid(clients=1, holdout=replace(rule, stratify="domains")), split, 0)


def test_documents_are_held_out_whole():
    document = [d for d in range(8) for _ in range(3)]
    examples = pa.table({"document": pa.array(document, pa.int32()), "client": [d // 4 for d in document]})
    split = Split(examples, pa.table({"id": [f"d{d}" for d in range(8)]}))
    partition = assign(Official(holdout=0.25), split, 5)
    for k in range(2):
        (held,) = {document[row] for row in partition.held_out(k)}
        assert len(partition.held_out(k)) == 3
        assert held not in {document[row] for row in partition.rows(k)}


def test_a_column_says_which_rows_are_held_out():
    split = labelled([0, 1] * 4, client=[0] * 4 + [1] * 4, split=["train", "test", "train", "valid"] * 2)
    partition = assign(Official(holdout=Holdout(column="split")), split, 0)
    assert [partition.held_out(k).tolist() for k in range(2)] == [[1, 3], [5, 7]]
    partition = assign(read("official", clients=2, holdout={"column": "split", "values": ["test"]}), split, 0)
    assert [partition.rows(k).tolist() for k in range(2)] == [[0, 2, 3], [4, 6, 7]]
    with pytest.raises(ConfigError, match=r"values: column 'split' has no 'tset'; it has test, train, valid"):
        assign(Official(holdout=Holdout(column="split", values=("tset",))), split, 0)
    with pytest.raises(ConfigError, match="values: missing, because column 'label' has no 'train'; it has 0, 1"):
        assign(Official(holdout=Holdout(column="label")), split, 0)
    with pytest.raises(DataError, match="holdout: all examples of client 1 of 2 would be held out"):
        assign(Natural(column="label", holdout=Holdout(column="label", values=("1",))), split, 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (0.0, "partition.holdout: 0.0 is not a number above 0 and below 1"),
        (1, "partition.holdout: 1 is not a number above 0 and below 1"),
        ({"colum": "split"}, "partition.holdout.colum: .*did you mean 'column'"),
        ({"fraction": 1.5}, "partition.holdout.fraction: 1.5 is not a number above 0 and below 1"),
        ({}, "partition.holdout.fraction: give exactly one of fraction and column"),
        ({"fraction": 0.1, "column": "a"}, "partition.holdout.fraction: give exactly one of fraction and column"),
        ({"fraction": 0.1, "values": ["a"]}, "partition.holdout.values: has no effect without column"),
    ],
)
def test_a_wrong_setting_is_one_line(given, message):
    with pytest.raises(ConfigError, match=message):
        read("iid", holdout=given)


def test_only_the_outermost_partition_holds_out():
    with pytest.raises(ConfigError, match=r"partition.inner.holdout: has no effect there; allowed: partition.holdout"):
        assign(Nested(column="dataset", inner=Iid(clients=2, holdout=0.5)), UNEVEN, 0)


def test_a_hold_out_without_rows_is_refused():
    with pytest.raises(ConfigError, match="holdout: no example of any client would be held out"):
        assign(Natural(column="label", holdout=0.5), labelled([0, 1]), 0)


def test_held_out_rows_are_part_of_the_manifest():
    rule = Iid(clients=3, holdout=0.2)
    plain, held = assign(replace(rule, holdout=None), UNEVEN, 0), assign(rule, UNEVEN, 0)
    manifests = [
        p.manifest(fields.written(one), "d", 0) for p, one in ((plain, replace(rule, holdout=None)), (held, rule))
    ]
    assert [json.loads(text)["format"] for text in manifests] == ["simfl-partition-1", "simfl-partition-2"]
    assert "holdout" not in json.loads(manifests[0])["spec"]
    assert manifest_sha256(manifests[0]) != manifest_sha256(manifests[1])
    again = Partition.read(manifests[1], "d")
    assert [again.held_out(k).tolist() for k in range(3)] == [held.held_out(k).tolist() for k in range(3)]
    assert not Partition.read(manifests[0], "d").holds_out
    with pytest.raises(DataError, match="content hashes to"):
        Partition.read(manifests[1].replace(b'"held_out":["', b'"held_out":["67,'), "d")


def test_a_saved_partition_has_its_held_out_rows(tmp_path):
    held = assign(Iid(clients=3, holdout=0.2), UNEVEN, 0)
    (tmp_path / "p.json").write_bytes(held.manifest({}, "d", 0))
    again = assign(FromManifest(path=str(tmp_path / "p.json")), UNEVEN.with_sha256("d"), 0)
    assert again.held_out_order.tolist() == held.held_out_order.tolist()
    with pytest.raises(ConfigError, match="the manifest holds out examples already"):
        assign(FromManifest(path=str(tmp_path / "p.json"), holdout=0.5), UNEVEN.with_sha256("d"), 0)


def test_expected_sizes_leave_out_held_out_examples():
    published = Published(100)
    assert expected_sizes(Iid(clients=4, holdout=0.2), published).tolist() == [20.0] * 4
    assert expected_sizes(Iid(clients=4), published).tolist() == [25.0] * 4
    assert expected_sizes(Iid(clients=4, holdout=Holdout(column="split")), published) is None


@pytest.mark.parametrize("name", sorted(set(PARTITIONERS) - {"file", "manifest"}))
def test_every_partition_can_cap_the_examples_of_a_client(name):
    split = UnevenClients(sizes=(24,) * 5).load(Path()).splits["train"]
    whole, capped = assign(read(name), split, 42), assign(read(name, max_examples=7), split, 42)
    for k in range(len(whole)):
        assert len(capped.rows(k)) == min(7, len(whole.rows(k)))
        assert set(capped.rows(k)) <= set(whole.rows(k))
        assert sorted(row for _, own in capped.groups(k) for row in own) == (
            sorted(capped.rows(k)) if whole.groups(k) else []
        )


def test_the_capped_rows_depend_on_the_seed_and_on_no_other_client():
    one, again, other = (assign(Official(max_examples=3), UNEVEN, seed) for seed in (1, 1, 2))
    assert one.order.tolist() == again.order.tolist() != other.order.tolist()
    moved = UNEVEN.examples["client"].to_numpy().copy()
    moved[moved == 0] = 1  # the rows of one client are given to another
    changed = assign(Natural(column="owner", max_examples=3), labelled([0] * len(moved), owner=moved.tolist()), 1)
    assert sorted(one.rows(4)) == sorted(changed.rows(3))


def test_a_cap_follows_the_holdout_and_is_refused_inside():
    held = assign(Official(holdout=0.25), UNEVEN, 0)
    both = assign(Official(holdout=0.25, max_examples=2), UNEVEN, 0)
    assert [both.held_out(k).tolist() for k in range(len(both))] == [
        held.held_out(k).tolist() for k in range(len(both))
    ]
    assert max(both.sizes) == 2
    assert expected_sizes(Iid(clients=4, max_examples=10), Published(100)).tolist() == [10.0] * 4
    assert "max_examples" not in Official().plain()
    with pytest.raises(ConfigError, match=r"partition.inner.max_examples: has no effect there"):
        assign(Nested(column="dataset", inner=Iid(clients=2, max_examples=5)), UNEVEN, 0)
