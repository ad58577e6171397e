"""The restricted unpickler reads plain values and refuses everything else by name."""

import collections
import os
import pickle
import subprocess

import numpy as np
import pytest

from simfl.data.io.restricted_pickle import UNPICKLE_ERRORS, check_sizes, load_object_array, loads
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
def test_unpickler_reads_plain_values_of_every_protocol(protocol):
    assert loads(pickle.dumps(RECORD, protocol)) == PLAIN


def test_load_object_array_returns_records(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"header": 1}, RECORD], object), allow_pickle=True)
    assert load_object_array(tmp_path / "a.npy") == [{"header": 1}, PLAIN]


def test_unpickler_accepts_names_of_older_numpy():
    old = pickle.dumps(np.array(["a"], object), 2).replace(b"numpy._core.", b"numpy.core.")
    assert b"numpy.core." in old
    assert loads(old) == ["a"]


class Call:
    """An object whose pickle calls a function."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def test_load_object_array_refuses_a_malicious_file_without_running_it(tmp_path):
    mark = tmp_path / "mark"
    np.save(tmp_path / "a.npy", np.array([Call(os.system, f"touch {mark}")], object), allow_pickle=True)
    with pytest.raises(DataError, match=r"a\.npy: not a plain NumPy object array \(posix\.system is not allowed"):
        load_object_array(tmp_path / "a.npy")
    assert not mark.exists()
    np.load(tmp_path / "a.npy", allow_pickle=True)  # the trap does work
    assert mark.exists()


@pytest.mark.parametrize(
    "function",
    [eval, exec, getattr, open, __import__, subprocess.Popen, np.load, np.fromfile, np.memmap, bytearray, os.rename],
)
def test_unpickler_calls_no_function(function):
    with pytest.raises(pickle.UnpicklingError, match="not allowed"):
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
def test_unpickler_refuses_values_that_are_not_plain(thing):
    with pytest.raises(pickle.UnpicklingError, match="not allowed"):
        loads(pickle.dumps(thing, 4))


MULTIARRAY, NUMPY = b"\x8c\x16numpy._core.multiarray", b"\x8c\x05numpy"


def type_pickle(code: bytes) -> bytes:
    return NUMPY + b"\x8c\x05dtype\x93" + code + b"\x89\x88\x87R"


def array_pickle(shape: bytes, content: bytes, code: bytes = b"\x8c\x02f8") -> bytes:
    """Return an array as protocol 4 pickles it, with this shape, content and type."""
    head = b"\x80\x04" + MULTIARRAY + b"\x8c\x0c_reconstruct\x93" + NUMPY + b"\x8c\x07ndarray\x93K\x00\x85C\x01b\x87R"
    order = b"(K\x03\x8c\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    return head + b"(K\x01" + shape + type_pickle(code) + order + b"\x89" + content + b"tb."


def test_unpickler_checks_array_size_against_shape():
    eight = b"C\x08" + bytes(8)
    assert loads(array_pickle(b"K\x01\x85", eight)) == [0.0]
    for shape in (b"K\x02\x85", b"J\xff\xff\xff\xffJ\xff\xff\xff\xff\x86", b"J\xff\xff\xff\x7f\x85"):
        with pytest.raises(pickle.UnpicklingError, match="array of shape"):
            loads(array_pickle(shape, eight))


def test_unpickler_never_reads_pointers_from_bytes():
    with pytest.raises(pickle.UnpicklingError, match="stored as bytes"):
        loads(array_pickle(b"K\x01\x85", b"C\x08" + b"\x41" * 8, code=b"\x8c\x02O8"))
    scalar = b"\x80\x04" + MULTIARRAY + b"\x8c\x06scalar\x93" + type_pickle(b"\x8c\x02O8") + b"C\x08"
    with pytest.raises(pickle.UnpicklingError, match="stored as bytes"):
        loads(scalar + b"\x41" * 8 + b"\x86R.")


@pytest.mark.parametrize(
    "code", [b"\x8c\x05f4,f4", b"\x8c\x02V8", b"\x8c\x01c", b"\x8c\x14" + b"U" + b"9" * 19, b"K\x01"]
)
def test_unpickler_refuses_unusual_types(code):
    with pytest.raises(UNPICKLE_ERRORS):
        loads(array_pickle(b"K\x01\x85", b"C\x08" + bytes(8), code=code))


def test_truncated_pickles_raise_a_known_error():
    pickled = pickle.dumps(np.array([RECORD], object), 4)
    for end in range(0, len(pickled) - 1, 7):
        with pytest.raises(UNPICKLE_ERRORS):
            loads(pickled[:end])


def test_corrupted_pickles_raise_only_known_errors():
    pickled = bytearray(pickle.dumps(np.array([RECORD], object), 4))
    random = np.random.Generator(np.random.Philox(7))
    outcomes = set()
    others = sorted(set(range(256)) - {ord("r"), 0x96})  # which only eat memory and print noise
    for _ in range(5000):
        changed = pickled.copy()
        changed[random.integers(len(changed))] = random.choice(others)
        try:
            loads(bytes(changed))
            outcomes.add("read")
        except UNPICKLE_ERRORS:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a plain NumPy object array"),
        (b"text, not numpy", "not a plain NumPy object array"),
    ],
)
def test_load_object_array_refuses_other_files(tmp_path, content, message):
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_object_array(tmp_path / "a.npy")


def test_load_object_array_refuses_numeric_arrays_and_missing_files(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(DataError, match="expected a one-dimensional array of objects"):
        load_object_array(tmp_path / "a.npy")
    with pytest.raises(DataError, match="No such file"):
        load_object_array(tmp_path / "b.npy")


def repeated_array(times: int) -> bytes:
    """Return a list with the same array of 50,000 values, which is rebuilt from the same bytes each time."""
    raw = b"B" + (400_000).to_bytes(4, "little") + bytes(400_000) + b"q\x00"
    kind = type_pickle(b"\x8c\x02f8") + b"(K\x03\x8c\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tbq\x01"
    maker = b"\x8c\x13numpy._core.numeric\x8c\x0b_frombuffer\x93q\x02"
    one = b"h\x02(h\x00h\x01J" + (50_000).to_bytes(4, "little") + b"\x85\x8c\x01CtR"
    return b"\x80\x04]" + raw + b"a" + kind + b"a" + maker + b"a(" + one * times + b"e."


def nested_set(times: int) -> bytes:
    """Return a list of sets made from one list of 100,000 numbers."""
    items = b"](" + b"".join(b"J" + i.to_bytes(4, "little") for i in range(100_000)) + b"eq\x00"
    one = b"\x8c\x08builtins\x8c\x03set\x93h\x00\x85R"
    return b"\x80\x04]" + items + b"a(" + one * times + b"e."


def test_unpickler_reads_repeated_values_within_the_size_of_the_file():
    assert len(loads(repeated_array(20))[3]) == 50_000
    assert len(loads(nested_set(20))) == 21


@pytest.mark.parametrize(
    ("bomb", "message"),
    [
        (b"\x80\x02Nr\xff\xff\xff\xff.", "a size of 4,294,967,295 in a pickle of 9 bytes"),  # a number of a variable
        (b"\x80\x02Np4294967295\n.", "a size of 4,294,967,295"),
        (b"\x80\x04\x8e\x00\x00\x00\x00\xff\x00\x00\x00.", "a size of 1,095,216,660,480"),  # a length
        (b"\x80\x04\x95\x00\x00\x00\x00\xff\x00\x00\x00N.", "a size of 1,095,216,660,480"),
        (b"\x80\x02X\xff\xff\xff\x7fabc.", "a size of 2,147,483,647"),
        (array_pickle(b"J\xff\xff\xff\x7fK\x00\x86", b"C\x00"), "more values than the file has bytes"),  # empty lists
        (repeated_array(2000), "more values than the file has bytes"),
        (nested_set(2000), "more values than the file has bytes"),
    ],
    ids=[
        "variable",
        "variable in digits",
        "length",
        "frame",
        "length of a text",
        "empty lists",
        "array again",
        "set again",
    ],
)
def test_unpickler_refuses_what_needs_more_memory_than_its_file_explains(bomb, message):
    with pytest.raises(pickle.UnpicklingError, match=message):
        loads(bomb)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_sizes_of_sound_pickles_are_accepted(protocol):
    content = [["a" * n for n in (0, 1, 255, 256, 70_000)], list(range(300)), [str(i) for i in range(1000)], b"x" * 300]
    dumped = pickle.dumps([content, 2**70, 1.5, None, True, {"a": (1, 2, 3, 4)}], protocol)
    check_sizes(dumped)
    check_sizes(b"head" + dumped, 4)
    for end in (len(dumped) - 1, len(dumped) // 2, 3):
        with pytest.raises(pickle.UnpicklingError):
            check_sizes(dumped[:end])
