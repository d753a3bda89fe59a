"""Command lines: whatever is given is refused in one line that names it, or it runs."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from hypothesis import strategies as st

from laws.budget import case, law
from thrust_pomdp import __main__ as program
from thrust_pomdp.experiment.arms import ARMS
from thrust_pomdp.experiment.commands import options, tune
from thrust_pomdp.experiment.engines import Failed, Started
from thrust_pomdp.experiment.failures import headline
from thrust_pomdp.experiment.runs import RunSpec
from thrust_pomdp.experiment.training import Training

#: What values look like, and what looks like values.
FRAGMENTS = [
    "0", "1", "2", "-1", "0.5", "1e-3", "1e400", "-0.0", "nan", "inf", "-inf", "1_0", "0x10", "٣",
    "True", "true", "None", "null", "~", "lin_", "lin_0.1", "lin_1e-3_1e-5", "lin_nan", "_", ".",
    ":", ",", "=", " ", "\n", "\t", "\0", "'", '"', "(", ")", "[", "]", "{", "}", "{[]: 1}",
    "[[1]]", "{}", "{1: 2}", "(1, 2)", "*", "-", "--", "--env", "#", "\\", "%s", "%", "{0}",
    "dict(", "dict()", "dict(a=1)", "dict(net_arch=[8])", "dict(lstm_hidden_size=4)", "nn.",
    "nn.ReLU", "th.nn.Tanh", "torch.", "zero", "carry", "lstm", "mlp", "lstm.", "gamma", "n_steps",
    "1j", "b'a'", "...", "\udc80", "é", "1" * 5000, "0x" + "f" * 5000, "0x" + "f" * 300,
    "[0x" + "f" * 5000 + "]",
    "-" * 3000 + "1", "[" * 300 + "]" * 300, "not 1", "1 if 1 else 2", "__import__('os')",
]  # fmt: skip
TEXT = st.one_of(
    st.text(max_size=8),
    st.lists(st.sampled_from(FRAGMENTS), max_size=4).map("".join),
    st.sampled_from(FRAGMENTS),
    st.integers(-3, 40).map(str),
    st.floats().map(str),
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text("ab ", max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text("ab", max_size=2) | st.integers(0, 3), inner, max_size=3)
            | st.tuples(inner)
        ),
        max_leaves=5,
    ).map(repr),
)
#: What policies take, and values of every kind.
POLICY_KEYS = [
    "lstm_hidden_size", "n_lstm_layers", "net_arch", "activation_fn", "ortho_init", "shared_lstm",
    "lstm_kwargs", "log_std_init", "forget_bias", "optimizer_kwargs",
]  # fmt: skip
POLICY_VALUES = [
    "nn.ReLU", "nn.Linear", "th.optim.SGD", "[4]", "dict(pi=[4], vf=[])", "dict(encoder=[3])",
    "[[]]", "[-1]", "{'pi': 4}", "dict(bias=False)", "-1", "0", "2", "0.5", "True", "None", "'a'",
]  # fmt: skip
NETWORKS = st.builds(
    "dict({}={})".format,
    st.sampled_from(POLICY_KEYS),
    st.one_of(
        st.sampled_from(POLICY_VALUES),
        st.integers(-1, 6),
        st.sampled_from([text for text in FRAGMENTS if "0x" not in text]),  # as many layers
    ),
)
KEYS = sorted(set().union(*(arm.recipe_keys for arm in ARMS.values())))
ENV_KEYS = ["flicker_prob", "burst_len", "kinematics_integrator", "expose_state", "render_mode"]


def named(names: list[str]) -> st.SearchStrategy[str]:
    """``name:value`` texts, most of them of a name that there is."""
    return st.builds("{}:{}".format, st.sampled_from(names) | TEXT, TEXT) | TEXT


#: Options that take text, and what they are given.
OPTIONS: dict[str, st.SearchStrategy[list[str]]] = {
    "--env": st.lists(
        st.sampled_from(["TMaze-v0", "Nothing-v0", "no_module:X-v0"]) | TEXT, min_size=1, max_size=1
    ),
    "--env-kwargs": st.lists(named(ENV_KEYS), min_size=1, max_size=2),
    "--arms": st.lists(st.sampled_from([*ARMS]) | TEXT, min_size=1, max_size=2),
    "--hyperparams": st.lists(
        named([*KEYS, *(f"lstm.{key}" for key in KEYS)]), min_size=1, max_size=3
    ),
    "--memoryless": st.lists(TEXT, min_size=1, max_size=1),
    "--with-memory": st.lists(TEXT, min_size=1, max_size=1),
    "--engine": st.lists(TEXT, min_size=1, max_size=1),
    "--eval-episodes": st.lists(TEXT, min_size=1, max_size=3),
    **{
        name: st.lists(TEXT, min_size=1, max_size=1)
        for name in ("--n-timesteps", "--evaluations", "--margin", "--solved", "--recipe", "--jobs")
    },
    "--seeds": st.lists(TEXT.filter(lambda text: not _is_large(text)), min_size=1, max_size=1),
    "--space": st.lists(TEXT, min_size=1, max_size=1),
    "--arm": st.lists(st.sampled_from([*ARMS]) | TEXT, min_size=1, max_size=1),
    "--matched": st.just([]),
    "": st.lists(TEXT, min_size=1, max_size=1),
}  # fmt: skip


def _is_large(text: str) -> bool:
    try:
        return float(text) > 20  # as many runs are listed
    except ValueError:
        return False


@case
class Line:
    command: str
    options: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def arguments(self) -> list[str]:
        """As the shell would hand them over: no text of one holds a zero byte."""
        words = [
            word for name, texts in self.options for word in ([name] if name else []) + [*texts]
        ]
        return [word.replace("\0", "") for word in words]


@st.composite
def lines(draw: st.DrawFn, command: str, names: tuple[str, ...]) -> Line:
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
    return Line(command, tuple((name, tuple(draw(OPTIONS[name]))) for name in chosen))


class Listening:
    """An engine that does no run and notes what it was asked for."""

    jobs = 1

    def __init__(self) -> None:
        self.specs: list[RunSpec] = []

    def run(self, tasks: Any) -> Iterator[Any]:
        for job in tasks:
            self.specs.append(job.spec)
            yield Started(job.spec.name)
            yield Failed(job.spec.name, "not done")


def run(line: Line) -> tuple[Any, str, list[RunSpec]]:
    """Return exit code, what was said on stderr, and the runs that would be done."""
    engine, err, here = Listening(), io.StringIO(), os.getcwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # as strict as a terminal
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(mock.patch.object(options, "make_engine", return_value=engine))
        os.chdir(folder)
        stack.callback(os.chdir, here)
        try:
            code = program.main([line.command, *line.arguments])
        except SystemExit as left:  # argparse
            code = left.code
    return code, err.getvalue(), engine.specs


def message(line: Line, err: str) -> str:
    """Return what follows argparse's usage, a single line."""
    lines_ = err.rstrip("\n").split("\n")
    starts = [n for n, text in enumerate(lines_) if text.startswith(line.command.split()[0])]
    assert starts, err
    said = lines_[starts[0] :]
    assert len(said) == 1, f"more than one line: {err}"
    assert all(text.startswith(("usage:", " ")) for text in lines_[: starts[0]]), err
    return said[0]


def assert_names_what_is_wrong(line: Line, said: str) -> None:
    words = {name.strip("-").replace("-", "_") for name, _ in line.options if name}
    given = [text for _, texts in line.options for text in texts]
    keys = {text.partition(":")[0].rpartition(".")[2] for text in given}
    values = {text.partition(":")[2] for text in given}
    plain = said.replace("-", "_")
    named_ = any(word and word.rstrip("s") in plain for word in words)
    shown = any(
        repr(text) in said or any(form and form in said for form in forms(text))
        for text in {*given, *keys, *values}
    )
    # argparse shows what it does not know as it is, blanks among it.
    strays = [text for name, texts in line.options if not name for text in texts]
    shown |= any(
        not options.one_line(text.replace("\0", "")).strip() for text in strays
    ) and said.endswith(": unrecognized arguments:")
    assert named_ or shown, f"names neither an option nor what it was given: {said}"


def forms(text: str) -> tuple[str, ...]:
    return text, repr(text)[1:-1], options.one_line(text)


def check_line(line: Line) -> list[RunSpec]:
    code, err, specs = run(line)
    assert "Traceback" not in err
    if code == 2:
        assert not specs
        assert_names_what_is_wrong(line, message(line, err))
    else:
        assert code in (0, 1)
    return specs


NAMES = tuple(name for name in OPTIONS if name not in ("--space", "--arm"))


@law(lines("compare", NAMES), fixed=300, long=2500)
def test_whatever_compare_is_given(case: Line) -> None:
    check_line(Line(case.command, (*case.options, ("--out", ("out",)))))


#: What a fragment is put behind, of each option.
NAMED = {
    "--env-kwargs": ("flicker_prob:", ""),
    "--hyperparams": ("gamma:", "n_steps:", "normalize:"),
    **dict.fromkeys(("--env", "--arms", "--recipe", "--memoryless", "--margin", ""), ("",)),
}


@pytest.mark.parametrize("option", NAMED)
def test_every_fragment_is_refused_or_taken(option: str) -> None:
    """Too many for chance to find each of them in the few cases of ``make test``."""
    for text in FRAGMENTS:
        for name in NAMED[option]:
            check_line(Line("compare", ((option, (f"{name}{text}",)), ("--out", ("out",)))))


GRIDS = st.lists(
    st.builds("{}:{}".format, st.sampled_from(ENV_KEYS) | TEXT,
              st.lists(TEXT, min_size=1, max_size=3).map(",".join)) | TEXT,
    min_size=1, max_size=2,
) | st.just(["flicker_prob:0.25,0.5"])  # fmt: skip


@law(
    st.builds(
        lambda line, grid: Line(line.command, (("--grid", tuple(grid)), *line.options)),
        lines("sweep", ("--env", "--env-kwargs", "--hyperparams", "--n-timesteps", "--arms")),
        GRIDS,
    ),
    fixed=80, long=700,
)  # fmt: skip
def test_whatever_sweep_is_given(case: Line) -> None:
    first = ("train", ()), ("--out", ("out",))
    check_line(Line(case.command, (*first, *case.options)))


@law(
    lines("report", ("--margin", "--solved", "--memoryless", "--with-memory", "")),
    fixed=60,
    long=500,
)
def test_whatever_report_is_given(case: Line) -> None:
    check_line(Line(case.command, (("", ("nowhere",)), *case.options)))


@law(
    lines(
        "tune",
        ("--env", "--env-kwargs", "--n-timesteps", "--evaluations", "--jobs", "--space", "--arm"),
    ),
    fixed=40, long=300,
)  # fmt: skip
def test_whatever_tune_is_given(case: Line) -> None:
    study = mock.MagicMock()
    study.return_value.best.return_value = None
    with (
        mock.patch.object(options, "check_extra"),
        mock.patch.object(tune, "Study", study),
        mock.patch.object(tune, "_do", return_value=False),
    ):
        check_line(Line(case.command, (*case.options, ("--out", ("out.yml",)))))


@case
class Value:
    arm: str
    key: str
    text: str


#: What a value that is taken would make too large to be trained here.
SIZES = {"n_envs": 8, "n_steps": 64, "n_epochs": 8, "n_timesteps": 10**9, "frame_stack": 8}
#: Numbers above it are not tried: float32 ends at 3e38, and what is near diverges.
LARGEST = 1e6


def _number(value: Any) -> float:
    text = str(value).removeprefix("lin_").partition("_")[0]
    try:
        return abs(float(text))
    except ValueError:
        return 0.0


@law(
    st.builds(
        Value,
        arm=st.sampled_from(["lstm", "mlp", "gru", "frame-stack", "lstm-prev-action"]),
        key=st.sampled_from([key for key in KEYS if key != "n_timesteps"]),
        text=TEXT,
    ),
    fixed=120,
    long=1000,
)
def test_a_value_of_a_recipe_is_refused_or_trains(case: Value) -> None:
    check_value(case)


@law(
    st.builds(Value, arm=st.just("lstm"), key=st.just("policy_kwargs"), text=NETWORKS),
    fixed=40,
    long=600,
)
def test_a_network_is_refused_or_trains(case: Value) -> None:
    check_value(case)


@pytest.mark.parametrize("key", POLICY_KEYS)
def test_every_kind_of_network_is_refused_or_trains(key: str) -> None:
    for text in POLICY_VALUES:
        check_value(Value("lstm", "policy_kwargs", f"dict({key}={text})"))


def check_value(case: Value) -> None:
    """Before the first run where that can be known, else by the run, in a line that names it."""
    # One update: with a large number it diverges, and a second one has no numbers to work on.
    small = ("n_envs:2", "n_steps:8", "batch_size:16", "n_epochs:1")
    given = (
        *(text for text in small if text.partition(":")[0] != case.key),
        f"{case.key}:{case.text}",
    )
    line = Line(
        "compare",
        (
            ("--env", ("TMaze-v0",)), ("--arms", (case.arm,)), ("--n-timesteps", ("16",)),
            ("--hyperparams", given), ("--out", ("out",)),
        ),
    )  # fmt: skip
    for spec in check_line(line):
        recipe = spec.recipe.as_mapping()
        if any(recipe.get(key, 0) > largest for key, largest in SIZES.items()):
            continue
        if _number(recipe.get(case.key)) > LARGEST:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # SB3's, of sizes that do not divide
                training = Training(spec)
                training.model.learn(spec.total_timesteps)
        except Exception as error:
            said = headline("".join(traceback.format_exception(error)))
            assert "\n" not in said
            # Of what is in a dict, its own name.
            if case.key == "use_sde" and "State-Dependent Exploration" in said:
                continue
            inner = case.text.removeprefix("dict(").partition("=")[0]
            is_inside = case.key == "policy_kwargs" and "keyword argument" in said
            assert case.key in said or case.text in said or inner in said or is_inside, said
