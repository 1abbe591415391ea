"""Files of a Hub model, when the owner allows it: fetched by id, or one sentence why not."""

from __future__ import annotations

from pathlib import Path

from attention.errors import UserError
from attention.kv_reader import shown
from attention.model_facts import list_models
from attention.settings import settings


def fetched(model: str, patterns: list[str]) -> Path:
    """The folder with those files of a Hub model that match ``patterns``.

    Raises UserError when Hub models are off, the id is not of the form owner/name, or the Hub does not answer.
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
        return Path(snapshot_download(model, allow_patterns=patterns))
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
