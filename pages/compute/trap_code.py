"""What the traps' snippets need to run by themselves: the names they use."""

from __future__ import annotations

from typing import Any

NAMES = """import torch
import torch.nn.functional as F
from torch import nn

x = torch.randn(2, 5, 8)  # batch 2, seq 5, d_model 8
mha = nn.MultiheadAttention(8, 2, batch_first=True).eval()
q, k, v = torch.randn(3, 1, 2, 5, 4)  # batch 1, heads 2, seq 5, d_head 4
"""
_WEIGHTS = "v = torch.eye({0}).expand(1, 2, {0}, {0})  # so that the output is the weights\n"
_OWN = {
    "opposite_masks": _WEIGHTS.format(5),
    "enable_gqa": "q = torch.randn(1, 4, 5, 8)  # 4 query heads\nk, v = torch.randn(2, 1, 2, 5, 8)  # 2 K/V heads\n",
    "dropout_until_eval": "mha = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)\n",
    "top_left_causal": (
        "q = torch.randn(1, 2, 1, 4)  # one new token\n"
        "k = torch.randn(1, 2, 6, 4)  # six tokens in the cache, its own included\n" + _WEIGHTS.format(6)
    ),
}


def snippet(trap: Any) -> str:
    """A trap's code with the lines of its own that it needs beside ``NAMES``."""
    return str(_OWN.get(trap.key, "") + trap.code)
