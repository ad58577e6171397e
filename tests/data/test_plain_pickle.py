"""The restricted reader of object arrays: what real files hold comes through, everything else is refused by name."""

import collections
import os
import pickle
import subprocess

import numpy as np
import pytest

from simfl.data.io.plain_pickle import BROKEN, load_records, loads
from simfl.errors import DataError

RECORD = {
    "text": "é",
    "flags": (True, None, 1, 2**70, 1.5, b"x"),
    "set": {1, 2},
    "frozen": frozenset("a"),
    "numpy": [np.float32(0.5), np.int64(-3), np.bool_(True), np.str_("añb"), np.bytes_(b"q")],
    "boxes": np.array([[0.0, 0.25], [0.5, 1.0]], np.float32),
    "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "big_endian": np.array([1, 2], ">i4"),
    "tokens": np.array(["ab", "c"]),
    "objects": np.array(["ab", 3, [1]], object),
    "empty": np.zeros((0, 4)),
}
PLAIN = RECORD | {
    "numpy": [0.5, -3, True, "añb", b"q"],
    "boxes": [[0.0, 0.25], [0.5, 1.0]],
    "fortran": [[0, 1, 2], [3, 4, 5]],
    "big_endian": [1, 2],
    "tokens": ["ab", "c"],
    "objects": ["ab", 3, [1]],
    "empty": [],
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_things_come_through_in_every_protocol(protocol):
    assert loads(pickle.dumps(RECORD, protocol)) == PLAIN


def test_a_saved_object_array_gives_its_records(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"header": 1}, RECORD], object), allow_pickle=True)
    assert load_records(tmp_path / "a.npy") == [{"header": 1}, PLAIN]


def test_names_of_older_numpy_are_known():
    old = pickle.dumps(np.array(["a"], object), 2).replace(b"numpy._core.", b"numpy.core.")
    assert b"numpy.core." in old
    assert loads(old) == ["a"]


class Call:
    """Unpickles into a call."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def test_a_malicious_file_is_refused_and_nothing_in_it_runs(tmp_path):
    mark = tmp_path / "mark"
    np.save(tmp_path / "a.npy", np.array([Call(os.system, f"touch {mark}")], object), allow_pickle=True)
    with pytest.raises(
        DataError, match=r"a\.npy: not a plain NumPy object array \(it asks for posix\.system, which is"
    ):
        load_records(tmp_path / "a.npy")
    assert not mark.exists()
    np.load(tmp_path / "a.npy", allow_pickle=True)  # the trap does work
    assert mark.exists()


@pytest.mark.parametrize(
    "function",
    [eval, exec, getattr, open, __import__, subprocess.Popen, np.load, np.fromfile, np.memmap, bytearray, os.rename],
)
def test_no_function_can_be_called(function):
    with pytest.raises(pickle.UnpicklingError, match="which is refused"):
        loads(pickle.dumps(Call(function, "x"), 4))


@pytest.mark.parametrize(
    "thing",
    [
        collections.OrderedDict(a=1),
        np.zeros(2, [("a", "f4")]),
        np.array(["2020-01-01"], "M8[D]"),
        np.zeros(1, complex),
        np.ma.masked_array([1]),
        DataError("x"),
        1j,
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_things_that_are_not_plain_are_refused(thing):
    with pytest.raises(pickle.UnpicklingError, match="which is refused"):
        loads(pickle.dumps(thing, 4))


MULTIARRAY, NUMPY = b"\x8c\x16numpy._core.multiarray", b"\x8c\x05numpy"


def type_pickle(code: bytes) -> bytes:
    return NUMPY + b"\x8c\x05dtype\x93" + code + b"\x89\x88\x87R"


def array_pickle(shape: bytes, content: bytes, code: bytes = b"\x8c\x02f8") -> bytes:
    """An array as protocol 4 writes it, with this shape, content and type."""
    head = b"\x80\x04" + MULTIARRAY + b"\x8c\x0c_reconstruct\x93" + NUMPY + b"\x8c\x07ndarray\x93K\x00\x85C\x01b\x87R"
    order = b"(K\x03\x8c\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    return head + b"(K\x01" + shape + type_pickle(code) + order + b"\x89" + content + b"tb."


def test_an_array_must_have_the_bytes_that_its_shape_needs():
    eight = b"C\x08" + bytes(8)
    assert loads(array_pickle(b"K\x01\x85", eight)) == [0.0]
    for shape in (b"K\x02\x85", b"J\xff\xff\xff\xffJ\xff\xff\xff\xff\x86", b"J\xff\xff\xff\x7f\x85"):
        with pytest.raises(pickle.UnpicklingError, match="array of shape"):
            loads(array_pickle(shape, eight))


def test_bytes_never_become_pointers():
    with pytest.raises(pickle.UnpicklingError, match="bytes as objects"):
        loads(array_pickle(b"K\x01\x85", b"C\x08" + b"\x41" * 8, code=b"\x8c\x02O8"))
    scalar = b"\x80\x04" + MULTIARRAY + b"\x8c\x06scalar\x93" + type_pickle(b"\x8c\x02O8") + b"C\x08"
    with pytest.raises(pickle.UnpicklingError, match="bytes as objects"):
        loads(scalar + b"\x41" * 8 + b"\x86R.")


@pytest.mark.parametrize(
    "code", [b"\x8c\x05f4,f4", b"\x8c\x02V8", b"\x8c\x01c", b"\x8c\x14" + b"U" + b"9" * 19, b"K\x01"]
)
def test_odd_types_are_refused(code):
    with pytest.raises(BROKEN):
        loads(array_pickle(b"K\x01\x85", b"C\x08" + bytes(8), code=code))


def test_every_cut_of_a_good_pickle_is_an_error_and_no_crash():
    whole = pickle.dumps(np.array([RECORD], object), 4)
    for end in range(0, len(whole) - 1, 7):
        with pytest.raises(BROKEN):
            loads(whole[:end])


def test_changed_bytes_never_raise_anything_unforeseen():
    whole = bytearray(pickle.dumps(np.array([RECORD], object), 4))
    random = np.random.Generator(np.random.Philox(7))
    outcomes = set()
    others = sorted(set(range(256)) - {ord("r"), 0x96})  # which only eat memory and print noise
    for _ in range(5000):
        changed = whole.copy()
        changed[random.integers(len(changed))] = random.choice(others)
        try:
            loads(bytes(changed))
            outcomes.add("read")
        except BROKEN:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a plain NumPy object array"),
        (b"text, not numpy", "not a plain NumPy object array"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path, content, message):
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_records(tmp_path / "a.npy")


def test_arrays_of_numbers_missing_files_and_odd_contents_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(DataError, match="a flat array of objects is needed"):
        load_records(tmp_path / "a.npy")
    with pytest.raises(DataError, match="No such file"):
        load_records(tmp_path / "b.npy")
