"""The KV cache page run by Streamlit itself: its numbers are the engine's, and nothing a visitor types breaks it."""

from __future__ import annotations

import base64
import contextlib
import html
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from attention.known_models import find_gpu, find_model
from attention.kv_budget import tokens_to_outgrow
from attention.settings import settings
from pages.cost.cache_inputs import model_label
from pages.cost.cache_parts import seconds
from pages.shared.link_values import MOST_LINK_BYTES

ENTRY = str(Path(__file__).parent.parent / "pages" / "entry.py")
GIB = 2**30
TABS = (
    "Compare",
    "One GPU",
    "Choose n_kv",
    "When the cache dominates",
    "Agree with an engine",
    "Paste a config",
    "4x",
)
LLAMA = (
    '{"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 4}'
)
MALFORMED = {
    "not JSON": '{"model_type": "llama"',
    "a list": "[1, 2]",
    "a number": "5",
    "no model_type": '{"num_hidden_layers": 2}',
    "missing keys": '{"model_type": "llama"}',
    "a string for a number": LLAMA.replace(": 2,", ': "two",', 1),
    "negative": LLAMA.replace(": 2,", ": -2,", 1),
    "huge": LLAMA.replace(": 2,", ": 1000000000000,", 1),
    "nested deeply": "[" * 3000 + "]" * 3000,
    "unknown architecture": LLAMA.replace("llama", "<b>*brand new*</b>"),
    "heads that do not divide": LLAMA.replace('"num_key_value_heads": 2', '"num_key_value_heads": 3'),
    "five megabytes": '{"model_type": "llama", "x": "' + "a" * 5_000_000 + '"}',
}


def opened(**address: str) -> AppTest:
    """The page after its first run at an address."""
    app = AppTest.from_file(ENTRY, default_timeout=120)
    app.switch_page("cost/cache.py")
    for name, value in address.items():
        app.query_params[name] = value
    return app.run()


def texts(app: AppTest) -> list[str]:
    """Everything the page shows as HTML or markdown, tags taken out."""
    parts = [part.value for part in (*app.get("html"), *app.markdown)]
    return [html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", part, flags=re.S)).strip() for part in parts]


def answer(app: AppTest) -> str:
    (found,) = [part.value for part in app.get("html") if 'class="hs-answer"' in part.value]
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", "", found)))


def verdict(app: AppTest) -> tuple[str, str]:
    (found,) = [part.value for part in app.get("html") if 'class="hs-verdict"' in part.value]
    first, rest = found.split("</p>")
    return tuple(html.unescape(re.sub(r"<[^>]+>", " ", part)).strip() for part in (first, rest))  # type: ignore[return-value]


def figure(app: AppTest, place: int) -> dict[str, Any]:
    return json.loads(app.get("plotly_chart")[place].proto.spec)


def array(packed: Any) -> np.ndarray:
    """Numbers of a trace, packed by Plotly or plain."""
    if isinstance(packed, list):
        return np.array(packed, dtype=float)
    return np.frombuffer(base64.b64decode(packed["bdata"]), packed["dtype"]).astype(float)


def table_of(app: AppTest, caption: str) -> list[list[str]]:
    """Rows of the table whose caption begins so."""
    (found,) = [part.value for part in app.get("html") if f"<caption><span>{caption}" in part.value]
    rows = re.findall(r"<tr.*?</tr>", found.split("<tbody>")[1], flags=re.S)
    return [
        [html.unescape(re.sub("<.*?>", "", cell)) for cell in re.findall(r"<t[hd].*?</t[hd]>", row)] for row in rows
    ]


def code_of(app: AppTest) -> str:
    (code,) = [part.value for part in app.code if part.value.startswith("from") or part.value.startswith("import")]
    return code


def assert_no_fault(app: AppTest) -> None:
    assert [fault.value for fault in app.exception] == []


@pytest.mark.parametrize(
    ("value", "words"),
    [(1.3e-7, "0 µs"), (1.34e-4, "134 µs"), (0.0099, "9.9 ms"), (0.9994, "999.4 ms"), (1.25, "1.2 s")],
)
def test_a_time_keeps_a_unit_in_which_it_can_be_read(value: float, words: str) -> None:
    assert seconds(value) == words


class TestAnswer:
    def test_the_page_opens_with_the_answer(self) -> None:
        app = opened()
        assert_no_fault(app)
        assert answer(app) == "Llama 3 8B, 8,192 tokens, 16 users: 16 GiB. As MHA: 64 GiB."
        assert [error.value for error in app.error] == []

    @pytest.mark.parametrize(
        ("address", "words"),
        [
            (
                {"c_model": model_label("Llama 2 7B"), "c_tokens": "4096", "c_users": "1"},
                "1 user: 2 GiB. As GQA-8: 512 MiB.",
            ),
            ({"c_model": model_label("Mistral 7B v0.1"), "c_tokens": "32768", "c_users": "1"}, "1 user: 512 MiB."),
            ({"c_model": model_label("Gemma 3 27B"), "c_tokens": "131072", "c_users": "1"}, "1 user: 10.41 GiB."),
            ({"c_model": model_label("all-MiniLM-L6-v2")}, "16 users: 0 bytes. An encoder reads the whole text"),
            ({"c_kv": "fp8"}, "16 users: 8 GiB. As MHA: 32 GiB."),
            ({"c_kv": "q4_0", "c_users": "1"}, "1 user: 288 MiB. As MHA: 1.12 GiB."),
        ],
    )
    def test_known_answers(self, address: dict[str, str], words: str) -> None:
        app = opened(**address)
        assert_no_fault(app)
        assert words in answer(app)

    def test_bars_are_the_ladder_and_only_the_model_itself_is_solid(self) -> None:
        (bars,) = figure(opened(), 0)["data"]
        np.testing.assert_array_equal(array(bars["x"]), [64, 16, 2, 4.5])
        colours = bars["marker"]["color"]
        assert [colour == bars["marker"]["line"]["color"] for colour in colours] == [False, True, False, False]

    def test_a_latent_model_is_the_solid_bar_and_its_mha_leaves_the_rope_part_out(self) -> None:
        app = opened(c_model=model_label("DeepSeek-V2"), c_users="1", c_tokens="1")
        sizes = array(figure(app, 0)["data"][0]["x"])
        np.testing.assert_allclose(sizes[[0, -1]] * 2**20, [1_966_080 * 2, 34_560 * 2])

    def test_what_fits_is_memory_less_overhead_weights_and_cache(self) -> None:
        words, facts = verdict(opened())
        left = 80 * GIB - round(8 * GIB) - 8_030_300_000 * 2 - 16 * GIB
        assert words == f"✓ Fits, {left / GIB:.2f} GiB left"
        assert f"As MHA: does not fit, {(48 * GIB - left) / GIB:.2f} GiB missing." in facts
        most_users = (left + 16 * GIB) // GIB
        assert re.search(rf"Most users at this length:\s+{most_users}\s+\.", facts)
        assert "9.9 ms" in facts
        assert "(MHA: 25.3 ms)" in facts
        assert "memory floor, not a benchmark" in facts

    def test_overhead_and_weights_are_lines_of_their_own(self) -> None:
        words, _ = verdict(opened(c_over="0", c_bits="4 bit"))
        assert words == f"✓ Fits, {(80 * GIB - 8_030_300_000 // 2 - 16 * GIB) / GIB:.2f} GiB left"
        words, _ = verdict(opened(c_over="25"))
        assert words == f"✓ Fits, {(60 * GIB - 8_030_300_000 * 2 - 16 * GIB) / GIB:.2f} GiB left"
        words, facts = verdict(opened(c_model=model_label("DeepSeek-V3")))
        assert words.startswith("✗ Does not fit: ")
        assert "The weights alone need" in facts

    def test_working_names_every_factor_and_multiplies_to_the_answer(self) -> None:
        (line,) = [words for words in texts(opened()) if words.startswith("32 layers × 8 K/V heads")][:1]
        factors = [int(number.replace(",", "")) for number in re.findall(r"(?:^|× )([\d,]+)", line)]
        assert np.prod(factors) == 16 * GIB
        assert "= 17,179,869,184 bytes" in line

    def test_more_tokens_than_trained_are_counted_with_a_warning(self) -> None:
        app = opened(c_tokens="100000", c_users="1")
        assert "100,000 tokens, 1 user: 12.21 GiB" in answer(app)
        assert any("was trained on texts of up to 8,192 tokens" in words for words in texts(app))

    def test_windows_are_told_beside_the_answer(self) -> None:
        app = opened(c_model=model_label("Mistral 7B v0.1"), c_tokens="32768", c_users="1")
        words = "Its windows keep this small: with every layer keeping every token it would be 4 GiB."
        assert words in texts(app)
        assert "Longest text for these users:  of any length  (trained on up to 32,768)." in verdict(app)[1]
        assert not any("windows keep" in said for said in texts(opened()))

    def test_what_is_not_verified_is_named(self) -> None:
        assert any(
            "Not verified: licence, release year." in words
            for words in texts(opened(c_model=model_label("DeepSeek-V3")))
        )

    @pytest.mark.parametrize(
        "address",
        [
            {},
            {"c_model": model_label("DeepSeek-V3"), "c_kv": "fp8_ds_mla"},
            {"c_model": "My own sizes", "c_window": "1024", "c_kvheads": "4", "c_kv": "int8"},
            {"c_model": "My own sizes", "c_latent": "256", "c_rope": "32"},
        ],
    )
    def test_the_line_of_python_prints_the_same_number(self, address: dict[str, str]) -> None:
        app = opened(**address)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(code_of(app), {})
        number = int(said.getvalue())
        working = next(words for words in texts(app) if words.startswith("Together"))
        assert f"{number:,} bytes" in working

    def test_the_line_of_python_for_a_pasted_config_reads_the_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        app = opened(c_model="My own config.json", c_config=LLAMA, c_tokens="10", c_users="3")
        (tmp_path / "config.json").write_text(LLAMA)
        monkeypatch.chdir(tmp_path)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(code_of(app), {})
        assert int(said.getvalue()) == 2 * 2 * (4 + 4) * 2 * 10 * 3

    def test_no_torch(self) -> None:
        code = (
            "import sys; from streamlit.testing.v1 import AppTest; "
            f"app = AppTest.from_file({ENTRY!r}, default_timeout=120); app.switch_page('cost/cache.py'); app.run(); "
            "assert not app.exception; assert any('16 GiB' in part.value for part in app.get('html')); "
            "assert 'torch' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(ENTRY).parent.parent)


class TestAddress:
    @pytest.mark.parametrize(
        "address",
        [
            {"c_tokens": "-5", "c_users": "abc", "c_over": "900"},
            {"c_gpu": "Abacus", "c_n": "3", "c_bits": "7 bit", "c_kv": "fp99"},
            {"c_kv": "fp8_ds_mla"},
            {"c_tab": "No such tab", "c_with": "No such model", "c_hold": "nothing"},
        ],
    )
    def test_bad_values_fall_back(self, address: dict[str, str]) -> None:
        app = opened(**address)
        assert_no_fault(app)
        assert "Llama 3 8B, 8,192 tokens, 16 users: 16 GiB." in answer(app) or "c_tokens" in address
        assert app.number_input(key="c_tokens").value >= 1
        assert [error.value for error in app.error] == []

    def test_a_model_in_free_spelling_is_one_press_away(self) -> None:
        app = opened(c_model="llama-2-70b")
        app.button(key="c_found").click().run()
        assert answer(app).startswith("Llama 2 70B, ")
        assert "c_found" not in [button.key for button in app.button]

    def test_an_unknown_model_is_one_sentence(self) -> None:
        app = opened(c_model="<b>gpt-17</b>")
        assert_no_fault(app)
        assert [note.value.replace("\\", "") for note in app.info] == [
            "This link asks for a model that is not in the list. Showing Llama 3 8B."
        ]
        assert answer(app).startswith("Llama 3 8B")

    def test_changing_a_box_changes_the_answer(self) -> None:
        app = opened()
        app.number_input(key="c_users").set_value(64).run()
        assert answer(app) == "Llama 3 8B, 8,192 tokens, 64 users: 64 GiB. As MHA: 256 GiB."
        app.selectbox(key="c_model").select("Falcon 7B").run()
        assert answer(app) == "Falcon 7B, 8,192 tokens, 64 users: 4 GiB. As MHA: 284 GiB."

    def test_a_precision_only_a_latent_has_is_offered_to_latents_only(self) -> None:
        assert "fp8_ds_mla" not in opened().selectbox(key="c_kv").options
        app = opened(c_model=model_label("DeepSeek-V3"), c_kv="fp8_ds_mla", c_tokens="1", c_users="1")
        assert "39.08 KiB" in answer(app)
        assert 61 * 656 == 40_016

    def test_too_much_to_count_is_one_sentence(self) -> None:
        app = opened(c_model=model_label("Llama 3.1 405B"), c_tokens="100000000", c_users="1000000")
        assert_no_fault(app)
        assert len(app.error) == 1


@pytest.mark.parametrize("tab", TABS)
@pytest.mark.parametrize(
    "address",
    [
        {"c_model": model_label("all-MiniLM-L6-v2")},
        {"c_model": model_label("Jamba v0.1 52B"), "c_n": "4"},
        {"c_model": model_label("SmolLM2 135M"), "c_n": "2"},
        {"c_model": model_label("DeepSeek-V3"), "c_kv": "fp8_ds_mla", "c_n": "8"},
        {"c_model": "My own config.json"},
        {"c_model": "My own sizes", "c_kvheads": "5"},
    ],
    ids=lambda address: address["c_model"].split(",")[0],
)
def test_no_tab_breaks(tab: str, address: dict[str, str]) -> None:
    app = opened(c_tab=tab, **address)
    assert_no_fault(app)
    for error in app.error:
        assert error.value.count(".") >= 1


def test_heads_these_gpus_cannot_share_leave_the_answer_standing() -> None:
    app = opened(c_model=model_label("SmolLM2 135M"), c_n="2")
    assert answer(app).startswith("SmolLM2 135M, 8,192 tokens, 16 users: 2.81 GiB.")
    assert len(app.error) == 1
    assert "3 K/V heads cannot be split evenly over 2 GPUs" in app.error[0].value.replace("\\", "")


class TestCompare:
    def test_curves_are_the_engines_bytes(self) -> None:
        app = opened(c_users="2", c_kv="fp8")
        by_name: dict[str, np.ndarray] = {}
        for line in figure(app, 1)["data"]:
            sizes = dict(zip(array(line["x"]), array(line["y"]), strict=True))
            by_name.setdefault(line["name"], {}).update(sizes)  # type: ignore[arg-type]
        assert list(by_name) == [
            "Llama 3 8B", "Llama 2 7B", "Mistral 7B v0.1", "Gemma 3 27B", "DeepSeek-V3", "Qwen2.5 72B",
        ]  # fmt: skip
        for name, points in by_name.items():
            lengths = [int(length) for length in points]
            assert len(lengths) == 200
            expected = [find_model(name).cache.bytes(length, 2, "fp8") / GIB for length in lengths]
            np.testing.assert_allclose(list(points.values()), expected)

    def test_a_model_without_a_cache_is_said_not_drawn(self) -> None:
        app = opened()
        app.multiselect(key="c_with").set_value(["BERT base uncased"]).run()
        assert {line["name"] for line in figure(app, 1)["data"]} == {"Llama 3 8B"}
        assert "BERT base uncased keeps no keys and values, so it has no line." in texts(app)


class TestOneGpu:
    def test_bars_add_up_and_the_largest_that_fits_is_named(self) -> None:
        app = opened(c_tab="One GPU")
        weights, overhead, cache = (array(part["y"]) for part in figure(app, 1)["data"])
        assert weights[0] == 8_030_300_000 * 2 / GIB
        assert overhead[0] == 8
        users = [re.sub("<.*?>", "", word) for word in figure(app, 1)["layout"]["xaxis"]["ticktext"]]
        np.testing.assert_array_equal(cache, [float(count) for count in users])
        assert "57" in users
        assert any(
            "up to **29,205 tokens** each; or, at 8,192 tokens, up to **57 users**" in words for words in texts(app)
        )


class TestChooseKv:
    def test_a_row_for_every_divisor(self) -> None:
        rows = table_of(opened(c_tab="Choose n_kv"), "Llama 3 8B: a row")
        assert [row[0] for row in rows] == ["32 (MHA)", "16 (GQA)", "8 (GQA)", "4 (GQA)", "2 (GQA)", "1 (MQA)"]
        assert [row[2] for row in rows] == ["512 KiB", "256 KiB", "128 KiB", "64 KiB", "32 KiB", "16 KiB"]
        assert [row[4] for row in rows] == ["14", "28", "57", "114", "228", "456"]
        assert (rows[0][5], rows[2][5]) == ("25.3 ms", "9.9 ms")
        # 32 layers × 4,096 × 8 heads × (128 + 128)
        assert rows[2][6] == "268 million"
        assert rows[2][7] == "1, 2, 4, 8"
        assert rows[2][9] == "MMLU 41.2 at 6.9B (DeepSeek-V2 paper, Table 8)"
        assert rows[3][9] == "no published number at this size"

    def test_weights_may_shrink_with_the_heads(self) -> None:
        fixed = table_of(opened(c_tab="Choose n_kv"), "Llama 3 8B: a row")
        shrunk = table_of(opened(c_tab="Choose n_kv", c_hold="Only K and V change"), "Llama 3 8B: a row")
        assert shrunk[2] == fixed[2]
        # As MHA the model has 805,306,368 more weights of 2 bytes: 1.5 GiB less room, two of 64 GiB / 16 users.
        room = 80 * GIB - 8 * GIB - 2 * (8_030_300_000 + 24 * 32 * 4096 * 256)
        assert shrunk[0][4] == str(room // (4 * GIB))
        assert shrunk[0][5] != fixed[0][5]

    def test_the_working_of_every_row(self) -> None:
        words = " ".join(texts(opened(c_tab="Choose n_kv")))
        assert "GQA-8: 4,096 × 65,536 = 268,435,456" in words
        assert re.search(r"MQA: 32 layers × 1 K/V heads? × 256 numbers per head \(128 key \+ 128 value\)", words)

    def test_groups_are_drawn(self) -> None:
        (drawing,) = [
            part.value for part in opened(c_tab="Choose n_kv").get("html") if 'class="hs-groups"' in part.value
        ]
        assert 'aria-label="32 query heads, one K/V head for every 4 of them: 8 K/V heads."' in drawing
        assert drawing.count('class="hs-group"') == 8

    def test_marketing_is_put_right(self) -> None:
        (words,) = [words for words in texts(opened(c_tab="Choose n_kv")) if "93.3 %" in words]
        assert "(93.3%)" in words
        assert "82.24%" in words
        assert "98.24%" in words


class TestDominates:
    def test_tokens_in_flight(self) -> None:
        app = opened(c_tab="When the cache dominates")
        rows = {row[0]: row for row in table_of(app, "Weights at 16 bit")}
        for name, about in (("Llama 2 7B", 25_700), ("Llama 3 8B", 122_500), ("Llama 2 70B", 421_000)):
            shown = int(rows[name][4].replace(",", ""))
            assert abs(shown - about) < 100
            model = find_model(name)
            assert shown == tokens_to_outgrow(model.cache, model.weights_bytes())
        assert rows["Llama 2 70B"][3] == "320 KiB"
        assert rows["Llama 2 7B"][3] == "512 KiB"
        assert any("from 122,533 tokens in flight on" in words for words in texts(app))

    def test_memory_and_training_are_told_apart(self) -> None:
        words = " ".join(texts(opened(c_tab="When the cache dominates")))
        assert "29,205 tokens of Llama 3 8B, 3.6 times what it was trained on (8,192)" in words

    def test_without_weights_nothing_is_guessed(self) -> None:
        app = opened(c_tab="When the cache dominates", c_model="My own sizes")
        assert any("number of weights is not known" in note.value for note in app.info)
        app = opened(c_tab="When the cache dominates", c_model="My own sizes", c_params="8.0303")
        assert any("from 122,533 tokens" in words for words in texts(app))


class TestEngine:
    def test_a_pasted_log_is_explained(self) -> None:
        log = (
            "INFO Available KV cache memory: 11.12 GiB\nINFO GPU KV cache size: 91,056 tokens\n"
            "INFO Maximum concurrency for 8,192 tokens per request: 11.12x"
        )
        words = " ".join(texts(opened(c_tab="Agree with an engine", c_log=log)))
        assert "The log's 5,691 blocks agree with ours." in words
        assert "91,056 / 8,192 tokens per request = 11.12; the log says 11.12." in words

    def test_its_words_without_a_log(self) -> None:
        app = opened(c_tab="Agree with an engine")
        room = 80 * GIB - 8 * GIB - 8_030_300_000 * 2
        blocks = room // (16 * 131_072)
        (said,) = [part.value for part in app.code if part.value.startswith("GPU KV cache size")]
        assert said.startswith(f"GPU KV cache size: {blocks * 16:,} tokens")

    def test_blocks_shared_beginnings_and_real_lengths(self) -> None:
        app = opened(c_tab="Agree with an engine", c_mean="1001", c_p95="5000", c_prefix="1000", c_users="10")
        mean, _, longest = table_of(app, "10 users")
        per_token = 131_072
        assert mean[1] == f"{1001 * 10 * per_token / GIB:.2f} GiB"
        assert mean[2] == f"{1008 * 10 * per_token / GIB:.2f} GiB"
        # 62 whole blocks of the beginning once; one block more for each of ten.
        assert mean[3] == f"{(992 + 10 * 16) * per_token / 2**20:.0f} MiB"
        assert longest[0] == "longest: 8,192"

    @pytest.mark.parametrize("address", [{"c_mean": "9000"}, {"c_p95": "9000"}, {"c_prefix": "3000"}])
    def test_lengths_that_contradict_each_other_are_one_sentence(self, address: dict[str, str]) -> None:
        app = opened(c_tab="Agree with an engine", **address)
        assert len(app.info) == 1

    def test_a_text_that_is_no_log_is_one_sentence_and_stays(self) -> None:
        app = opened(c_tab="Agree with an engine", c_log="<script>hello</script>")
        assert len(app.error) == 1
        assert app.text_area(key="c_log").value == "<script>hello</script>"


class TestOwnModel:
    def test_a_pasted_config_is_counted_and_used_everywhere(self) -> None:
        app = opened(c_tab="Paste a config", c_config=LLAMA)
        assert any("Your config.json: 64 bytes for each token" in words.replace("\\", "") for words in texts(app))
        assert answer(app).startswith("Llama 3 8B")
        app.button(key="use-My own config.json").click().run()
        assert answer(app) == "Your config.json, 8,192 tokens, 16 users: 8 MiB. As MHA: 32 MiB."
        assert any("The weights are not counted" in words for words in texts(app))

    def test_falcons_file_says_71_and_means_one(self) -> None:
        config = (
            '{"model_type": "falcon", "num_hidden_layers": 32, "hidden_size": 4544, "num_attention_heads": 71, '
            '"num_kv_heads": 71, "multi_query": true, "new_decoder_architecture": false}'
        )
        app = opened(c_model="My own config.json", c_config=config)
        assert answer(app) == "Your config.json, 8,192 tokens, 16 users: 1 GiB. As MHA: 71 GiB."

    @pytest.mark.parametrize("fault", list(MALFORMED))
    def test_malformed_configs_are_one_sentence_and_stay(self, fault: str) -> None:
        app = opened(c_tab="Paste a config", c_model="My own config.json")
        app.text_area(key="c_config").set_value(MALFORMED[fault]).run()
        assert_no_fault(app)
        assert len(app.error) == 1
        assert len(app.error[0].value) < 500
        assert "<b>*" not in app.error[0].value
        assert app.text_area(key="c_config").value == MALFORMED[fault]
        assert answer_is_absent(app)

    def test_a_long_text_is_kept_but_not_shared(self) -> None:
        app = opened(c_tab="Paste a config")
        for text, disabled in ((LLAMA, False), (LLAMA + " " * MOST_LINK_BYTES, True)):
            app.text_area(key="c_config").set_value(text).run()
            (share,) = [
                part.proto for part in app.get("bidi_component") if part.proto.component_name == "headscope_share"
            ]
            assert json.loads(share.json) == {"disabled": disabled}
            assert app.text_area(key="c_config").value == text

    def test_sizes_come_from_the_address(self) -> None:
        sizes = {"c_layers": "61", "c_heads": "128", "c_kvheads": "128", "c_latent": "512"}
        app = opened(c_model="My own sizes", c_tokens="1", c_users="1", **sizes)
        assert answer(app).startswith("Your own sizes, 1 token, 1 user: 68.62 KiB.")


def answer_is_absent(app: AppTest) -> bool:
    return not any('class="hs-answer"' in part.value for part in app.get("html"))


class TestLesson:
    def test_four_times(self) -> None:
        app = opened(c_tab="4x")
        assert any(
            "8 K/V heads instead of 32 → 4x less cache → 4x the context, or 4x the users" in words
            for words in texts(app)
        )
        rows = table_of(app, "Llama 3 8B, cache")
        assert [row[1:] for row in rows] == [
            ["8,192", "16", "64 GiB"],
            ["8,192", "16", "16 GiB"],
            ["32,768", "16", "64 GiB"],
            ["8,192", "64", "64 GiB"],
        ]
        assert any(
            "Memory allows 32,768 tokens; Llama 3 8B was trained on texts of up to 8,192." in t for t in texts(app)
        )

    def test_a_model_that_shares_nothing_shows_the_lessons_own(self) -> None:
        words = " ".join(texts(opened(c_tab="4x", c_model=model_label("Llama 2 7B"))))
        assert "Llama 2 7B does not share K/V heads" in words.replace("\\", "")
        assert "Llama 3 8B: 8 K/V heads instead of 32" in words


def test_every_gpu_of_the_picker_is_a_known_one() -> None:
    for name in opened().selectbox(key="c_gpu").options:
        assert find_gpu(name).bandwidth > 0


class TestHub:
    """Fetching a config by its Hub id: offered only where the owner allows it, and only the config is fetched."""

    def test_it_is_not_offered_unless_allowed(self) -> None:
        app = opened(c_tab="Paste a config")
        assert "c_hub" not in {box.key for box in app.text_input}

    def test_an_id_fills_the_box_and_a_wrong_one_is_one_sentence(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        asked: list[tuple[str, list[str]]] = []

        def download(repo: str, allow_patterns: list[str], dry_run: bool = False) -> str | list[Any]:
            if repo != "owner/llama":
                raise ConnectionError
            if dry_run:
                return []
            asked.append((repo, allow_patterns))
            (tmp_path / "config.json").write_text(LLAMA)
            return str(tmp_path)

        monkeypatch.setattr("huggingface_hub.snapshot_download", download)
        monkeypatch.setenv("HEADSCOPE_ALLOW_HUB", "1")
        settings.cache_clear()
        try:
            app = opened(c_tab="Paste a config")
            app.text_input(key="c_hub").set_value("owner/llama").run()
            fetch = next(button for button in app.button if button.label == "Fetch its config")
            fetch.click().run()
            assert not app.exception
            assert app.text_area(key="c_config").value == LLAMA
            assert asked == [("owner/llama", ["config.json"])]
            app.text_input(key="c_hub").set_value("owner/<b>gone</b>").run()
            next(button for button in app.button if button.label == "Fetch its config").click().run()
            assert not app.exception
            assert any("could not be fetched" in error.value for error in app.error)
            assert app.text_area(key="c_config").value == LLAMA
        finally:
            settings.cache_clear()
