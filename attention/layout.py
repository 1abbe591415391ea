"""The shape arithmetic of multi-head attention: who has which width, who shares whose K/V.

MHA                 GQA                 MQA                 MLA
Q0 Q1 Q2 Q3         Q0 Q1 Q2 Q3         Q0 Q1 Q2 Q3         Q0 Q1 Q2 Q3
|  |  |  |          \\_/   \\_/           \\__\\_/__/           rebuilt from C
K0 K1 K2 K3         K0    K1            K0                  C (d_latent)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attention.errors import UserError

Rung = Literal["MHA", "GQA", "MQA", "MLA"]


def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a positive whole number, smallest first."""
    return tuple(candidate for candidate in range(1, number + 1) if number % candidate == 0)


@dataclass(frozen=True)
class HeadLayout:
    """How ``d_model`` is cut into heads, and which query heads share a K/V head.

    ``d_head=None`` means ``d_model / n_heads``, which must then divide; an explicit
    width is taken as given (Gemma and Qwen 3 have ``n_heads * d_head != d_model``).
    ``d_head_v`` is the width of a value head (``None``: as ``d_head``); ``d_latent``
    and ``d_rope`` are set for MLA only (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    Raises UserError when a size is not a positive whole number, when ``n_heads`` does
    not divide ``d_model``, or ``n_kv_heads`` does not divide ``n_heads``.
    """

    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int = None  # type: ignore[assignment]  # never None once built
    d_head_v: int = None  # type: ignore[assignment]
    d_latent: int | None = None
    d_rope: int | None = None

    def __post_init__(self) -> None:
        for name in ("d_model", "n_heads", "n_kv_heads", "d_head", "d_head_v", "d_latent", "d_rope"):
            _require_positive(name, getattr(self, name), optional=name.startswith("d_") and name != "d_model")
        if self.d_head is None:
            if self.d_model % self.n_heads:
                raise UserError(
                    f"d_model {self.d_model} cannot be split into {self.n_heads} equal heads "
                    f"(axis d_model: {self.d_model} / {self.n_heads} is not whole).",
                    f"n_heads may be one of {_listed(divisors(self.d_model))}.",
                    "Choose one of these, or give d_head itself.",
                )
            object.__setattr__(self, "d_head", self.d_model // self.n_heads)
        if self.d_head_v is None:
            object.__setattr__(self, "d_head_v", self.d_head)
        if self.n_heads % self.n_kv_heads:
            raise UserError(
                f"{self.n_heads} query heads cannot share {self.n_kv_heads} K/V heads evenly "
                f"(axis head: expected a divisor of {self.n_heads}, got {self.n_kv_heads}).",
                f"n_kv_heads may be one of {_listed(divisors(self.n_heads))}.",
                "Choose one of these.",
            )

    @property
    def rung(self) -> Rung:
        """The step of the ladder this layout stands on."""
        if self.d_latent is not None:
            return "MLA"
        if self.n_kv_heads == self.n_heads:
            return "MHA"
        return "MQA" if self.n_kv_heads == 1 else "GQA"

    @property
    def q_per_kv(self) -> int:
        """How many query heads share one K/V head."""
        return self.n_heads // self.n_kv_heads

    def kv_head_of(self, query_head: int) -> int:
        """The K/V head that query head ``query_head`` reads (repeat-interleave: 0, 0, 1, 1).

        GQA paper, arXiv 2305.13245, section 2.2. Raises UserError outside 0 .. n_heads - 1.
        """
        if not 0 <= query_head < self.n_heads:
            raise UserError(
                f"There is no query head {query_head}.",
                f"Heads are numbered 0 to {self.n_heads - 1}.",
                "Choose one of these.",
            )
        return query_head // self.q_per_kv

    def query_heads_of(self, kv_head: int) -> range:
        """The query heads that read K/V head ``kv_head``."""
        if not 0 <= kv_head < self.n_kv_heads:
            raise UserError(
                f"There is no K/V head {kv_head}.",
                f"K/V heads are numbered 0 to {self.n_kv_heads - 1}.",
                "Choose one of these.",
            )
        return range(kv_head * self.q_per_kv, (kv_head + 1) * self.q_per_kv)


def _require_positive(name: str, value: object, optional: bool) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(
            f"{name} is {value!r}.", "It must be a whole number from 1 up.", f"Give {name} a positive value."
        )


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
