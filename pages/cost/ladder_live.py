"""Computing on the ladder page: a sentence on every rung, or a whole sweep, with progress; whoever leaves stops it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from attention.errors import UserError
from attention.rung_views import LadderView, ViewRequest
from attention.rungs import LadderPoint, SweepRequest
from pages.cost.ladder_inputs import Asked, first_view, shipped
from pages.shared.errors import show_error

# The last sentence computed, the last that failed, the one that was stopped; and models whose sweep was asked for.
KEPT, FAILED, STOPPED, SWEPT, SWEEPING = (
    "ladder_kept",
    "ladder_failed",
    "ladder_stopped",
    "ladder_swept",
    "ladder_sweep",
)
PATIENCE = 0.3  # seconds between two looks at a job


@dataclass(frozen=True)
class Shown:
    """What the page has to show, and what it still has to compute for it."""

    n_layers: int
    n_heads: int
    points: tuple[LadderPoint, ...]
    view: LadderView | None = None
    missing: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts quality was measured on."""
        return tuple(one.text for one in self.points[0].quality) if self.points else ()


def shown(model_id: str) -> Shown:
    """The sizes and points of a model; loads it only where nothing is shipped. Raises UserError as ``load_model``."""
    first = first_view(model_id)
    points = shipped(model_id) or st.session_state.get(SWEPT, {}).get(model_id, ())
    if first is not None:
        return Shown(first.n_layers, first.n_heads, points)
    from attention.engine import default_engine

    with st.spinner("Loading the model…"):
        model = default_engine().model(model_id)
    return Shown(model.n_layers, model.layout.n_heads, points)


def shown_for(asked: Asked, so_far: Shown) -> Shown:
    """The view to draw now: the one asked for where it is at hand, else the model's last one, and what is missing."""
    first, (kept_for, kept) = first_view(asked.model), st.session_state.get(KEPT, (None, None))
    wanted = _same_view(asked)
    if first is not None and wanted == _first_asked(first):
        return replace(so_far, view=first)
    if kept_for == wanted:
        return replace(so_far, view=kept)
    of_model = kept if kept is not None and kept.request.model == asked.model else first
    return replace(so_far, view=of_model, missing=True)


def say(found: Shown, asked: Asked, place: st.delta_generator.DeltaGenerator) -> None:
    """What stands between the visitor and the picture: an error, a stopped run, a sweep not made yet."""
    failed_for, error = st.session_state.get(FAILED, (None, None))
    with place:
        if found.missing and failed_for == _same_view(asked):
            show_error(error)
        elif found.missing and st.session_state.get(STOPPED) == _same_view(asked):
            with st.container(horizontal=True, vertical_alignment="center"):
                st.info("Stopped. The picture below is still the earlier one.")
                st.button("Compute it after all", key="l_again", on_click=_forget_stop)
        if not found.points and st.session_state.get(SWEEPING) != asked.model:
            with st.container(horizontal=True, vertical_alignment="center"):
                st.info("The quality of this model's rungs was not measured yet.")
                st.button(
                    "Measure it",
                    key="l_measure",
                    on_click=_begin_sweep,
                    args=(asked.model,),
                    help="Every rung on the bundled texts. Some minutes, longer for a large model.",
                )


def work(found: Shown, asked: Asked, place: st.delta_generator.DeltaGenerator) -> None:
    """Compute what is missing, last of all: the board above stays in use meanwhile. Any click elsewhere ends it."""
    wanted = _same_view(asked)
    done_with = (st.session_state.get(FAILED, (None, None))[0], st.session_state.get(STOPPED))
    if found.missing and wanted not in done_with:
        _view(wanted, place)
    elif not found.points and st.session_state.get(SWEEPING) == asked.model:
        _sweep(asked.model, place)


def _view(wanted: Asked, place: st.delta_generator.DeltaGenerator) -> None:
    from attention.engine import default_engine

    try:
        start = default_engine().model(wanted.model).default_start if wanted.with_start else None
        request = ViewRequest(wanted.model, wanted.text, wanted.layer, wanted.head, start)
        with default_engine().view_job(request) as job:
            _watch(job, place, "Your sentence on every rung", _stop, (wanted,))
        if job.error is not None:
            raise job.error
    except UserError as error:
        st.session_state[FAILED] = (wanted, error)
    else:
        st.session_state[KEPT] = (wanted, job.result)
    st.rerun()


def _sweep(model_id: str, place: st.delta_generator.DeltaGenerator) -> None:
    from attention.engine import default_engine
    from attention.ladder_view import possible_rungs

    try:
        rungs = possible_rungs(default_engine().model(model_id))
        with default_engine().sweep_job(SweepRequest(model_id, rungs)) as job:
            _watch(job, place, "Measuring every rung on our texts", _stop_sweep, ())
        if job.error is not None:
            raise job.error
    except UserError as error:
        with place:
            show_error(error)
        del st.session_state[SWEEPING]
        return
    del st.session_state[SWEEPING]
    st.session_state[SWEPT] = {**st.session_state.get(SWEPT, {}), model_id: job.result}
    st.rerun()


def _watch(
    job: Any, place: st.delta_generator.DeltaGenerator, words: str, stop: Any, stopped: tuple[object, ...]
) -> None:
    """Draw how far a job is until it has ended; a quick one draws nothing."""
    if job.done.wait(PATIENCE):
        return
    with place, st.container(horizontal=True, vertical_alignment="center"):
        bar = st.progress(0.0, f"{words}…")
        st.button("Stop", key="l_stop", icon=":material/stop:", on_click=stop, args=stopped)
    while not job.done.wait(PATIENCE):
        ahead = job.ahead
        told = f"{words}: {job.share:.0%}. The board below stays in use." if ahead is None else waiting(ahead)
        bar.progress(min(1.0, job.share), told)


def waiting(ahead: int) -> str:
    """What somebody is told whose computation has not begun, because as many as may run are running."""
    before = {0: "You are next", 1: "One other is before you"}.get(ahead, f"{ahead} others are before you")
    return f"Others are computing now. {before}; yours starts by itself."


def _same_view(asked: Asked) -> Asked:
    """What a view depends on: not on the text that quality was measured on."""
    return replace(asked, on="")


def _first_asked(first: LadderView) -> Asked:
    request = first.request
    return Asked(request.model, request.text, request.layer, request.head, with_start=False, on="")


def _stop(wanted: Asked) -> None:
    st.session_state[STOPPED] = wanted


def _forget_stop() -> None:
    st.session_state.pop(STOPPED, None)


def _begin_sweep(model_id: str) -> None:
    st.session_state[SWEEPING] = model_id


def _stop_sweep() -> None:
    st.session_state.pop(SWEEPING, None)
