"""A hostile visitor: model folders that lie, configs that explode, texts that hide, pages fed with markup."""

from __future__ import annotations

import json
import pickle
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from attention import UserError, load_model, trace
from attention.kv_cache import KVCache
from attention.kv_reader import config_from_text
from attention.links import words_in
from attention.models import LoadedModel
from attention.plots.write_charts import plain_text_html
from attention.tokens import clean_text, encode
from attention.views import word_view
from pages.see.finder_links import word_labels
from tests.tiny_models import save_tiny, tiny_tokenizer

# Characters that turn the order of what follows, or that nobody sees.
TURNING = "\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f"
UNSEEN = "\u200b\u2060\ufeff\u00ad\u180e\u2064"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "good", "llama")


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    """A copy of a sound model, to be spoiled."""
    return Path(shutil.copytree(good, tmp_path / "model"))


@pytest.fixture
def opened(tmp_path: Path) -> Path:
    """A file that exists once a pickle has been opened."""
    return tmp_path / "opened"


class Trap:
    """Unpickled, it makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = str(file)

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.file, "w")


def say(folder: Path, **facts: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | facts))


def refused(folder: Path) -> str:
    """The sentence with which a folder is refused: soon, and without filling the memory."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises(UserError) as told:
        load_model(folder)
    assert time.monotonic() - began < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024, "it took 500 MB"
    sentence = str(told.value)
    assert len(sentence) < 800
    assert str(folder.parent) not in sentence, "the machine's own folders are nobody's business"
    return sentence


# ---- model folders


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "model.pkl"])
def test_a_pickle_is_never_opened(folder: Path, opened: Path, name: str) -> None:
    (folder / name).write_bytes(pickle.dumps(Trap(opened)))
    assert load_model(folder).n_layers == 3
    (folder / "model.safetensors").unlink()
    assert "no safetensors" in refused(folder.rename(folder.with_name("alone")))
    assert not opened.exists()


def test_a_pickle_under_a_safe_name_is_not_opened_either(folder: Path, opened: Path) -> None:
    (folder / "model.safetensors").write_bytes(pickle.dumps(Trap(opened)))
    refused(folder)
    assert not opened.exists()


def test_a_models_own_code_never_runs(folder: Path, opened: Path) -> None:
    classes = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model", "AutoModelForCausalLM": "evil.Model"}
    say(folder, auto_map=classes)
    (folder / "evil.py").write_text(f"open({str(opened)!r}, 'w')\nclass Config: pass\nclass Model: pass\n")
    assert load_model(folder).kind == "decoder"
    say(folder, model_type="evil")
    refused(folder.rename(folder.with_name("unknown")))
    assert not opened.exists()


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/outside.safetensors", "sub/../../x.safetensors", "x.bin", 5]
)
def test_a_list_of_weight_files_cannot_lead_out_of_the_folder(folder: Path, good: Path, name: Any) -> None:
    shutil.copy(good / "model.safetensors", folder.parent / "outside.safetensors")
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    index = {"metadata": {}, "weight_map": {"model.norm.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "own folder" in refused(folder)


@pytest.mark.parametrize(
    "id", ["../../etc/passwd", "/etc", "..", "good/../good", "\x00", "a" * 100_000, "<script>", "."]
)
def test_an_id_is_a_name_and_never_a_path(id: str) -> None:
    with pytest.raises(UserError, match=r"There is no model") as told:
        load_model(id)
    assert len(str(told.value)) < 400


def test_an_untrained_twin_has_no_twin_of_its_own() -> None:
    for many in (2, 5000):
        with pytest.raises(UserError):
            load_model("all-MiniLM-L6-v2" + many * "~untrained")


LYING = {
    "a billion heads": {"num_attention_heads": 10**9},
    "a billion K/V heads": {"num_key_value_heads": 10**9},
    "a billion layers": {"num_hidden_layers": 10**9},
    "512 layers it has not": {"num_hidden_layers": 512},
    "no heads": {"num_attention_heads": 0},
    "minus one head": {"num_attention_heads": -1},
    "heads as words": {"num_attention_heads": "9" * 10},
    "a huge vocabulary": {"vocab_size": 10**9},
    "a wide layer": {"intermediate_size": 10**9},
    "wide heads": {"head_dim": 10**9},
    "a million layer types": {"layer_types": ["full_attention"] * 10**6},
    "all of it": {
        **{"num_hidden_layers": 512, "hidden_size": 65536, "intermediate_size": 2**20, "vocab_size": 2**22},
        **{"num_attention_heads": 1024, "num_key_value_heads": 1024},
    },
    "a path for a type": {"model_type": "../../etc"},
    "NaN in a norm": {"rms_norm_eps": float("nan")},
    "other attention": {"attn_implementation": "somebody/kernels"},
}


@pytest.mark.parametrize("facts", LYING.values(), ids=LYING.keys())
def test_a_config_that_lies_is_refused(folder: Path, facts: dict[str, Any]) -> None:
    say(folder, **facts)
    refused(folder)


@pytest.mark.parametrize("text", ["[" * 100_000, "", "[]", "{", '{"a":' * 50_000, "\x00"], ids=range(6))
@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors.index.json"])
def test_a_file_that_is_no_json_is_refused(folder: Path, file: str, text: str) -> None:
    (folder / file).write_text(text)
    refused(folder)


def test_a_tokenizer_whose_rules_never_end_is_told(folder: Path) -> None:
    file = folder / "tokenizer.json"
    rules = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pre_tokenizer": rules}))
    with pytest.raises(UserError, match="tokenizer gives up"):
        trace(load_model(folder), "a" * 40 + " b")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 1e38])
def test_weights_that_are_or_give_no_numbers_are_refused(folder: Path, number: float) -> None:
    weights = load_file(folder / "model.safetensors")
    for name in weights:
        if "q_proj" in name or "k_proj" in name:
            weights[name][:] = number
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "NaN or infinite" in refused(folder)


# ---- pasted configs


def test_a_name_that_comes_twice_is_told() -> None:
    pasted = '{"model_type": "llama", "num_key_value_heads": 8, "num_key_value_heads": 1}'
    with pytest.raises(UserError, match="'num_key_value_heads' twice"):
        config_from_text(pasted)
    with pytest.raises(UserError, match="'x' twice"):
        config_from_text('{"a": [{"x": 1, "x": 1}]}')


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 4000, "9" * 5000])
def test_a_number_that_is_none_is_told(value: str) -> None:
    pasted = f'{{"model_type": "llama", "num_hidden_layers": {value}, "num_attention_heads": 8, "head_dim": 4}}'
    with pytest.raises(UserError) as told:
        KVCache.from_config(config_from_text(pasted))
    assert len(str(told.value)) < 300


def test_a_config_of_a_megabyte_takes_no_time() -> None:
    layers = {str(place): {"num_key_value_heads": 1} for place in range(20_000)} | {"²": {}, "9" * 5000: {}}
    sizes = {"hidden_size": 48, "num_hidden_layers": 2000, "num_attention_heads": 6, "sliding_window": 4}
    text = json.dumps({"model_type": "gemma4_text", "per_layer_config": layers, **sizes})
    began = time.process_time()
    cache = KVCache.from_config(config_from_text(text))
    assert time.process_time() - began < 5
    assert {layer.n_kv_heads for layer in cache.layers} == {1}


# ---- texts that hide


@pytest.mark.parametrize("mark", [*TURNING, *UNSEEN], ids=lambda mark: f"U+{ord(mark):04X}")
def test_a_character_nobody_sees_is_named_in_its_token(minilm: LoadedModel, smollm: LoadedModel, mark: str) -> None:
    text = f"pay{mark}100 to Bob"
    for tokenizer in (minilm.tokenizer, smollm.tokenizer, tiny_tokenizer(encoder=False)):
        encoded = encode(tokenizer, clean_text(text, 100))
        assert all(token.label.strip() for token in encoded.tokens)
        assert mark not in "".join(token.label for token in encoded.tokens)


def test_no_label_can_turn_what_stands_around_it(smollm: LoadedModel) -> None:
    encoded = encode(smollm.tokenizer, "\u202eevil\u202c \u2067back\u2069 end")
    labels = [token.label for token in encoded.tokens]
    assert not set("".join(labels)) & set(TURNING + "\u202c")
    assert any("202E" in label for label in labels), "and it is said that it stood there"


def test_no_words_label_hides_or_turns_anything(minilm: LoadedModel, smollm: LoadedModel) -> None:
    text = "\u202eevil\u202c pay\u200bpal a\u00adb \u2067back\u2069 x\u200fy end-to-end don't"
    for model, start in ((minilm, None), (smollm, "<|endoftext|>")):
        traced = trace(model, text, start=start)
        for labels in (word_labels(words_in(traced)), word_view(traced, 0, 0)[0]):
            assert not set("".join(labels)) & set(TURNING + UNSEEN + "\u202c")
            assert all(label.strip() for label in labels)
            assert {"end-to-end", "don't"} <= set(labels), "plain words stay as they are"


def test_a_written_text_cannot_turn_itself_round() -> None:
    page = plain_text_html(["Pay ", "\u202e", "100", "\u2067", " now"])
    assert not set(page) & set(TURNING)
    assert "‹U+202E›" in page


# ---- several at once


def test_two_who_edit_at_once_do_not_see_each_other(together: Callable[..., list[Any]]) -> None:
    texts = [f"{name} fed the cats because they were hungry." for name in ("Alice", "Bob", "Carol", "Dan")]
    found = together([lambda text=text: trace("all-MiniLM-L6-v2", text) for text in texts * 3])
    for text, traced in zip(texts * 3, found, strict=True):
        assert traced.text == text
        assert traced.tokens[1].text == text.split()[0]


@pytest.fixture
def together() -> Callable[..., list[Any]]:
    from concurrent.futures import ThreadPoolExecutor

    def run(works: list[Callable[[], Any]]) -> list[Any]:
        with ThreadPoolExecutor(len(works)) as pool:
            return [one.result() for one in [pool.submit(work) for work in works]]

    return run
