"""The constant state of layers that are not attention: how many numbers per sequence, whatever the length.

Every rule returns (elements at the model's precision, elements held in float32) of one
layer, as the modelling code of transformers 5.24 allocates them: convolutions keep
``conv_kernel`` columns per channel (vLLM keeps one less), recurrent states are float32.
"""

from __future__ import annotations

from collections.abc import Callable

from attention.kv_reader import ConfigReader

StateRule = Callable[[ConfigReader], tuple[int, int]]


def mamba1(config: ConfigReader) -> tuple[int, int]:
    """Mamba, arXiv 2312.00752: an inner width with a convolution and ``d_state`` numbers per channel."""
    inner = config.number("mamba_expand", "expand", default=2) * config.number("hidden_size")
    if config.model_type in ("mamba", "falcon_mamba"):
        inner = config.number("intermediate_size", default=inner)
    kernel = config.number("mamba_d_conv", "conv_kernel", default=4)
    return inner * kernel, inner * config.number("mamba_d_state", "state_size", default=16)


def mamba2(config: ConfigReader) -> tuple[int, int]:
    """Mamba-2, arXiv 2405.21060: heads × head width × d_state; B and C share the convolution."""
    heads = config.number("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads")
    expanded = config.number("mamba_expand", "expand", default=2) * config.number("hidden_size")
    if config.model_type == "falcon_h1":
        expanded = config.number("mamba_d_ssm", default=expanded)
    if config.model_type == "nemotron_h":
        expanded = heads * config.number("mamba_head_dim")
    d_state = config.number("mamba_d_state", "ssm_state_size", "state_size")
    groups = config.number("mamba_n_groups", "mamba_ngroups", "n_groups", default=1)
    kernel = config.number("mamba_d_conv", "conv_kernel", default=4)
    return (expanded + 2 * groups * d_state) * kernel, expanded * d_state


def gated_delta_net(config: ConfigReader) -> tuple[int, int]:
    """Gated DeltaNet, arXiv 2412.06464: value heads × key width × value width (Qwen3-Next, Qwen 3.5, OLMo Hybrid)."""
    d_key, d_value = config.number("linear_key_head_dim"), config.number("linear_value_head_dim")
    value_heads = config.number("linear_num_value_heads")
    channels = 2 * config.number("linear_num_key_heads") * d_key + value_heads * d_value
    return channels * config.number("linear_conv_kernel_dim", default=4), value_heads * d_key * d_value


def kimi_delta(config: ConfigReader) -> tuple[int, int]:
    """Kimi Delta Attention: queries, keys and values each have their own short convolution (Kimi Linear)."""
    # The config object spells these out at the top, beside a head_dim that means something else.
    linear = config.inner("linear_attn_config")
    if linear is None:
        heads, width = config.number("linear_num_heads"), config.number("linear_head_dim")
        kernel = config.number("linear_conv_kernel_dim", default=4)
    else:
        heads, width = linear.number("num_heads"), linear.number("head_dim")
        kernel = linear.number("short_conv_kernel_size", default=4)
    return 3 * heads * width * kernel, heads * width * width


def short_convolution(config: ConfigReader) -> tuple[int, int]:
    """A gated short convolution over the hidden width, no recurrence (LFM2)."""
    return config.number("hidden_size") * config.number("conv_L_cache", default=3), 0


def lightning(config: ConfigReader) -> tuple[int, int]:
    """Lightning attention: one key-by-value matrix per query head, at the model's precision (arXiv 2501.08313)."""
    heads = config.number("num_attention_heads")
    width = config.optional("head_dim") or config.number("hidden_size") // heads
    return heads * width * width, 0
