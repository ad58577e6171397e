"""Each partitioner on splits small enough to check by hand, and one with a million clients."""

import json

import numpy as np
import pyarrow as pa
import pytest

from simfl.data.base import Split
from simfl.data.partition.partitioners import META, PARTITIONERS, Iid, Natural, Official, Partition, Provider
from simfl.data.partition.synthetic import Dirichlet, Quantity, Shards
from simfl.errors import ConfigError, DataError


def paged(questions: list[tuple[int, int]], providers: list[str], **columns: list) -> Split:
    """Return a split from (document, number of questions) pairs and the provider of each document."""
    document = [d for d, n in questions for _ in range(n)]
    examples = pa.table(
        {"id": [f"q{i}" for i in range(len(document))], "document": pa.array(document, pa.int32())} | columns
    )
    documents = pa.table({"id": [f"d{i}" for i in range(len(providers))], "provider": providers})
    return Split(examples, documents)


def labelled(labels: list[int], **columns: list) -> Split:
    return Split(pa.table({"label": pa.array(labels, pa.int32())} | columns))


def by_client(partition: Partition) -> list[list[int]]:
    return [partition.rows(k).tolist() for k in range(len(partition))]


def covers(partition: Partition, n: int) -> bool:
    return sorted(partition.order.tolist()) == list(range(n))


# provider sizes: A 5, B 4, C 3, D 2, E 1 (documents 0..5, C has two)
FIVE = paged([(0, 5), (1, 4), (2, 2), (3, 1), (4, 2), (5, 1)], ["A", "B", "C", "C", "D", "E"])


def test_provider_assigns_the_largest_group_first_to_the_least_loaded_client():
    # A5 -> 0, B4 -> 1, C3 -> 1 (4 < 5): 7, D2 -> 0: 7, E1 -> 0 (equal loads: lower client): 8
    partition = Provider(clients=2).split(FIVE, seed=0)
    assert [[name for name, _ in partition.groups(k)] for k in (0, 1)] == [["A", "D", "E"], ["B", "C"]]
    assert partition.sizes.tolist() == [8, 7]
    assert by_client(partition) == [[0, 1, 2, 3, 4, 12, 13, 14], [5, 6, 7, 8, 9, 10, 11]]
    assert partition.groups(1)[1][1].tolist() == [9, 10, 11]


def test_provider_reserves_the_last_groups_for_clients_below_min_groups():
    split = labelled([0] * 10 + [1, 2, 3, 4, 5], provider=["big"] * 10 + list("abcde"))
    free = Provider(clients=2).split(split, seed=0)
    held = Provider(clients=2, min_groups=3).split(split, seed=0)
    assert free.num_groups.tolist() == [1, 5]
    assert held.num_groups.tolist() == [3, 3]
    assert covers(held, 15)


def test_provider_rejects_more_clients_than_groups():
    with pytest.raises(ConfigError, match=r"6 requested, the split allows 1 to 5 \(5 groups"):
        Provider(clients=6).split(FIVE, seed=0)
    with pytest.raises(ConfigError, match="3 requested, the split allows 1 to 2"):
        Provider(clients=3, min_groups=2).split(FIVE, seed=0)


def test_provider_needs_a_number_of_clients():
    with pytest.raises(ConfigError, match=r"partition\.clients: missing"):
        Provider().split(FIVE, seed=0)


def test_provider_rejects_a_group_column_that_divides_a_document():
    split = paged([(0, 2), (1, 1)], ["A", "B"], field=["total", "date", "date"])
    with pytest.raises(DataError, match="document 'd0' is in client"):
        Provider(clients=2, column="field").split(split, seed=0)


def test_an_unknown_column_is_rejected_with_the_nearest_name():
    with pytest.raises(ConfigError, match="did you mean 'provider'"):
        Provider(clients=2, column="providr").split(FIVE, seed=0)


def test_a_column_with_empty_values_or_lists_is_rejected():
    with pytest.raises(DataError, match="1 empty values"):
        Natural(column="g").split(labelled([0, 1], g=["a", None]), seed=0)
    with pytest.raises(DataError, match="one value per row"):
        Natural(column="g").split(labelled([0, 1], g=[["a"], ["b"]]), seed=0)


def test_iid_keeps_documents_whole_and_clients_equal():
    split = paged([(d, 3) for d in range(10)], [f"p{d}" for d in range(10)])
    partition = Iid(clients=4).split(split, seed=1)
    assert covers(partition, 30)
    assert sorted(partition.sizes.tolist()) == [6, 6, 9, 9]
    assert all(
        len(set(rows)) == len(rows) and all(rows.count(r // 3 * 3) for r in rows) for rows in by_client(partition)
    )


def test_iid_depends_on_the_seed_only():
    split = labelled(list(range(50)))
    first, again, other = (by_client(Iid(clients=7).split(split, seed=s)) for s in (1, 1, 2))
    assert first == again != other
    assert {len(rows) for rows in first} == {7, 8}


def test_iid_divides_documents_only_with_split_documents():
    split = paged([(0, 4)], ["A"])
    assert Iid(clients=2, split_documents=True).split(split, seed=0).sizes.tolist() == [2, 2]
    with pytest.raises(ConfigError, match="2 requested, the split allows 1 to 1"):
        Iid(clients=2).split(split, seed=0)


def official(clients: list[int], providers: list[str]) -> Split:
    return paged([(d, 1) for d in range(len(clients))], providers, client=pa.array(clients, pa.int32()))


def test_official_follows_the_client_column_and_keeps_provider_groups():
    partition = Official(clients=2).split(official([1, 0, 1, -1, 1], ["A", "B", "C", "D", "A"]), seed=0)
    assert by_client(partition) == [[1], [0, 4, 2]]
    assert [(n, r.tolist()) for n, r in partition.groups(1)] == [("A", [0, 4]), ("C", [2])]


def test_official_rejects_a_provider_with_two_clients_without_shared_groups():
    split = official([0, 1, 1], ["A", "B", "A"])
    with pytest.raises(DataError, match="group 'A' is in client"):
        Official().split(split, seed=0)
    shared = Official(shared_groups=True).split(split, seed=0)
    assert [[n for n, _ in shared.groups(k)] for k in (0, 1)] == [["A"], ["A", "B"]]


def test_official_rejects_another_number_of_clients_and_empty_clients():
    with pytest.raises(ConfigError, match="3 requested, the data has 2 clients"):
        Official(clients=3).split(official([0, 1], ["A", "B"]), seed=0)
    with pytest.raises(DataError, match="client 1 of 3 has no example"):
        Official().split(official([0, 2], ["A", "B"]), seed=0)
    with pytest.raises(ConfigError, match="column 'client'"):
        Official().split(FIVE, seed=0)


def test_official_rejects_a_document_with_two_clients():
    split = paged([(0, 2)], ["A"], client=pa.array([0, 1], pa.int32()))
    with pytest.raises(DataError, match="document 'd0'"):
        Official(shared_groups=True).split(split, seed=0)


def test_official_keeps_the_metadata_of_its_clients():
    split = official([0, 1], ["A", "B"])
    described = split.examples.replace_schema_metadata({META: json.dumps([{"task": "vqa"}, {"task": "gqa"}])})
    assert Official().split(Split(described, split.documents), seed=0).meta(1) == {"task": "gqa"}
    assert Official().split(split, seed=0).meta(1) == {}


def test_natural_makes_one_client_per_value():
    partition = Natural(column="who").split(labelled([0] * 5, who=["b", "a", "b", "c", "a"]), seed=0)
    assert by_client(partition) == [[1, 4], [0, 2], [3]]
    assert partition.groups(0)[0][0] == "a"


def test_natural_with_values_orders_its_clients_and_drops_other_examples():
    split = labelled([0] * 5, who=["b", "a", "b", "c", "a"])
    partition = Natural(column="who", values=("c", "a")).split(split, seed=0)
    assert by_client(partition) == [[3], [1, 4]]
    assert [name for name, _ in partition.groups(1)] == ["a"]
    with pytest.raises(ConfigError, match="column 'who' has no 'd'; allowed: a, b, c"):
        Natural(column="who", values=("d",)).split(split, seed=0)


def test_natural_divides_documents_only_with_shared_documents():
    split = paged([(0, 2)], ["A"], task=["count", "read"])
    with pytest.raises(DataError, match="document 'd0' is in client"):
        Natural(column="task").split(split, seed=0)
    assert by_client(Natural(column="task", shared_documents=True).split(split, seed=0)) == [[0], [1]]


def test_dirichlet_gives_one_class_per_client_for_small_alpha_and_equal_shares_for_large_alpha():
    split = labelled([i % 4 for i in range(4000)])
    labels = np.arange(4000) % 4

    def purity(alpha: float) -> float:
        partition = Dirichlet(clients=4, alpha=alpha, min_size=0).split(split, seed=3)
        assert covers(partition, 4000)
        biggest = [np.bincount(labels[partition.rows(k)], minlength=4).max() for k in range(4)]
        return sum(biggest) / 4000

    assert purity(0.01) > 0.8
    assert purity(10000.0) == pytest.approx(0.25, abs=0.02)


def test_dirichlet_reaches_min_size_or_raises():
    split = labelled([i % 2 for i in range(60)])
    assert Dirichlet(clients=5, alpha=0.5, min_size=6).split(split, seed=0).sizes.min() >= 6
    with pytest.raises(ConfigError, match="left one of 5 clients with fewer than 12 units"):
        Dirichlet(clients=5, alpha=0.001, min_size=12).split(split, seed=0)
    with pytest.raises(ConfigError, match="alpha: 0 given"):
        Dirichlet(clients=5, alpha=0).split(split, seed=0)


def test_dirichlet_with_balance_gives_nothing_more_to_clients_with_an_equal_share():
    labels = np.repeat(np.arange(10), 60)
    sizes = []
    for seed in range(5):
        partition = Dirichlet(clients=6, alpha=0.1, balance=True, min_size=10).split(labelled(labels), seed=seed)
        counts = np.stack([np.bincount(labels[partition.rows(k)], minlength=10) for k in range(6)], 1)  # [value, K]
        before = np.cumsum(counts, 0) - counts
        assert counts[before >= 100].sum() == 0  # 600 examples, 6 clients
        assert counts.sum() == 600
        assert partition.sizes.min() >= 10
        sizes.append(partition.sizes.std())
    free = [Dirichlet(clients=6, alpha=0.1, min_size=0).split(labelled(labels), seed=s).sizes.std() for s in range(5)]
    assert np.mean(sizes) < 0.7 * np.mean(free)


def test_dirichlet_with_balance_and_a_tiny_alpha_still_gives_every_example_to_a_client():
    partition = Dirichlet(clients=4, alpha=1e-4, balance=True, min_size=0).split(labelled([0, 1, 2] * 9), seed=1)
    assert covers(partition, 27)


def test_dirichlet_by_a_column_that_differs_within_documents_needs_split_documents():
    split = paged([(d, 2) for d in range(20)], ["A"] * 20, field=["total", "date"] * 20)
    with pytest.raises(ConfigError, match="differs within a document"):
        Dirichlet(clients=2, column="field").split(split, seed=0)
    assert covers(Dirichlet(clients=2, column="field", split_documents=True).split(split, seed=0), 40)


def test_dirichlet_spreads_values_that_occur_once_over_all_clients():
    split = labelled(list(range(3000)))
    sizes = Dirichlet(clients=3, alpha=10.0).split(split, seed=0).sizes
    assert sizes.sum() == 3000
    assert sizes.min() > 800


def test_dirichlet_by_provider_keeps_documents_whole():
    split = paged([(d, 3) for d in range(40)], [f"p{d % 4}" for d in range(40)])
    partition = Dirichlet(clients=3, column="provider", alpha=1.0).split(split, seed=0)
    owners = np.empty(120, int)
    for k in range(3):
        owners[partition.rows(k)] = k
    assert (owners.reshape(40, 3) == owners.reshape(40, 3)[:, :1]).all()


def test_shards_limit_the_number_of_labels_per_client():
    split = labelled([i // 20 for i in range(200)])
    partition = Shards(clients=10, shards=2).split(split, seed=0)
    assert covers(partition, 200)
    assert partition.sizes.tolist() == [20] * 10
    assert all(len({row // 20 for row in rows}) <= 2 for rows in by_client(partition))


def test_quantity_skew_gives_unequal_sizes_of_at_least_min_size():
    partition = Quantity(clients=20, alpha=0.2, min_size=3).split(labelled([0] * 2000), seed=0)
    assert covers(partition, 2000)
    assert partition.sizes.min() >= 3
    assert partition.sizes.max() > 5 * np.median(partition.sizes)


@pytest.mark.parametrize(
    "by", sorted(set(PARTITIONERS) - {"nested", "subsample", "answer_lists", "file", "manifest", "rows"})
)
def test_every_partition_is_bit_identical_after_reading_its_manifest(by):
    split = paged(
        [(d, 1 + d % 3) for d in range(30)],
        [f"p{d % 7}" for d in range(30)],
        label=pa.array([d % 7 for d in range(30) for _ in range(1 + d % 3)], pa.int32()),
        client=pa.array([d % 7 % 2 for d in range(30) for _ in range(1 + d % 3)], pa.int32()),
        dataset=["wtq" if d % 2 else "docvqa" for d in range(30) for _ in range(1 + d % 3)],
    )
    clients = {"official": 2, "natural": 7}.get(by, 3)
    partition = PARTITIONERS[by](clients=clients).split(split, seed=5)
    manifest = partition.manifest({"by": by, "clients": clients}, "d" * 64, seed=5)
    read = Partition.read(manifest, "d" * 64)
    for name in ("order", "starts", "group_starts", "group_clients"):
        np.testing.assert_array_equal(getattr(read, name), getattr(partition, name))
        assert getattr(read, name).dtype == getattr(partition, name).dtype == np.int64
    assert read.group_names.equals(partition.group_names)
    assert read.manifest({"by": by, "clients": clients}, "d" * 64, seed=5) == manifest


def test_a_manifest_has_the_same_bytes_on_every_machine():
    manifest = Provider(clients=2).split(FIVE, seed=0).manifest({"by": "provider", "clients": 2}, "00", seed=0)
    assert manifest.startswith(b'{"clients":["0-4,12-14","5-11"],"data_sha256":"00","format":"simfl-partition-1",')
    assert b'"groups":[[["A",5],["D",2],["E",1]],[["B",4],["C",3]]]' in manifest
    assert manifest.endswith(b"}\n")
    assert json.loads(manifest)["sha256"] == "4b40a21991d2eb8378a5c3dc45bed8139096d615c9c3cf292f05b1febe4f650c"


def test_a_manifest_of_other_data_is_rejected_with_both_hashes():
    manifest = Iid(clients=2).split(FIVE, seed=0).manifest({"by": "iid"}, "a" * 64, seed=0)
    with pytest.raises(DataError, match="made from data aaaaaaaaaaaaaaaa, the data given is bbbbbbbbbbbbbbbb"):
        Partition.read(manifest, "b" * 64)


def test_an_altered_or_foreign_manifest_is_rejected():
    manifest = Iid(clients=2).split(FIVE, seed=0).manifest({"by": "iid"}, "aa", seed=0)
    with pytest.raises(DataError, match="content hashes to"):
        Partition.read(manifest.replace(b'"seed":0', b'"seed":1'), "aa")
    with pytest.raises(DataError, match="format None"):
        Partition.read(b"{}", "aa")
    with pytest.raises(DataError, match="not JSON"):
        Partition.read(b"\x00", "aa")


def test_a_manifest_keeps_clients_without_rows():
    partition = Dirichlet(clients=9, alpha=0.01, min_size=0).split(labelled([0, 1]), seed=0)
    assert 0 in partition.sizes
    read = Partition.read(partition.manifest({}, "aa", seed=0), "aa")
    assert by_client(read) == by_client(partition)


def test_iid_partitions_three_million_examples_among_a_million_clients():
    split = Split(pa.table({"label": pa.array(np.arange(3_000_000) % 10, pa.int32())}))
    partition = Iid(clients=1_000_000).split(split, seed=0)
    assert len(partition) == 1_000_000
    assert (partition.sizes == 3).all()
