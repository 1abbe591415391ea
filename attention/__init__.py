"""Headscope's engine: what attention heads do and what their KV cache costs.

Public names resolve on first use (PEP 562), so that importing the cache arithmetic,
the NumPy steps or the plots loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Now, not on first use: a module of this name is loaded later by others, and would then stand here instead.
from attention.known_models import known_models as known_models

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
    "generate": "generation",
    "recompute_seconds": "generation",
    "GenerationStep": "written",
    "Engine": "engine",
    "default_engine": "engine",
    "multi_head_attention": "multihead",
    "StepTrace": "multihead",
    "Step": "multihead",
    "random_inputs": "multihead",
    "rope_tables": "multihead",
    "score_rank": "multihead",
    "d_head_guidance": "multihead",
    "code_listing": "listings",
    "Sizes": "step_plan",
    "plan_steps": "step_plan",
    "compare_with_mha": "step_plan",
    "run_mistake": "mistakes",
    "MISTAKES": "mistakes",
    "MistakeReport": "mistakes",
    "time_attention": "timing",
    "memory_growth": "timing",
    "pytorch_traps": "timing",
    "rank_heads_for_link": "links",
    "HeadLink": "links",
    "head_scores": "probes",
    "HeadScores": "atlas",
    "HeadAtlas": "atlas",
    "shipped_atlas": "atlas",
    "muted_effect": "muting",
    "copy_effect": "muting",
    "MuteRequest": "muting",
    "CopyRequest": "muting",
    "ScoresRequest": "atlas",
    "MutedEffect": "muting",
    "head_importance": "importance",
    "pruning_curve": "importance",
    "ladder_sweep": "ladder",
    "LadderPoint": "rungs",
    "KVCache": "kv_cache",
    "find_model": "known_models",
    "known_models": "known_models",
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
