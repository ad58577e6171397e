"""The partition of federated document VQA: the numbers of the paper's Table 2, and the rule on small splits."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from simfl.data.base import Split
from simfl.data.partition.by_data_set import DataSets, clients_per_data_set
from simfl.data.partition.partitioners import PARTITIONERS, Partition
from simfl.data.readers.due import Due
from simfl.errors import ConfigError, DataError

ORDER = ("wtq", "docvqa", "tabfact")


@pytest.mark.parametrize(("clients", "wtq", "docvqa", "tabfact"), [(3, 1, 1, 1), (10, 1, 4, 5), (30, 2, 13, 15)])
def test_clients_per_data_set_reproduces_table_2_of_the_paper(clients, wtq, docvqa, tabfact):
    found = clients_per_data_set(Due.TRAIN_DOCUMENTS, clients, ORDER)
    assert found == {"wtq": wtq, "docvqa": docvqa, "tabfact": tabfact}


def made(**documents: int) -> Split:
    """Return a shuffled split with this many documents of each data set and two questions per document."""
    names = [name for name, count in documents.items() for _ in range(count)]
    names = [names[i] for i in np.random.Generator(np.random.Philox(3)).permutation(len(names))]
    rows = [i for i in range(len(names)) for _ in range(2)]
    examples = pa.table({"document": pa.array(rows, pa.int32()), "dataset": [names[i] for i in rows]})
    return Split(examples, pa.table({"id": [f"d{i}" for i in range(len(names))]}))


SMALL = made(wtq=13, docvqa=102, tabfact=132)  # a hundredth of the paper's


def test_data_sets_are_divided_equally_and_the_last_client_gets_the_rest():
    partition = DataSets(clients=10).split(SMALL, seed=0)
    assert [meta["dataset"] for meta in partition.metas] == ["wtq"] + ["docvqa"] * 4 + ["tabfact"] * 5
    # 102 = 25 + 25 + 25 + 27 and 132 = 26 * 4 + 28 documents, two questions each
    assert (partition.sizes // 2).tolist() == [13, 25, 25, 25, 27, 26, 26, 26, 26, 28]
    held = SMALL.examples["dataset"].to_pylist()
    for client, meta in enumerate(partition.metas):
        assert {held[row] for row in partition.rows(client)} == {meta["dataset"]}
    assert sorted(partition.order.tolist()) == list(range(2 * 247))


def test_data_sets_partition_keeps_documents_whole_and_depends_on_the_seed():
    first, again, other = (DataSets(clients=10).split(SMALL, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.order, again.order)
    assert (first.order != other.order).any()
    for client in range(10):
        assert set(Counter((first.rows(client) // 2).tolist()).values()) == {2}


def test_data_sets_partition_keeps_its_metadata_in_the_manifest():
    partition = PARTITIONERS["data_sets"](clients=3).split(SMALL, seed=0)
    read = Partition.read(partition.manifest({}, "aa", 0), "aa")
    assert read.metas == partition.metas
    np.testing.assert_array_equal(read.order, partition.order)
    assert [name for name, _ in read.groups(1)] == ["docvqa"]


def test_a_data_set_without_a_client_or_with_too_few_documents_is_rejected():
    with pytest.raises(ConfigError, match="1 requested, which leaves no client for data set 'docvqa'"):
        clients_per_data_set(Due.TRAIN_DOCUMENTS, 1, ORDER)
    with pytest.raises(DataError, match="1 documents of 'a' for 2 clients"):
        clients_per_data_set({"a": 1, "b": 1}, 3, ())


def test_data_sets_missing_from_the_order_follow_by_name():
    assert clients_per_data_set({"b": 10, "a": 10, "wtq": 1}, 4, ORDER) == {"wtq": 1, "a": 2, "b": 1}
