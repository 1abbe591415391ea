"""The code of the four ways for one's own settings: a set-up that runs first, then each way by itself."""

from __future__ import annotations

from pages.compute.measuring import D_MODEL, Request


def setup_code(request: Request) -> str:
    """Imports, sizes, seeded numbers and Q, K, V: everything the four ways use."""
    mask = "mask = torch.ones(seq_len, seq_len, dtype=torch.bool).tril()  # True = may look\n" if request.causal else ""
    return f"""import torch
import torch.nn.functional as F
from torch import nn

batch_size, seq_len, d_model = {request.batch_size}, {request.seq_len}, {D_MODEL}
n_heads, n_kv_heads, d_head = {request.n_heads}, {request.n_kv_heads}, {request.layout.d_head}

torch.manual_seed(0)
x = torch.randn(batch_size, seq_len, d_model)
W_q, W_o = torch.randn(2, d_model, d_model) / d_model**0.5
W_k, W_v = torch.randn(2, d_model, n_kv_heads * d_head) / d_model**0.5
{mask}

def heads(rows, count):  # (batch, seq, count * d_head) -> (batch, count, seq, d_head)
    return rows.unflatten(-1, (count, d_head)).transpose(1, 2)


q, k, v = heads(x @ W_q, n_heads), heads(x @ W_k, n_kv_heads), heads(x @ W_v, n_kv_heads)
"""


def way_codes(request: Request) -> dict[str, str]:
    """Each way after the set-up, by the key ``time_attention`` gives it; all end in ``out`` (batch, seq, d_model)."""
    return {
        "module": _module(request),
        "fused": _fused(request),
        "explicit": _explicit(request),
        "ours": _ours(request),
    }


def _module(request: Request) -> str:
    shared = request.layout.q_per_kv > 1
    owned = (
        "# it knows no shared K/V heads: write each one out for every query head that reads it\n"
        "def per_query_head(W):\n"
        "    rows = W.unflatten(-1, (n_kv_heads, d_head))\n"
        "    return rows.repeat_interleave(n_heads // n_kv_heads, dim=1).flatten(1)\n\n\n"
        if shared
        else ""
    )
    keys, values = ("per_query_head(W_k)", "per_query_head(W_v)") if shared else ("W_k", "W_v")
    masking = ", attn_mask=~mask, is_causal=True" if request.causal else ""
    return f"""{owned}mha = nn.MultiheadAttention(d_model, n_heads, bias=False, batch_first=True).eval()
with torch.no_grad():
    mha.in_proj_weight.copy_(torch.cat([W_q, {keys}, {values}], dim=1).T)
    mha.out_proj.weight.copy_(W_o.T)
    out, _ = mha(x, x, x, need_weights=False{masking})
"""


def _fused(request: Request) -> str:
    causal = ", is_causal=True" if request.causal else ""
    share = ", enable_gqa=True" if request.layout.q_per_kv > 1 else ""
    return f"""out = F.scaled_dot_product_attention(q, k, v{causal}{share})
out = out.transpose(1, 2).flatten(2) @ W_o
"""


def _explicit(request: Request) -> str:
    keys, values, share = "k", "v", ""
    if request.layout.q_per_kv > 1:
        keys, values = "keys", "values"
        share = "keys, values = (rows.repeat_interleave(n_heads // n_kv_heads, dim=1) for rows in (k, v))\n"
    masking = "scores = scores.masked_fill(~mask, -torch.inf)\n" if request.causal else ""
    return f"""{share}scores = q @ {keys}.transpose(-2, -1) / d_head**0.5
{masking}out = scores.softmax(dim=-1) @ {values}
out = out.transpose(1, 2).flatten(2) @ W_o
"""


def _ours(request: Request) -> str:
    causal = ", causal=True" if request.causal else ""
    return f"""from attention import HeadLayout, multi_head_attention

weights = {{"W_q": W_q.numpy(), "W_k": W_k.numpy(), "W_v": W_v.numpy(), "W_o": W_o.numpy()}}
layout = HeadLayout(d_model, n_heads, n_kv_heads)
trace = multi_head_attention(x.numpy(), weights, layout{causal})
out = trace.output
"""
