"""Partitions built from other partitions."""

import numpy as np
import pyarrow as pa
import pytest

from simfl.config.fields import read, written
from simfl.data.base import Split
from simfl.data.partition.nested import AnswerLists, Nested, Subsample
from simfl.data.partition.partitioners import Natural, Partition, Partitioner, Provider
from simfl.data.partition.synthetic import Dirichlet, Iid
from simfl.errors import ConfigError, DataError


def questions(tasks: list[str], answers: list[list[str]] | None = None, documents: list[int] | None = None) -> Split:
    rows = documents or list(range(len(tasks)))
    given = answers or [["x"]] * len(tasks)
    table = {"document": pa.array(rows, pa.int32()), "task": tasks, "answers": given}
    pages = pa.table(
        {"id": [f"d{i}" for i in range(max(rows) + 1)], "provider": [f"p{i // 2}" for i in range(max(rows) + 1)]}
    )
    return Split(pa.table(table), pages)


FIVE = questions([f"t{i % 5}" for i in range(100)])


@pytest.mark.parametrize("each", [1, 2, 5])
def test_nested_divides_five_tasks_into_5_to_25_clients_of_one_task_each(each):
    partition = Nested(column="task", inner=Iid(clients=each)).split(FIVE, seed=0)
    assert len(partition) == 5 * each
    assert sorted(partition.order.tolist()) == list(range(100))
    assert partition.sizes.tolist() == [20 // each] * 5 * each
    for client in range(5 * each):
        assert {row % 5 for row in partition.rows(client)} == {client // each}
        assert partition.meta(client) == {"task": f"t{client // each}"}
        assert [name for name, _ in partition.groups(client)] == [f"t{client // each}"]


def test_nested_divides_each_value_with_its_own_seed():
    partition = Nested(column="task", inner=Iid(clients=2)).split(FIVE, seed=0)
    first, second = partition.rows(0) // 5, partition.rows(2) // 5
    assert first.tolist() != second.tolist()


def test_nested_keeps_groups_of_the_inner_partition():
    split = questions(["a"] * 6 + ["b"] * 6)
    partition = Nested(column="task", inner=Provider(clients=1)).split(split, seed=0)
    assert [[name for name, _ in partition.groups(k)] for k in (0, 1)] == [["p0", "p1", "p2"], ["p3", "p4", "p5"]]
    read_back = Partition.read(partition.manifest({}, "aa", 0), "aa")
    assert read_back.metas == partition.metas
    np.testing.assert_array_equal(read_back.group_starts, partition.group_starts)


def test_nested_selects_values_and_divides_documents_only_with_shared_documents():
    shared = questions(["a", "b"] * 4, documents=[i // 2 for i in range(8)])
    with pytest.raises(DataError, match="document 'd0' is in client"):
        Nested(column="task", inner=Iid(clients=1)).split(shared, seed=0)
    both = Nested(column="task", inner=Iid(clients=2), shared_documents=True).split(shared, seed=0)
    assert both.sizes.tolist() == [2, 2, 2, 2]
    only = Nested(column="task", values=("b",), inner=Iid(clients=2)).split(shared, seed=0)
    assert sorted(only.order.tolist()) == [1, 3, 5, 7]
    with pytest.raises(ConfigError, match="4 clients"):
        Nested(clients=3, column="task", inner=Iid(clients=2), shared_documents=True).split(shared, seed=0)


def test_nested_divides_each_task_by_dirichlet():
    split = questions(["a", "b"] * 30)
    skewed = Nested(column="task", inner=Dirichlet(clients=3, column="provider", alpha=0.5)).split(split, seed=0)
    assert len(skewed) == 6
    assert sorted(skewed.order.tolist()) == list(range(60))


def test_subsample_reduces_each_client_and_keeps_groups_in_order():
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


def providers_of(partition):
    return [{name for name, _ in partition.groups(client)} for client in range(len(partition))]


def test_subsample_of_a_column_keeps_whole_values_and_as_many_of_each_client_in_every_draw():
    split = questions(["a"] * 120, documents=[i // 3 for i in range(120)])  # 20 providers of 2 documents of 3 questions
    whole = providers_of(Provider(clients=2).split(split, seed=0))
    drawn = {}
    for draw in range(20):
        partition = Subsample(of=Provider(clients=2), fraction=0.3, column="provider", draw=draw).split(split, seed=0)
        drawn[draw] = providers_of(partition)
        assert [len(names) for names in drawn[draw]] == [3, 3]
        assert all(few <= many for few, many in zip(drawn[draw], whole, strict=True))
        assert partition.sizes.tolist() == [18, 18]
    often = [sum(name in names for own in drawn.values() for names in own) for name in set.union(*whole)]
    assert min(often) >= 1
    assert max(often) <= 14  # 20 draws with probability 0.3


def test_the_draw_of_values_is_that_of_the_run_unless_given_and_depends_on_names_alone():
    split = questions(["a"] * 80)
    rule = Subsample(of=Provider(clients=2), fraction=0.5, column="provider")
    of_seed = providers_of(rule.split(split, seed=3))
    given = Subsample(of=Provider(clients=2), fraction=0.5, column="provider", draw=3)
    assert providers_of(given.split(split, seed=4)) == of_seed != providers_of(rule.split(split, seed=4))
    backwards = Split(split.examples.take(list(range(79, -1, -1))), split.documents)
    assert set.union(*providers_of(given.split(backwards, seed=0))) == set.union(*of_seed)


def test_subsample_refuses_settings_without_effect_and_writes_the_later_ones_only_if_given():
    with pytest.raises(ConfigError, match=r"partition\.examples: has no effect with partition\.column"):
        Subsample(of=Iid(clients=2), examples=3, column="provider")
    with pytest.raises(ConfigError, match=r"partition\.draw: has no effect without partition\.column"):
        Subsample(of=Iid(clients=2), fraction=0.5, draw=3)
    assert not {"column", "draw"} & set(written(Subsample(of=Iid(clients=2), fraction=0.5)))
    drawn = Subsample(of=Iid(clients=2), fraction=0.5, column="provider", draw=0)
    assert read(Partitioner, written(drawn), "partition") == drawn


def test_subsample_drops_empty_groups():
    split = questions(["a"] * 12)
    few = Subsample(of=Provider(clients=1), examples=2).split(split, seed=0)
    assert few.sizes.tolist() == [2]
    assert few.num_groups[0] in (1, 2)
    assert sum(len(rows) for _, rows in few.groups(0)) == 2


def test_subsample_needs_exactly_one_size():
    with pytest.raises(ConfigError, match="exactly one of the two is needed"):
        Subsample(of=Natural(column="task")).split(FIVE, seed=0)
    with pytest.raises(ConfigError, match="exactly one of the two is needed"):
        Subsample(of=Natural(column="task"), examples=1, fraction=0.5).split(FIVE, seed=0)


ANSWERED = questions(["a"] * 5 + ["b"] * 3, [["x"], ["y"], ["x", "z"], ["w"], ["y"], ["q"], [], ["q"]])


def test_answer_lists_contain_the_most_frequent_answers_of_each_client():
    # a: x 2, y 2, w 1; ties by name. b: q 2, and one without an answer
    partition = AnswerLists(of=Natural(column="task"), answers=2).split(ANSWERED, seed=0)
    assert [partition.meta(k)["answers"] for k in (0, 1)] == [["x", "y"], ["q"]]
    assert partition.sizes.tolist() == [5, 3]


def test_answer_lists_with_only_drop_examples_with_other_answers():
    partition = AnswerLists(of=Natural(column="task"), answers=2, only=True).split(ANSWERED, seed=0)
    assert [partition.rows(k).tolist() for k in (0, 1)] == [[0, 1, 2, 4], [5, 7]]
    nothing = questions(["a", "b"], [["x"], []])
    with pytest.raises(DataError, match="client 1 of 2 has no examples left"):
        AnswerLists(of=Natural(column="task"), only=True).split(nothing, seed=0)


def test_answer_lists_need_answers():
    with pytest.raises(ConfigError, match="needs examples with a column 'answers'"):
        AnswerLists(of=Iid(clients=1)).split(Split(pa.table({"label": [1]})), seed=0)


def test_nested_partitions_can_be_read_from_an_experiment_file():
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
