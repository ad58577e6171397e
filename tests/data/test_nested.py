"""Partitions made of partitions."""

import numpy as np
import pyarrow as pa
import pytest

from simfl.config.fields import read, written
from simfl.data.base import Split
from simfl.data.partition.iid import Iid
from simfl.data.partition.nested import AnswerLists, Nested, Subsample
from simfl.data.partition.partitioners import Natural, Partition, Partitioner, Provider
from simfl.data.partition.skew import Dirichlet
from simfl.errors import ConfigError, DataError


def asked(tasks: list[str], answers: list[list[str]] | None = None, documents: list[int] | None = None) -> Split:
    rows = documents or list(range(len(tasks)))
    given = answers or [["x"]] * len(tasks)
    table = {"document": pa.array(rows, pa.int32()), "task": tasks, "answers": given}
    pages = pa.table(
        {"id": [f"d{i}" for i in range(max(rows) + 1)], "provider": [f"p{i // 2}" for i in range(max(rows) + 1)]}
    )
    return Split(pa.table(table), pages)


FIVE = asked([f"t{i % 5}" for i in range(100)])


@pytest.mark.parametrize("each", [1, 2, 5])
def test_five_tasks_become_5_to_25_clients_of_one_task_each(each):
    partition = Nested(column="task", inner=Iid(clients=each)).split(FIVE, seed=0)
    assert len(partition) == 5 * each
    assert sorted(partition.order.tolist()) == list(range(100))
    assert partition.sizes.tolist() == [20 // each] * 5 * each
    for client in range(5 * each):
        assert {row % 5 for row in partition.rows(client)} == {client // each}
        assert partition.meta(client) == {"task": f"t{client // each}"}
        assert [name for name, _ in partition.groups(client)] == [f"t{client // each}"]


def test_tasks_are_divided_by_seeds_of_their_own():
    partition = Nested(column="task", inner=Iid(clients=2)).split(FIVE, seed=0)
    first, second = partition.rows(0) // 5, partition.rows(2) // 5
    assert first.tolist() != second.tolist()


def test_groups_of_the_inner_partition_are_kept():
    split = asked(["a"] * 6 + ["b"] * 6)
    partition = Nested(column="task", inner=Provider(clients=1)).split(split, seed=0)
    assert [[name for name, _ in partition.groups(k)] for k in (0, 1)] == [["p0", "p1", "p2"], ["p3", "p4", "p5"]]
    read_back = Partition.read(partition.manifest({}, "aa", 0), "aa")
    assert read_back.metas == partition.metas
    np.testing.assert_array_equal(read_back.group_starts, partition.group_starts)


def test_values_may_be_chosen_and_documents_shared_where_the_spec_says_so():
    shared = asked(["a", "b"] * 4, documents=[i // 2 for i in range(8)])
    with pytest.raises(DataError, match="document 'd0' is in client"):
        Nested(column="task", inner=Iid(clients=1)).split(shared, seed=0)
    both = Nested(column="task", inner=Iid(clients=2), shared_documents=True).split(shared, seed=0)
    assert both.sizes.tolist() == [2, 2, 2, 2]
    only = Nested(column="task", values=("b",), inner=Iid(clients=2)).split(shared, seed=0)
    assert sorted(only.order.tolist()) == [1, 3, 5, 7]
    with pytest.raises(ConfigError, match="4 clients"):
        Nested(clients=3, column="task", inner=Iid(clients=2), shared_documents=True).split(shared, seed=0)


def test_scene_times_task_by_dirichlet():
    split = asked(["a", "b"] * 30)
    skewed = Nested(column="task", inner=Dirichlet(clients=3, column="provider", alpha=0.5)).split(split, seed=0)
    assert len(skewed) == 6
    assert sorted(skewed.order.tolist()) == list(range(60))


def test_a_subsample_is_of_each_client_and_keeps_groups_in_order():
    whole = Natural(column="task").split(FIVE, seed=0)
    few = Subsample(of=Natural(column="task"), examples=4).split(FIVE, seed=0)
    assert few.sizes.tolist() == [4] * 5
    for client in range(5):
        rows = few.rows(client)
        assert set(rows) <= set(whole.rows(client))
        assert (np.diff(rows) > 0).all()
        assert few.groups(client)[0][1].tolist() == rows.tolist()
    tenth = Subsample(of=Natural(column="task"), fraction=0.1).split(FIVE, seed=0)
    assert tenth.sizes.tolist() == [2] * 5
    assert Subsample(of=Natural(column="task"), examples=50).split(FIVE, seed=0).sizes.tolist() == [20] * 5


def test_a_subsample_may_leave_groups_empty():
    split = asked(["a"] * 12)
    few = Subsample(of=Provider(clients=1), examples=2).split(split, seed=0)
    assert few.sizes.tolist() == [2]
    assert few.num_groups[0] in (1, 2)
    assert sum(len(rows) for _, rows in few.groups(0)) == 2


def test_a_subsample_needs_one_size():
    with pytest.raises(ConfigError, match="give one of the two"):
        Subsample(of=Natural(column="task")).split(FIVE, seed=0)
    with pytest.raises(ConfigError, match="give one of the two"):
        Subsample(of=Natural(column="task"), examples=1, fraction=0.5).split(FIVE, seed=0)


ANSWERED = asked(["a"] * 5 + ["b"] * 3, [["x"], ["y"], ["x", "z"], ["w"], ["y"], ["q"], [], ["q"]])


def test_clients_know_their_most_frequent_answers():
    # a: x 2, y 2, w 1; ties by name. b: q 2, and one without an answer
    partition = AnswerLists(of=Natural(column="task"), answers=2).split(ANSWERED, seed=0)
    assert [partition.meta(k)["answers"] for k in (0, 1)] == [["x", "y"], ["q"]]
    assert partition.sizes.tolist() == [5, 3]


def test_other_answers_may_be_nobodys():
    partition = AnswerLists(of=Natural(column="task"), answers=2, only=True).split(ANSWERED, seed=0)
    assert [partition.rows(k).tolist() for k in (0, 1)] == [[0, 1, 2, 4], [5, 7]]
    nothing = asked(["a", "b"], [["x"], []])
    with pytest.raises(DataError, match="client 1 of 2 is left without examples"):
        AnswerLists(of=Natural(column="task"), only=True).split(nothing, seed=0)


def test_answer_lists_need_answers():
    with pytest.raises(ConfigError, match="needs examples with answers"):
        AnswerLists(of=Iid(clients=1)).split(Split(pa.table({"label": [1]})), seed=0)


def test_an_experiment_file_nests_them():
    given = {
        "by": "answer_lists",
        "answers": 100,
        "of": {
            "by": "subsample",
            "examples": 2500,
            "of": {"by": "nested", "column": "task", "inner": {"by": "iid", "clients": 5}},
        },
    }
    partitioner = read(Partitioner, given, "partition")
    assert read(Partitioner, written(partitioner), "partition") == partitioner
    assert len(partitioner.split(FIVE, seed=0)) == 25
