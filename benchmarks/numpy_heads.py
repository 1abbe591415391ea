"""How far are the seven readable NumPy steps from PyTorch's fused attention on the same threads?"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from attention.layout import HeadLayout
from attention.multihead import multi_head_attention, random_inputs
from benchmarks.ratios import Effort, Row, in_ms, interleaved

N_HEADS, SEQ_LEN, D_HEAD = 16, 512, 64
SAME = 1e-4  # of the largest output; both sides add up 1,024 float32 products
Array = npt.NDArray[np.floating]


def measure(quick: bool) -> list[Row]:
    """One row: projections, heads and W_o of one layer, from x to output."""
    layout = HeadLayout(N_HEADS * D_HEAD, N_HEADS, N_HEADS)
    drawn, matrices = random_inputs(layout, SEQ_LEN)
    scale = np.float32(1 / np.sqrt(layout.d_model))  # keeps the scores where a trained layer has them
    x, weights = drawn.astype(np.float32), {name: (one * scale).astype(np.float32) for name, one in matrices.items()}
    tensors = {name: torch.from_numpy(one) for name, one in (*weights.items(), ("x", x))}
    ours, theirs = (lambda: multi_head_attention(x, weights, layout).output), (lambda: sdpa(tensors))
    far = float(np.abs(ours() - theirs().numpy()).max() / np.abs(ours()).max())
    if far > SAME:
        raise RuntimeError(f"NumPy and SDPA differ by {far:.1e} of the largest output.")
    effort = Effort(pairs=7, seconds=8) if quick else Effort(pairs=31, seconds=25, least=5)
    pairs = interleaved(in_ms(ours), in_ms(theirs), effort, warm_up=2)
    return [
        Row(
            f"NumPy multi-head, {N_HEADS} heads, {SEQ_LEN} tokens, d_head {D_HEAD}",
            "ms",
            tuple(mine for mine, _ in pairs),
            tuple(other for _, other in pairs),
            None,
            "torch SDPA",
            "float32, each with its library's own threads. Ours keeps, checks and describes all seven steps: scores "
            "and weights are written out, 16 MiB each, and the softmax reads them four times; SDPA keeps a tile of "
            "them in the cache and no step.",
            {"difference": far, "torch_threads": torch.get_num_threads()},
        )
    ]


def sdpa(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """The same layer in PyTorch: three projections, the fused call, W_o."""
    with torch.inference_mode():
        x = tensors["x"]
        query, key, value = (
            (x @ tensors[name]).view(SEQ_LEN, N_HEADS, D_HEAD).transpose(0, 1)[None] for name in ("W_q", "W_k", "W_v")
        )
        blended = torch.nn.functional.scaled_dot_product_attention(query, key, value)[0]
        return blended.transpose(0, 1).reshape(SEQ_LEN, N_HEADS * D_HEAD) @ tensors["W_o"]
