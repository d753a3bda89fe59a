"""The pictures of a report, by their parts."""

from __future__ import annotations

import itertools

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from synthetic_results import (
    SEVEN_ARMS,
    TWO_ARMS,
    contest,
    drawn,
    result,
)

from thrust_pomdp.experiment.report import (
    Run,
    figure_style,
    figures,
)
from thrust_pomdp.experiment.report.runs import ARM_ORDER


def _bands(axes) -> list[PolyCollection]:
    return [found for found in axes.collections if isinstance(found, PolyCollection)]


class TestFigures:
    def drawn(self, results, name: str, width: float = figure_style.WIDE):
        _, draw = figures.pictures(contest(results))[name]
        figure = draw(width)
        FigureCanvasAgg(figure).draw()
        return figure

    @pytest.mark.parametrize("width", [figure_style.WIDE, figure_style.NARROW])
    def test_the_curves_have_a_line_per_arm_and_rung_and_a_band_per_arm(self, width):
        figure = self.drawn(drawn(SEVEN_ARMS, 3), "curves", width)
        (axes,) = figure.axes
        assert len(axes.lines) == 7 + 5
        assert len(_bands(axes)) == 7
        assert len({line.get_color() for line in axes.lines[:7]}) == 7
        (legend,) = figure.legends
        assert len(legend.get_texts()) == 7

    def test_the_centre_is_the_interquartile_mean_of_the_runs(self):
        curves = [[[0, 0.0], [100, value]] for value in (1.0, 2.0, 3.0, 100.0)]
        results = [{**result(seed=seed), "curve": curve} for seed, curve in enumerate(curves)]
        figure = self.drawn(results, "curves")
        x, y = figure.axes[0].lines[0].get_data()
        assert (x[0], y[0]) == (0, 0)
        assert (x[-1], y[-1]) == (100, 2.5)

    def test_one_run_has_a_line_and_no_band(self):
        (axes,) = self.drawn([result()], "curves").axes
        assert len(axes.lines) == 1 + 5
        assert not _bands(axes)

    def test_runs_are_summarised_where_all_have_points(self):
        curves = [[[100, 1.0], [300, 3.0]], [[200, 2.0], [500, 5.0]]]
        results = [{**result(seed=seed), "curve": curve} for seed, curve in enumerate(curves)]
        x, y = self.drawn(results, "curves").axes[0].lines[0].get_data()
        assert (x[0], x[-1]) == (200, 300)
        assert y == pytest.approx(x / 100)

    def test_an_arm_of_the_package_looks_the_same_on_every_page(self):
        for arms in itertools.permutations(("mlp", "lstm", "mine:a")):
            styles = figure_style.styles(arms)
            assert styles["lstm"].colour == "#0072B2"
            assert styles["mlp"].colour == "#D55E00"
            assert styles["mine:a"].colour == "#000000"

    def test_a_variant_of_an_arm_has_its_colour_and_other_dashes(self):
        styles = figure_style.styles(
            ["lstm-prev-action", "lstm-prev-action-privileged", "gru-prev-action"]
        )
        assert len({style.colour for style in styles.values()}) == 1
        assert len({style.dashes for style in styles.values()}) == 3

    def test_without_colours_all_arms_of_the_package_differ_by_their_shapes(self):
        styles = figure_style.styles([*ARM_ORDER, "mine:a", "mine:b"])
        assert len({style.marker for style in styles.values()}) == len(styles)
        figure = self.drawn(drawn(SEVEN_ARMS, 3), "curves")
        lines = figure.axes[0].lines[:7]
        assert len({line.get_marker() for line in lines}) == 7
        in_legend = figure.legends[0].get_lines()
        assert [line.get_marker() for line in in_legend] == [line.get_marker() for line in lines]

    @pytest.mark.parametrize(("end", "explained"), [(50.0, True), (99.0, False)])
    def test_curves_that_end_far_below_the_scores_are_explained(self, end, explained, tmp_path):
        values = {**result(), "curve": [[0, 0.0], [100, end]]}
        values["deterministic"], values["stochastic"] = [100.0] * 100, [90.0] * 1000
        note = figures.lag_note(contest([values]))
        about, _ = figures.pictures(contest([values]))["curves"]
        assert bool(note) == explained
        assert ("scores 100.0; its curve ends at 50.0" in note) == explained
        assert ("Tables: the policy at the end" in about) == explained
        figures.plot([Run.from_mapping(values)], tmp_path / "curves.png")
        assert (tmp_path / "curves.png").stat().st_size > 0

    def test_no_two_of_twenty_arms_look_the_same(self):
        styles = figure_style.styles([f"mine:{number}" for number in range(20)])
        assert len(set(styles.values())) == 20

    @pytest.mark.parametrize("width", [figure_style.WIDE, figure_style.NARROW])
    def test_no_words_leave_the_picture_or_cover_each_other(self, width):
        for name in ("curves", "scores", "gap"):
            figure = self.drawn(drawn(SEVEN_ARMS, 2), name, width)
            renderer = figure.canvas.get_renderer()
            (axes,) = figure.axes
            whole = figure.bbox.padded(1)
            for text in axes.texts:
                box = text.get_window_extent(renderer)
                assert whole.x0 <= box.x0, text
                assert box.x1 <= whole.x1, text
                assert whole.y0 <= box.y0, text
                assert box.y1 <= whole.y1, text
            level = [text for text in axes.texts if not text.get_rotation()]
            for one, other in itertools.combinations(level, 2):
                boxes = one.get_window_extent(renderer), other.get_window_extent(renderer)
                assert not boxes[0].overlaps(boxes[1]), (one, other)

    @pytest.mark.parametrize(
        ("curve", "names"),
        [
            ([], {"scores", "gap"}),
            ([[2048, 20.0]], {"curves", "scores", "gap", "time"}),
        ],
    )
    def test_short_curves_and_none_are_no_fault(self, curve, names):
        results = [{**result(arm, extras=False), "curve": curve} for arm in TWO_ARMS]
        found = figures.pictures(contest(results))
        assert set(found) == names
        for _, draw in found.values():
            draw(figure_style.NARROW).canvas.draw()

    def test_evaluations_are_drawn_in_the_mode_of_the_arm(self):
        values = result(stochastic_share=2.0)
        values["evaluations"] = [[0, 0.0, 1.0, 2.0], [10, 1.0, 3.0, 4.0]]
        found = contest([values])
        assert found.mode_of("lstm") == "stochastic"
        y = self.drawn([values], "evaluations").axes[0].lines[0].get_ydata()
        assert (y[0], y[-1]) == (2.0, 4.0)

    @pytest.mark.parametrize(
        ("places", "expected"),
        [
            ([], []),
            ([0.5], [0.5]),
            ([0.2, 0.8], [0.2, 0.8]),
            ([0.5, 0.5, 0.5], [0.4, 0.5, 0.6]),
            ([0.95, 1.0, 1.0], [0.8, 0.9, 1.0]),
            ([0.0, 0.55, 0.6, 0.61], [0.0, 0.486667, 0.586667, 0.686667]),
        ],
    )
    def test_labels_are_moved_as_little_as_it_takes(self, places, expected):
        assert figure_style.spread_out(places, 0.1) == pytest.approx(expected)
