"""Converted weights on disk: equal to gguf's own dequantiser, and rebuilt or refused when anything is wrong."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file

from attention import UserError, trace, weights_cache
from attention.models import BUNDLED, LoadedModel, _from_folder, package_file
from attention.settings import Settings

D_MODEL, N_HEADS, N_KV_HEADS, D_HEAD, D_INNER = 96, 6, 2, 16, 64
NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def unpermuted(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """GGUF keeps the two halves that RoPE turns together side by side; safetensors keep them half a head apart."""
    return np.ascontiguousarray(rows.reshape(n_heads, -1, 2, rows.shape[-1]).swapaxes(1, 2)).reshape(rows.shape)


def expected_tensors(file: Path, n_heads: int, n_kv_heads: int) -> dict[str, np.ndarray]:
    """Every tensor of a GGUF through gguf's own dequantiser, under the names of transformers."""
    tensors = {}
    for tensor in gguf.GGUFReader(file).tensors:
        numbers = dequantize(tensor.data, tensor.tensor_type)
        if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", tensor.name):
            heads = {"attn_q": n_heads, "attn_k": n_kv_heads}.get(match[2])
            numbers = unpermuted(numbers, heads) if heads else numbers
            tensors[f"model.layers.{match[1]}.{NAMES[match[2]]}.weight"] = numbers
        else:
            names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
            tensors[names[tensor.name]] = numbers
    return tensors


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer Llama in 4 bits with a byte-level tokenizer: converted in a second instead of twenty."""
    file = tmp_path_factory.mktemp("source") / "tiny.Q4_1.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(D_MODEL)
    writer.add_feed_forward_length(D_INNER)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_KV_HEADS)
    writer.add_rope_dimension_count(D_HEAD)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens += [chr(byte) for byte in printable] + [chr(0x100 + rank) for rank in range(256 - len(printable))]
    tokens += ["th", "the", "Ġt"]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["t h", "th e", "Ġ t"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    generator = np.random.default_rng(0)
    shapes = {
        "attn_q": (N_HEADS * D_HEAD, D_MODEL),
        "attn_k": (N_KV_HEADS * D_HEAD, D_MODEL),
        "attn_v": (N_KV_HEADS * D_HEAD, D_MODEL),
        "attn_output": (D_MODEL, N_HEADS * D_HEAD),
        "ffn_gate": (D_INNER, D_MODEL),
        "ffn_up": (D_INNER, D_MODEL),
        "ffn_down": (D_MODEL, D_INNER),
    }
    four_bits, eight_bits = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0
    embedding = generator.normal(size=(len(tokens), D_MODEL)).astype(np.float32)
    writer.add_tensor("token_embd.weight", quantize(embedding, eight_bits), raw_dtype=eight_bits)
    for layer in range(2):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", generator.normal(1, 0.1, D_MODEL).astype(np.float32))
        for name, shape in shapes.items():
            numbers = (0.2 * generator.normal(size=shape)).astype(np.float32)
            writer.add_tensor(f"blk.{layer}.{name}.weight", quantize(numbers, four_bits), raw_dtype=four_bits)
    writer.add_tensor("output_norm.weight", np.ones(D_MODEL, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture(scope="module")
def converted(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the tiny conversion in it, to be copied and spoiled."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights_cache, "settings", lambda: Settings(cache_dir=cache))
        weights_cache.converted_gguf(tiny_gguf, weights_cache.sha256_of(tiny_gguf))
    return cache


@pytest.fixture
def cache(converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copied = tmp_path / "cache"
    shutil.copytree(converted, copied)
    monkeypatch.setattr(weights_cache, "settings", lambda: Settings(cache_dir=copied))
    return copied


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    done: list[Path] = []
    original = weights_cache._convert

    def counted(source: Path, sha256: str, folder: Path) -> None:
        done.append(folder)
        original(source, sha256, folder)

    monkeypatch.setattr(weights_cache, "_convert", counted)
    return done


def ask(source: Path) -> Path:
    return weights_cache.converted_gguf(source, weights_cache.sha256_of(source))[0]


def assert_same_tensors(folder: Path, expected: dict[str, np.ndarray]) -> None:
    found = load_file(folder / "model.safetensors")
    assert set(found) == set(expected)
    for name, numbers in expected.items():
        assert found[name].dtype == torch.float32
        assert np.array_equal(found[name].numpy(), numbers), name


def test_smollm2_equals_the_dequantiser(smollm: LoadedModel) -> None:
    bundled = next(one for one in BUNDLED if one.id == smollm.id)
    expected = expected_tensors(package_file(bundled), 9, 3)
    assert len(expected) == 272
    loaded = dict(smollm.model.named_parameters())
    assert set(loaded) == set(expected)
    for name, numbers in expected.items():
        assert np.array_equal(loaded[name].numpy(), numbers), name
    assert smollm.model.lm_head.weight.data_ptr() == smollm.model.model.embed_tokens.weight.data_ptr()


def test_a_tiny_gguf_equals_the_dequantiser_and_traces(tiny_gguf: Path, cache: Path) -> None:
    folder = ask(tiny_gguf)
    assert_same_tensors(folder, expected_tensors(tiny_gguf, N_HEADS, N_KV_HEADS))
    loaded = _from_folder(folder, id="tiny", title="tiny")
    assert (loaded.layout.n_heads, loaded.layout.n_kv_heads, loaded.layout.d_head) == (6, 2, 16)
    traced = trace(loaded, "the 🙂 the", start="<|im_start|>")
    assert traced.tokens[0].special
    assert np.isfinite(traced.weights).all()


def test_the_folder_is_laid_out_as_written_down(tiny_gguf: Path, cache: Path) -> None:
    sha256 = weights_cache.sha256_of(tiny_gguf)
    folder = ask(tiny_gguf)
    assert folder == cache / "v1" / "models" / sha256[:12]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["schema"], manifest["source_sha256"], manifest["source"]) == (1, sha256, "tiny.Q4_1.gguf")
    assert manifest["command"] == "python -m attention.models prepare"
    assert {"torch", "transformers", "gguf", "safetensors"} <= set(manifest["versions"])
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(manifest["files"])
    for name, fact in manifest["files"].items():
        assert fact["sha256"] == weights_cache.sha256_of(folder / name)
    assert not list(folder.parent.glob(".*")), "no temporary folder stays"


def test_a_sound_conversion_is_not_done_again(tiny_gguf: Path, cache: Path, conversions: list[Path]) -> None:
    assert weights_cache.is_converted(tiny_gguf)
    ask(tiny_gguf)
    assert conversions == []


def flip_a_byte(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as handle:
        handle.seek(-100, os.SEEK_END)
        byte = handle.read(1)
        handle.seek(-1, os.SEEK_CUR)
        handle.write(bytes([byte[0] ^ 0xFF]))


def cut_in_half(folder: Path) -> None:
    file = folder / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)


def rewrite_manifest(folder: Path, **changes: Any) -> None:
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


SPOILED = {
    "a byte flipped": flip_a_byte,
    "weights cut in half": cut_in_half,
    "weights gone": lambda folder: (folder / "model.safetensors").unlink(),
    "tokenizer gone": lambda folder: (folder / "tokenizer.json").unlink(),
    "manifest gone": lambda folder: (folder / "manifest.json").unlink(),
    "manifest half written": lambda folder: (folder / "manifest.json").write_text('{"schema": 1, "fil'),
    "manifest empty": lambda folder: (folder / "manifest.json").write_text(""),
    "manifest not text": lambda folder: (folder / "manifest.json").write_bytes(b"\xff\xfe\x00"),
    "manifest a list": lambda folder: (folder / "manifest.json").write_text("[]"),
    "manifest without files": lambda folder: rewrite_manifest(folder, files=None),
    "files a list": lambda folder: rewrite_manifest(folder, files=[1]),
    "another schema": lambda folder: rewrite_manifest(folder, schema=0),
    "folder empty": lambda folder: (shutil.rmtree(folder), folder.mkdir()),
    "folder gone": shutil.rmtree,
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED.keys())
def test_a_spoiled_conversion_is_rebuilt(tiny_gguf: Path, cache: Path, conversions: list[Path], spoil: Any) -> None:
    folder = ask(tiny_gguf)
    spoil(folder)
    assert not weights_cache.is_converted(tiny_gguf)
    assert ask(tiny_gguf) == folder
    assert conversions == [folder]
    assert_same_tensors(folder, expected_tensors(tiny_gguf, N_HEADS, N_KV_HEADS))
    assert weights_cache.is_converted(tiny_gguf)


def test_a_copied_cache_is_still_sound(tiny_gguf: Path, cache: Path, conversions: list[Path]) -> None:
    for file in ask(tiny_gguf).iterdir():
        os.utime(file, (1, 1))
    ask(tiny_gguf)
    assert conversions == []


def test_what_a_killed_conversion_left_is_cleared(tiny_gguf: Path, cache: Path) -> None:
    folder = ask(tiny_gguf)
    shutil.rmtree(folder)
    left = folder.parent / f".{folder.name}-killed"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    ask(tiny_gguf)
    assert not left.exists()


def test_several_who_ask_at_once_convert_once(tiny_gguf: Path, cache: Path, conversions: list[Path]) -> None:
    shutil.rmtree(ask(tiny_gguf))
    together = threading.Barrier(4)

    def visitor(_: int) -> Path:
        together.wait()
        return ask(tiny_gguf)

    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(visitor, range(4)))
    assert len(folders) == len(conversions) == 1


def test_a_changed_source_is_refused(tiny_gguf: Path, cache: Path, tmp_path: Path, conversions: list[Path]) -> None:
    expected = weights_cache.sha256_of(tiny_gguf)
    changed = tmp_path / "tiny.Q4_1.gguf"
    content = bytearray(tiny_gguf.read_bytes())
    content[-5] ^= 1
    changed.write_bytes(content)
    with pytest.raises(UserError, match=f"should start {expected[:12]}.*Reinstall"):
        weights_cache.converted_gguf(changed, expected)
    assert conversions == []


def test_a_source_changed_while_the_process_runs_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "weights.bin"
    file.write_bytes(b"right")
    expected = weights_cache.sha256_of(file)
    assert weights_cache.checked_sha256(file, expected) == expected
    file.write_bytes(b"wrong, and longer")
    with pytest.raises(UserError, match=r"weights.bin is not the file"):
        weights_cache.checked_sha256(file, expected)


def test_a_cache_folder_that_is_a_file(tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setattr(weights_cache, "settings", lambda: Settings(cache_dir=blocked))
    with pytest.raises(UserError, match=r"could not be written.*HEADSCOPE_CACHE"):
        ask(tiny_gguf)
    assert blocked.read_text() == "not a folder"


@pytest.mark.parametrize("failure", ["rename", "weights", "read-only"])
def test_a_disk_that_says_no(tiny_gguf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, failure: str) -> None:
    folder = ask(tiny_gguf)
    shutil.rmtree(folder)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def full_for_safetensors(*_: Any, **__: Any) -> None:
        # What safetensors 0.6 really raises on a full disk: an error that is no OSError.
        raise weights_cache.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    def read_only(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    target = {
        "rename": ("attention.weights_cache.os.replace", full),
        "weights": ("safetensors.torch.save_file", full_for_safetensors),
        "read-only": ("attention.weights_cache.tempfile.mkdtemp", read_only),
    }[failure]
    monkeypatch.setattr(*target)
    reason = "Read-only file system" if failure == "read-only" else "No space left on device"
    with pytest.raises(UserError, match=f"could not be written.*{reason}.*Make room or set HEADSCOPE_CACHE"):
        ask(tiny_gguf)
    assert not folder.exists()
    assert not list(folder.parent.glob(".*")), "nothing half written stays"


def test_the_digest_of_several_files_depends_on_each_and_on_order(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"a")
    b.write_bytes(b"b")
    digests = {weights_cache.sha256_of_files(files) for files in ([a], [b], [a, b], [b, a])}
    assert len(digests) == 4
    # FIPS 180-2: SHA-256 of the letter a.
    assert weights_cache.sha256_of_files([a]) == "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
