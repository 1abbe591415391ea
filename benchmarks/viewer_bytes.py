"""Bytes from server to browser per attention weight, against the page BertViz makes of the same weights."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import torch

from attention import load_model, trace
from attention.plots.scenes import heads_scene
from attention.plots.viewer import BYTE_LIMIT, viewer_bytes
from attention.tracing import AttentionTrace
from benchmarks.ratios import Row, Target
from benchmarks.server import ROOT
from benchmarks.texts import counter, text_of

WHEELS = ROOT / "benchmarks" / "results" / "wheels"
REQUIREMENTS = ROOT / "benchmarks" / "peers" / "requirements.txt"
# bertviz 1.4.1, head_view(html_action="return") on MiniLM's weights: 44.7, 45.2 and 45.6 at 64, 128 and 256 tokens.
CITED = 45.0
PER_WEIGHT = Target(1.1, "most")
AGAINST_PEER = Target(40, "gain")


def measure(quick: bool) -> list[Row]:
    """Two rows per length: bytes per weight against a fixed limit, and against BertViz."""
    torch.set_num_threads(1)
    loaded = load_model("all-MiniLM-L6-v2")
    count = counter(loaded.tokenizer)
    sizes = (64, 128) if quick else (64, 128, 256)
    traces = [trace(loaded, text_of(count, n_tokens)) for n_tokens in sizes]
    theirs = bertviz_bytes(traces)
    rows = []
    for at, traced in enumerate(traces):
        rows += _rows(traced, theirs[at] if theirs else None)
    return rows


def message_bytes(traced: AttentionTrace) -> tuple[int, int]:
    """Bytes of the Heads page's message when it opens, and of all messages once every layer was looked at."""
    checks = (*traced.checks, traced.verify())
    first = len(viewer_bytes(heads_scene(traced, checks=checks, hints=True)))
    if traced.weights.size <= BYTE_LIMIT:
        return first, first
    scenes = (
        heads_scene(traced, checks=checks, hints=True, full_layers=(layer,)) for layer in range(len(traced.weights))
    )
    return first, sum(len(viewer_bytes(scene)) for scene in scenes)


def bertviz_bytes(traces: list[AttentionTrace]) -> list[int] | None:
    """Bytes of BertViz's page for each trace; None when it cannot be had."""
    wheel = _wheel()
    if wheel is None:
        return None
    with tempfile.TemporaryDirectory(prefix="headscope-bench-") as folder:
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(folder)
        files = []
        for at, traced in enumerate(traces):
            files.append(str(Path(folder) / f"{at}.npz"))
            np.savez(files[-1], weights=traced.weights, tokens=np.array([token.raw for token in traced.tokens]))
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.peers.bertviz_html", *files],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": folder},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return [int(line) for line in done.stdout.split()]


def _rows(traced: AttentionTrace, theirs: int | None) -> list[Row]:
    n_tokens, n_weights = len(traced.tokens), traced.weights.size
    opening, every_layer = message_bytes(traced)
    fits = traced.weights.size <= BYTE_LIMIT
    note = "The Heads page's whole message: header, labels, cards, checks, one byte per weight."
    if not fits:
        note = (
            "Over 4 MiB the page opens with thumbnails of all heads and one layer in full "
            f"({opening / n_weights:.2f} B per weight); counted here is all that is sent until each layer was in full."
        )
    peer = CITED if theirs is None else theirs / n_weights
    source = (
        "BertViz could not be fetched: its 45 bytes per weight are cited from an earlier run, not measured."
        if theirs is None
        else "BertViz 1.4.1, head_view(html_action='return') on the same weights."
    )
    return [
        Row(
            f"bytes per weight, MiniLM, {n_tokens} tokens",
            "B",
            (every_layer / n_weights,),
            target=PER_WEIGHT,
            note=note,
            details={"opening_bytes": opening, "bytes": every_layer, "weights": n_weights},
        ),
        Row(
            f"  the same against BertViz, {n_tokens} tokens",
            "B",
            (every_layer / n_weights,),
            (peer,),
            AGAINST_PEER,
            "cited" if theirs is None else "BertViz",
            source,
            {"peer_bytes": theirs},
        ),
    ]


def _wheel() -> Path | None:
    """BertViz's package file, fetched once with its hash checked. Kept packed: code of others stays out of the tree."""
    found = next(WHEELS.glob("bertviz-*.whl"), None)
    if found:
        return found
    print("Fetching BertViz for the comparison (once; 160 KB, into benchmarks/results)…", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--require-hashes", "--dest", str(WHEELS), "-r", str(REQUIREMENTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print("BertViz could not be fetched: " + " ".join(done.stderr.split())[-300:], file=sys.stderr)
    return next(WHEELS.glob("bertviz-*.whl"), None)
