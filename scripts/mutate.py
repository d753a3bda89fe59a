"""Whether the tests would notice: small faults are planted one by one, and the tests are run.

    make mutate ARGS="--minutes 60"         # goes on where it was, for an hour
    python scripts/mutate.py map            # which test runs which function; and after new tests
    python scripts/mutate.py run --count 600 --minutes 60
    python scripts/mutate.py report         # the table of docs/testing.md, and who survived

Mutants are drawn at random of what scripts/mutants.py can change. Of each, the tests that run its
function are run, those of its own module first, then the quickest, until one fails or 120 seconds
are over. What comes out is appended to docs/results/mutation/mutants.csv, so it can be stopped at
any moment. Who survives is killed by a new test (then `run --again`), or argued to be equivalent in
docs/results/mutation/equivalent.csv.

Loops are compiled anew for each mutant of theirs. Coverage does not see into them: of these the
tests are run whose files are named after compiled code.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutants import ROOT, Mutant, drawn

MAP = ROOT / "build" / "mutation"
TESTS = MAP / "tests.json"
RESULTS = ROOT / "docs" / "results" / "mutation" / "mutants.csv"
EQUIVALENT = ROOT / "docs" / "results" / "mutation" / "equivalent.csv"
HEAD = (
    "key",
    "file",
    "function",
    "kind",
    "before",
    "after",
    "outcome",
    "seconds",
    "tests",
    "killed_by",
    "revision",
)

#: Seconds for the tests of one mutant.
LIMIT = 120.0
#: A test that takes so many times as long as it should, and so many seconds more, hangs.
TIMES, MORE = 20, 20.0
#: In the names of files whose functions Numba compiles, and of files that test compiled code.
COMPILED = ("kernels", "products", "vectors", "functions")
TESTS_OF_COMPILED = (
    *COMPILED, "compiled", "sequences", "scan", "unseen_steps", "prepared_step", "digits",
)  # fmt: skip


# Pytest's plugin (-p mutate): which test runs which function, and how long it takes.


class _Watch:
    """Notes the functions of the package that a test runs."""

    def __init__(self, out: Path) -> None:
        import coverage

        self.out = out
        self.coverage = coverage.Coverage(
            data_file=str(out.with_suffix(".coverage")),
            source=[str(ROOT / "thrust_pomdp")],
            messages=False,
        )
        self.seconds: dict[str, float] = defaultdict(float)

    def pytest_sessionstart(self) -> None:
        self.coverage.start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report) -> None:
        self.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        self.out.write_text(json.dumps(self.seconds))


class _FirstFailure:
    """Writes down the test that runs and the one that failed."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.count = 0

    def _write(self, **what: object) -> None:
        self.out.write_text(json.dumps({"count": self.count, "at": time.time(), **what}))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.count += 1
        self._write(running=nodeid)

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed:
            self._write(failed=report.nodeid)

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self._write(failed=report.nodeid)


def pytest_configure(config) -> None:
    if out := os.environ.get("MUTATION_MAP"):
        config.pluginmanager.register(_Watch(Path(out)))
    if out := os.environ.get("MUTATION_FAILURE"):
        config.pluginmanager.register(_FirstFailure(Path(out)))


# The map.


def make_map(paths: Sequence[str]) -> None:
    """Run the tests under coverage, and keep what ran what beside what is known."""
    import coverage

    MAP.mkdir(parents=True, exist_ok=True)
    env = _environment(ROOT, MUTATION_MAP=str(MAP / "seconds.json"))
    subprocess.run(_pytest(*paths, "-q"), cwd=ROOT, env=env, check=False)
    known = json.loads(TESTS.read_text()) if TESTS.exists() else {"tests": {}, "seconds": {}}
    data = coverage.CoverageData(basename=str(MAP / "seconds.coverage"))
    data.read()
    for path in data.measured_files():
        by_function = known["tests"].setdefault(str(Path(path).relative_to(ROOT)), {})
        functions = _functions(Path(path))
        for line, tests in data.contexts_by_lineno(path).items():
            # A line of a module or class itself runs once, when it is imported.
            function = functions.get(line, "")
            by_function[function] = sorted({*by_function.get(function, ()), *tests} - {""})
    known["seconds"].update(json.loads((MAP / "seconds.json").read_text()))
    TESTS.write_text(json.dumps(known))


def _functions(path: Path) -> dict[int, str]:
    """Return the function, with its class, that each line of a file is in."""
    import ast

    found = {}

    def walk(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{name}.{child.name}".lstrip(".")
                if not isinstance(child, ast.ClassDef):
                    found.update(
                        dict.fromkeys(range(child.lineno + 1, (child.end_lineno or 0) + 1), inner)
                    )
            walk(child, inner)

    walk(ast.parse(path.read_text()), "")
    return found


# The mutants.


@dataclass
class Outcome:
    """What came of a mutant.

    :param outcome: ``killed``, ``hung`` (which is killed) or ``survived``
    :param seconds: its tests took
    :param tests: that were run
    :param killed_by: the test that failed
    """

    outcome: str
    seconds: float
    tests: int
    killed_by: str = ""


class Trials:
    """Plants mutants in a copy of the repository.

    :param copy: the copy's folder
    """

    def __init__(self, copy: Path) -> None:
        self.copy, self.cache = copy, copy.with_name(f"{copy.name}-numba")
        self.map = json.loads(TESTS.read_text())
        files = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
        ).stdout
        for name in files.decode().split("\0")[:-1]:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)

    def trial(self, mutant: Mutant) -> Outcome:
        """Plant one, run its tests, and take it out."""
        path = self.copy / mutant.file
        source = path.read_text()
        tests = self.tests(mutant)
        try:
            path.write_text(mutant.applied(source))
            return self._run(tests) if tests else Outcome("survived", 0.0, 0)
        finally:
            path.write_text(source)

    def tests(self, mutant: Mutant) -> list[str]:
        """Return the tests that run the mutant's function, those of its module first."""
        functions = self.map["tests"].get(mutant.file, {})
        seconds = self.map["seconds"]
        tests = functions.get(mutant.function)
        if _is_compiled(mutant):
            tests = [test for test in seconds if any(w in _file(test) for w in TESTS_OF_COMPILED)]
        elif tests is None:  # a module's own lines, or a function that no test runs
            tests = sorted({test for found in functions.values() for test in found})
        stem, room = Path(mutant.file).stem, Path(mutant.file).parent.name

        def order(test: str) -> tuple[bool, float, str]:
            return not _is_of(test, room, stem), seconds.get(test, 1.0), test

        return sorted(tests, key=order)

    def _run(self, tests: list[str]) -> Outcome:
        with tempfile.TemporaryDirectory() as folder:
            told, ids = Path(folder) / "told.json", Path(folder) / "ids.txt"
            # Pytest keeps the order of what it is given.
            ids.write_text("\n".join(tests))
            told.write_text(json.dumps({"count": 0, "at": time.time()}))
            env = _environment(
                self.copy, NUMBA_CACHE_DIR=str(self.cache), MUTATION_FAILURE=str(told),
                HOME=folder, PYTHONDONTWRITEBYTECODE="1",
            )  # fmt: skip
            begun = time.monotonic()
            process = subprocess.Popen(
                _pytest(f"@{ids}", "-x", "-q"), cwd=self.copy, env=env, start_new_session=True,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            try:
                outcome = self._watched(process, told, self.map["seconds"])
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, 9)
                process.wait()
            last = json.loads(told.read_text())
            failed = last.get("failed", "")
            if failed:
                outcome = "killed"
            elif process.returncode > 1 and outcome == "ended":
                outcome, failed = "killed", "collection"  # nothing could even be imported
            if outcome == "ended":
                outcome = "survived"
            return Outcome(outcome, time.monotonic() - begun, last["count"], failed)

    @staticmethod
    def _watched(process: subprocess.Popen[bytes], told: Path, seconds: dict[str, float]) -> str:
        """Wait until the tests end, one takes far too long, or the time is over."""
        begun = time.monotonic()
        while True:
            try:
                process.wait(timeout=1.0)
                return "ended"
            except subprocess.TimeoutExpired:
                pass
            try:
                last = json.loads(told.read_text())
            except ValueError:  # it is being written
                continue
            usual = seconds.get(last.get("running", ""), 1.0)
            if "running" in last and time.time() - last["at"] > TIMES * usual + MORE:
                return "hung"
            if time.monotonic() - begun > LIMIT and time.time() - last["at"] < TIMES * usual:
                return "survived"


def _is_of(test: str, room: str, stem: str) -> bool:
    file = test.partition("::")[0]
    return file.endswith(f"/test_{stem}.py") and (room == "thrust_pomdp" or f"/{room}/" in file)


def _file(test: str) -> str:
    return Path(test.partition("::")[0]).name


def _is_compiled(mutant: Mutant) -> bool:
    return any(word in Path(mutant.file).name for word in COMPILED)


def _pytest(*arguments: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "mutate",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        *arguments,
    ]


def _environment(root: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join([str(root), str(root / "scripts")])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **more}


def run(count: int, seed: int, minutes: float, again: bool) -> None:
    """Try mutants that have not been tried, or those that survived."""
    end = time.monotonic() + 60 * minutes
    revision = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout.strip()
    rows, equivalent = (
        {row["key"]: row for row in _rows(RESULTS)},
        {row["key"] for row in _rows(EQUIVALENT)},
    )
    with tempfile.TemporaryDirectory() as folder:
        trials = Trials(Path(folder))
        for mutant in drawn(count, seed):
            if time.monotonic() > end:
                break
            row = rows.get(mutant.key)
            if mutant.key in equivalent or (row and not (again and row["outcome"] == "survived")):
                continue
            outcome = trials.trial(mutant)
            _append(mutant, outcome, revision)
            print(
                f"{outcome.outcome:9}{outcome.seconds:6.1f} s  {mutant.file} {mutant.function}: "
                f"{_short(mutant.before)} -> {_short(mutant.after)}  {outcome.killed_by}",
                flush=True,
            )


def _rows(path: Path) -> Iterator[dict[str, str]]:
    """Return a file's rows; the later one of a key counts."""
    if path.exists():
        with path.open(newline="") as file:
            yield from csv.DictReader(file)


def _append(mutant: Mutant, outcome: Outcome, revision: str) -> None:
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    is_new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(HEAD)
        writer.writerow((
            mutant.key, mutant.file, mutant.function, mutant.kind, _short(mutant.before),
            _short(mutant.after), outcome.outcome, f"{outcome.seconds:.1f}", outcome.tests,
            outcome.killed_by, revision,
        ))  # fmt: skip


def _short(code: str) -> str:
    told = " ".join(code.split())
    return told if len(told) <= 100 else f"{told[:97]}..."


def report(count: int, seed: int) -> None:
    """Print the score by rooms, and who survived."""
    rows, equivalent = (
        {row["key"]: row for row in _rows(RESULTS)},
        {row["key"] for row in _rows(EQUIVALENT)},
    )
    table: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    survivors = []
    for mutant in drawn(count, seed):
        row = rows.get(mutant.key)
        if row is None and mutant.key not in equivalent:
            continue
        parts = Path(mutant.file).parts
        for line in (f"{parts[1]}/" if len(parts) > 2 else "ground floor", "all"):
            table[line][0] += 1
            if mutant.key in equivalent:
                table[line][1] += 1
            elif row and row["outcome"] == "survived":
                table[line][3] += 1
            else:
                table[line][2] += 1
        if row and row["outcome"] == "survived" and mutant.key not in equivalent:
            survivors.append((mutant, row))
    print("| part | tried | equivalent | killed | survived | killed of those not equivalent |")
    print("|---|---|---|---|---|---|")
    for line in sorted(table, key=lambda name: (name == "all", name)):
        tried, same, killed, survived = table[line]
        score = f"{100 * killed / (killed + survived):.1f} %" if killed + survived else ""
        print(f"| {line} | {tried} | {same} | {killed} | {survived} | {score} |")
    print()
    for mutant, row in survivors:
        line = f"{mutant.file}:{mutant.span[0]} {mutant.function} [{mutant.kind}]"
        change = f"{_short(mutant.before)} -> {_short(mutant.after)}"
        print(f"{mutant.key} {line} {change}  ({row['tests']} tests)")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    made = commands.add_parser("map")
    made.add_argument("paths", nargs="*", help="tests that are new (all that make test runs)")
    for name in ("run", "report"):
        made = commands.add_parser(name)
        made.add_argument("--count", type=int, default=600, help="mutants drawn (%(default)s)")
        made.add_argument("--seed", type=int, default=0)
        if name == "run":
            made.add_argument(
                "--minutes", type=float, default=60.0, help="to go on for (%(default)s)"
            )
            made.add_argument(
                "--again", action="store_true", help="try those that survived once more"
            )
    args = parser.parse_args()
    if args.command == "map":
        make_map(args.paths)
    elif args.command == "run":
        if not TESTS.exists():
            make_map([])
        run(args.count, args.seed, args.minutes, args.again)
    else:
        report(args.count, args.seed)


if __name__ == "__main__":
    main()
