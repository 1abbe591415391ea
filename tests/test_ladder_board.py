"""The ladder's message: the browser gets exactly the engine's numbers on every rung. And the figures behind it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from attention.errors import UserError
from attention.plots import colours
from attention.plots.ladder_board import (
    LATENT_WAYS,
    SHARE_WAYS,
    Measure,
    board_bytes,
    board_css,
    layout_of,
    read_board_bytes,
    rung_place,
)
from attention.plots.ladder_charts import Healing, healing_chart, published_chart
from attention.published import published_tables
from attention.rung_views import LadderView, RungView, ViewRequest, Written
from attention.rungs import LadderPoint, Quality, badge_of
from attention.sharing import LatentKV, ShareKV, numbers_cached
from pages.cost.ladder_inputs import first_view, shipped
from tests.styles import properties_in

MODELS = ("all-MiniLM-L6-v2", "SmolLM2-135M-Instruct")
RUNGS = (
    None,
    ShareKV(1),
    ShareKV(1, "aligned"),
    ShareKV(1, "healed"),
    ShareKV(1, "random"),
    LatentKV(60),
    LatentKV(20),
    LatentKV(20, whiten=False),
    LatentKV(20, split=(8, 12)),
    LatentKV(20, healed=True),
)
HOSTILE = ("</script><b>", "-->", "𝕏\u202e", '"\\', "\n", "")


def view_of(labels: tuple[str, ...] = HOSTILE, kind: str = "decoder", rungs: tuple = RUNGS) -> LadderView:
    """A made-up model: 6 query heads of width 4, 3 K/V heads whose values are 16 wide: 60 numbers."""
    rng = np.random.default_rng(3)
    side = len(labels)
    seen = []
    for place, rung in enumerate(rungs):
        weights = rng.dirichlet(np.ones(side), side).astype(np.float32)
        numbers = 60 if rung is None else 20 if isinstance(rung, ShareKV) else rung.rank
        seen.append(
            RungView(rung, "", numbers, weights, ((" a", 0.5), (HOSTILE[0], 0.25)), (Written("\n", 0.1 * place),))
        )
    request = ViewRequest("made-up", " ".join(labels), 1, 2)
    return LadderView(request, labels, kind, 5, 6, 3, 4, kind == "decoder", tuple(seen), ())


def point_of(rung: object, value: float) -> LadderPoint:
    quality = tuple(Quality(text, value + add, 1.0, 99.0, 0.5, 0.25, (1.0,)) for add, text in enumerate(("one", "two")))
    return LadderPoint(rung, badge_of(rung), 20, 777, quality)  # type: ignore[arg-type]


def rung_facts(message: bytes) -> dict[tuple[str, str, str], dict]:
    header, _ = read_board_bytes(message)
    return {(one["family"], one["way"], one["key"]): one for one in header["rungs"]}


@pytest.mark.parametrize("model_id", MODELS)
def test_every_shipped_number_arrives(model_id: str) -> None:
    view, points = first_view(model_id), shipped(model_id)
    assert view is not None
    for text in (one.text for one in points[0].quality):
        message = board_bytes(view, points, Measure(text, "title", "pieces"), title="Model")
        assert len(message) < 100_000
        header, maps = read_board_bytes(message)
        sent = rung_facts(message)
        assert len(sent) == len(header["rungs"]) >= len(points)
        for point in points:
            facts = sent[rung_place(point.what_if)]
            quality = point.on(text)
            assert facts["quality"] == {
                name: getattr(quality, name) for name in ("value", "low", "high", "apart", "agreement")
            }
            assert (facts["numbers"], facts["bytes"], facts["badge"]) == (
                point.numbers,
                point.bytes_per_token,
                point.badge,
            )
            assert facts["numbers"] == numbers_cached(layout_of(view), point.what_if)
        for one in view.rungs:
            facts = sent[rung_place(one.rung)]
            np.testing.assert_allclose(maps[facts["map"]], one.weights, atol=5.1e-5)
            assert facts["next"] == [list(pair) for pair in one.next_tokens]
            assert "".join(word for word, _ in facts["written"]) == "".join(step.token for step in one.written)
            assert (facts["cosine"], facts["similar"]) == (one.cosine, list(one.similar))
        assert header["labels"] == list(view.labels)
        assert header["full"] == numbers_cached(layout_of(view))


@pytest.mark.parametrize("model_id", MODELS)
def test_it_opens_on_two_settings_of_one_size(model_id: str) -> None:
    view = first_view(model_id)
    assert view is not None
    message = board_bytes(view, shipped(model_id), Measure(shipped(model_id)[0].quality[0].text, "", ""), title="")
    start, sent = read_board_bytes(message)[0]["start"], rung_facts(message)
    share, latent = sent["share", "mean", start["share"]], sent["latent", "whitened", start["latent"]]
    assert share["numbers"] == latent["numbers"] < view.rungs[0].numbers
    assert {"all-MiniLM-L6-v2": "6", "SmolLM2-135M-Instruct": "1"}[model_id] == start["share"]


def test_every_kind_of_rung_has_a_place_of_its_own_and_a_name() -> None:
    places = [rung_place(rung) for rung in RUNGS]
    places += [rung_place(ShareKV(n, how, groups="by-similarity")) for how in ("mean", "aligned") for n in (2, 3)]
    places.append(rung_place(ShareKV(2, "first")))
    assert len(set(places)) == len(places)
    named = {("share", way) for way, _, _ in SHARE_WAYS} | {("latent", way) for way, _, _ in LATENT_WAYS}
    assert {(family, way) for family, way, _ in places} == named | {("shipped", "shipped")}


def test_what_the_texts_were_not_measured_on_has_no_quality_and_what_was_not_traced_no_map() -> None:
    view = view_of(rungs=RUNGS[:2])
    sent = rung_facts(board_bytes(view, [point_of(ShareKV(1, "first"), 7.0)], Measure("two", "", ""), title=""))
    assert sent["share", "mean", "1"]["quality"] is None
    assert sent["share", "first", "1"]["map"] is None
    assert sent["share", "first", "1"]["quality"]["value"] == 8.0
    assert all(
        one["quality"] is None for one in rung_facts(board_bytes(view, [], Measure("", "", ""), title="")).values()
    )


def test_text_travels_as_it_is() -> None:
    header, maps = read_board_bytes(board_bytes(view_of(), [], Measure("", HOSTILE[2], ""), title=HOSTILE[0]))
    assert header["labels"] == list(HOSTILE)
    assert (header["title"], header["measure"]["title"]) == (HOSTILE[0], HOSTILE[2])
    assert maps.shape == (len(RUNGS), len(HOSTILE), len(HOSTILE))


def test_bytes_and_cost_by_hand() -> None:
    view = view_of()
    assert (layout_of(view).d_head, layout_of(view).d_head_v) == (4, 16)
    sent = rung_facts(board_bytes(view, [point_of(LatentKV(20), 1.0)], Measure("one", "", ""), title=""))
    assert sent["shipped", "shipped", "shipped"]["bytes"] == 5 * 60 * 2
    assert sent["share", "mean", "1"]["bytes"] == 5 * 20 * 2
    assert sent["latent", "whitened", "20"]["bytes"] == 777  # as measured
    cost = sent["latent", "whitened", "20"]["cost"]
    assert cost == {"rebuild": 2 * 1024 * 20 * 60, "scores": 2 * 6 * 1024 * (4 + 16)}
    assert sent["latent", "split", "8+12"]["cost"]["rebuild"] == 2 * 1024 * 3 * (8 * 4 + 12 * 16)
    assert "cost" not in sent["share", "mean", "1"]


def test_the_longest_text_stays_well_below_300_kb() -> None:
    view = first_view(MODELS[0])
    assert view is not None
    side = 48
    long = replace(
        view,
        labels=tuple(f"wordpiece{at}" for at in range(side)),
        rungs=tuple(replace(one, weights=np.full((side, side), 1 / side, np.float32)) for one in view.rungs),
    )
    points = shipped(MODELS[0])
    assert len(board_bytes(long, points, Measure(points[0].quality[0].text, "", ""), title="")) < 200_000


def test_other_bytes_are_refused() -> None:
    with pytest.raises(UserError, match="HSL1"):
        read_board_bytes(b"HST1" + bytes(8))


def test_the_colours_are_the_projects() -> None:
    for theme in ("light", "dark"):
        ink = properties_in(board_css(), theme)
        for name in ("query", "key", "value", "latent", "cache"):
            assert ink[name] == getattr(colours, name.upper()).on(theme)
        assert ink["averaged"] == colours.BROKEN.on(theme)
        weights = colours.WEIGHT_SCALE_DARK if theme == "dark" else colours.WEIGHT_SCALE
        assert [ink[f"w{stop}"] for stop in range(5)] == [colour for _, colour in weights]
        if theme == "light":
            assert [ink[f"d{stop}"] for stop in range(5)] == [colour for _, colour in colours.DIFFERENCE_SCALE]


def test_published_scores_stand_against_their_own_mha() -> None:
    chart = published_chart(published_tables(), "light")
    assert ("T5-XXL", "T5-XXL, MQA", 46.6, round(100 * 46.6 / 47.2, 1), "GQA paper, Table 1") in chart.rows
    assert sum(row[3] == 100 for row in chart.rows) == len(chart.figure.data) == 5
    assert len(chart.rows) == sum(len(table.rows) for table in published_tables())
    assert max(chart.rows, key=lambda row: row[3])[1].endswith("MLA")


def test_losses_are_drawn_at_the_steps_they_are_the_mean_of() -> None:
    chart = healing_chart([Healing("<b>share 6</b>", (4.0, 2.0)), Healing("latent 64", (3.0,))], "dark")
    first = json.loads(chart.figure.to_json())["data"][0]
    assert (first["x"], first["y"]) == ([10, 20], [4.0, 2.0])
    assert "&lt;b&gt;" in first["name"]
    assert chart.rows == (("<b>share 6</b>", 10, 4.0), ("<b>share 6</b>", 20, 2.0), ("latent 64", 10, 3.0))
    assert "from 4 to 2 in 20 steps" in chart.alt
