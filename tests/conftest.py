"""What every test may use: the two bundled models, one thread for arithmetic, and Hypothesis without a clock."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from attention.models import LoadedModel

# Two test processes on two cores: more threads would only fight. Set before numpy and torch are imported.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# No deadline: the first example may load a model. In CI the same examples every time, so that red means changed code.
settings.register_profile("everyday", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "everyday")


def pytest_collection_finish() -> None:
    """Each AppTest asks every installed package whether it brings components: more work than the page. Once will do."""
    if "streamlit.testing.v1" in sys.modules:
        from streamlit.components.v2 import manifest_scanner

        manifest_scanner.scan_component_manifests = functools.cache(manifest_scanner.scan_component_manifests)


@pytest.fixture(scope="session")
def minilm() -> LoadedModel:
    """The bundled encoder: 6 layers, 12 heads, MHA."""
    return _load("all-MiniLM-L6-v2")


@pytest.fixture(scope="session")
def smollm() -> LoadedModel:
    """The bundled decoder: 30 layers, 9 query heads, 3 KV heads, GQA."""
    return _load("SmolLM2-135M-Instruct")


def _load(name: str) -> LoadedModel:
    import torch

    from attention import load_model

    torch.set_num_threads(1)
    return load_model(name)
