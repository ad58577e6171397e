"""Partitions read from a saved manifest."""

import pyarrow as pa
import pytest

from simfl.data.base import Split
from simfl.data.benchmarks.prototypes import Prototypes
from simfl.data.partition.partitioners import FromManifest
from simfl.data.partition.synthetic import Iid
from simfl.errors import ConfigError, DataError

SMALL = Prototypes(examples=40, classes=2, shape=(1, 2, 2), groups=4)


@pytest.fixture
def saved(tmp_path):
    data = SMALL.load(tmp_path)
    partition = Iid(clients=4).split(data.splits["train"], 7)
    path = tmp_path / "iid.json"
    path.write_bytes(partition.manifest({"by": "iid", "clients": 4}, data.sha256, 7))
    return data, partition, path


def test_a_saved_partition_does_not_depend_on_the_seed(saved):
    data, partition, path = saved
    again = FromManifest(path=str(path)).split(data.splits["train"], seed=99)
    assert again.order.tolist() == partition.order.tolist()


def test_a_manifest_of_other_data_another_split_or_another_count_is_rejected(saved, tmp_path):
    data, _, path = saved
    other = Prototypes(examples=40, classes=2, shape=(1, 2, 2), groups=4, seed=1).load(tmp_path)
    with pytest.raises(DataError, match="made from data"):
        FromManifest(path=str(path)).split(other.splits["train"], 0)
    with pytest.raises(DataError, match="contains row 39, the split has 4"):
        FromManifest(path=str(path)).split(data.splits["valid"], 0)
    with pytest.raises(ConfigError, match="3 requested, the data has 4 clients"):
        FromManifest(path=str(path), clients=3).split(data.splits["train"], 0)


def test_a_manifest_that_cannot_be_checked_or_read_is_rejected(saved):
    with pytest.raises(ConfigError, match="needs a data set with a content hash"):
        FromManifest(path=str(saved[2])).split(Split(pa.table({"label": [1]})), 0)
    with pytest.raises(DataError, match=r"nowhere\.json: No such file"):
        FromManifest(path="nowhere.json").split(saved[0].splits["train"], 0)
    with pytest.raises(ConfigError, match="the path of a manifest is needed"):
        FromManifest().split(saved[0].splits["train"], 0)
