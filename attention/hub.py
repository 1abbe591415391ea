"""Files of a Hub model, when the owner allows it: fetched by id, or one sentence why not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attention.errors import UserError
from attention.kv_reader import shown
from attention.model_facts import list_models
from attention.settings import settings

if TYPE_CHECKING:
    from huggingface_hub import DryRunFileInfo

CONFIG_BYTES = 16 * 10**6
# A number of float32 for each parameter allowed, and room for the tokenizer's files.
PARAMETER_BYTES, OTHER_BYTES = 4, 100 * 10**6


def fetched_weights(model: str) -> Path:
    """The folder of a Hub model: config, tokenizer and safetensors weights.

    Raises UserError as ``fetched`` does; the most that is fetched follows from ``HEADSCOPE_MAX_PARAMS``.
    """
    most = PARAMETER_BYTES * settings().max_params + OTHER_BYTES
    return fetched(model, ["*.json", "*.safetensors", "*.txt", "*.model"], most)


def fetched(model: str, patterns: list[str], most: int = CONFIG_BYTES) -> Path:
    """The folder with those files of a Hub model that match ``patterns``.

    Raises UserError when Hub models are off, the id is not of the form owner/name, the Hub does not answer, or the
    files that are not here yet have more than ``most`` bytes together.
    """
    if not settings().allow_hub:
        raise UserError(
            f"There is no model {shown(model)} here.",
            f"Models here: {', '.join(list_models())}.",
            "Choose one of these. (Hub models are off; the owner can allow them with HEADSCOPE_ALLOW_HUB=1.)",
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(model)
        _require_at_most(most, model, _to_fetch(model, patterns))
        return Path(snapshot_download(model, allow_patterns=patterns))
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"The model {shown(model)} could not be fetched ({type(error).__name__}).",
            "A Hub id reads like owner/name, and the Hub must be reachable.",
            f"Check the id and the connection, or choose one of {', '.join(list_models())}.",
        ) from error


def config_text(model: str) -> str:
    """The text of a Hub model's config.json; its weights are not fetched. Raises UserError as ``fetched`` does."""
    file = fetched(model, ["config.json"]) / "config.json"
    if not file.is_file():
        raise UserError(f"{model} has no config.json.", "Models for transformers have one.", "Choose another model.")
    return file.read_text(encoding="utf-8", errors="replace")


def _to_fetch(model: str, patterns: list[str]) -> list[DryRunFileInfo]:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import DryRunError

    try:
        files = snapshot_download(model, allow_patterns=patterns, dry_run=True)
    except DryRunError:  # the Hub is out of reach: what is here already may serve
        return []
    return [file for file in files if file.will_download]


def _require_at_most(most: int, model: str, files: list[DryRunFileInfo]) -> None:
    unknown = [file.filename for file in files if file.file_size is None]
    size = sum(file.file_size or 0 for file in files)
    if unknown:
        raise UserError(
            f"The Hub does not say how large {shown(unknown[0])} of {shown(model)} is.",
            "Files are fetched when their size is known.",
            "Choose another model.",
        )
    if size > most:
        raise UserError(
            f"The files of {shown(model)} have {size:,} bytes.",
            f"At most {most:,} are fetched (for weights it follows from HEADSCOPE_MAX_PARAMS).",
            "Choose a smaller model.",
        )
