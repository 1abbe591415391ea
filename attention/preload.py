"""Load the bundled models once, in one background thread, before or while the first visitor arrives."""

from __future__ import annotations

import gc
import logging
import threading

from attention.errors import UserError
from attention.model_facts import list_models, readiness

log = logging.getLogger("headscope")
_lock = threading.Lock()
_threads: list[threading.Thread] = []


def start() -> threading.Thread:
    """Begin loading every listed model, unless it has begun. Returns the thread that does it.

    A model that cannot be loaded counts as ready too: whoever asks for it is then told why.
    """
    with _lock:
        if not _threads:
            thread = threading.Thread(target=_load_all, name="preload", daemon=True)
            _threads.append(thread)
            thread.start()
        return _threads[0]


def _load_all() -> None:
    # transformers' lazy imports are not thread-safe: this import and load_model's lock make them happen once.
    from attention.models import load_model

    settle()
    for model_id in list_models():
        try:
            load_model(model_id)
        except UserError as error:
            log.warning("preload: %s", error)
        finally:
            readiness(model_id).set()
        settle()  # after each: the second model takes seconds, in which the first visitors already read the first
    log.info("preload ended")


def settle() -> None:
    """Tell Python's collector that what is there now stays: libraries and models, some 400,000 objects.

    Streamlit collects after every run of a page, and looking through all of these each time takes longer than the
    page itself.
    """
    gc.collect()
    gc.freeze()
