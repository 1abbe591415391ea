"""Which models can be loaded, and that every broken or hostile one is exactly one UserError."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import DryRunFileInfo
from huggingface_hub.errors import DryRunError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, T5Config, T5ForConditionalGeneration

from attention import UserError, hub, list_models, load_model, model_facts, models, trace, weights_cache
from attention.hub import config_text
from attention.model_facts import UNTRAINED, title_of
from attention.models import LoadedModel, check_size
from attention.settings import Settings, settings_from
from tests.tiny_models import SENTENCE, random_module, save_tiny, tiny, tiny_config, tiny_tokenizer

Folder = Callable[[str], Path]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sound tiny models on disk, to be copied and spoiled."""
    parent = tmp_path_factory.mktemp("saved")
    for name in ("llama", "bert"):
        save_tiny(parent / name, name)
    return parent


@pytest.fixture
def spoiled(saved: Path, tmp_path: Path) -> Folder:
    def copied(name: str) -> Path:
        return Path(shutil.copytree(saved / name, tmp_path / f"spoiled-{name}"))

    return copied


def use_settings(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    for module in (models, model_facts, hub):
        monkeypatch.setattr(module, "settings", lambda: dataclasses.replace(Settings(), **changes))


def edit_config(folder: Path, **changes: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


# --- sound models ---


def test_the_bundled_models_are_what_they_are(minilm: LoadedModel, smollm: LoadedModel) -> None:
    assert list_models()[:2] == ("all-MiniLM-L6-v2", "SmolLM2-135M-Instruct")
    assert (minilm.kind, minilm.n_layers, minilm.layout.n_heads, minilm.layout.n_kv_heads) == ("encoder", 6, 12, 12)
    assert (minilm.layout.d_model, minilm.layout.d_head, minilm.layout.rung) == (384, 32, "MHA")
    assert (smollm.kind, smollm.n_layers, smollm.layout.n_heads, smollm.layout.n_kv_heads) == ("decoder", 30, 9, 3)
    assert (smollm.layout.d_model, smollm.layout.d_head, smollm.layout.rung) == (576, 64, "GQA")
    assert (minilm.max_positions, smollm.max_positions) == (512, 8192)
    assert {one.id: one.sha256 for one in models.BUNDLED} == {one.id: one.revision for one in (minilm, smollm)}
    for one in (minilm, smollm):
        assert not any(parameter.requires_grad for parameter in one.model.parameters())
        assert {parameter.dtype for parameter in one.model.parameters()} == {torch.float32}
        assert not one.model.training


def test_start_choices(minilm: LoadedModel, smollm: LoadedModel) -> None:
    assert (minilm.start_choices, minilm.default_start) == ((), None)
    assert set(smollm.start_choices) == {"<|im_start|>", "<|endoftext|>"}
    assert smollm.default_start == "<|endoftext|>"
    assert tiny("llama").default_start == "<s>"


def test_a_model_is_loaded_once_and_shared(minilm: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[object] = []
    original = models._load
    monkeypatch.setattr(models, "_load", lambda model: (loads.append(model), original(model))[1])
    monkeypatch.setattr(models, "_loaded", type(models._loaded)())
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(load_model, ["all-MiniLM-L6-v2"] * 16))
    assert len({id(one) for one in found}) == 1
    assert loads == ["all-MiniLM-L6-v2"]


def test_only_the_last_few_models_stay_loaded(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_loaded", type(models._loaded)())
    folders = [Path(shutil.copytree(saved / "bert", tmp_path / f"bert-{number}")) for number in range(5)]
    first = load_model(folders[0])
    for folder in folders[1:4]:
        load_model(folder)
    assert load_model(folders[0]) is first
    load_model(folders[4])
    assert load_model(folders[0]) is first
    assert [Path(key).name for key in models._loaded] == ["bert-2", "bert-3", "bert-4", "bert-0"]


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_a_local_folder_gives_the_saved_weights(saved: Path, name: str) -> None:
    loaded = load_model(saved / name)
    assert loaded.id == name
    assert loaded.revision == weights_cache.sha256_of(saved / name / "model.safetensors")
    np.testing.assert_array_equal(trace(loaded, SENTENCE).weights, trace(tiny(name), SENTENCE).weights)


def test_folders_the_owner_names_are_listed_and_loaded(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_settings(monkeypatch, model_folders=(saved, saved / "absent"))
    assert list_models()[2:] == ("bert", "llama")
    assert load_model("llama").layout.n_kv_heads == 2
    assert title_of("llama") == "llama"
    assert title_of("all-MiniLM-L6-v2").startswith("MiniLM")


def test_a_half_precision_checkpoint_is_computed_in_float32(spoiled: Folder) -> None:
    folder = edit_weights(
        spoiled("llama"), lambda tensors: tensors.update({name: t.bfloat16() for name, t in tensors.items()})
    )
    loaded = load_model(edit_config(folder, dtype="bfloat16"))
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}


def test_a_missing_pooler_is_no_loss(spoiled: Folder) -> None:
    def without_pooler(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if "pooler" in name]:
            del tensors[name]

    folder = edit_weights(spoiled("bert"), without_pooler)
    np.testing.assert_array_equal(trace(load_model(folder), SENTENCE).weights, trace(tiny("bert"), SENTENCE).weights)


def test_the_untrained_twin_goes_by_its_models_name() -> None:
    twin = load_model("all-MiniLM-L6-v2" + UNTRAINED)
    assert twin.id == "all-MiniLM-L6-v2~untrained"
    assert twin.n_params == load_model("all-MiniLM-L6-v2").n_params
    assert load_model(twin.id) is twin


def test_a_multimodal_models_text_half_is_traced(tmp_path: Path) -> None:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    text = {key: value for key, value in tiny_config("gemma3_text").to_dict().items() if key != "model_type"}
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = Gemma3Config(text_config=text, vision_config=vision | {"image_size": 28, "patch_size": 14})
    Gemma3ForConditionalGeneration(config).save_pretrained(tmp_path / "gemma3")
    tiny_tokenizer(encoder=False).save_pretrained(tmp_path / "gemma3")
    loaded = load_model(tmp_path / "gemma3")
    assert (loaded.n_layers, loaded.layout.n_heads, loaded.layout.n_kv_heads, loaded.max_positions) == (3, 6, 2, 64)
    assert trace(loaded, SENTENCE).weights.shape[:2] == (3, 6)
    big = Path(shutil.copytree(tmp_path / "gemma3", tmp_path / "big"))
    edit_config(big, text_config=json.loads((big / "config.json").read_text())["text_config"] | {"vocab_size": 10**9})
    with pytest.raises(UserError, match="vocab_size 1,000,000,000"):
        load_model(big)


# --- ids ---


STRANGE_IDS = ["../../etc", "/etc", "/etc/passwd", "..", ".", "", " ", "a" * 5000, "no such model", "C:\\Windows"]
STRANGE_IDS += ["~untrained", "x~untrained", "owner/name", "<script>", "a\x00b", "all-minilm-l6-v2", "%2e%2e", "💥"]


@pytest.mark.parametrize("strange", STRANGE_IDS)
def test_an_unknown_id_is_one_sentence_and_touches_no_network(strange: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise AssertionError("the Hub was asked although it is off")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(
        UserError, match=r"There is no model .*all-MiniLM-L6-v2, SmolLM2-135M-Instruct.*Hub models are off"
    ):
        load_model(strange)


@pytest.mark.parametrize("strange", STRANGE_IDS)
def test_with_the_hub_allowed_only_what_reads_like_an_id_is_asked_for(
    strange: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_settings(monkeypatch, allow_hub=True)
    asked: list[str] = []

    def unreachable(repo: str, **_: Any) -> None:
        asked.append(repo)
        raise ConnectionError

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(UserError, match="could not be fetched"):
        load_model(strange)
    plain = strange.removesuffix(UNTRAINED)
    assert asked == ([plain] if plain in {"owner/name", "all-minilm-l6-v2", "x"} else [])


def test_a_hub_id_while_offline_fails_fast(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_settings(monkeypatch, allow_hub=True)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            load_model("owner/name")
        except BaseException as error:
            failures.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(timeout=20)
    assert not asking.is_alive(), "still waiting for a Hub that cannot be reached"
    assert isinstance(failures[0], UserError)
    assert "could not be fetched" in str(failures[0])
    assert "Hub must be reachable" in str(failures[0])


class FakeHub:
    """Stands where ``snapshot_download`` is: every id has this folder's files, as large as ``sizes`` says."""

    def __init__(self, folder: Path, sizes: dict[str, int | None] | None = None) -> None:
        self.folder, self.sizes, self.cached, self.reachable = folder, sizes or {}, False, True
        self.fetched: list[list[str]] = []

    def __call__(self, model: str, allow_patterns: list[str], dry_run: bool = False) -> str | list[DryRunFileInfo]:
        if not dry_run:
            self.fetched.append(allow_patterns)
            return str(self.folder)
        if not self.reachable:
            raise DryRunError("no answer")
        names = [file.name for file in self.folder.iterdir() if any(file.match(like) for like in allow_patterns)]
        return [
            DryRunFileInfo("c0ffee", self.sizes.get(name, 0), name, "", self.cached, not self.cached) for name in names
        ]


@pytest.fixture
def fake_hub(saved: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    hub = FakeHub(saved / "llama")
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub)
    use_settings(monkeypatch, allow_hub=True)
    return hub


def test_the_hub_is_asked_for_the_config_first_and_only_for_safe_files(
    fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_model("owner/llama").id == "owner/llama"
    assert fake_hub.fetched[0] == ["config.json"]
    assert not any(pattern.endswith((".bin", ".py", ".pt", "*")) for pattern in fake_hub.fetched[1])
    fake_hub.fetched.clear()
    use_settings(monkeypatch, allow_hub=True, max_params=10)
    with pytest.raises(UserError, match="million parameters"):
        load_model("owner/llama-again")
    assert fake_hub.fetched == [["config.json"]], "weights were fetched before the size was known"


def test_files_larger_than_the_parameters_allowed_are_not_fetched(
    fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_settings(monkeypatch, allow_hub=True, max_params=10**6)
    fake_hub.sizes = {"model.safetensors": 4 * 10**6 + 100 * 10**6 + 1}
    with pytest.raises(UserError, match=r"'owner/large' have 104,000,001 bytes.*At most 104,000,000 are") as told:
        load_model("owner/large")
    assert "HEADSCOPE_MAX_PARAMS" in told.value.allowed
    assert fake_hub.fetched == [["config.json"]]
    fake_hub.sizes = {"model.safetensors": None}
    with pytest.raises(UserError, match=r"does not say how large 'model\.safetensors'"):
        load_model("owner/unknown")
    fake_hub.sizes = {"config.json": 16 * 10**6 + 1}
    with pytest.raises(UserError, match="have 16,000,001 bytes"):
        config_text("owner/long-config")
    assert fake_hub.fetched == [["config.json"], ["config.json"]]


@pytest.mark.parametrize(("cached", "reachable"), [(True, True), (False, False)])
def test_what_is_here_already_is_no_download(fake_hub: FakeHub, cached: bool, reachable: bool) -> None:
    fake_hub.sizes = {"model.safetensors": 10**15}
    fake_hub.cached, fake_hub.reachable = cached, reachable
    assert load_model(f"owner/cached-{cached}").n_layers == 3


# --- broken and hostile folders ---


class Exploit:
    """Unpickling this would leave a file behind."""

    def __init__(self, trap: Path) -> None:
        self.trap = trap

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trap,)


@pytest.mark.parametrize("content", ["an exploit", "sound weights"])
@pytest.mark.parametrize(
    ("decoy", "words"), [(False, "Only safetensors weights are read"), (True, "could not be loaded")]
)
def test_pickled_weights_are_never_opened(
    spoiled: Folder, tmp_path: Path, content: str, decoy: bool, words: str
) -> None:
    folder, trap = spoiled("llama"), tmp_path / "exploited"
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if content == "an exploit":
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Exploit(trap)))
    else:
        torch.save(weights, folder / "pytorch_model.bin")
    if decoy:
        save_file({"x": torch.zeros(1)}, folder / "decoy.safetensors")
    with pytest.raises(UserError, match=words):
        load_model(folder)
    assert not trap.exists()


def test_code_beside_a_model_is_never_run(spoiled: Folder, tmp_path: Path) -> None:
    folder, trap = spoiled("llama"), tmp_path / "exploited"
    (folder / "evil.py").write_text(f"import pathlib; pathlib.Path({str(trap)!r}).touch()")
    auto_map = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model", "AutoTokenizer": ["evil.T", None]}
    edit_config(folder, model_type="evil", auto_map=auto_map)
    with pytest.raises(UserError, match="could not be loaded"):
        load_model(folder)
    assert not trap.exists()


BROKEN_CONFIGS: dict[str, dict[str, Any]] = {
    "a billion heads": {"num_attention_heads": 10**9, "num_key_value_heads": 10**9, "hidden_size": 10**9},
    "a billion heads of little": {"num_attention_heads": 10**9},
    "a billion layers": {"num_hidden_layers": 10**9},
    "a billion K/V heads": {"num_key_value_heads": 10**9},
    "a billion words": {"vocab_size": 10**9},
    "a billion wide": {"intermediate_size": 10**9},
    "a head a billion wide": {"head_dim": 10**9},
    "minus one layer": {"num_hidden_layers": -1},
    "no layers": {"num_hidden_layers": 0},
    "no K/V heads": {"num_key_value_heads": 0},
    "heads that do not divide": {"num_attention_heads": 7, "num_key_value_heads": 7},
    "groups that do not divide": {"num_key_value_heads": 5},
    "layers in words": {"num_hidden_layers": "three"},
    "no such activation": {"hidden_act": "nope"},
    "no such model": {"model_type": "nope"},
    "no model type": {"model_type": None},
    "more layers than weights": {"num_hidden_layers": 5},
    "another width than the weights": {"hidden_size": 96},
    "more words than weights": {"vocab_size": 62},
    "nulls": {"num_attention_heads": None, "hidden_size": None},
}


@pytest.mark.parametrize("changes", BROKEN_CONFIGS.values(), ids=BROKEN_CONFIGS.keys())
def test_a_config_that_lies_is_one_sentence(spoiled: Folder, changes: dict[str, Any]) -> None:
    with pytest.raises(UserError) as caught:
        load_model(edit_config(spoiled("llama"), **changes))
    assert "\n" not in str(caught.value)
    assert caught.value.next_step


def test_a_bert_config_that_lies_is_one_sentence(spoiled: Folder) -> None:
    with pytest.raises(UserError, match="not a multiple of the number of attention heads"):
        load_model(edit_config(spoiled("bert"), num_attention_heads=7))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "5", '"bert"', "\x00", "{}"])
def test_a_config_that_is_none_is_one_sentence(spoiled: Folder, text: str) -> None:
    folder = spoiled("llama")
    (folder / "config.json").write_text(text)
    with pytest.raises(UserError, match="could not be loaded"):
        load_model(folder)


def test_the_parameter_limit_comes_before_any_weight(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(saved / "llama", tmp_path / "limited"))
    n_params = sum(p.numel() for p in random_module(tiny_config("llama")).parameters())
    read: list[object] = []
    original = AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(
        AutoModelForCausalLM, "from_pretrained", lambda *args, **kw: (read.append(args), original(*args, **kw))[1]
    )
    use_settings(monkeypatch, max_params=n_params - 1)
    with pytest.raises(UserError, match=r"million parameters.*HEADSCOPE_MAX_PARAMS"):
        load_model(folder)
    assert read == []
    use_settings(monkeypatch, max_params=n_params)
    assert load_model(folder).n_params == n_params
    assert len(read) == 1


def test_counting_a_large_model_takes_no_memory() -> None:
    config = tiny_config("llama", hidden_size=4098, intermediate_size=11008, num_hidden_layers=32, vocab_size=32000)
    # Worked by hand: q and o 4098 × 60, k and v 4098 × 20, gate, up and down 4098 × 11008, two norms; two tables.
    layer = 2 * 4098 * 60 + 2 * 4098 * 20 + 3 * 4098 * 11008 + 2 * 4098
    assert check_size(config, 10**12) == 32 * layer + 4098 + 2 * 32000 * 4098
    with pytest.raises(UserError, match=r"4,\d\d\d million parameters"):
        check_size(config, 10**9)


@pytest.mark.parametrize("where", ["model.layers.1.self_attn.q_proj.weight", "model.norm.weight"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers_are_named(spoiled: Folder, where: str, bad: float) -> None:
    folder = edit_weights(spoiled("llama"), lambda tensors: tensors[where].view(-1).__setitem__(3, bad))
    with pytest.raises(UserError, match=f"NaN or infinite numbers in {where}"):
        load_model(folder)


def test_a_missing_weight_is_named_not_made_up(spoiled: Folder) -> None:
    folder = edit_weights(spoiled("llama"), lambda tensors: tensors.pop("model.layers.1.self_attn.q_proj.weight"))
    with pytest.raises(UserError, match=r"lacks 1 of its weights.*model.layers.1.self_attn.q_proj.weight"):
        load_model(folder)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_cut_safetensors_are_one_sentence(spoiled: Folder, share: float) -> None:
    folder = spoiled("llama")
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(UserError, match="could not be loaded"):
        load_model(folder)


def test_a_shard_that_is_gone_is_one_sentence(spoiled: Folder) -> None:
    folder = spoiled("llama")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="could not be loaded"):
        load_model(folder)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_a_missing_tokenizer_is_not_made_up(spoiled: Folder, name: str) -> None:
    folder = spoiled(name)
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(UserError, match="no tokenizer"):
        load_model(folder)


def test_a_broken_tokenizer_is_one_sentence(spoiled: Folder) -> None:
    folder = spoiled("llama")
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="could not be loaded"):
        load_model(folder)


def test_an_encoder_decoder_is_one_sentence(tmp_path: Path) -> None:
    config = T5Config(vocab_size=61, d_model=48, num_layers=1, num_heads=6, d_kv=8, d_ff=40)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
    tiny_tokenizer(encoder=True).save_pretrained(tmp_path / "t5")
    with pytest.raises(UserError, match="type 't5' is neither a text encoder nor a text decoder"):
        load_model(tmp_path / "t5")


@pytest.mark.parametrize("kind", ["absent", "empty", "a file"])
def test_a_path_without_a_model_is_one_sentence(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "empty":
        path.mkdir()
    if kind == "a file":
        path.write_text("hello")
    with pytest.raises(UserError):
        load_model(path)


def test_a_failed_load_is_tried_again(spoiled: Folder, saved: Path) -> None:
    folder = spoiled("llama")
    (folder / "config.json").write_text("{")
    with pytest.raises(UserError):
        load_model(folder)
    shutil.copy(saved / "llama" / "config.json", folder / "config.json")
    assert load_model(folder).n_layers == 3


def test_weights_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = dataclasses.replace(models.BUNDLED[0], package="no-such-package-anywhere")
    with pytest.raises(UserError, match=r"not installed.*make app"):
        models.package_file(absent)
    moved = dataclasses.replace(models.BUNDLED[0], file="elsewhere/model.safetensors")
    with pytest.raises(UserError, match="not installed"):
        models.package_file(moved)


def test_a_changed_bundle_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = tuple(dataclasses.replace(one, sha256="0" * 64) for one in models.BUNDLED)
    monkeypatch.setattr(models, "BUNDLED", changed)
    monkeypatch.setattr(models, "_loaded", type(models._loaded)())
    for one in changed:
        with pytest.raises(UserError, match="SHA-256"):
            load_model(one.id)


def test_prepare_says_what_is_ready(minilm: LoadedModel, smollm: LoadedModel) -> None:
    said: list[str] = []
    models.prepare(said.append)
    assert said == [
        "all-MiniLM-L6-v2: 6 layers × 12 heads, MHA, ready.",
        "SmolLM2-135M-Instruct: 30 layers × 9 heads, GQA, ready.",
    ]


# --- settings ---


def test_settings_are_read_from_the_environment() -> None:
    assert settings_from({}) == Settings()
    read = settings_from(
        {
            "HEADSCOPE_CACHE": "some-folder",
            "HEADSCOPE_ALLOW_HUB": "1",
            "HEADSCOPE_MODEL_FOLDERS": "/a:/b",
            "HEADSCOPE_TRACE_MB": "7",
        }
    )
    assert (read.cache_dir, read.allow_hub, read.trace_mb) == (Path("some-folder"), True, 7)
    assert read.model_folders == (Path("/a"), Path("/b"))
    assert settings_from({"HEADSCOPE_MAX_TOKENS": " "}).max_tokens == 512


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("HEADSCOPE_ALLOW_HUB", "maybe"),
        ("HEADSCOPE_MAX_PARAMS", "2e9"),
        ("HEADSCOPE_THREADS", "0"),
        ("HEADSCOPE_TRACE_MB", "-1"),
    ],
)
def test_a_setting_of_the_wrong_kind_is_named(name: str, word: str) -> None:
    with pytest.raises(UserError, match=f"{name} is '{word}'"):
        settings_from({name: word})


def test_a_loaded_model_is_given_out_while_another_is_loading(
    minilm: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, finish = threading.Event(), threading.Event()

    def slow(model: object) -> LoadedModel:
        begun.set()
        assert finish.wait(30)
        return minilm

    monkeypatch.setattr(models, "_loaded", type(models._loaded)({"all-MiniLM-L6-v2": minilm}))
    monkeypatch.setattr(models, "_load", slow)
    other = threading.Thread(target=models.load_model, args=("another",))
    other.start()
    assert begun.wait(30)
    answered: list[LoadedModel] = []
    mine = threading.Thread(target=lambda: answered.append(models.load_model("all-MiniLM-L6-v2")))
    mine.start()
    mine.join(10)
    assert answered == [minilm]
    finish.set()
    other.join(30)
