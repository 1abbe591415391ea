"""What fits on GPUs, when the cache outgrows the weights, how long one step must take, and the ladder of sharing.

All sizes in bytes. The floor of a step is memory traffic only: every weight and every
cached number is read once per token written. It is no benchmark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attention.errors import UserError
from attention.known_models import Gpu
from attention.kv_cache import KVCache
from attention.kv_reader import MAX_TOKENS, shown
from attention.kv_working import readable
from attention.layout import Rung, divisors

OVERHEAD_SHARE = 0.10
OVERHEAD_REASON = "10 % of each GPU for activations and the runtime, as vLLM's gpu_memory_utilization of 0.9 leaves"


@dataclass(frozen=True)
class Fit:
    """Whether a model, its cache and the overhead fit, and how far each could go.

    ``max_context`` is the longest text at this batch, ``max_batch`` the most sequences at
    this context; None means memory never limits it. ``trained_context`` is what the model
    was trained for: memory may allow more than that.
    """

    fits: bool
    capacity: int
    weights: int
    overhead: int
    cache: int
    state: int
    left: int
    max_context: int | None
    max_batch: int | None
    trained_context: int | None
    notes: tuple[str, ...]

    @property
    def used(self) -> int:
        """Weights, overhead, cache and constant state together."""
        return self.weights + self.overhead + self.cache + self.state


def fits(
    cache: KVCache,
    weights_bytes: int,
    gpu: Gpu,
    seq_len: int,
    batch_size: int = 1,
    dtype: object = "fp16",
    n_gpus: int = 1,
    overhead_bytes: int | None = None,
    block_size: int | None = None,
    source_len: int | None = None,
) -> Fit:
    """Does it fit on ``n_gpus`` of this GPU, split by tensor parallelism?

    ``weights_bytes`` at their own precision (they are divided among the GPUs; the K/V heads
    are copied past n_kv_heads). ``overhead_bytes`` per GPU is a line of its own, to be
    edited: by default ``OVERHEAD_REASON``. Raises UserError for sizes that make no sense.
    """
    _size("weights_bytes", weights_bytes)
    _size("n_gpus", n_gpus, least=1)
    per_gpu = round(gpu.memory_bytes * OVERHEAD_SHARE) if overhead_bytes is None else overhead_bytes
    _size("overhead_bytes", per_gpu)
    capacity, overhead = n_gpus * gpu.memory_bytes, n_gpus * per_gpu
    room = capacity - overhead - weights_bytes

    def cached(tokens: int, sequences: int) -> int:
        return cache.bytes(tokens, sequences, dtype, block_size, tensor_parallel=n_gpus)

    def fixed(sequences: int) -> int:
        source = cache.source_len or 0 if source_len is None else source_len
        return cache.state_bytes_for(sequences) + cache.cross_bytes_for(source, sequences, dtype)

    used, state = cached(seq_len, batch_size), fixed(batch_size)
    max_context = _largest(lambda tokens: cached(tokens, batch_size) + state <= room)
    return Fit(
        fits=used + state <= room,
        capacity=capacity,
        weights=weights_bytes,
        overhead=overhead,
        cache=used,
        state=state,
        left=room - used - state,
        max_context=max_context,
        max_batch=_largest(lambda sequences: cached(seq_len, sequences) + fixed(sequences) <= room),
        trained_context=cache.trained_context,
        notes=_notes(cache, weights_bytes, capacity - overhead, max_context, n_gpus, seq_len),
    )


def _notes(
    cache: KVCache, weights: int, usable: int, max_context: int | None, n_gpus: int, seq_len: int
) -> tuple[str, ...]:
    notes = list(cache.warnings(seq_len))
    if weights > usable:
        notes.append(f"The weights alone need {readable(weights)}; {readable(max(0, usable))} are there for them.")
    if cache.trained_context and (max_context is None or max_context > cache.trained_context):
        memory = "any length" if max_context is None else f"{max_context:,} tokens"
        notes.append(f"Memory allows {memory}; the model was trained on up to {cache.trained_context:,}.")
    copies = n_gpus // cache.n_kv_heads if cache.n_kv_heads and cache.rung != "MLA" else n_gpus
    if n_gpus > 1 and copies > 1 and cache.elements_per_token:
        notes.append(f"{n_gpus} GPUs share this cache, so every number in it is stored {copies} times.")
    return tuple(notes)


def _largest(allowed: Callable[[int], bool]) -> int | None:
    """The largest count that is still allowed: 0 when none is, None when the largest we count is."""
    if not allowed(1):
        return 0
    low, high = 1, 2
    while _counted(allowed, high):
        low, high = high, 2 * high
        if high > MAX_TOKENS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _counted(allowed, middle) else (low, middle)
    return low


def _counted(allowed: Callable[[int], bool], count: int) -> bool:
    try:
        return allowed(count)
    except UserError:  # too large to count is too large for any GPU
        return False


def tokens_to_outgrow(cache: KVCache, weights_bytes: int, dtype: object = "fp16", seq_len: int = 1) -> int | None:
    """Tokens in flight at which the cache is first larger than the weights; None: it never grows.

    Tokens of all sequences together, each ``seq_len`` tokens long. Only the length matters
    where layers have windows: a window's bytes are shared out over its sequence's tokens.
    """
    _size("weights_bytes", weights_bytes, least=1)
    one = cache.bytes(seq_len, 1, dtype)
    if one == 0:
        return None
    return weights_bytes * seq_len // one + 1


def decode_floor_seconds(
    cache: KVCache,
    weights_bytes: int,
    bandwidth: float,
    seq_len: int,
    batch_size: int = 1,
    dtype: object = "fp16",
    n_gpus: int = 1,
) -> float:
    """Seconds one decode step needs at least: (weights + cache + state) / bandwidth of all GPUs.

    ``bandwidth`` in bytes a second and GPU. A memory floor, not a benchmark: a mixture of
    experts reads fewer weights, real steps take longer.
    """
    if not bandwidth > 0:
        raise UserError(
            f"The bandwidth is {shown(bandwidth)}.", "It must be more than 0 bytes a second.", "Correct it."
        )
    _size("weights_bytes", weights_bytes)
    _size("n_gpus", n_gpus, least=1)
    moved = cache.bytes(seq_len, batch_size, dtype, tensor_parallel=n_gpus) + cache.state_bytes_for(batch_size)
    return (weights_bytes + moved) / (bandwidth * n_gpus)


@dataclass(frozen=True)
class LadderStep:
    """One way of sharing: its rung, its K/V heads (None for MLA), and the cache as if the model had it."""

    label: str
    rung: Rung
    n_kv_heads: int | None
    cache: KVCache
    is_own: bool


def ladder(cache: KVCache, d_latent: int | None = None, d_rope: int | None = None) -> tuple[LadderStep, ...]:
    """The same model as if MHA, GQA with every divisor of n_heads, MQA, and MLA; the largest cache first.

    Layers, windows and head widths are held fixed; the weights that project K and V are not.
    For each step ``step.cache.working(...)`` shows the bytes. Empty when nothing is cached.
    """
    if cache.rung is None:
        return ()
    own = cache.rung
    steps = []
    for n_kv in reversed(divisors(cache.n_heads)):
        rung: Rung = "MHA" if n_kv == cache.n_heads else "MQA" if n_kv == 1 else "GQA"
        label = f"GQA-{n_kv}" if rung == "GQA" else rung
        same = own != "MLA" and cache.n_kv_heads == n_kv
        steps.append(LadderStep(label, rung, n_kv, cache if same else cache.as_if(rung, n_kv), same))
    as_is = own == "MLA" and d_latent is None and d_rope is None
    latent = cache if as_is else cache.as_if("MLA", d_latent=d_latent, d_rope=d_rope)
    return (*steps, LadderStep("MLA", "MLA", None, latent, as_is))


@dataclass(frozen=True)
class SharingChoice:
    """What one number of K/V heads would cost and allow; sizes in bytes, ``floor_seconds`` for one step."""

    step: LadderStep
    bytes_per_token: int
    max_context: int | None
    max_batch: int | None
    floor_seconds: float
    kv_parameters: int
    gpu_counts: tuple[int, ...]


def choose_n_kv(
    cache: KVCache,
    weights_bytes: int,
    gpu: Gpu,
    d_model: int,
    seq_len: int,
    batch_size: int = 1,
    dtype: object = "fp16",
) -> tuple[SharingChoice, ...]:
    """A row for every divisor of n_heads, weights held fixed.

    ``kv_parameters``: weights of all K and V projections, ``d_model * n_kv * (d_key + d_value)``
    per layer. ``gpu_counts``: tensor-parallel widths that store no head twice.
    """
    rows = []
    for step in ladder(cache):
        if step.n_kv_heads is None:
            continue
        fit = fits(step.cache, weights_bytes, gpu, seq_len, batch_size, dtype)
        rows.append(
            SharingChoice(
                step=step,
                bytes_per_token=step.cache.bytes_per_token(dtype),
                max_context=fit.max_context,
                max_batch=fit.max_batch,
                floor_seconds=decode_floor_seconds(
                    step.cache, weights_bytes, gpu.bandwidth, seq_len, batch_size, dtype
                ),
                kv_parameters=d_model * step.cache.elements_per_token,
                gpu_counts=divisors(step.n_kv_heads),
            )
        )
    return tuple(rows)


def _size(name: str, value: object, least: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{name} is {shown(value)}.", f"It must be a whole number from {least} up.", f"Correct {name}.")
