"""Which names each page reads from its link, for tests that put odd values there. Light: imports nothing."""

from __future__ import annotations

BOUND = {
    "": ("text", "model", "twin", "raw", "detail", "compare", "v.layer", "v.head", "v.query", "present", "room"),
    "finder": ("text", "model", "start", "f_tab", "f_query", "f_key", "f_rank", "f_how", "f_layer", "f_head", "f_mute"),
    "shapes": ("s_source", "s_seq", "s_width", "s_heads", "s_kv", "s_seed", "s_causal", "s_tab", "s_mistake"),
    "pytorch": ("p_seq", "p_heads", "p_kv", "p_width", "p_causal", "p_trap"),
    "write": ("w_prompt", "w_method", "w_temperature", "w_top_k", "w_seed", "w_tokens", "w_step", "w_layer", "w_head"),
    "cache": ("c_model", "c_tokens", "c_users", "c_kv", "c_gpu", "c_n", "c_tab", "c_config", "c_params", "c_layers"),
    "ladder": ("l_model", "l_layer", "l_head", "l_on", "l_start", "l_tab", "l_say"),
    "lesson": ("n_heads", "n_kv", "n_seq", "n_width", "n_layer", "n_model", "n_rung", "n_tokens"),
    "quiz": ("q_seed", "q_many", "q_tab"),
}
