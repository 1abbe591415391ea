"""Parts 7 and 9: the ladder's measured points beside the models that stand on its rungs, and the five lines to keep."""

from __future__ import annotations

import html

import streamlit as st

from attention.model_facts import title_of
from attention.plots.lesson_charts import Stop, rung_chart
from attention.rungs import LadderPoint, shipped_sweep
from attention.sharing import LatentKV, ShareKV
from pages.cost.cache_parts import draw, small
from pages.learn import lesson_facts as facts
from pages.learn.lesson_frame import BOUND, links_only, paragraphs, said, theme
from pages.learn.lesson_text import Part, words

WAYS = {"mean": "blend", "healed": "healed"}


def ladder(part: Part) -> None:
    """Quality against what is cached, then who stands where."""
    left, right = st.columns([1, 1.35], gap="large")
    with left:
        paragraphs(part, facts.ladder())
    with right:
        models = (facts.MINILM, facts.SMOLLM)
        titles = [title_of(model).split(":")[0] for model in models]
        title = st.segmented_control(words("model"), titles, default=titles[0], required=True, key="n_model", **BOUND)
        encoder = title == titles[0]
        name = words("likeness" if encoder else "surprise")
        stops = stops_of(models[titles.index(title)])
        draw(rung_chart(stops, name, not encoder, theme()), "n-ladder", f"{title}: {name}")
        small(words("minilm_note" if encoder else "smol_note"))
        _models()


def stops_of(model: str) -> list[Stop]:
    """The shipped points the lesson draws: averaged, healed and latent, each line starting at the model as shipped."""
    found: list[Stop] = []
    for point in shipped_sweep(model):
        named = _way_of(point)
        if named is not None:
            found.append(Stop(words(named[0]), named[1], point.numbers, point.quality[0].value))
    return found


def _way_of(point: LadderPoint) -> tuple[str, str] | None:
    what = point.what_if
    if what is None:
        return "shipped", words("shipped")
    if isinstance(what, ShareKV):
        if what.groups != "adjacent" or what.how not in WAYS:
            return None
        return WAYS[what.how], f"{what.n_kv_heads} K/V head{'' if what.n_kv_heads == 1 else 's'}"
    if isinstance(what, LatentKV) and what.whiten and what.split is None and not what.healed:
        return "latent", f"latent {what.rank}"
    return None


def _models() -> None:
    rung = st.segmented_control(
        words("rung"), facts.RUNGS, default=facts.RUNGS[0], required=True, key="n_rung", **BOUND
    )
    models = facts.on_rung(rung)
    said(words("rung_said", n=len(models), rung=rung))
    names = (
        one.name if facts.verified_year(one) is None else f"{one.name} ({facts.verified_year(one)})" for one in models
    )
    st.html(f'<ul class="hs-n-names">{"".join(f"<li>{html.escape(name)}</li>" for name in names)}</ul>')


def breath(part: Part) -> None:
    """Five lines, each a link."""
    links_only(part, facts.sharing())
