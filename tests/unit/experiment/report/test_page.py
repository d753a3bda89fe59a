"""The page: it stands alone, shows all there is, and is written by its script."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from html_outline import outline
from jinja2 import UndefinedError
from synthetic_results import (
    PROVENANCE,
    SEVEN_ARMS,
    TWO_ARMS,
    around,
    contest,
    drawn,
    result,
    scored,
    write,
    write_failure,
)

from thrust_pomdp.experiment.report import (
    Failure,
    Run,
    number_format,
    page,
    rule,
    tables,
    write_report,
)
from thrust_pomdp.experiment.report.runs import label_of
from thrust_pomdp.experiment.report.text_and_csv import table, write_csv
from thrust_pomdp.experiment.statistics import estimate

ROOT = Path(__file__).parents[4]


@pytest.fixture
def without_pictures(monkeypatch):
    """Drawing takes most of the time, and words are there without."""
    monkeypatch.setattr(page, "_draw", lambda about, draw, path: None)


class TestPage:
    @pytest.mark.parametrize(("arms", "n_seeds"), [(TWO_ARMS, 1), (SEVEN_ARMS, 10)])
    def test_stands_alone_and_shows_all_arms(self, tmp_path, arms, n_seeds):
        report = write_report([write(tmp_path, drawn(arms, n_seeds, n_episodes=(10, 10)))])
        assert report.n_runs == len(arms) * n_seeds
        found = outline(report.page)
        assert found.sources
        assert all(source.startswith("data:image/svg+xml;base64,") for source in found.sources)
        assert "http" not in "".join(found.text)
        text = " ".join(found.text)
        for arm in arms:
            assert label_of(arm) in text
        assert report.verdicts["FlickeringCartPole-v0"].sentence in text
        names = {path.name for path in tmp_path.glob("*.png")}
        assert names == {f"{n}.png" for n in ("curves", "evaluations", "scores", "gap", "time")}
        for name in names:
            assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")

    @pytest.mark.usefixtures("without_pictures")
    def test_tells_rule_versions_machine_revision_command_and_recipes(self, tmp_path):
        text = " ".join(outline(write_report([write(tmp_path, [result()])]).page).text)
        for sentence in rule.RULE:
            assert sentence in text
        assert PROVENANCE["command"] in text
        assert PROVENANCE["revision"] in text
        assert "versions.torch" in text
        assert "policy_kwargs.lstm_hidden_size" in text

    def test_what_is_not_known_is_not_shown(self, tmp_path):
        text = " ".join(outline(write_report([write(tmp_path, [result(extras=False)])]).page).text)
        assert "Recipes" not in text
        assert "versions" not in text
        assert not (tmp_path / "evaluations.png").exists()

    @pytest.mark.usefixtures("without_pictures")
    def test_figures_on_the_page_are_those_of_the_statistics(self, tmp_path):
        results = drawn(TWO_ARMS, 6)
        text = " ".join(outline(write_report([write(tmp_path, results)]).page).text)
        found = contest(results)
        for arm, mode in itertools.product(TWO_ARMS, ("deterministic", "stochastic")):
            assert number_format.format_estimate(estimate([found.scores(arm, mode)])) in text

    @pytest.mark.usefixtures("without_pictures")
    def test_a_quantity_has_one_name_in_terminal_page_and_csv(self, tmp_path):
        results = [Run.from_mapping(values) for values in drawn(TWO_ARMS, 1)]
        (terminal,) = (line for line in table(results).splitlines() if " seed " in line)
        write_csv(results, tmp_path)
        names = (tmp_path / "summary.csv").read_text().splitlines()[0].replace("_", " ").split(",")
        assert terminal.split() == " ".join(names).split()
        on_page = tables.runs(contest(drawn(TWO_ARMS, 1)))
        assert sorted(head.lower() for head in on_page.head) == sorted(names)
        scores = " ".join(tables.scores(contest(drawn(TWO_ARMS, 1))).head)
        assert "Most likely: IQM" in scores
        assert "Sampled: IQM" in scores
        whole = write_report([write(tmp_path, drawn(TWO_ARMS, 1))]).page.read_text().lower()
        assert "stochastic" not in whole
        assert "deterministic" not in whole

    @pytest.mark.usefixtures("without_pictures")
    def test_one_run_has_no_interval_and_no_nan(self, tmp_path):
        text = " ".join(outline(write_report([write(tmp_path, [result()])]).page).text)
        assert "480.0 (one run)" in text
        assert "nan" not in text.lower().replace("finance", "")

    @pytest.mark.usefixtures("without_pictures")
    def test_failed_runs_are_listed_and_markup_in_them_is_text(self, tmp_path):
        write(tmp_path, [result()])
        write_failure(tmp_path, "mlp-seed0", "ValueError: <script>alert(1)</script> & so on")
        report = write_report([tmp_path])
        assert report.failures == [
            Failure("mlp-seed0", "ValueError: <script>alert(1)</script> & so on")
        ]
        assert "<script" not in report.page.read_text()
        text = " ".join(outline(report.page).text)
        assert "1 run failed and took no part:" in text
        assert "ValueError: <script>alert(1)</script> & so on" in text

    def test_only_failed_runs_still_make_a_page(self, tmp_path):
        write_failure(tmp_path, "mlp-seed0", "ValueError: no")
        report = write_report([tmp_path])
        assert report.verdicts == {}
        assert "ValueError: no" in " ".join(outline(report.page).text)

    def test_other_environments_negative_rewards_and_long_names_work(self, tmp_path):
        env_id = "a_package." + "environments." * 12 + "module:Masked<Pendulum>-v1"
        results = scored(
            {"lstm": around(-250, 5), "mlp": around(-900, 7), "a.b:" + "c" * 150: [-500.0]},
            env_id=env_id, env_kwargs={"mask": ["theta"] * 9}, start=-1400.0, extras=False,
        )  # fmt: skip
        write(tmp_path / "a", results[:-1])
        write(tmp_path / "b", drawn(TWO_ARMS, 5))
        report = write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
        assert [v.outcome for v in report.verdicts.values()] == ["helps", "needed"]
        text = " ".join(outline(report.page).text)
        assert env_id in text
        assert len(list((tmp_path / "out").glob("*.png"))) == 3 + 5

    @pytest.mark.usefixtures("without_pictures")
    def test_several_environments_are_summed_up_on_their_ladders(self, tmp_path):
        write(tmp_path / "a", drawn(TWO_ARMS, 5))
        write(tmp_path / "b", drawn(TWO_ARMS, 5, env_id="MaskedCartPole-v0"))
        report = write_report([tmp_path / "a", tmp_path / "b"], tmp_path)
        text = " ".join(outline(report.page).text)
        assert "All environments" in text
        found = [contest(drawn(TWO_ARMS, 5, env_id=env_id))
                 for env_id in ("FlickeringCartPole-v0", "MaskedCartPole-v0")]  # fmt: skip
        both = estimate([tables.gap_closed(one, "lstm") for one in found])
        assert number_format.format_estimate(both, 1.0) in text
        with pytest.raises(ValueError, match="must be None for several environments"):
            write_report([tmp_path / "a", tmp_path / "b"], tmp_path, margin=1.0)

    @pytest.mark.usefixtures("without_pictures")
    def test_versions_that_differ_between_runs_are_all_shown(self, tmp_path):
        results = [result(seed=0), result(seed=1)]
        results[1]["provenance"] = {**PROVENANCE, "revision": "another revision"}
        text = " ".join(outline(write_report([write(tmp_path, results)]).page).text)
        assert PROVENANCE["revision"] in text
        assert "another revision" in text

    def test_of_many_different_values_a_few_are_shown(self):
        runs = [
            Run.from_mapping({**result(), "provenance": {"started": f"at {number} o'clock"}})
            for number in range(10)
        ]
        ((name, shown),) = tables.provenance(runs).rows
        assert name == "started"
        assert [line.text for line in shown[:-1]] == [f"at {number} o'clock" for number in range(4)]
        assert shown[-1] == "and 6 more"

    def test_the_same_results_make_the_same_page(self, tmp_path):
        write(tmp_path, drawn(TWO_ARMS, 2))
        first = write_report([tmp_path], tmp_path / "1").page.read_bytes()
        assert write_report([tmp_path], tmp_path / "2").page.read_bytes() == first

    def test_a_hundred_runs_take_less_than_20_seconds(self, tmp_path):
        arms = {f"mine:{number}": (100.0 * number, 20.0) for number in range(8)} | TWO_ARMS
        write(tmp_path, drawn(arms, 10))
        start = time.process_time()
        report = write_report([tmp_path])
        seconds = time.process_time() - start
        assert report.n_runs == 100
        assert seconds < 20, seconds  # of one core; measured 7 s


class TestCaptions:
    @pytest.mark.parametrize("end", [480.0, 100.0])  # a curve that lags far behind is explained
    def test_are_sentences(self, tmp_path, end):
        results = [{**one, "curve": [[at, end] for at, _ in one["curve"]]} for one in drawn(
            TWO_ARMS, 3, n_episodes=(10, 10))]  # fmt: skip
        text = write_report([write(tmp_path, results)]).page.read_text()
        captions = re.findall("<figcaption>(.*?)</figcaption>", text, re.DOTALL)
        assert len(captions) == 5
        assert ("its curve ends at" in text) == (end == 100.0)
        for caption in captions:
            assert re.fullmatch(r"[A-Z].*[^.](\.|\.\))", caption, re.DOTALL), caption


class TestTemplate:
    def tabulated(self, table: tables.Table) -> str:
        parts = page._template().environment.get_template("parts.html.jinja")
        return "".join(parts.module.tabulated(table).split("\n"))

    def test_text_is_escaped_wherever_it_stands(self):
        text = """<i> & 'so' "on\""""
        safe = "&lt;i&gt; &amp; &#39;so&#39; &#34;on&#34;"
        found = self.tabulated(tables.Table([text], [[text], [tables.Marked("b", text)], [[text]]]))
        assert found.count(safe) == 4
        assert "<i>" not in found

    def test_wide_tables_scroll_in_a_box_of_their_own(self):
        found = self.tabulated(tables.Table(["a", "b"], [["x", "1"]]))
        assert found.startswith('<div class="scroll" tabindex="0"><table>')
        assert '<td class="words">x</td><td class="number">1</td>' in found

    def test_a_cell_has_marks_and_lines(self):
        cells = [tables.Marked("b", "x"), ["y", tables.Marked("code", "z")], []]
        found = self.tabulated(tables.Table([], [cells], words=range(3)))
        shown = ("<b>x</b>", "y<br><code>z</code>", "")
        assert "".join(f'<td class="words">{cell}</td>' for cell in shown) in found

    def test_what_it_asks_for_and_is_not_given_is_an_error(self):
        with pytest.raises(UndefinedError, match="'sections' is undefined"):
            page._template().render(n_arms=1)


class TestScript:
    def call(self, *arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-W", "error", str(ROOT / "scripts" / "report.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    def test_makes_the_page_of_a_folder_and_says_what_it_says(self, tmp_path):
        write(tmp_path, drawn(TWO_ARMS, 5))
        done = self.call(str(tmp_path))
        assert done.returncode == 0, done.stderr
        assert "FlickeringCartPole-v0: Memory is needed" in done.stdout
        assert f"Written: {tmp_path}/report.html (10 runs, " in done.stdout
        assert (tmp_path / "report.html").exists()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["nowhere"], "folder must be one of a comparison"),
            (["{}", "--memoryless", "lstn"], "got 'lstn'"),
            (["{}", "--margin", "-1"], "--margin: must be at least 0, got -1"),
            (["{}", "--out", "/proc/nowhere"], "No such file or directory"),
            ([], "the following arguments are required: DIR"),
        ],
    )
    def test_bad_arguments_exit_with_2_and_a_message(self, tmp_path, arguments, message):
        write(tmp_path, [result()])
        done = self.call(*(argument.format(tmp_path) for argument in arguments))
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize("module", ["jinja2", "matplotlib"])
    def test_without_it_the_message_tells_what_to_install(self, tmp_path, monkeypatch, module):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=r"pip install 'thrust-pomdp\[compare\]'"):
            write_report([write(tmp_path, [result()])])

    def test_a_page_is_made_without_torch(self, tmp_path):
        write(tmp_path, [result()])
        code = (
            "import sys; from pathlib import Path; from thrust_pomdp.experiment import report; "
            f"report.write_report([Path({str(tmp_path)!r})]); print('torch' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout.strip() == "False", done.stderr
