"""Traces as files: CSV for a spreadsheet, NPZ for a notebook."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict
from typing import Any

import numpy as np

from attention.tracing import AttentionTrace


def head_csv(traced: AttentionTrace, layer: int, head: int) -> str:
    """One head as a table: first column the query words, first row the key words, weights with nine digits.

    Every word stands behind its number, so no spreadsheet takes one that begins with = or @ for a formula.
    """
    out = io.StringIO()
    writer = csv.writer(out)
    labels = [f"{index}: {token.label}" for index, token in enumerate(traced.tokens)]
    writer.writerow([f"layer {layer} head {head}: query \\ key", *labels])
    for label, row in zip(labels, traced.weights[layer, head], strict=True):
        writer.writerow([label, *(f"{weight:.9g}" for weight in row)])
    return out.getvalue()


def head_npz(traced: AttentionTrace, layer: int, head: int) -> bytes:
    """One head as NPZ: ``weights`` float32 (query, key), ``visible``, ``tokens``, ``facts`` (JSON)."""
    return _npz(
        weights=traced.weights[layer, head],
        visible=traced.visible(layer),
        tokens=np.array([token.label for token in traced.tokens]),
        facts=np.array(json.dumps(_facts(traced) | {"layer": layer, "head": head})),
    )


def trace_npz(traced: AttentionTrace) -> bytes:
    """The whole trace as NPZ: ``weights`` (layer, head, query, key), ``masks``, ``mask_of_layer``, ``tokens``,
    ``token_ids``, ``hidden``, ``facts`` (JSON)."""
    return _npz(
        weights=traced.weights,
        masks=traced.masks,
        mask_of_layer=np.array(traced.mask_of_layer),
        tokens=np.array([token.label for token in traced.tokens]),
        token_ids=np.array([token.id for token in traced.tokens]),
        hidden=traced.outputs.hidden,
        facts=np.array(json.dumps(_facts(traced))),
    )


def _facts(traced: AttentionTrace) -> dict[str, Any]:
    return {
        "model": asdict(traced.model),
        "text": traced.text,
        "pair": traced.request.pair,
        "start": traced.request.start,
        "axes": ["layer", "head", "query", "key"],
        "checks": {check.name: check.value for check in traced.checks},
    }


def _npz(**arrays: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, allow_pickle=False, **arrays)
    return out.getvalue()
