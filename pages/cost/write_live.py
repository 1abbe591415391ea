"""Writing live: the place in line, the turns, and what to say meanwhile. Loads torch inside its functions only."""

from __future__ import annotations

import logging
from collections.abc import Generator
from dataclasses import replace

from attention.written import Run

log = logging.getLogger("headscope")
PATIENCE = 0.5  # seconds between two looks at the line


def write(
    model_id: str, prompt: str, *, max_new_tokens: int, temperature: float, top_k: int | None, seed: int
) -> Generator[tuple[Run, str], None, None]:
    """The run as it grows, each time with a sentence about it; first while waiting in line, without steps.

    Leaves the line or the turn whenever the consumer stops. Raises UserError as ``generate`` does.
    """
    from attention.engine import default_engine
    from attention.generation import begin_run, generate, writers

    model = default_engine().model(model_id)
    start = model.default_start
    run = begin_run(
        model, prompt, start=start, max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, seed=seed
    )
    steps = generate(
        model, prompt, start=start, max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, seed=seed
    )
    ticket = writers.join()
    try:
        while not ticket.wait(PATIENCE):
            yield run, waiting(ticket.ahead, writers.slots)
        for step in steps:
            run = replace(run, steps=(*run.steps, step))
            yield run, writing(len(run.steps), max_new_tokens, writers.busy - 1)
    finally:
        steps.close()
        ticket.leave()
        log.info("write %d of %d tokens", len(run.steps), max_new_tokens)


def time_without_cache(run: Run) -> tuple[tuple[int, float], ...]:
    """(tokens, seconds) of reading the run's text again from its beginning, at up to 8 lengths."""
    from attention.engine import default_engine
    from attention.generation import recompute_seconds

    return recompute_seconds(default_engine().model(run.model), run.ids[:-1])


def waiting(ahead: int, places: int) -> str:
    """What somebody in line is told."""
    before = {0: "You are next", 1: "One other is before you"}.get(ahead, f"{ahead} others are before you")
    return f"All {places} places are taken. {before}; yours starts by itself."


def writing(n_written: int, most: int, others: int) -> str:
    """What somebody whose text is being written is told."""
    if others <= 0:
        return f"Writing token {n_written} of at most {most}."
    who = "One other is" if others == 1 else f"{others} others are"
    return f"Writing token {n_written} of at most {most}. {who} writing too: you take turns, token by token."
