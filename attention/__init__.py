"""Headscope's engine: what attention heads do and what their KV cache costs.

Public names resolve on first use (PEP 562), so that importing the cache arithmetic,
the NumPy steps or the plots loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "UserError": "errors",
    "Settings": "settings",
    "HeadLayout": "layout",
    "LoadedModel": "models",
    "list_models": "model_facts",
    "load_model": "models",
    "untrained_twin": "models",
    "ShareKV": "sharing",
    "LatentKV": "sharing",
    "MuteHeads": "sharing",
    "Token": "tokens",
    "AttentionTrace": "tracing",
    "TraceRequest": "tracing",
    "trace": "tracing",
    "Engine": "engine",
    "default_engine": "engine",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'attention' has no attribute {name!r}")
    value = getattr(import_module(f"attention.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
