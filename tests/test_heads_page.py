"""The Heads page run by Streamlit itself: what is drawn is the engine's own numbers, and no text breaks it."""

from __future__ import annotations

import base64
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from attention import AttentionTrace, load_model, preload, trace
from attention.model_facts import readiness
from attention.settings import settings
from pages.see import first_picture
from pages.shared.bar import DEFAULT_TEXT
from pages.shared.errors import plain
from pages.shared.link_values import MOST_LINK_BYTES, fits_link

ENTRY = str(Path(__file__).parent.parent / "pages" / "entry.py")
MINILM, SMOLLM = "all-MiniLM-L6-v2", "SmolLM2-135M-Instruct"
MINILM_TITLE, SMOLLM_TITLE = "MiniLM: reads both ways", "SmolLM2: writes, left to right"
START = "<|endoftext|>"


@pytest.fixture(scope="module", autouse=True)
def _models_are_there() -> None:
    """Until they are, the default page is the shipped first picture."""
    preload.start().join()


def opened(**address: str) -> AppTest:
    """The page after its first run at an address; ``v_layer`` stands for ``v.layer``."""
    app = AppTest.from_file(ENTRY, default_timeout=120)
    for name, value in address.items():
        app.query_params[name.replace("v_", "v.")] = value
    return app.run()


def typed(app: AppTest, text: str) -> AppTest:
    return app.text_input(key="text").set_value(text).run()


def plot(app: AppTest, place: int = 0) -> dict[str, Any]:
    return json.loads(app.get("plotly_chart")[place].proto.spec)


def map_of(figure: dict[str, Any]) -> np.ndarray:
    """The numbers of the exact map, read from the bytes sent to the browser."""
    packed = figure["data"][0]["z"]
    assert packed["dtype"] == "f4"
    shape = [int(part) for part in packed["shape"].split(",")]
    return np.frombuffer(base64.b64decode(packed["bdata"]), "<f4").reshape(shape)


def message(app: AppTest) -> tuple[dict[str, Any], bytes]:
    """Header and body of the viewer's message, read as its layout says."""
    (viewer,) = [part.proto for part in app.get("bidi_component") if part.proto.component_name == "headscope_viewer"]
    assert viewer.bytes[:4] == b"HSV1"
    end = 8 + int.from_bytes(viewer.bytes[4:8], "little")
    return json.loads(viewer.bytes[8:end]), viewer.bytes[end + -end % 8 :]


def assert_viewer_shows(app: AppTest, traced: AttentionTrace, place: int = 0) -> None:
    """Every head's every weight, as one byte of its square root."""
    header, body = message(app)
    facts = header["traces"][place]
    n_layers, n_heads, size, _ = traced.weights.shape
    assert facts["labels"] == [token.label for token in traced.tokens]
    assert facts["full"] == [[layer, head] for layer in range(n_layers) for head in range(n_heads)]
    rows, columns = np.tril_indices(size) if facts["causal"] else np.indices((size, size)).reshape(2, -1)
    expected = np.rint(255 * np.sqrt(traced.weights[:, :, rows, columns]))
    sent = np.frombuffer(body, np.uint8, count=expected.size, offset=facts["full_at"])
    np.testing.assert_array_equal(sent.reshape(expected.shape), expected)


def sentences_shown(app: AppTest) -> list[str]:
    return [element.value for element in (*app.error, *app.warning)]


def assert_no_fault(app: AppTest) -> None:
    assert len(app.exception) == 0
    everything = " ".join(sentences_shown(app))
    assert "Traceback" not in everything


class TestDefaultPage:
    def test_it_draws_the_exact_map_and_the_viewer_from_the_engines_numbers(self) -> None:
        app = opened()
        traced = trace(load_model(MINILM), DEFAULT_TEXT)
        assert_no_fault(app)
        assert sentences_shown(app) == []
        assert app.text_input(key="text").value == DEFAULT_TEXT
        assert app.selectbox(key="model").value == MINILM
        np.testing.assert_array_equal(map_of(plot(app)), traced.weights[1, 3])
        assert plot(app)["layout"]["xaxis"]["ticktext"] == [token.label for token in traced.tokens]
        assert_viewer_shows(app, traced)
        header, _ = message(app)
        assert header["start"] == [1, 3, 6]
        assert [card["id"] for card in header["cards"]] == ["previous", "object_verb", "agreement"]

    def test_the_picture_shipped_for_cold_servers_is_a_live_trace_byte_for_byte(self) -> None:
        assert first_picture.FILE.read_bytes() == first_picture.live_picture()

    def test_a_cold_page_waits_for_the_model_and_then_goes_live_by_itself(self) -> None:
        ready = readiness(MINILM)
        ready.clear()
        later = threading.Timer(2.0, ready.set)
        later.start()
        app = opened()
        assert ready.is_set()
        later.join()
        assert_no_fault(app)
        assert len(app.get("plotly_chart")) == 1
        assert first_picture.WAITING not in [caption.value for caption in app.caption]

    def test_a_link_names_layer_head_and_word(self) -> None:
        app = opened(v_layer="2", v_head="0", v_query="4")
        np.testing.assert_array_equal(map_of(plot(app)), trace(load_model(MINILM), DEFAULT_TEXT).weights[2, 0])
        assert plot(app)["layout"]["title"]["text"] == "Layer 2, head 0 (numbered from 0)"

    def test_an_example_brings_its_sentence_model_and_caption(self) -> None:
        app = opened()
        app.button(key="example-mat-chased").click().run()
        traced = trace(load_model(SMOLLM), "The cat sat on the mat that the dog chased.", start=START)
        assert app.selectbox(key="model").value == SMOLLM
        assert_viewer_shows(app, traced)
        header, _ = message(app)
        assert header["start"] == [25, 2, 7]
        assert any("The link alone proves nothing" in caption.value for caption in app.caption)
        assert any("shared by query heads 0 to 2" in caption.value for caption in app.caption)
        shown = map_of(plot(app))
        np.testing.assert_array_equal(np.isnan(shown), ~np.tri(len(traced.tokens), dtype=bool))
        np.testing.assert_array_equal(np.nan_to_num(shown), traced.weights[25, 2])

    def test_raw_tokens_are_shown_on_demand_only(self) -> None:
        text = "Headscopes glow."
        assert not any(label.startswith("##") for label in plot(opened(text=text))["layout"]["xaxis"]["ticktext"])
        raw = plot(opened(text=text, raw="true"))["layout"]["xaxis"]["ticktext"]
        assert raw == [token.raw for token in trace(load_model(MINILM), text).tokens]
        assert any(label.startswith("##") for label in raw)

    def test_the_untrained_twin_is_sent_beside_the_trained_model(self) -> None:
        app = opened(twin="true")
        header, _ = message(app)
        assert [facts["role"] for facts in header["traces"]] == ["main", "twin"]
        assert_viewer_shows(app, trace(load_model(f"{MINILM}~untrained"), DEFAULT_TEXT), place=1)


class TestTabs:
    def test_why_multiplies_out_on_the_page(self) -> None:
        app = opened(detail="Why this number?")
        (words,) = [part.value for part in app.markdown if "q·k" in part.value]
        shown = words.replace("\\", "")
        assert shown.startswith("**Why does they give cats 54 %?**")
        last = shown.rsplit(": ", 1)[1]
        exponential, rest = last.split(" / ")
        total, weight = rest.split(" = **")
        assert float(exponential) / float(total) == pytest.approx(float(weight.strip("*.")), abs=0.001)

    def test_why_shows_words_with_angle_brackets_as_words(self) -> None:
        app = opened(detail="Why this number?", model=SMOLLM_TITLE)
        (keys,) = [part.value for part in app.get("html") if "<table" in part.value]
        assert '<th scope="row" dir="auto">&lt;|endoftext|&gt;</th>' in keys
        assert "<|" not in keys

    def test_averages_follow_the_choice_and_survive_a_change_of_model(self) -> None:
        app = opened(detail="Averages", model=SMOLLM_TITLE)
        traced = trace(load_model(SMOLLM), DEFAULT_TEXT, start=START)
        layer, head = message(app)[0]["start"][:2]
        np.testing.assert_allclose(map_of(plot(app)), traced.weights[layer].mean(axis=0), atol=1e-6)
        app.get("button_group")[0].set_value("This K/V group").run()
        group = [other for other in range(9) if other // 3 == head // 3]
        np.testing.assert_allclose(map_of(plot(app)), traced.weights[layer, group].mean(axis=0), atol=1e-6)
        app.selectbox(key="model").select(MINILM).run()
        assert_no_fault(app)
        weights = trace(load_model(MINILM), DEFAULT_TEXT).weights
        np.testing.assert_allclose(map_of(plot(app)), weights[1].mean(axis=0), atol=1e-6)

    def test_a_link_with_a_second_sentence_shows_both_and_their_pair(self) -> None:
        second = "The dog ate."
        app = opened(detail="Two sentences", compare=second)
        header, _ = message(app)
        assert [facts["role"] for facts in header["traces"]] == ["main", "compare"]
        assert_viewer_shows(app, trace(load_model(MINILM), second), place=1)
        pair = trace(load_model(MINILM), DEFAULT_TEXT, pair=second)
        np.testing.assert_array_equal(map_of(plot(app)), pair.weights[1, 3])

    @pytest.mark.parametrize("model", [MINILM_TITLE, SMOLLM_TITLE])
    def test_a_bad_second_sentence_leaves_the_page_and_its_own_box(self, model: str) -> None:
        app = opened(detail="Two sentences", model=model)
        app.text_input(key="compare").set_value("x" * 100_000).run()
        assert_no_fault(app)
        (sentence,) = sentences_shown(app)
        assert "100,000 characters" in sentence
        assert len(app.text_input(key="compare").value) == 100_000
        assert len(message(app)[0]["traces"]) == 1
        app.text_input(key="compare").set_value("Birds sing.").run()
        assert sentences_shown(app) == []
        assert len(message(app)[0]["traces"]) == 2

    def test_a_decoder_says_nothing_about_pairs_and_compares(self) -> None:
        app = opened(detail="Two sentences", model=SMOLLM_TITLE, compare="Birds sing.")
        assert_no_fault(app)
        assert sentences_shown(app) == []
        assert len(message(app)[0]["traces"]) == 2
        assert len(app.get("plotly_chart")) == 0

    def test_checks_are_this_traces_own(self) -> None:
        app = opened(detail="Checks", model=SMOLLM_TITLE, text="The cat sat on the")
        (checks, following) = [part.value for part in app.get("html") if "<table" in part.value]
        for name in ("Row sums", "Mask leak", "Finite", "Tokens cut", "Own SDPA output"):
            assert name in checks
        assert ">no<" not in checks
        assert "After &lt;|endoftext|&gt; and your sentence" in following
        assert following.index("“ mat”") < following.index("“ edge”")
        assert "<td>32 %</td>" in following


ODD_TEXTS = {
    "emoji": "🙂🎉👩‍👩‍👧",
    "special token": "<s>",
    "end of script": "</script><script>window.hit=1</script>",
    "image": "<img src=x onerror=alert(1)>",
    "emoji code": ":smile:",
    "markdown": "*a* ~~s~~ [x](javascript:alert(1)) $a$",
    "Arabic": "القطة جلست على السجادة",
    "Hebrew": "החתול ישב על השטיח",
    "Chinese": "猫坐在垫子上",
    "Greek": "Η γάτα κάθισε στο χαλί",
    "control characters": "a\x00b\x07c\x1b[31md\x7f",
    "line breaks": "one\ntwo\ttabs\r\nthree",
    "one letter": "a",
    "full stop": ".",
    "formula": "=1+1",
    "dates": "2024-01-01 12:30 2024-01-02",
    "right-to-left override": "abc\u202edef",
    "joined": "e\u0301\u0301\u0301 \u200b\ufeff x",
}


class TestAnyText:
    @pytest.fixture(scope="class", params=[MINILM_TITLE, SMOLLM_TITLE])
    def app(self, request: pytest.FixtureRequest) -> AppTest:
        """One visit, in which one text after the other is typed."""
        return opened(model=request.param)

    @pytest.mark.parametrize("name", ODD_TEXTS)
    def test_it_is_drawn_and_stays_in_the_box(self, name: str, app: AppTest) -> None:
        text = ODD_TEXTS[name]
        typed(app, text)
        assert_no_fault(app)
        assert sentences_shown(app) == []
        assert app.text_input(key="text").value == text
        header, _ = message(app)
        assert len(plot(app)["layout"]["xaxis"]["tickvals"]) == len(header["traces"][0]["labels"])

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "The text is empty"),
            ("   ", "only spaces or line breaks"),
            ("x" * 100_000, "The text has 100,000 characters"),
        ],
    )
    def test_or_one_sentence_says_why_not(self, text: str, words: str, app: AppTest) -> None:
        typed(app, text)
        assert_no_fault(app)
        (sentence,) = sentences_shown(app)
        assert words in sentence.replace("\\", "")
        assert app.text_input(key="text").value == text
        assert len(app.get("plotly_chart")) == 0
        typed(app, "Birds sing.")
        assert sentences_shown(app) == []
        assert len(app.get("plotly_chart")) == 1

    def test_nothing_but_nul_is_one_sentence_for_the_encoder_and_a_picture_for_the_decoder(self) -> None:
        app = typed(opened(), "\x00")
        assert_no_fault(app)
        assert "finds nothing to read" in sentences_shown(app)[0]
        assert len(app.error) == 1
        assert app.text_input(key="text").value == "\x00"
        app.selectbox(key="model").select(SMOLLM).run()
        assert_no_fault(app)
        assert sentences_shown(app) == []
        assert app.text_input(key="text").value == "\x00"

    def test_a_text_over_the_limit_is_cut_with_a_notice(self) -> None:
        app = typed(opened(), "word " * 600)
        header, _ = message(app)
        assert header["notices"] == [
            "The text has 602 tokens, counting the 2 its tokenizer adds; 512 are shown: its first 510 and those 2."
        ]
        assert map_of(plot(app)).shape == (512, 512)
        assert app.text_input(key="text").value == "word " * 600

    @pytest.mark.parametrize("tab", ["Why this number?", "Averages", "Two sentences", "Words", "Checks", "Download"])
    def test_every_tab_takes_hostile_text(self, tab: str) -> None:
        text = "<b>bold</b> </script> `x` $y$ :smile: שלום"
        app = opened(text=text, detail=tab, compare=text)
        assert_no_fault(app)
        assert sentences_shown(app) == []
        shown = [part.value for part in app.get("html")] + [part.value for part in app.caption]
        assert not any("<b>" in words or "</script>" in words for words in shown)


class TestLongLinks:
    def test_the_share_button_knows_when_a_text_is_too_long_for_a_link(self) -> None:
        app = opened()
        for text, disabled in (("é" * 666, False), ("é" * 667, True), ("short", False)):
            typed(app, text)
            (share,) = [
                part.proto for part in app.get("bidi_component") if part.proto.component_name == "headscope_share"
            ]
            assert json.loads(share.json) == {"disabled": disabled}
            assert app.text_input(key="text").value == text

    def test_the_limit_counts_encoded_bytes(self) -> None:
        assert fits_link("a" * MOST_LINK_BYTES)
        assert not fits_link("a" * (MOST_LINK_BYTES + 1))
        assert not fits_link("é" * 667)


class TestAddress:
    @pytest.mark.parametrize(
        "address",
        [
            {"v_layer": "99"},
            {"v_layer": "-1", "v_head": "x", "v_query": "1e9"},
            {"v_head": "12"},
            {"v_query": "<script>"},
            {"twin": "maybe", "raw": "2"},
            {"detail": "No such tab"},
            {"start": "none", "model": MINILM_TITLE},
        ],
    )
    def test_bad_values_fall_back_to_the_default(self, address: dict[str, str]) -> None:
        app = opened(**address)
        assert_no_fault(app)
        np.testing.assert_array_equal(map_of(plot(app)), trace(load_model(MINILM), DEFAULT_TEXT).weights[1, 3])

    def test_an_unknown_model_is_one_sentence_and_the_default(self) -> None:
        app = opened(model="gpt-17", text="Birds sing.")
        assert_no_fault(app)
        assert [note.value for note in app.info] == [
            "This link asks for a model that is not here. Showing MiniLM: reads both ways."
        ]
        assert app.text_input(key="text").value == "Birds sing."
        assert len(app.get("plotly_chart")) == 1

    def test_every_setting_can_come_from_the_address(self) -> None:
        app = opened(
            text="The cat sat on the", model=SMOLLM_TITLE, start="Starts with nothing", detail="Checks", v_layer="13"
        )
        (following,) = [part.value for part in app.get("html") if "your sentence" in part.value]
        assert "After no start token and your sentence" in following
        assert "“ cat”" in following.split("<td>")[0]
        assert "<td>7 %</td>" in following


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers as the Hub does for a model that does not exist."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        """Stay silent: the test looks at the page."""


@pytest.fixture
def hub_allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HEADSCOPE_ALLOW_HUB", "1")
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.mark.usefixtures("hub_allowed")
class TestHub:
    def assert_one_sentence_about(self, app: AppTest, model: str) -> None:
        assert_no_fault(app)
        (sentence,) = sentences_shown(app)
        assert f"The model {model!r} could not be fetched" in sentence.replace("\\", "")
        assert app.text_input(key="text").value == "Birds sing."
        assert app.selectbox(key="model").value == model
        app.selectbox(key="model").select(MINILM).run()
        assert sentences_shown(app) == []
        assert len(app.get("plotly_chart")) == 1

    @pytest.mark.parametrize("model", ["owner/no-such-model", ":smile:", "<b>x</b>", "../../etc/passwd"])
    def test_offline(self, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        self.assert_one_sentence_about(opened(model=model, text="Birds sing."), model)

    def test_an_id_the_hub_does_not_know(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        try:
            app = opened(model="owner/no-such-model", text="Birds sing.")
        finally:
            server.shutdown()
            server.server_close()
        assert "RepositoryNotFoundError" in sentences_shown(app)[0]
        self.assert_one_sentence_about(app, "owner/no-such-model")


def test_plain_keeps_addresses_from_becoming_links() -> None:
    for text in ("www.x.org", "https://x.org", "me@x.org"):
        shown = plain(text)
        assert shown.replace("\u2060", "").replace("\\", "") == text
        assert "\u2060" in shown


MARKDOWN = ("*a*", "[x](y)", "`c`", "<b>", ":red[x]", "$a$", "# h", "~~s~~", "a\nb", "&lt;")


@pytest.mark.parametrize("text", MARKDOWN)
def test_plain_leaves_no_markdown_sign_bare(text: str) -> None:
    shown = plain(text)
    bare = [sign for place, sign in enumerate(shown) if sign in "*[]`<:$#~&" and shown[max(0, place - 1)] != "\\"]
    assert bare == []
    assert "\n" not in shown
