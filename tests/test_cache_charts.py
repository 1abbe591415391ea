"""Figures of the KV cache page hold exactly the bytes they are given; drawings group heads as the layout says."""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
from html.parser import HTMLParser
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention.known_models import find_model
from attention.layout import HeadLayout
from attention.plots.cache_charts import (
    Bar,
    Chart,
    Crossing,
    Curve,
    Level,
    context_curves,
    crossing_lines,
    csv_text,
    head_groups,
    latent_group,
    memory_stack,
    sharing_bars,
)
from attention.plots.colours import CACHE
from attention.published import nearest_published, published_tables

GIB = 2**30
BARS = (Bar("MHA, 32 K/V", 64 * GIB, False), Bar("GQA, 8 K/V", 16 * GIB, True), Bar("MQA, 1 K/V", 2 * GIB, False))


def rows_of(chart: Chart) -> list[list[str]]:
    return list(csv.reader(io.StringIO(chart.csv)))


def words_in(figure: go.Figure) -> list[str]:
    return [note.text for note in figure.layout.annotations]


class TestSharingBars:
    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_lengths_are_gib_and_only_the_own_bar_is_solid(self, theme: str) -> None:
        bars = sharing_bars(BARS, theme).figure.data[0]
        assert list(bars.x) == [64, 16, 2]
        assert [colour == CACHE.on(theme) for colour in bars.marker.color] == [False, True, False]
        assert bars.marker.line.color == CACHE.on(theme)
        assert [re.sub("<.*?>", "", text) for text in bars.text] == ["64 GiB", "16 GiB", "2 GiB"]

    def test_small_bars_are_drawn_in_a_unit_of_their_size(self) -> None:
        small = (Bar("MHA", 450 * 2**10, False), Bar("MQA", 45 * 2**10, True))
        figure = sharing_bars(small, "light", Level("room", 400 * 2**10)).figure
        assert list(figure.data[0].x) == [450, 45]
        assert figure.layout.xaxis.title.text == "KiB of keys and values"
        assert figure.layout.shapes[0].x0 == 400

    def test_the_axis_names_its_unit_and_the_first_bar_stands_on_top(self) -> None:
        layout = sharing_bars(BARS, "light").figure.layout
        assert layout.xaxis.title.text.startswith("GiB")
        assert layout.yaxis.range[0] > layout.yaxis.range[1]
        assert layout.yaxis.ticktext == ("MHA, 32 K/V", "<b>GQA, 8 K/V</b>", "MQA, 1 K/V")

    @pytest.mark.parametrize(("room", "drawn"), [(57, True), (1, True), (0, False), (-5, False), (90, False)])
    def test_the_room_is_a_line_only_where_it_can_be_compared(self, room: int, drawn: bool) -> None:
        figure = sharing_bars(BARS, "light", Level("room", room * GIB)).figure
        assert [shape.x0 for shape in figure.layout.shapes] == ([room] if drawn else [])
        assert words_in(figure) == (["room"] if drawn else [])

    def test_alt_text_and_file_hold_every_number(self) -> None:
        chart = sharing_bars(BARS, "light")
        assert (
            chart.alt
            == "Bars of cached bytes. MHA, 32 K/V: 64 GiB; GQA, 8 K/V: 16 GiB (this model); MQA, 1 K/V: 2 GiB."
        )
        assert rows_of(chart)[1:] == [[bar.label, str(bar.bytes), "this model" if bar.own else "as if"] for bar in BARS]


class TestContextCurves:
    tokens = np.array([1024, 4096, 32_768, 131_072], dtype=np.int64)

    def curve(self, name: str) -> Curve:
        model = find_model(name)
        return Curve(name, self.tokens, model.cache.bytes(self.tokens), model.max_context)

    def test_a_window_flattens_and_full_attention_does_not(self) -> None:
        full, windowed = context_curves(
            [
                Curve("full", self.tokens, find_model("Llama 3 8B").cache.bytes(self.tokens)),
                Curve("window", self.tokens, find_model("Mistral 7B v0.1").cache.bytes(self.tokens)),
            ],
            [],
            "light",
        ).figure.data
        np.testing.assert_array_equal(full.y, [0.125, 0.5, 4, 16])
        np.testing.assert_array_equal(windowed.y, [0.125, 0.5, 0.5, 0.5])
        np.testing.assert_array_equal(full.x, self.tokens)

    def test_beyond_what_was_trained_the_line_is_dotted_and_goes_on_from_the_last_point(self) -> None:
        trained, beyond = context_curves([self.curve("Mistral 7B v0.1")], [], "light").figure.data
        assert trained.x.tolist() == [1024, 4096, 32_768]
        assert beyond.x.tolist() == [32_768, 131_072]
        assert (trained.line.dash, beyond.line.dash) == ("solid", "dot")
        assert [line.showlegend for line in (trained, beyond)] == [True, False]
        assert trained.line.color == beyond.line.color

    def test_both_axes_are_logarithmic_and_named(self) -> None:
        layout = context_curves([self.curve("Llama 3 8B")], [], "light").figure.layout
        assert (layout.xaxis.type, layout.yaxis.type) == ("log", "log")
        assert "tokens" in layout.xaxis.title.text
        assert layout.yaxis.title.text.startswith("GiB")

    def test_gpus_are_lines_at_their_memory(self) -> None:
        figure = context_curves([self.curve("Llama 3 8B")], [Level("a GPU", 80 * GIB)], "dark").figure
        assert [shape.y0 for shape in figure.layout.shapes] == [80]
        # An annotation on a logarithmic axis is placed by its exponent.
        assert figure.layout.annotations[0].y == pytest.approx(np.log10(80))

    def test_six_models_differ_without_colour_and_the_file_has_every_point(self) -> None:
        names = ("Llama 3 8B", "Llama 2 7B", "Mistral 7B v0.1", "Gemma 3 27B", "DeepSeek-V3", "Qwen2.5 72B")
        curves = [Curve(name, self.tokens, find_model(name).cache.bytes(self.tokens)) for name in names]
        chart = context_curves(curves, [], "light")
        assert len({line.line.dash for line in chart.figure.data}) == 6
        assert rows_of(chart)[1:] == [
            [curve.name, str(length), str(size)]
            for curve in curves
            for length, size in zip(curve.tokens, curve.bytes, strict=True)
        ]

    def test_names_are_shown_literally(self) -> None:
        chart = context_curves([Curve("<b>x</b><br>", self.tokens, self.tokens)], [Level("<i>", GIB)], "light")
        assert chart.figure.data[0].name == "&lt;b&gt;x&lt;/b&gt;&lt;br&gt;"
        assert words_in(chart.figure) == ["&lt;i&gt;"]


class TestMemoryStack:
    users = np.array([1, 16, 57, 64], dtype=np.int64)

    def chart(self, capacity: int = 80) -> Chart:
        return memory_stack(self.users, self.users * GIB, 15 * GIB, 8 * GIB, capacity * GIB, "light", now=16)

    def test_three_parts_stand_on_each_other(self) -> None:
        figure = self.chart().figure
        assert figure.layout.barmode == "stack"
        assert [part.name for part in figure.data] == ["weights", "overhead", "keys and values"]
        np.testing.assert_array_equal(np.sum([part.y for part in figure.data], axis=0), 23 + self.users)
        assert figure.data[2].marker.color == CACHE.light
        assert figure.layout.shapes[0].y0 == 80
        assert figure.layout.xaxis.ticktext == ("1", "<b>16</b>", "57", "64")

    def test_the_alt_text_says_how_far_it_goes(self) -> None:
        assert self.chart().alt.endswith("those up to 57 users fit.")
        assert self.chart(20).alt.endswith("None of them fits.")

    def test_the_file_adds_up(self) -> None:
        for users, weights, overhead, cache, together, memory in rows_of(self.chart())[1:]:
            assert int(weights) + int(overhead) + int(cache) == int(together)
            assert (int(cache), int(memory)) == (int(users) * GIB, 80 * GIB)


class TestCrossing:
    one = Crossing("Llama 3 8B", 131_072.0, 16_060_600_000, 122_533)

    def test_the_mark_stands_where_the_line_meets_the_weights(self) -> None:
        line, mark = crossing_lines([self.one], "light", now=131_072).figure.data
        assert (mark.x[0], mark.y[0]) == (122_533, 1)
        assert np.interp(122_533, line.x, line.y) == pytest.approx(1, rel=0.01)
        np.testing.assert_allclose(np.asarray(line.y) / np.asarray(line.x), 131_072 / 16_060_600_000)

    @pytest.mark.parametrize(("now", "lines"), [(131_072, 2), (10, 1), (10**9, 1)])
    def test_the_chosen_use_is_marked_where_it_can_be_seen(self, now: int, lines: int) -> None:
        figure = crossing_lines([self.one], "light", now=now).figure
        assert len(figure.layout.shapes) == lines
        assert any("131,072" in words for words in words_in(figure)) == (now == 131_072)

    def test_the_alt_text_says_where(self) -> None:
        assert crossing_lines([self.one], "dark", 1).alt.endswith("122,533 tokens for Llama 3 8B.")


class Groups(HTMLParser):
    """Reads a drawing back: the label of each chip, and the chips of each group."""

    def __init__(self, drawing: str) -> None:
        super().__init__()
        self.groups: list[list[str]] = []
        self.label, self.more = "", ""
        self._class = ""
        self.feed(drawing)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self._class = named.get("class") or ""
        self.label = named.get("aria-label") or self.label
        if self._class == "hs-group":
            self.groups.append([])

    def handle_data(self, data: str) -> None:
        if self._class in ("hs-q", "hs-kv", "hs-kv hs-latent"):
            self.groups[-1].append(data)
        if self._class == "hs-more":
            self.more = data


class TestHeadGroups:
    @given(st.sampled_from([(4, 2), (6, 2), (9, 3), (16, 16), (8, 1), (12, 4)]))
    def test_every_query_stands_on_the_kv_head_it_reads(self, heads: tuple[int, int]) -> None:
        layout = HeadLayout(d_model=heads[0] * 4, n_heads=heads[0], n_kv_heads=heads[1])
        drawing = Groups(head_groups(*heads))
        assert drawing.groups == [
            [*(f"Q{query}" for query in layout.query_heads_of(kv)), f"KV {kv}"] for kv in range(heads[1])
        ]
        assert drawing.more == ""

    def test_many_groups_are_cut_short_and_counted(self) -> None:
        drawing = Groups(head_groups(128, 64))
        assert len(drawing.groups) == 16
        assert drawing.more == "and 48 more groups like these"
        assert drawing.label == "128 query heads, one K/V head for every 2 of them: 64 K/V heads."

    def test_a_large_group_names_its_last_query(self) -> None:
        assert Groups(head_groups(71, 1)).groups[0][-2:] == ["… Q70", "KV 0"]
        assert len(Groups(head_groups(71, 1)).groups[0]) == 34

    def test_a_latent_is_one_row_under_all_heads(self) -> None:
        drawing = Groups(latent_group(128, 512, 64))
        assert len(drawing.groups) == 1
        assert drawing.groups[0][-2:] == ["… Q127", "C: 512 + 64 numbers for each token"]
        assert drawing.groups[0][:2] == ["Q0", "Q1"]


def test_no_cell_of_a_file_is_a_formula() -> None:
    cells: list[Any] = ["=1+1", "+x", "-x", "@x", "plain", -5, 'say "a, b"']
    (read,) = list(csv.reader(io.StringIO(csv_text(("a",), [cells]))))[1:]
    assert read == ["'=1+1", "'+x", "'-x", "'@x", "plain", "-5", 'say "a, b"']


class TestPublished:
    def score(self, table: str, label: str, name: str) -> float:
        (found,) = [one for one in published_tables() if one.id == table]
        (row,) = [one for one in found.rows if one.label == label]
        return row.scores[name]

    def test_numbers_as_the_papers_print_them(self) -> None:
        for label, score, seconds in (("MHA", 47.2, 1.51), ("GQA-8", 47.1, 0.28), ("MQA", 46.6, 0.24)):
            assert self.score("gqa-1", f"T5-XXL, {label}", "average over 7 tasks") == score
            assert self.score("gqa-1", f"T5-XXL, {label}", "seconds per sample") == seconds
        assert [self.score("deepseek-v2-8", f"dense 7B, {label}", "MMLU") for label in ("MHA", "GQA-8", "MQA")] == [
            45.2,
            41.2,
            37.9,
        ]
        assert [self.score("llama-2-18", f"30B, {label}", "MMLU") for label in ("MHA", "GQA-8", "MQA")] == [
            28.0,
            26.9,
            26.5,
        ]
        assert self.score("deepseek-v2-9", "large mixture of experts, MLA", "BBH") == 50.7
        assert self.score("deepseek-v2-9", "large mixture of experts, MHA", "BBH") == 46.6

    def test_the_nearest_number_shares_the_same_way_and_has_nearly_the_same_size(self) -> None:
        quote = nearest_published("GQA", 8, 8_030_300_000)
        assert quote is not None
        assert quote.text == "MMLU 41.2 at 6.9B (DeepSeek-V2 paper, Table 8)"
        assert nearest_published("GQA", 4, 8_030_300_000) is None
        assert nearest_published("GQA", 8, 100_000_000_000) is None
        assert nearest_published("GQA", 8, None) is None
        larger = nearest_published("MQA", 1, 34_000_000_000)
        assert larger is not None
        assert larger.table.id == "llama-2-18"

    def test_every_table_says_where_it_is_printed_and_what_was_held_fixed(self) -> None:
        for table in published_tables():
            assert re.search(r"arXiv \d{4}\.\d{5}", table.source)
            assert len(table.setup) > 40
            assert all(table.metric in row.scores for row in table.rows)


def test_charts_and_numbers_load_no_torch() -> None:
    code = "import sys, attention.plots.cache_charts, attention.published; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
