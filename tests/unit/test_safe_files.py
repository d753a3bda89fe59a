"""Files of arrays and JSON: what goes in comes out, and what is wrong with a file is told."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thrust_pomdp import array_files
from thrust_pomdp.safe_files import DamagedFileError, read_tree, write_tree

DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]
TREE: dict[str, Any] = {
    "weights": np.arange(6, dtype=np.float32).reshape(2, 3),
    "space": {"low": np.array([-np.inf, 0.0]), "kind": "Box", "é'.✓": [1, -2.5, None, True]},
    "lists": [np.zeros(0, np.int64), [np.float32(0.1)], float("inf")],
}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, (np.ndarray, np.generic)):
        return (
            type(one) is type(other)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and one == other


def round_trip(tree: Any, folder: Path) -> Any:
    write_tree(folder / "a.safetensors", "tree", tree)
    return read_tree(folder / "a.safetensors", "tree")


class TestWhatGoesInComesOut:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)], ids=str)
    def test_arrays(self, tmp_path, dtype, shape):
        array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
        assert same(round_trip({"a": array}, tmp_path), {"a": array})

    def test_arrays_that_lie_otherwise(self, tmp_path):
        array = np.arange(12.0).reshape(3, 4)
        found = round_trip([array.T, array[::2, ::-1], np.broadcast_to(1.0, (2, 2))], tmp_path)
        assert same(found, [array.T.copy(), array[::2, ::-1].copy(), np.ones((2, 2))])

    @pytest.mark.parametrize("dtype", [">i2", ">i8", ">f4", ">f8", ">u4"])
    def test_arrays_of_the_other_byte_order(self, tmp_path, dtype):
        found = round_trip({"a": np.array([1, 2, 300], dtype)}, tmp_path)["a"]
        assert found.tolist() == [1, 2, 300]
        assert found.dtype.isnative

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_numpys_numbers(self, tmp_path, dtype):
        number = np.dtype(dtype).type(1)
        assert same(round_trip([number], tmp_path), [number])

    @pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
    def test_numbers_json_has_no_word_for(self, tmp_path, number):
        tree = [number, np.float32(number), np.float64(number), np.full(2, number)]
        assert same(round_trip(tree, tmp_path), tree)

    @pytest.mark.parametrize(
        "tree",
        [None, True, 0, -(10**30), 0.1, -0.0, "", "é\x00✓\U0001f600\\\"'", [], {}, [[], {}], TREE],
        ids=str,
    )
    def test_everything_else(self, tmp_path, tree):
        assert same(round_trip(tree, tmp_path), tree)

    @pytest.mark.parametrize(
        "items",
        [
            [0.1, float("nan"), -float("inf")] * 40, list(range(200_000)), [True, False] * 50,
            [2**63] * 70, [1, 1.0] * 40, [True, 1] * 40, [np.float64(1.0)] * 70,
        ],
        ids=lambda items: str(items[:2]),
    )  # fmt: skip
    def test_long_lists_of_numbers(self, tmp_path, items):
        assert same(round_trip({"a": items}, tmp_path), {"a": items})

    def test_an_array_alone_is_a_tree(self, tmp_path):
        assert same(round_trip(np.ones(2), tmp_path), np.ones(2))

    def test_keys_that_read_alike(self, tmp_path):
        tree = {"a.b": np.ones(1), "a": {"b": np.zeros(1)}, "": {"a": {"b": np.ones(2)}}}
        assert same(round_trip(tree, tmp_path), tree)

    def test_random_trees(self, tmp_path):
        rng = random.Random(0)
        for _ in range(50):
            tree = random_tree(rng, 4)
            assert same(round_trip(tree, tmp_path), tree)

    def test_others_can_read_the_arrays(self, tmp_path):
        from safetensors.numpy import load_file

        round_trip(TREE, tmp_path)
        assert same(load_file(tmp_path / "a.safetensors")["weights"], TREE["weights"])


def random_tree(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(8 if depth else 6)
    if kind == 6:
        return [random_tree(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 7:
        return {f"{rng.random()}": random_tree(rng, depth - 1) for _ in range(rng.randrange(4))}
    shape = [rng.randrange(3) for _ in range(rng.randrange(3))]
    array = np.full(shape, rng.random(), rng.choice(DTYPES))
    return [None, rng.random(), rng.randrange(-9, 9), "text", True, array][kind]


class TestWhatIsNoTreeIsRefused:
    @pytest.mark.parametrize(
        "part",
        [
            object(), {1, 2}, b"bytes", 1j, print, np.zeros(1, complex), np.array(["text"]),
            np.array([object()]), np.datetime64(0, "s"), {1: 2}, {"$array": "x"}, np.longdouble(1),
            np.zeros(2, np.longdouble),
        ],
        ids=lambda part: type(part).__name__,
    )  # fmt: skip
    def test_naming_its_place(self, tmp_path, part):
        with pytest.raises(TypeError, match=r"^outer\.1"):
            write_tree(tmp_path / "a.safetensors", "tree", {"outer": [0, part]})
        assert not list(tmp_path.iterdir())

    def test_one_that_holds_itself(self, tmp_path):
        tree: list[Any] = []
        tree.append(tree)
        with pytest.raises(TypeError, match="levels deep"):
            write_tree(tmp_path / "a.safetensors", "tree", tree)

    def test_long_lists(self, tmp_path):
        with pytest.raises(ValueError, match="keep long lists as arrays"):
            write_tree(tmp_path / "a.safetensors", "tree", [None] * 200_000)

    def test_what_was_there_stays(self, tmp_path, monkeypatch):
        path = tmp_path / "a.safetensors"
        write_tree(path, "tree", 1)
        monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            write_tree(path, "tree", 2)
        assert read_tree(path, "tree") == 1
        assert list(tmp_path.iterdir()) == [path]


def forge(path: Path, text: str, arrays: dict[str, Any], kind: str = "tree") -> None:
    """Write what a forger would: any JSON, with a checksum that agrees."""
    from safetensors.numpy import save_file

    whole = f'{{"kind":"{kind}","schema":1,"data":{text}}}'
    digest = array_files._digest(whole, arrays)
    save_file(arrays, path, {"format": "thrust_pomdp", "json": whole, "sha256": digest})


class TestWhatIsNoSuchFileIsRefused:
    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ('{"a": 1, "a": 2}', "twice"),
            ('{"a": NaN}', "NaN"),
            ('{"a": 1e999}', "1e999"),
            ('{"a": ' + "9" * 5000 + "}", "no JSON"),
            ("[" * 50_000 + "]" * 50_000, "JSON"),
            ("[" * 900 + "]" * 900, "JSON"),
            ("[" + "[]," * 200_000 + "[]]", "more parts"),
            ("nonsense", "no JSON"),
            ('{"$array": "b"}', "not understood"),
            ('{"$array": ["a"]}', "not of a tree"),
            ('{"$array": "a", "x": 1}', "not understood"),
            ('{"$float": "1"}', "not understood"),
            ('{"$scalar": ["object", 1]}', "not understood"),
            ('{"$scalar": ["uint8", 300]}', "not of a tree"),
            ('{"$scalar": ["float32", "1"]}', "not of a tree"),
            ('{"$scalar": ["float32", {"$array": "a"}]}', "not of a tree"),
            ('{"$scalar": 1}', "not of a tree"),
            ('{"$scalar": [[], 1]}', "not of a tree"),
            ('{"$import": "os"}', "not understood"),
        ],
    )
    def test_by_its_json(self, tmp_path, text, reason):
        forge(tmp_path / "bad", text, {"a": np.ones(3)})
        with pytest.raises(DamagedFileError, match="bad cannot be read: .*") as told:
            read_tree(tmp_path / "bad", "tree")
        assert reason in told.value.reason

    def test_of_another_kind(self, tmp_path):
        write_tree(tmp_path / "a.safetensors", "normaliser", 1)
        with pytest.raises(DamagedFileError, match="must hold model, holds 'normaliser'"):
            read_tree(tmp_path / "a.safetensors", "model")

    @pytest.mark.parametrize("contents", [b"", b"1234567", b"PK\x03\x04" * 9, b"\x80\x04." * 9])
    def test_of_another_format(self, tmp_path, contents):
        (tmp_path / "a.safetensors").write_bytes(contents)
        with pytest.raises(DamagedFileError, match="a.safetensors cannot be read"):
            read_tree(tmp_path / "a.safetensors", "tree")

    @pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "C64"])
    def test_of_arrays_numpy_does_not_know(self, tmp_path, dtype):
        header = {"a": {"dtype": dtype, "shape": [8], "data_offsets": [0, 8]}}
        header["a"]["data_offsets"][1] *= {"BF16": 2, "F8_E4M3": 1, "C64": 8}[dtype]
        metadata = {"format": "thrust_pomdp", "json": "1", "sha256": "0"}
        text = json.dumps({"__metadata__": metadata, **header}).encode()
        size = header["a"]["data_offsets"][1]
        (tmp_path / "a.safetensors").write_bytes(
            len(text).to_bytes(8, "little") + text + bytes(size)
        )
        with pytest.raises(DamagedFileError):
            read_tree(tmp_path / "a.safetensors", "tree")

    def test_that_is_none(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            read_tree(tmp_path / "a.safetensors", "tree")
        with pytest.raises(DamagedFileError, match="must be a file"):
            read_tree(tmp_path, "tree")

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
    def test_that_never_ends(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(DamagedFileError, match="must be a file"):
            read_tree(tmp_path / "pipe", "tree")

    def test_the_error_survives_a_process_pool(self):
        import pickle

        error = pickle.loads(pickle.dumps(DamagedFileError("a", "why")))
        assert str(error) == "a cannot be read: why"


def split(contents: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(contents[:8], "little")
    return json.loads(contents[8 : 8 + length]), contents[8 + length :]


def joined(header: Any, body: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def flipped(rng: random.Random, contents: bytes) -> bytes:
    changed = bytearray(contents)
    for _ in range(rng.choice([1, 1, 2, 30])):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def truncated(rng: random.Random, contents: bytes) -> bytes:
    return contents[: rng.randrange(len(contents))]


def lengthened(rng: random.Random, contents: bytes) -> bytes:
    return contents + rng.randbytes(rng.randrange(1, 100))


def other_header_length(rng: random.Random, contents: bytes) -> bytes:
    length = rng.choice([0, 1, 2**31, 2**63, 2**64 - 1, len(contents), rng.randrange(2**16)])
    return length.to_bytes(8, "little") + contents[8:]


def other_shapes(rng: random.Random, contents: bytes) -> bytes:
    header, body = split(contents)
    entry = header[rng.choice([name for name in header if name != "__metadata__"])]
    huge = [2**63, 2**64 - 1, 10**12, -1, 10**30, 1.5, "3", None]
    if rng.random() < 0.5:
        entry["shape"] = [rng.choice([0, 1, *huge]) for _ in range(rng.randrange(4))]
    else:
        entry["data_offsets"] = [rng.choice([0, 4, *huge]) for _ in range(2)]
    return joined(header, body)


def other_names(rng: random.Random, contents: bytes) -> bytes:
    header, body = split(contents)
    name = rng.choice(list(header))
    header[rng.choice(["../../etc/passwd", "", "__class__", "\x00", "x" * 5000])] = header.pop(name)
    return joined(header, body)


def a_key_twice(rng: random.Random, contents: bytes) -> bytes:
    header, body = split(contents)
    name = rng.choice(list(header))
    text = json.dumps(header)[:-1] + f", {json.dumps(name)}: {json.dumps(header[name])}}}"
    text = text.replace('"shape": [2, 3]', '"shape": [3, 2]', 1)
    return joined(text.encode(), body)


def forged(rng: random.Random, contents: bytes) -> bytes:
    """Change the JSON anywhere, and write a checksum that agrees with it."""
    from safetensors.numpy import load, save

    header, _ = split(contents)
    metadata = dict(header["__metadata__"])
    text = metadata["json"]
    start = rng.randrange(len(text))
    insert = rng.choice(
        ["[", "]", "{", "}", '"', "9" * 50, "1e999", '{"$array":"weights"}', '{"$scalar":["uint8"',
         '"$float"', ",", "null", "[" * 2000, "\\u0000", "\\ud800"]
    )  # fmt: skip
    text = text[:start] + insert + text[start + rng.randrange(4) :]
    arrays = load(contents)
    metadata["json"] = text
    metadata["sha256"] = array_files._digest(text, arrays)
    return save(arrays, metadata)


DAMAGE = [flipped, truncated, lengthened, other_header_length, other_shapes, other_names]
MUTATIONS = [*DAMAGE, a_key_twice, forged]


def hold_against_mutations(folder: Path, count: int) -> None:
    path, bad = folder / "good.safetensors", folder / "bad"
    write_tree(path, "tree", TREE)
    contents, rng = path.read_bytes(), random.Random(0)
    read_tree(path, "tree")  # what is imported on the way is not the file's
    for number in range(count):
        mutation = MUTATIONS[number % len(MUTATIONS)]
        changed = mutation(rng, contents)
        bad.write_bytes(changed)
        tracemalloc.start()
        began, refused, found = time.process_time(), None, None
        try:
            found = read_tree(bad, "tree")
        except DamagedFileError as error:
            refused = error
        took, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
        tracemalloc.stop()
        if mutation in DAMAGE and refused is None:  # the same in other words
            assert same(found, TREE), (number, mutation)
        if refused is not None:
            assert str(bad) in str(refused)
            assert len(refused.reason) > 10
        assert took < 1.0, (number, mutation, took)
        # A few hundred kilobytes are Python's own, for instance of a traceback.
        assert peak < 2 * len(changed) + 500_000, (number, mutation, peak)
    assert sorted(part.name for part in folder.iterdir()) == ["bad", "good.safetensors"]


class TestMutatedFiles:
    def test_are_refused_by_name(self, tmp_path):
        hold_against_mutations(tmp_path, 300)

    @pytest.mark.slow
    def test_are_refused_by_name_many_times(self, tmp_path):
        hold_against_mutations(tmp_path, 5000)


ROOM = """
import resource, sys, time
from thrust_pomdp.safe_files import DamagedFileError, read_tree, write_tree
write_tree(sys.argv[2], "tree", 1), read_tree(sys.argv[2], "tree")
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[3]),) * 2)
began = time.process_time()
try:
    read_tree(sys.argv[1], "tree")
except DamagedFileError as error:
    print("refused:", error.reason[:200])
else:
    print("read")
assert time.process_time() - began < 1
"""


def read_in_a_room(path: Path, room: int) -> str:
    """Read a file in a process that gets no more memory than so many bytes."""
    done = subprocess.run(
        [sys.executable, "-c", ROOM, path, path.with_name("warm"), str(room)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and RLIMIT_AS")
class TestMemory:
    def test_of_a_big_file_is_twice_its_size(self, tmp_path):
        write_tree(
            tmp_path / "big.safetensors",
            "tree",
            {"a": np.zeros(4_000_000), "b": np.zeros(1_000_000)},
        )
        size = (tmp_path / "big.safetensors").stat().st_size
        assert read_in_a_room(tmp_path / "big.safetensors", 2 * size + 4_000_000) == "read\n"

    @pytest.mark.parametrize("unit", ["[],", "{},", '{"a":{}},', "0.5,", '"\\u2713",', '"é",'])
    @pytest.mark.parametrize("size", [300_000, 20_000_000])
    def test_of_a_file_full_of_json(self, tmp_path, unit, size):
        text = "[" + unit * (size // len(unit)) + "0]"
        forge(tmp_path / "bad", text, {})
        # Of the most values in a small file Python makes what it makes, whatever the file's size.
        said = read_in_a_room(tmp_path / "bad", 2 * size + 25_000_000)
        assert said.startswith("refused") or size < 1_000_000

    @pytest.mark.parametrize("shape", [[10**12], [2**40, 2**40], [0, 10**18], [10**6, 10**6, 4]])
    def test_of_a_file_that_claims_to_be_huge(self, tmp_path, shape):
        metadata = {"format": "thrust_pomdp", "json": "1", "sha256": "0"}
        count = math.prod(shape) * 4
        entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, count]}
        (tmp_path / "bad").write_bytes(joined({"__metadata__": metadata, "a": entry}, b""))
        assert "refused" in read_in_a_room(tmp_path / "bad", 8_000_000)
