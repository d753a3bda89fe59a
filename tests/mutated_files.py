"""Files that were changed, by chance and on purpose, and what opening them costs.

``python tests/mutated_files.py N`` opens N of them in a process whose memory is limited, and prints
what it took as JSON.
"""

from __future__ import annotations

import copy
import gc
import io
import json
import os
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import deserialize
from stable_baselines3.common.vec_env import VecFrameStack

import thrust_pomdp
from thrust_pomdp import (
    RecurrentPPO,
    StatefulActor,
    VecNormalizeVisible,
    VecPreviousAction,
    VecPrivilegedInfo,
    array_files,
)

FLICKERING = "FlickeringCartPole-v0"
#: What no loading may do: code of files comes in by one of these.
FORBIDDEN = (
    "pickle.find_class", "exec", "compile", "os.system", "os.exec", "os.posix_spawn", "os.mkdir",
    "os.remove", "os.rename", "os.symlink", "shutil", "socket.connect", "subprocess.Popen",
    "marshal.loads", "code.__new__", "function.__new__", "ctypes.dlopen", "import",
)  # fmt: skip
EVIL = (
    "os.system", "builtins.eval", "__import__('os').system('touch canary')",
    "../../etc/passwd", "/etc/passwd", "torch.load", "\0",
    "posix", "__class__", "subprocess.Popen", "C:\\evil", "",
)  # fmt: skip
NUMBERS = (
    -1, 0, 1, 2, 3, 7, 2**31, 2**40, 2**63, 2**64, 10**30, -(2**63), 1e308, -0.5, 1e-300, 10**6,
    True, None, "8", [], {}, [[]], {"$": "float", "value": "nan"}, {"$": "float", "value": "inf"},
    {"$": "tuple", "items": [10**9] * 3}, {"$": "class", "name": "LSTM"}, {"$": "yours", "is": "x"},
)  # fmt: skip


def make_files(hidden: int = 32) -> dict[str, tuple[bytes, Callable[[Any], Any]]]:
    """One of each kind of file, and what opens it."""
    venv = thrust_pomdp.make_vec_env(FLICKERING, 2, seed=0)
    normalizer = VecNormalizeVisible(venv)
    venv = VecFrameStack(VecPreviousAction(normalizer), 2)
    kwargs = {"lstm_hidden_size": hidden, "net_arch": {"pi": [16], "vf": [16]}}
    model = RecurrentPPO(
        "MlpLstmPolicy", venv, n_steps=8, batch_size=8, seed=0, device="cpu", policy_kwargs=kwargs
    ).learn(16)
    privileged = VecPrivilegedInfo(
        thrust_pomdp.make_vec_env(FLICKERING, 2, env_kwargs={"expose_state": True})
    )

    def content(save: Callable[[Any], None]) -> bytes:
        file = io.BytesIO()
        save(file)
        return file.getvalue()

    def load_normalizer(path: Any) -> Any:
        return VecNormalizeVisible.load_safe(path, thrust_pomdp.make_vec_env(FLICKERING, 2))

    actor = StatefulActor.like(model, venv, True)
    return {
        "model": (content(model.save_safe), lambda p: RecurrentPPO.load_safe(p, device="cpu")),
        "actor": (content(actor.save), lambda p: StatefulActor.load(p, device="cpu")),
        "normalizer": (content(normalizer.save_safe), load_normalizer),
        "statistics": (content(privileged.save_safe), privileged.load_safe),
    }


def parts_of(content: bytes) -> tuple[dict[str, Any], bytes]:
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def joined(header: Any, buffer: bytes) -> bytes:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(text)) + text + buffer


def resealed(content: bytes, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> bytes:
    """Change data and arrays, and give the file a SHA-256 that is right again."""
    whole = json.loads(parts_of(content)[0]["__metadata__"]["json"])
    arrays = {
        name: np.frombuffer(bytes(part["data"]), array_files._DTYPES[part["dtype"]]).reshape(
            part["shape"]
        )
        for name, part in deserialize(content)
    }
    change(whole, arrays)
    made: bytes = array_files.as_bytes(whole["kind"], whole["data"], arrays)
    if whole["schema"] != array_files.SCHEMA:
        header, buffer = parts_of(made)
        made = _with_text(header, buffer, json.dumps(whole))
    return made


def _with_text(header: dict[str, Any], buffer: bytes, text: str) -> bytes:
    """Put other JSON into a file, sealed."""
    arrays = array_files._arrays(
        {k: v for k, v in header.items() if k != "__metadata__"}, memoryview(bytearray(buffer))
    )
    metadata = {"format": "thrust_pomdp", "json": text, "sha256": array_files._digest(text, arrays)}
    return joined({**header, "__metadata__": metadata}, buffer)


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(data, (dict, list)):
        for key, part in data.items() if isinstance(data, dict) else enumerate(data):
            yield from places(part, (*path, key))


def put(data: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        data = data[key]
    data[path[-1]] = value


def _bits(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    near = rng.choice([len(content), 4096, 16])
    for _ in range(rng.choice([1, 1, 2, 8])):
        changed[rng.randrange(min(near, len(content)))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content))
    return rng.choice([content[:at], content + bytes(rng.randrange(1, 99)), content[at:]])


def _length(content: bytes, rng: random.Random) -> bytes:
    length = rng.choice([0, 1, 2**63, 2**64 - 1, 2**32, len(content), len(content) - 8, 7])
    return struct.pack("<Q", length) + content[8:]


def _entry(content: bytes, rng: random.Random) -> bytes:
    header, buffer = parts_of(content)
    names = [name for name in header if name != "__metadata__"]
    entry = header[rng.choice(names)] if names else header["__metadata__"]
    key = rng.choice(list(entry))
    entry[key] = rng.choice(
        [[2**62], [2**40, 2**40], [-1], [1.5], ["a"], [0] * 99, "F64", "I8", "BF16", None, {},
         [0, 0], [0, 2**63], [2**64, 8], [8, 0], entry[key] * 2]
    )  # fmt: skip
    return joined(header, buffer)


def _names(content: bytes, rng: random.Random) -> bytes:
    header, buffer = parts_of(content)
    names = [name for name in header if name != "__metadata__"]
    if names:
        header[rng.choice(EVIL)] = header.pop(rng.choice(names))
    return joined(header, buffer)


def _twice(content: bytes, rng: random.Random) -> bytes:
    header, buffer = parts_of(content)
    name = rng.choice(list(header))
    text = json.dumps(header)[:-1] + f", {json.dumps(name)}: {json.dumps(header[name])}}}"
    return joined(text, buffer)


def _deep(content: bytes, rng: random.Random) -> bytes:
    many = rng.choice([1000, 40_000])
    text = rng.choice(["[" * many + "]" * many, "[" + "[]," * many + "0]", '{"a":' * many])
    header, buffer = parts_of(content)
    if rng.random() < 0.5:
        return joined(text, buffer)
    return _with_text(header, buffer, text)


def _sealed_twice(content: bytes, rng: random.Random) -> bytes:
    header, buffer = parts_of(content)
    text = header["__metadata__"]["json"]
    return _with_text(header, buffer, rng.choice(
        [text[:-1] + ',"kind":"model"}', text.replace('"schema":1', '"schema":NaN'), text[:-1]]
    ))  # fmt: skip


def _number(content: bytes, rng: random.Random) -> bytes:
    def change(whole: dict[str, Any], arrays: dict[str, Any]) -> None:
        for _ in range(rng.choice([1, 1, 1, 3])):
            found = [
                path for path in places(whole) if path and not isinstance(_at(whole, path), dict)
            ]
            put(whole, rng.choice(found), copy.deepcopy(rng.choice(NUMBERS)))

    return resealed(content, change)


def _at(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


def _text(content: bytes, rng: random.Random) -> bytes:
    def change(whole: dict[str, Any], arrays: dict[str, Any]) -> None:
        found = [path for path in places(whole) if isinstance(_at(whole, path), str)]
        put(whole, rng.choice(found), rng.choice(EVIL))

    return resealed(content, change)


def _missing(content: bytes, rng: random.Random) -> bytes:
    def change(whole: dict[str, Any], arrays: dict[str, Any]) -> None:
        found = [p for p in places(whole) if len(p) > 1 and isinstance(_at(whole, p[:-1]), dict)]
        path = rng.choice(found)
        del _at(whole, path[:-1])[path[-1]]

    return resealed(content, change)


def _more(content: bytes, rng: random.Random) -> bytes:
    def change(whole: dict[str, Any], arrays: dict[str, Any]) -> None:
        found = [p for p in places(whole) if isinstance(_at(whole, p), dict)]
        name = rng.choice([*EVIL, "predict", "policy", "env", "__dict__", "learn", "$", "n_steps"])
        _at(whole, rng.choice(found))[name] = copy.deepcopy(rng.choice(NUMBERS))

    return resealed(content, change)


def _arrays(content: bytes, rng: random.Random) -> bytes:
    def change(whole: dict[str, Any], arrays: dict[str, Any]) -> None:
        name = rng.choice(list(arrays))
        array = arrays[name]
        changed: Any = rng.choice([
            array.reshape(-1), array.T, array.reshape(-1)[:0], array.astype(np.float16),
            array[None],
            array * np.nan if array.dtype.kind == "f" else array + 1, array.astype(np.int64), None,
            np.zeros((3, 3)), np.ones((0, 2**40), np.float32), array.astype(bool),
        ])  # fmt: skip
        if changed is None:
            del arrays[name]
        else:
            arrays[name] = changed

    with np.errstate(invalid="ignore"):
        return resealed(content, change)


#: Changes that a SHA-256 tells, and those that it does not since it is made anew.
BY_CHANCE = (_bits, _cut, _length, _entry, _names, _twice)
ON_PURPOSE = (_deep, _sealed_twice, _number, _text, _missing, _more, _arrays)


def mutated(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    """Change a file; the name of how, and the file."""
    how = rng.choice([*BY_CHANCE, *ON_PURPOSE, _number, _number])
    return how.__name__, how(content, rng)


class Watch:
    """Notes what loading does that it must not, and how long it takes."""

    def __init__(self) -> None:
        self.is_on = False
        self.seen: list[str] = []
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        writes = event == "open" and any(c in str(arguments[1]) for c in "wax+")
        if event in FORBIDDEN or writes:
            self.seen.append(f"{event} {arguments[:2]}")


def open_many(
    n_files: int, seed: int, folder: Path, watch: Watch, hidden: int = 32
) -> dict[str, Any]:
    """Open changed files, one after the other; what it cost and what went wrong."""
    rng = random.Random(seed)
    files = make_files(hidden)
    for name, (content, load) in files.items():  # whatever is imported on the way
        for _ in range(3):
            (folder / name).write_bytes(content)
            load(folder / name)
    wrong: list[str] = []
    opened, slowest = 0, 0.0
    for number in range(n_files):
        name = rng.choice(list(files))
        content, load = files[name]
        how, changed = mutated(content, rng)
        path = folder / f"changed-{name}"
        path.write_bytes(changed)
        del changed
        watch.is_on, start = True, time.process_time()
        try:
            load(path)
            opened += 1
            is_by_chance = how in {change.__name__ for change in BY_CHANCE}
            if is_by_chance and parts_of(path.read_bytes()) != parts_of(content):
                wrong.append(f"{number} {how} {name}: opened")
        except array_files.SafeFileError as error:
            if str(path) not in str(error):
                wrong.append(f"{number} {how} {name}: no name in {error}")
        except Exception as error:
            wrong.append(f"{number} {how} {name}: {type(error).__name__}: {error}")
        finally:
            watch.is_on = False
        took = time.process_time() - start
        if took > 1:
            wrong.append(f"{number} {how} {name}: {took:.2f} s")
        slowest = max(slowest, took)
    biggest = max(len(content) for content, _ in files.values())
    return {
        "files": n_files, "opened": opened, "wrong": wrong, "seen": watch.seen,
        "slowest": slowest, "biggest": biggest,
    }  # fmt: skip


def main(n_files: int) -> None:
    import resource
    import warnings

    warnings.simplefilter("ignore")
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        before = open_many(30, 1, Path(folder), watch, hidden=128)
        gc.collect()
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        # What is asked for beyond is an error here, instead of pages that are never touched.
        resource.setrlimit(resource.RLIMIT_AS, (size + (256 << 20),) * 2)
        told = open_many(n_files, 2, Path(folder), watch, hidden=128)
        told["wrong"] += before["wrong"]
        more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used
        print(json.dumps({**told, "more_memory": more * 1024}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
