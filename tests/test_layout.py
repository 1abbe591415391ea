"""HeadLayout's arithmetic, against brute force and against torch's own grouped attention."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention import HeadLayout, UserError
from attention.layout import divisors

sizes = st.integers(min_value=1, max_value=40)


@given(n_kv_heads=sizes, q_per_kv=sizes, d_head=sizes)
def test_head_to_kv_head_is_repeat_interleave(n_kv_heads: int, q_per_kv: int, d_head: int) -> None:
    n_heads = n_kv_heads * q_per_kv
    layout = HeadLayout(n_heads * d_head, n_heads, n_kv_heads)
    expected = torch.arange(n_kv_heads).repeat_interleave(q_per_kv).tolist()
    assert [layout.kv_head_of(query) for query in range(n_heads)] == expected
    assert layout.q_per_kv == q_per_kv
    for kv_head in range(n_kv_heads):
        assert list(layout.query_heads_of(kv_head)) == [q for q, kv in enumerate(expected) if kv == kv_head]


def test_four_heads_on_two_share_neighbours_not_alternately() -> None:
    layout = HeadLayout(d_model=12, n_heads=4, n_kv_heads=2)
    assert [layout.kv_head_of(query) for query in range(4)] == [0, 0, 1, 1]
    query, key, value = torch.randn(1, 4, 5, 3), torch.randn(1, 2, 5, 3), torch.randn(1, 2, 5, 3)
    chosen = [layout.kv_head_of(head) for head in range(4)]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    torch.testing.assert_close(
        sdpa(query, key[:, chosen], value[:, chosen]), sdpa(query, key, value, enable_gqa=True), atol=1e-6, rtol=0
    )


@given(d_model=sizes, n_heads=sizes, n_kv_heads=sizes)
def test_what_does_not_divide_is_refused_and_what_does_is_built(d_model: int, n_heads: int, n_kv_heads: int) -> None:
    if d_model % n_heads or n_heads % n_kv_heads:
        with pytest.raises(UserError) as caught:
            HeadLayout(d_model, n_heads, n_kv_heads)
        wrong = d_model if d_model % n_heads else n_heads
        offered = [one for one in range(1, wrong + 1) if wrong % one == 0]
        assert f"one of {', '.join(map(str, offered))}." in str(caught.value)
    else:
        layout = HeadLayout(d_model, n_heads, n_kv_heads)
        assert layout.n_heads * layout.d_head == d_model
        assert layout.d_head_v == layout.d_head


@given(d_model=sizes, n_heads=sizes, d_head=sizes, d_head_v=sizes)
def test_an_explicit_width_is_taken_as_given(d_model: int, n_heads: int, d_head: int, d_head_v: int) -> None:
    layout = HeadLayout(d_model, n_heads, 1, d_head, d_head_v)
    assert (layout.d_model, layout.d_head, layout.d_head_v) == (d_model, d_head, d_head_v)


@pytest.mark.parametrize(
    ("n_heads", "n_kv_heads", "d_latent", "rung"),
    [(6, 6, None, "MHA"), (6, 2, None, "GQA"), (6, 1, None, "MQA"), (1, 1, None, "MHA"), (6, 6, 14, "MLA")],
)
def test_rung(n_heads: int, n_kv_heads: int, d_latent: int | None, rung: str) -> None:
    assert HeadLayout(48, n_heads, n_kv_heads, d_latent=d_latent).rung == rung


@given(number=st.integers(min_value=1, max_value=3000))
def test_divisors(number: int) -> None:
    found = divisors(number)
    assert list(found) == sorted({number // one for one in found})
    assert {1, number} <= set(found)
    assert len(found) == sum(number % one == 0 for one in range(1, number + 1))


@pytest.mark.parametrize("bad", [0, -1, 2.0, "4", None, True])
@pytest.mark.parametrize("name", ["d_model", "n_heads", "n_kv_heads"])
def test_sizes_that_are_not_counts_are_named(name: str, bad: object) -> None:
    good: dict[str, object] = {"d_model": 12, "n_heads": 4, "n_kv_heads": 2}
    with pytest.raises(UserError, match=f"^{name} is {bad!r}"):
        HeadLayout(**good | {name: bad})  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [0, -3, 1.5, "8", False])
@pytest.mark.parametrize("name", ["d_head", "d_head_v", "d_latent", "d_rope"])
def test_optional_widths_are_checked_too(name: str, bad: object) -> None:
    with pytest.raises(UserError, match=f"^{name} is {bad!r}"):
        HeadLayout(12, 4, 2, **{name: bad})  # type: ignore[arg-type]


@pytest.mark.parametrize("head", [-1, 6, 99])
def test_heads_that_do_not_exist(head: int) -> None:
    with pytest.raises(UserError, match=f"no query head {head}.*0 to 5"):
        HeadLayout(48, 6, 2).kv_head_of(head)
    with pytest.raises(UserError, match=f"no K/V head {head}.*0 to 1"):
        HeadLayout(48, 6, 2).query_heads_of(head)


def test_a_layout_cannot_change() -> None:
    with pytest.raises(AttributeError):
        HeadLayout(48, 6, 2).n_heads = 3  # type: ignore[misc]
    assert hash(HeadLayout(48, 6, 2)) == hash(HeadLayout(48, 6, 2, 8, 8))
