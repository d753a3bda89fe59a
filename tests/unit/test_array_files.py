"""The format of files that run nothing: what is written comes back, and nothing else gets in."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import mutated_files
import numpy as np
import pytest
from gymnasium import spaces
from mutated_files import joined, parts_of
from safetensors.numpy import load_file

from thrust_pomdp import array_files
from thrust_pomdp.array_files import SafeFileError
from thrust_pomdp.ppo.vocabulary import MODELS
from thrust_pomdp.safe_values import Reader, Writer

ARRAYS = {
    "single": np.array(2.5),
    "empty": np.empty((0, 3), np.float32),
    "bits": np.array([True, False]),
    "whole": np.arange(6, dtype=np.int16).reshape(2, 3).T,
    "big endian": np.array([1.5, 2.5], ">f8"),
    "half": np.array([0.5], np.float16),
    "bytes": np.frombuffer(b"abc", np.uint8),
}
DATA = {"a": [1, None, "text", {"b": 2.5}], "ü": True}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    array_files.write(tmp_path / "file", "thing", DATA, ARRAYS)
    return tmp_path / "file.safetensors"


class TestFormat:
    def test_comes_back(self, path):
        data, arrays = array_files.read(path, "thing")
        assert data == DATA
        assert arrays.keys() == ARRAYS.keys()
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(arrays[name], array)
            assert arrays[name].dtype == array.dtype.newbyteorder("=")
            assert arrays[name].shape == array.shape

    def test_is_read_by_others(self, path):
        for name, array in load_file(path).items():
            np.testing.assert_array_equal(array, ARRAYS[name])

    def test_arrays_are_views_that_may_be_written_to(self, path):
        _, arrays = array_files.read(path, "thing")
        arrays["whole"][0, 0] = 9
        assert arrays["whole"].base is not None

    def test_of_an_opened_file(self):
        file = io.BytesIO()
        array_files.write(file, "thing", DATA, ARRAYS)
        file.seek(0)
        assert array_files.read(file, "thing")[0] == DATA

    def test_appears_whole_or_not_at_all(self, path, monkeypatch):
        before = path.read_bytes()

        def fail(*args: object) -> None:
            raise OSError("no space left")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="no space left"):
            array_files.write(path, "thing", {}, {})
        assert path.read_bytes() == before
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]

    @pytest.mark.parametrize("array", [np.array(["text"]), np.array([None]), np.array([1j])])
    def test_takes_numbers_alone(self, array, tmp_path):
        with pytest.raises(SafeFileError, match="the array 'x' must be of numbers"):
            array_files.write(tmp_path / "file", "thing", {}, {"x": array})
        with pytest.raises(SafeFileError, match="must be what JSON can hold"):
            array_files.write(tmp_path / "file", "thing", float("nan"), {})

    def test_loads_neither_torch_nor_gymnasiums_code(self):
        code = (
            "import sys, thrust_pomdp.array_files as s, io; f = io.BytesIO()\n"
            "import numpy; s.write(f, 'k', {}, {'a': numpy.zeros(3)}); f.seek(0); s.read(f, 'k')\n"
            "assert 'torch' not in sys.modules and 'stable_baselines3' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


class TestRefusals:
    """Each names the file and the reason."""

    def refused(self, path: Path, content: bytes, reason: str) -> None:
        path.write_bytes(content)
        with pytest.raises(SafeFileError, match=f"^{path} .*{reason}"):
            array_files.read(path, "thing")

    def test_other_kinds_and_schemas(self, path):
        with pytest.raises(SafeFileError, match="must hold model, holds 'thing'"):
            array_files.read(path, "model")

        def later(whole, arrays):
            whole["schema"] = 2

        content = mutated_files.resealed(path.read_bytes(), later)
        self.refused(path, content, "a later version of thrust_pomdp may have written it")

    def test_none(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"nothing, nor with \.safetensors"):
            array_files.read(tmp_path / "nothing", "thing")
        with pytest.raises(SafeFileError, match="must be a file"):
            array_files.read(tmp_path, "thing")

    def test_other_files(self, path):
        for content, reason in {
            b"": "has only 0 bytes",
            b"PK\3\4" + bytes(50): "is a zip file",
            b"\x80\4" + bytes(50): "is a pickle",
            bytes(50): "no JSON",
            joined({}, b""): "no metadata",
            joined({"__metadata__": {"format": "pt"}}, b""): "was not written by this package",
        }.items():
            self.refused(path, content, reason)

    def test_damage(self, path):
        content = path.read_bytes()
        for at in (len(content) - 1, len(content) // 2, content.index(b"text")):
            changed = bytearray(content)
            changed[at] ^= 1
            self.refused(path, bytes(changed), "")
        self.refused(path, content[:-1], "where that does not fit")
        self.refused(path, content + b"x", "1 bytes behind its arrays")

    @pytest.mark.parametrize(
        ("name", "key", "value", "reason"),
        [
            ("single", "shape", [2**40], "where that does not fit"),
            ("single", "shape", [2**70], "that is none"),
            ("single", "shape", [-1], "that is none"),
            ("single", "shape", [True], "that is none"),
            ("single", "dtype", "object", "that is none"),
            ("single", "data_offsets", [0, 2**60], ""),
            ("single", "more", 1, "that is none"),
            ("bytes", "data_offsets", [0, 3], "one behind the other"),
            ("bytes", "dtype", "BOOL", "neither 0 nor 1"),
        ],
    )
    def test_headers_that_lie(self, path, name, key, value, reason):
        header, buffer = parts_of(path.read_bytes())
        header[name][key] = value
        self.refused(path, joined(header, buffer), reason)

    def test_keys_that_come_twice(self, path):
        header, buffer = parts_of(path.read_bytes())
        text = json.dumps(header)[:-1] + ', "single": ' + json.dumps(header["single"]) + "}"
        self.refused(path, joined(text, buffer), "key 'single' twice")

    def test_json_that_would_fill_the_memory(self, path):
        for text in ("[" + "[]," * 2_000_000 + "0]", "[" * 1_000_000, '{"a":' * 1_000_000):
            path.write_bytes(joined(text, b""))
            tracemalloc.start()
            with pytest.raises(SafeFileError, match=str(path)):
                array_files.read(path, "thing")
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak <= 2 * path.stat().st_size + (8 << 20)


class TestValues:
    @pytest.mark.parametrize(
        "value",
        [
            None, 5, 2**70, -0.0, "text", [1, [2]], (1, (2, [3])), {"a": {"b": ()}}, {1: 2, "a": 3},
            {"$": "tuple"}, float("inf"), np.float64(2.5), np.int8(3), np.bool_(True), Path("a/b"),
            spaces.Box(-1, np.array([1, np.inf]), (2,), np.float64), spaces.Discrete(3, start=-1),
            spaces.MultiDiscrete([[2, 3], [4, 5]]), spaces.MultiBinary(3),
            spaces.MultiBinary([2, 2]), spaces.Box(0, 255, (2, 2, 3), np.uint8),
            spaces.Dict([("z", spaces.Discrete(2)), ("a", spaces.Tuple([spaces.Discrete(2)]))]),
        ],
    )  # fmt: skip
    def test_come_back(self, value):
        writer = Writer(MODELS)
        data = json.loads(json.dumps(writer.write(value, "value"), allow_nan=False))
        again = Reader(MODELS, writer.arrays).read(data, "value")
        assert type(again) is type(value)
        assert again == value
        if isinstance(value, spaces.Dict):
            assert list(again) == list(value)

    def test_nan(self):
        again = Reader(MODELS, {}).read(Writer(MODELS).write(float("nan"), "value"), "value")
        assert np.isnan(again)

    @pytest.mark.parametrize(
        "value", [object(), lambda: 0, print, os, np.array(["a"]), {1, 2}, b"a"]
    )
    def test_that_are_no_data_are_the_programs(self, value):
        data = Writer(MODELS).write({"it": value}, "value")
        with pytest.raises(SafeFileError, match=r"a it of somebody's own, .*custom_objects=.'it'"):
            Reader(MODELS, {}).read(data, "value")
        assert Reader(MODELS, {}, {"it": value}).read(data, "value") == {"it": value}
        assert Reader(MODELS, {}, {"value.it": 3}).read(data, "value") == {"it": 3}

    def test_derived_classes_are_no_data(self):
        class Own(spaces.Discrete):
            pass

        assert Writer(MODELS).write(Own(3), "value")["$"] == "yours"

    @pytest.mark.parametrize(
        "data",
        [
            {"$": "class", "name": "os.system"}, {"$": "class", "name": "eval"}, {"$": "os.system"},
            {"$": "class", "name": ["a"]}, {"$": ["a"]}, {"$": None}, {"$": "array", "name": "x"},
            {"$": "Discrete", "n": "3", "start": 0, "dtype": "int64"}, {"$": "tuple", "items": 3},
            {"$": "Discrete", "n": 3, "start": 0, "dtype": "int64", "seed": 3},
            {"$": "MultiBinary", "n": -1}, {"$": "Box", "low": 0, "high": 1, "dtype": "O"},
            {"$": "path", "value": 3}, {"$": "float", "value": "5"},
            {"$": "dict", "items": [[[], 1]]},
            {"$": "LinearSchedule", "start": "a", "end": 1, "end_fraction": 1},
            {"$": "FloatSchedule", "value_schedule": 3},
        ],
    )  # fmt: skip
    def test_names_and_parts_that_are_unknown(self, data):
        with pytest.raises(SafeFileError):
            Reader(MODELS, {}).read(data, "value")


@pytest.fixture(scope="module")
def watch() -> mutated_files.Watch:
    return mutated_files.Watch()


class TestMutatedFiles:
    @pytest.mark.filterwarnings("ignore")
    def test_are_told_from_others(self, watch, tmp_path):
        told = mutated_files.open_many(300, 0, tmp_path, watch)
        assert told["wrong"] == told["seen"] == []
        assert told["files"] - told["opened"] > 200

    def test_the_watch_sees(self, watch, tmp_path):
        watch.is_on = True
        (tmp_path / "written").write_bytes(b"")
        watch.is_on = False
        assert any("written" in seen for seen in watch.seen)
        watch.seen.clear()

    @pytest.mark.slow
    def test_five_thousand_cost_nothing(self):
        program = Path(mutated_files.__file__)
        done = subprocess.run(
            [sys.executable, str(program), "5000"], capture_output=True, text=True, check=True
        )
        told = json.loads(done.stdout)
        assert told["wrong"] == told["seen"] == []
        assert told["files"] == 5000
        # What an interpreter takes and gives back by itself is in it, too.
        assert told["more_memory"] <= 2 * told["biggest"] + (8 << 20)
        assert told["slowest"] < 1
