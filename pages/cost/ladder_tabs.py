"""What stands behind the board, in tabs: cost, papers, how it was measured, healing, all numbers."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from attention.errors import UserError
from attention.healed import healed_facts, healed_settings
from attention.kv_working import readable
from attention.plots.ladder_board import SHARE_WAYS, rung_place
from attention.plots.ladder_charts import Healing, healing_chart, published_chart
from attention.published import published_tables
from attention.rung_views import LadderView
from attention.rungs import LadderPoint, rung_name, sweep_facts
from attention.sharing import ShareKV
from attention.texts import BundledText, bundled_text, evaluation_texts
from pages.cost import ladder_cost
from pages.cost.cache_parts import csv_button, draw, listed, small
from pages.cost.ladder_inputs import SENTENCES, Asked, text_title
from pages.see.finder_parts import written_by
from pages.shared.errors import show_error
from pages.shared.tables import table

# The first opens with the page: it must be one that loads no model.
TABS = ("Trained this way", "Cost, too", "Healing", "How it was measured", "All numbers")
HEADERS = (
    "setting",
    "badge",
    "numbers per token and layer",
    "bytes per token",
    "text",
    "quality",
    "worst piece",
    "best piece",
    "apart",
    "agreement",
)


def show(view: LadderView, points: tuple[LadderPoint, ...], asked: Asked) -> None:
    """The tabs; only an open one is computed."""
    tabs = st.tabs(TABS, key="l_tab", on_change="rerun", bind="query-params")
    with tabs[TABS.index("Cost, too")]:
        tokens = ladder_cost.inputs()  # drawn also while closed: a box that is not drawn loses its place in the link
    contents: tuple[Callable[[], None], ...] = (
        _published,
        lambda: ladder_cost.show(view, tokens),
        lambda: _healing(view.request.model),
        lambda: _measured(view, points),
        lambda: _numbers(view, points, asked),
    )
    for tab, content in zip(tabs, contents, strict=True):
        if tab.open:
            with tab:
                try:
                    content()
                except UserError as error:
                    show_error(error)


def _published() -> None:
    st.markdown(
        "**Measured by papers, not by us.** These models were trained or uptrained with shared heads. "
        "Each line is one paper's comparison, against its own MHA model."
    )
    draw(published_chart(published_tables(), _theme()), "l-published", "Scores of trained models")
    listed([f"{one.short} ({one.source}): {one.setup}" for one in published_tables()])


def _healing(model_id: str) -> None:
    settings = healed_settings(model_id)
    st.markdown(
        "**Healed** means: averaged or cut down first, then trained a little until it answers like the original again. "
        "Only the K/V projections learn. The unchanged model is the teacher."
    )
    if not settings:
        small("No healed setting of this model is shipped.")
        return
    facts = {rung_name(one): healed_facts(model_id, one) for one in settings}
    runs = [Healing(name, fact["loss"]) for name, fact in facts.items()]
    draw(healing_chart(runs, _theme()), "l-healing", "Training loss of the healed settings")
    table(
        "How each was made",
        ("setting", "steps", "what learned", "command"),
        [(name, f"{fact['steps']:,}", fact["what_is_trained"], fact["command"]) for name, fact in facts.items()],
    )
    training = bundled_text("training")
    small(
        f"Trained on: {training.title} ({training.licence}). No quality was measured on it. "
        "The GQA paper trains for 5 % of the first training; this is far less, hence the gap that stays."
    )


def _measured(view: LadderView, points: tuple[LadderPoint, ...]) -> None:
    if not points:
        small("Nothing was measured on this model yet. “Measure it” above the board does.")
        return
    if view.kind == "encoder":
        many = len(points[0].quality[0].pieces)
        st.markdown(
            f"**Likeness**: the cosine between a sentence's embedding and the original model's, mean over {many} "
            "sentences. Bars reach from the worst to the best sentence. "
            "**Agreement**: Spearman's rank correlation over all pairs of sentences."
        )
        small(f"Sentences: {written_by()}.")
    else:
        st.markdown(
            "**Surprise** is perplexity: e to the mean loss per token, over 3 pieces of 512 tokens, each read by "
            "itself without a start token. Bars reach from the best to the worst piece. "
            "**Apart**: KL divergence from the original's next-token distribution, in nats. "
            "**Agreement**: how often both name the same likeliest token."
        )
    table(
        "The texts; no passage of one that quality is measured on stands in another",
        ("text", "used for", "licence", "source", "SHA-256"),
        [_text_row(one) for one in (*evaluation_texts(), bundled_text("calibration"), bundled_text("training"))],
    )
    _made(view.request.model)


def _text_row(text: BundledText) -> tuple[str, ...]:
    use = {
        "evaluation": "measuring a decoder's surprise",
        "calibration": "finding the latents and turns",
        "training": "healing",
    }[text.role]
    return f"{text.title} ({text.author})", use, text.licence, text.source, text.sha256


def _made(model_id: str) -> None:
    try:
        facts = sweep_facts(model_id)
    except FileNotFoundError:
        small("Measured just now, on this machine.")
        return
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    table(
        "How the shipped numbers were made",
        ("what", "value"),
        [
            ("command", facts["command"]),
            ("weights, SHA-256", facts["revision"]),
            ("code, SHA-256", facts["code_sha256"]),
            ("sentences, SHA-256", facts["texts_sha256"]["sentences"]),
            ("libraries", versions),
            ("took", f"{facts['seconds']:,} s"),
        ],
    )


def _numbers(view: LadderView, points: tuple[LadderPoint, ...], asked: Asked) -> None:
    if not points:
        small("Nothing was measured on this model yet.")
        return
    shown = [_cells(point, asked.on) for point in points]
    table(f"Every setting measured, on {text_title(asked.on)}", HEADERS, shown)
    exact = [
        (
            rung_name(point.what_if),
            point.badge,
            point.numbers,
            point.bytes_per_token,
            one.text,
            one.value,
            *_ends(one.low, one.high, view.kind),
            one.apart,
            one.agreement,
        )
        for point in points
        for one in point.quality
    ]
    csv_button(HEADERS, exact, f"ladder-{view.request.model}")
    small("Bytes under a setting are what would be cached at 16 bit: by formula, not measured.")


def _cells(point: LadderPoint, text: str) -> tuple[str, ...]:
    one = point.on(text)
    encoder = text == SENTENCES
    low, high = _ends(one.low, one.high, "encoder" if encoder else "decoder")
    return (
        name_of(point),
        point.badge,
        str(point.numbers),
        readable(point.bytes_per_token),
        text_title(text),
        *(_quality(value, encoder) for value in (one.value, low, high)),
        f"{one.apart:.4f}",
        f"{one.agreement:.3f}",
    )


def _ends(low: float, high: float, kind: str) -> tuple[float, float]:
    """Worst first: a cosine is better when larger, a surprise when smaller."""
    return (low, high) if kind == "encoder" else (high, low)


def name_of(point: LadderPoint) -> str:
    """A point's setting in words: "averaged to 6 K/V heads", "latent 384"."""
    _, way, key = rung_place(point.what_if)
    if isinstance(point.what_if, ShareKV):
        words = next(name for other, name, _ in SHARE_WAYS if other == way)
        return f"{words}: {key} K/V head{'' if key == '1' else 's'}"
    return rung_name(point.what_if)


def _quality(value: float, encoder: bool) -> str:
    if encoder:
        return f"{value:.4f}"
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _theme() -> str:
    return str(st.context.theme.type or "light")
