"""Reading plain data out of pickles, and refusing everything else."""

from __future__ import annotations

import collections
import datetime
import os
import pickle
import pickletools
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale_cl.errors import DataError
from scale_cl.streams.sources.pickles import loads, read_pickle

keys = st.text(max_size=5) | st.binary(max_size=5) | st.integers(-(2**40), 2**40)
scalars = st.none() | st.booleans() | st.integers(-(2**100), 2**100) | st.floats(allow_nan=False) | keys
plain = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(plain, st.integers(1, 5))
def test_plain_data_come_back_as_they_were(value: Any, protocol: int) -> None:
    assert loads(pickle.dumps(value, protocol=protocol)) == value


@pytest.mark.parametrize("protocol", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", ["?", "u1", "<i2", ">i4", "<i8", "<f4", ">f8"])
def test_arrays_of_numbers_come_back_as_they_were(protocol: int, dtype: str) -> None:
    array = np.random.default_rng(0).integers(0, 100, (3, 4, 2)).astype(dtype)
    for given_array in (array, np.asfortranarray(array), array[:, ::2]):
        value = {"a": given_array, "again": [given_array.copy(), np.dtype(dtype).type(7)]}
        read = loads(pickle.dumps(value, protocol=protocol))
        for one in (read["a"], read["again"][0]):
            assert one.dtype == array.dtype
            assert np.array_equal(one, given_array)
        assert read["again"][1] == np.dtype(dtype).type(7)


def test_strings_of_python_2_are_bytes() -> None:
    assert loads(b"\x80\x02}q\x01U\x04dataq\x02T\x03\x00\x00\x00abcs.") == {b"data": b"abc"}


def test_large_arrays_are_views_of_the_file_and_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.pkl"
    path.write_bytes(pickle.dumps({"data": np.zeros((4000, 3072), np.uint8)}, protocol=4))
    tracemalloc.start()
    try:
        value = read_pickle(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert value["data"].shape == (4000, 3072)
    assert peak < 1_000_000


class Command:
    """Pickles to a call of `os.system`."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


class Evil:
    """An object with state."""

    def __init__(self) -> None:
        self.x = 1


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_call_is_refused_and_not_made(tmp_path: Path, protocol: int) -> None:
    data = pickle.dumps({"data": Command(f"touch {tmp_path / 'made'}")}, protocol=protocol)
    with pytest.raises(DataError):
        loads(data)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "value",
    [
        Evil(),
        collections.OrderedDict(a=1),
        datetime.date(2020, 1, 1),
        {1, 2},
        frozenset({1}),
        1 + 2j,
        len,
        np.array([{"a": 1}], dtype=object),
        np.array(["text"]),
        np.zeros(2, dtype=[("a", "i4"), ("b", "f8")]),
        np.array(["2020-01-01"], dtype="M8[D]"),
        {(1, 2): "a tuple as key"},
        [2**200],
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_anything_but_plain_data_is_refused(value: Any, protocol: int) -> None:
    with pytest.raises(DataError):
        loads(pickle.dumps(value, protocol=protocol))


def array_state(shape: bytes, raw: bytes) -> bytes:
    """A pickle of a uint8 array that claims `shape` (opcodes that push it) and holds `raw`."""
    dtype = b"cnumpy\ndtype\nX\x02\x00\x00\x00u1K\x00K\x01\x87R"
    dtype += b"(K\x03X\x01\x00\x00\x00|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
    data = b"B" + struct.pack("<I", len(raw)) + raw
    return b"\x80\x03" + empty + b"(K\x01" + shape + dtype + b"\x89" + data + b"tb."


def test_a_hand_made_array_is_read_when_its_size_is_true() -> None:
    assert loads(array_state(b"K\x02K\x02\x86", b"abcd")).tolist() == [[97, 98], [99, 100]]


@pytest.mark.parametrize(
    "data",
    [
        array_state(b"\x8a\x06\x00\x00\x00\x00\x00\x01\x85", b"abcd"),  # 2**40 bytes claimed
        array_state(b"K\x05\x85", b"abcd"),
        array_state(b"J\xff\xff\xff\xffJ\xfc\xff\xff\xff\x86", b"abcd"),  # -1 x -4
        array_state(b"(" + b"K\x01" * 50 + b"t", b"a"),
        array_state(b"]", b""),
        b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"abc.",  # bytes longer than the file
        b"\x80\x04\x8d" + struct.pack("<Q", 2**63) + b"abc.",
        b"\x80\x04\x95" + struct.pack("<Q", 2**40) + b"N.",  # a frame longer than the file
        b"\x80\x02\x8b" + struct.pack("<i", 2**30) + b"1.",  # a long of a gigabyte
        b"\x80\x02I" + b"9" * 5000 + b"\n.",
        b"\x80\x09N.",
        b"",
        b".",
        b"N",
        b"NN.",
        b"N.N",
        b"e.",
        b"(.",
        b"a.",
        b"(a.",
        b"]N\x85R.",
        b"Nb.",
        b"h\x05.",
        b"}]Ns.",
        b"}Na.",
        b"cos\nsystem\n.",
        b"cnumpy\nndarray\n)R.",
        b"c__builtin__\nbytes\nJ\xff\xff\xff\x7f\x85R.",  # bytes(2**31)
        b"cnumpy\ndtype\nNb.",
        b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00rot\x86R.",
        b"\x80\x04\x97.",  # an out-of-band buffer
        b"Pid\n.",  # a persistent object
        b"\x82\x01.",  # an extension
    ],
)
def test_damaged_and_lying_pickles_are_refused(data: bytes) -> None:
    with pytest.raises(DataError):
        loads(data)


def bomb_of_lists(depth: int) -> bytes:
    """Each list holds the one before it twice: 2**depth leaves in a few bytes."""
    data = b"\x80\x02]q\x00"
    for i in range(1, depth):
        data += b"](h" + bytes([i - 1]) + b"h" + bytes([i - 1]) + b"eq" + bytes([i])
    return data + b"."


def bomb_of_tuples(depth: int) -> bytes:
    data = b"\x80\x02K\x00\x85q\x00"
    for i in range(1, depth):
        data += b"h" + bytes([i - 1]) + b"h" + bytes([i - 1]) + b"\x86q" + bytes([i])
    return b"\x80\x02}" + data[2:] + b"Ns."


def bomb_of_text(copies: int) -> bytes:
    """A long text, encoded again and again from the memo."""
    text = b"a" * 100_000
    data = (
        b"\x80\x02c_codecs\nencode\nq\x00X"
        + struct.pack("<I", len(text))
        + text
        + b"q\x01X\x06\x00\x00\x00latin1q\x02]("
    )
    return data + b"h\x00h\x01h\x02\x86R" * copies + b"e."


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (bomb_of_lists(60), "(left over|referred to twice)"),
        (bomb_of_tuples(60), "referred to twice"),
        (b"\x80\x04K\x01\x85\x94X\x01\x00\x00\x00a\x93.", "a name is not text"),
        (bomb_of_text(1000), "(far more memory|left over)"),
        (b"\x80\x02Nr\xff\xff\xff\xff.", "memo number 4294967295 is higher"),
        (b"\x80\x02" + b"N0" * 10, "not one of plain data"),
    ],
)
def test_bombs_are_refused_before_they_go_off(data: bytes, message: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=message):
            loads(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50_000_000


def test_the_number_of_opcodes_is_bounded() -> None:
    with pytest.raises(DataError, match="more than 1000000 opcodes"):
        loads(b"\x80\x02(" + b"N" * 1_100_000 + b"t.")


def test_errors_name_the_file(tmp_path: Path) -> None:
    for content, message in ((b"", "is empty"), (b"\x80\x02cos\nsystem\n.", r"it names 'os.system'")):
        (tmp_path / "a.pkl").write_bytes(content)
        with pytest.raises(DataError, match=rf"a.pkl .*{message}"):
            read_pickle(tmp_path / "a.pkl")
    with pytest.raises(DataError, match="cannot be read"):
        read_pickle(tmp_path / "none.pkl")


def said(data: bytes) -> str:
    """What the refusal of a pickle says, nothing if it is read."""
    try:
        loads(data)
    except DataError as error:
        return str(error)
    return ""


OPCODES = [opcode.code.encode("latin1") for opcode in pickletools.opcodes]


@given(st.lists(st.sampled_from(OPCODES) | st.binary(min_size=1, max_size=2), max_size=40))
def test_arbitrary_opcodes_give_a_value_or_a_data_error_of_one_line(parts: list[bytes]) -> None:
    assert "\n" not in said(b"".join(parts) + b".")


@given(st.binary(max_size=200))
def test_arbitrary_bytes_give_a_value_or_a_data_error(data: bytes) -> None:
    for prefix in (b"", b"\x80\x02", b"\x80\x04"):
        assert "\n" not in said(prefix + data)


PLAIN = {"data": np.arange(12, dtype=np.uint8).reshape(3, 4), "labels": [1, 2.5, True, None], "t": ("a", b"b")}


@given(st.sampled_from([1, 2, 3, 4, 5]), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4))
def test_an_altered_pickle_gives_a_value_or_a_data_error(protocol: int, changes: list[tuple[int, int]]) -> None:
    data = bytearray(pickle.dumps(PLAIN, protocol=protocol))
    for position, value in changes:
        data[position % len(data)] = value
    assert "\n" not in said(bytes(data))
    assert said(bytes(data[: changes[0][0] % len(data)])) if changes else not said(bytes(data))
