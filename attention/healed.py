"""Healed K/V projections shipped with Headscope: what training left behind, as small files with their loss curves."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from attention.errors import UserError
from attention.sharing import LatentKV, ShareKV

HEALED = Path(__file__).resolve().parents[1] / "assets" / "healed"


def delta_name(what_if: ShareKV | LatentKV) -> str:
    """The file name of a healed setting: "share-6", "latent-128"."""
    return f"latent-{what_if.rank}" if isinstance(what_if, LatentKV) else f"share-{what_if.n_kv_heads}"


def healed_settings(model_id: str) -> tuple[ShareKV | LatentKV, ...]:
    """The settings this model was healed for, most cached numbers first within each kind."""
    found: list[ShareKV | LatentKV] = []
    for file in (HEALED / model_id).glob("*.npz"):
        kind, _, number = file.stem.partition("-")
        size = int(number)
        found.append(ShareKV(size, "healed") if kind == "share" else LatentKV(size, healed=True))
    return tuple(sorted(found, key=lambda one: (isinstance(one, LatentKV), -_size(one))))


def healed_facts(model_id: str, what_if: ShareKV | LatentKV) -> dict[str, Any]:
    """How a healed file was made: command, steps, training text, loss curve. Raises UserError where there is none."""
    file = HEALED / model_id / f"{delta_name(what_if)}.json"
    if not file.is_file():
        names = ", ".join(delta_name(one) for one in healed_settings(model_id)) or "none"
        raise UserError(
            f"No healed {delta_name(what_if)} of {model_id} is shipped.",
            f"Healed settings of this model: {names}.",
            "Choose one of these, or train one with python -m attention.uptrain.",
        )
    return dict(json.loads(file.read_text(encoding="utf-8")))


def healed_arrays(model_id: str, revision: str, what_if: ShareKV | LatentKV) -> dict[str, np.ndarray]:
    """``<layer>.down``, ``<layer>.bias`` and ``<layer>.up`` in float32.

    Raises UserError where nothing is shipped, where the file was changed, or where it was trained for other weights.
    """
    facts = healed_facts(model_id, what_if)
    file = HEALED / model_id / f"{delta_name(what_if)}.npz"
    if facts["revision"] != revision or hashlib.sha256(file.read_bytes()).hexdigest() != facts["sha256"]:
        raise UserError(
            f"The healed {file.stem} does not belong to these weights of {model_id}.",
            "It was trained for the bundled ones.",
            f"Train it again: {facts['command']}",
        )
    with np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name].astype(np.float32) for name in arrays.files}


def _size(what_if: ShareKV | LatentKV) -> int:
    return what_if.rank if isinstance(what_if, LatentKV) else what_if.n_kv_heads
