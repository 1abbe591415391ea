"""What a model's K and V look like on the calibration text: their second moments, layer by layer, kept on disk.

<cache>/v1/bases/<12 hex digits of the model's and the text's SHA-256>/moments.npz  manifest.json
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import io
import json
import logging
import os
import shutil
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import torch

from attention import kernel
from attention.errors import UserError
from attention.jobs import PATIENCE, stop_if_left
from attention.models import LoadedModel
from attention.settings import settings
from attention.single_flight import SingleFlight
from attention.texts import BundledText, bundled_text

SCHEMA = 1
# More tokens move the latents' quality by less than the texts differ; see benchmarks/results.
N_TOKENS = 8_192
CHUNK = 512
HEADERS = 4096  # bytes that an archive of two arrays may hold beside them

log = logging.getLogger("headscope")


@dataclass(frozen=True)
class Moments:
    """Second moments of y = [k; v] over the calibration text, k and v as projected: before RoPE and without biases.

    ``energy`` float64 (layer, G*D + G*V, G*D + G*V) is the mean of y y^T, ``mean`` (layer, G*D + G*V) that of y.
    """

    energy: np.ndarray
    mean: np.ndarray
    n_tokens: int
    text_sha256: str

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.energy.nbytes + self.mean.nbytes


_kept = SingleFlight(192 * 2**20, lambda moments: moments.nbytes)


def moments_of(loaded: LoadedModel, say: Callable[[float], None] | None = None) -> Moments:
    """The moments of a model, measured once and kept on disk; ``say`` hears the share done while measuring.

    Raises UserError for a model whose K and V projections are fused.
    """
    require_projections(loaded)
    return _kept.get(_key(loaded, bundled_text("calibration")), lambda: _from_disk_or_measured(loaded, say))


def is_measured(loaded: LoadedModel) -> bool:
    """Whether the moments of this model lie on disk."""
    text = bundled_text("calibration")
    return _read(_folder(loaded, text), loaded, text) is not None


def require_projections(loaded: LoadedModel) -> None:
    """Raise UserError unless K and V come from projections of their own."""
    if not loaded.kv_projections:
        raise UserError(
            f"{loaded.title.split(':')[0]} computes Q, K and V in one piece, so K and V cannot be rebuilt alone.",
            "Models with a K and a V projection of their own can (BERT, Llama, Mistral, Qwen, …).",
            "Average heads instead, or choose another model.",
        )


def measure(loaded: LoadedModel, text: BundledText, say: Callable[[float], None] | None = None) -> Moments:
    """Run the text through the model in pieces and gather the moments."""
    width = sum(projection.out_features for projection in loaded.kv_projections[0])
    recorder = kernel.Recorder(
        energy=[torch.zeros(width, width, dtype=torch.float64) for _ in range(loaded.n_layers)],
        total=[torch.zeros(width, dtype=torch.float64) for _ in range(loaded.n_layers)],
    )
    pieces = calibration_pieces(loaded, text)
    trunk = loaded.model.get_decoder() if loaded.kind == "decoder" else loaded.model
    for done, piece in enumerate(pieces):
        with kernel.forward_slot, torch.inference_mode(), kernel.recording(recorder):
            recorder.calls = 0
            trunk(input_ids=torch.tensor([piece]))
        if say:
            say((done + 1) / len(pieces))
    n_tokens = sum(map(len, pieces))
    assert recorder.energy is not None
    assert recorder.total is not None
    energy, total = torch.stack(recorder.energy), torch.stack(recorder.total)
    return Moments((energy / n_tokens).numpy(), (total / n_tokens).numpy(), n_tokens, text.sha256)


def calibration_pieces(loaded: LoadedModel, text: BundledText) -> list[list[int]]:
    """The text's first N_TOKENS tokens as a model reads them: a decoder in pieces of 512, an encoder by paragraph."""
    most = min(CHUNK, loaded.max_positions, settings().max_tokens)
    if loaded.kind == "encoder":
        paragraphs = [one for one in text.text.split("\n\n") if one.strip()]
        pieces = loaded.tokenizer(paragraphs, truncation=True, max_length=most)["input_ids"]
    else:
        ids = loaded.tokenizer(text.text, verbose=False)["input_ids"]
        pieces = [ids[at : at + most] for at in range(0, len(ids) - most + 1, most)] or [ids]
    used = np.cumsum([len(piece) for piece in pieces])
    return list(pieces[: int(np.searchsorted(used, N_TOKENS)) + 1])


def _key(loaded: LoadedModel, text: BundledText) -> str:
    return hashlib.sha256(f"{SCHEMA} {loaded.revision} {text.sha256} {N_TOKENS}".encode()).hexdigest()[:12]


def _folder(loaded: LoadedModel, text: BundledText) -> Path:
    return settings().cache_dir / "v1" / "bases" / _key(loaded, text)


def _from_disk_or_measured(loaded: LoadedModel, say: Callable[[float], None] | None) -> Moments:
    text = bundled_text("calibration")
    folder = _folder(loaded, text)
    kept = _read(folder, loaded, text)
    if kept is not None:
        return kept
    found: list[Moments] = []
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".lock").open("w") as handle:
            _wait_for(handle)
            kept = _read(folder, loaded, text)
            if kept is not None:
                return kept
            found.append(measure(loaded, text, say))
            _write(folder, found[0], loaded)
    except OSError as error:
        # A disk that is full or read-only costs the next process time, not this one the answer.
        log.warning("measured keys and values were not kept: %s", error.strerror)
    return found[0] if found else measure(loaded, text, say)


def _wait_for(handle: TextIO) -> None:
    """The lock on a file, unless nobody waits for it any more."""
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stop_if_left()
            threading.Event().wait(PATIENCE)
        else:
            return


def _read(folder: Path, loaded: LoadedModel, text: BundledText) -> Moments | None:
    """What lies in the folder, or None where it is missing, not what its manifest says or not of this model's sizes."""
    width = sum(projection.out_features for pair in loaded.kv_projections[:1] for projection in pair)
    shapes = (loaded.n_layers, width, width), (loaded.n_layers, width)
    most = 8 * loaded.n_layers * (width + 1) * width + HEADERS
    try:
        if (folder / "moments.npz").stat().st_size > most:
            return None
        manifest = json.loads((folder / "manifest.json").read_text())
        raw = (folder / "moments.npz").read_bytes()
        if manifest["schema"] != SCHEMA or hashlib.sha256(raw).hexdigest() != manifest["sha256"]:
            return None
        with zipfile.ZipFile(io.BytesIO(raw)) as packed:  # a small file may hold a great deal of zeros
            if sum(part.file_size for part in packed.infolist()) > most:
                return None
        with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
            kept = Moments(arrays["energy"], arrays["mean"], int(manifest["n_tokens"]), text.sha256)
    except (OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):
        return None
    sound = (kept.energy.shape, kept.mean.shape) == shapes and bool(np.isfinite(kept.energy).all())
    return kept if sound else None


def _write(folder: Path, moments: Moments, loaded: LoadedModel) -> None:
    for half_written in folder.parent.glob(f".{folder.name}-*"):  # by a process that was killed; we hold the lock
        shutil.rmtree(half_written, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        np.savez(temporary / "moments.npz", energy=moments.energy, mean=moments.mean)
        manifest = {
            "schema": SCHEMA,
            "sha256": hashlib.sha256((temporary / "moments.npz").read_bytes()).hexdigest(),
            "model": loaded.id,
            "revision": loaded.revision,
            "text_sha256": moments.text_sha256,
            "n_tokens": moments.n_tokens,
            "versions": {name: importlib.metadata.version(name) for name in ("torch", "transformers", "numpy")},
        }
        (temporary / "manifest.json").write_text(json.dumps(manifest, indent=1))
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
