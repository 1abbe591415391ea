"""A bad day: disks that are full or read-only, processes killed half-way, files cut short, one cache for two installs.

Run as root these use real file systems; where mounting is not allowed they say so by failing.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from attention import UserError, calibration, load_model, weights_cache
from attention.calibration import Moments
from attention.models import LoadedModel
from attention.settings import Settings
from attention.texts import bundled_text
from tests.test_weights_cache import tiny_gguf as tiny_gguf  # noqa: PLC0414  the same small model in 4 bits, as a fixture
from tests.tiny_models import save_tiny, tiny

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 120.0
# Converts argv[1] into the cache named by HEADSCOPE_CACHE and prints the folder.
CONVERT = (
    "import sys; from pathlib import Path; from attention import weights_cache as w; file = Path(sys.argv[1]); "
    "print('ready', flush=True); sys.stdin.readline(); print(w.converted_gguf(file, w.sha256_of(file))[0], flush=True)"
)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Call it for a small file system in memory, with mount options; it is gone after the test."""
    made: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"disk-{len(made)}"
        folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.fail(f"This test needs root on Linux to mount a small disk, and that was refused: {done.stderr}")
        made.append(folder)
        return folder

    yield mount
    for folder in made:
        subprocess.run(["umount", folder], check=True)


@pytest.fixture
def use_cache(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Path]:
    def use(folder: Path) -> Path:
        for module in (weights_cache, calibration):
            monkeypatch.setattr(module, "settings", lambda: Settings(cache_dir=folder))
        return folder

    return use


def convert(gguf: Path) -> Path:
    return weights_cache.converted_gguf(gguf, weights_cache.sha256_of(gguf))[0]


def converting(gguf: Path, cache: Path) -> subprocess.Popen[str]:
    """A process of its own that is ready to convert and waits for a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", CONVERT, gguf],
        cwd=ROOT,
        env={**os.environ, "HEADSCOPE_CACHE": str(cache), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


# ---- converted weights


def test_a_disk_that_really_is_full(
    tiny_gguf: Path, mounted: Callable[[str], Path], use_cache: Callable[[Path], Path]
) -> None:
    disk = use_cache(mounted("size=400k"))
    with pytest.raises(UserError, match=r"could not be written.*HEADSCOPE_CACHE.*python -m attention.models prepare"):
        convert(tiny_gguf)
    models = disk / "v1" / "models"
    assert [path.name for path in models.iterdir() if path.suffix != ".lock"] == [], "nothing half written stays"
    subprocess.run(["mount", "-o", "remount,size=40m", disk], check=True)
    assert (convert(tiny_gguf) / "model.safetensors").is_file(), "with room made, the same command works"


def test_a_home_that_is_read_only(
    tiny_gguf: Path, mounted: Callable[[str], Path], use_cache: Callable[[Path], Path]
) -> None:
    disk = mounted("size=1m,ro")
    use_cache(disk / ".cache" / "headscope")
    with pytest.raises(UserError, match=r"could not be written.*Read-only file system"):
        convert(tiny_gguf)
    model = tiny("llama", hidden_size=72)
    assert not calibration.is_measured(model)
    assert isinstance(measured_fast(model), Moments), "what cannot be kept is measured and used all the same"


def test_a_read_only_cache_that_is_complete_is_used(
    tiny_gguf: Path, mounted: Callable[[str], Path], use_cache: Callable[[Path], Path]
) -> None:
    disk = use_cache(mounted("size=40m"))
    folder = convert(tiny_gguf)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    assert convert(tiny_gguf) == folder


def test_two_installs_that_share_a_cache_convert_once(
    tiny_gguf: Path, tmp_path: Path, use_cache: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_cache(tmp_path)
    done: list[Path] = []
    original = weights_cache._convert
    monkeypatch.setattr(weights_cache, "_convert", lambda *given: (done.append(given[2]), original(*given)))
    other = converting(tiny_gguf, tmp_path)
    begin(other)
    folder = convert(tiny_gguf)
    assert other.communicate(timeout=PATIENCE)[0].strip() == str(folder)
    assert other.returncode == 0
    assert weights_cache._is_sound(folder)
    assert len(done) <= 1
    assert [path.name for path in folder.parent.glob(".*")] == []


def test_a_conversion_that_was_killed_leaves_nothing_that_counts(
    tiny_gguf: Path, tmp_path: Path, use_cache: Callable[[Path], Path]
) -> None:
    use_cache(tmp_path)
    process = converting(tiny_gguf, tmp_path)
    begin(process)
    models, pause, end = tmp_path / "v1" / "models", threading.Event(), time.monotonic() + PATIENCE
    while not list(models.glob(".*-*")):  # the temporary folder: the conversion has begun and is not done
        assert time.monotonic() < end, "the conversion never began"
        pause.wait(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait(PATIENCE) == -signal.SIGKILL
    assert not weights_cache.is_converted(tiny_gguf)
    assert weights_cache._is_sound(convert(tiny_gguf)), "the lock of the dead holds nobody up"
    assert not list(models.glob(".*-*"))


# ---- models


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_model_file_cut_short_is_refused_with_a_sentence(tmp_path: Path, share: float) -> None:
    file = save_tiny(tmp_path / "model", "llama") / "model.safetensors"
    os.truncate(file, int(file.stat().st_size * share))
    with pytest.raises(UserError, match=r"could not be loaded.*Check the files"):
        load_model(file.parent)


# ---- measured keys and values


def small_moments(model: LoadedModel, fill: float = 1.0) -> Moments:
    width = sum(projection.out_features for projection in model.kv_projections[0])
    sizes = (model.n_layers, width)
    return Moments(np.full((*sizes, width), fill), np.full(sizes, fill), 8, bundled_text("calibration").sha256)


def measured_fast(model: LoadedModel) -> Moments:
    """Keys and values as from the disk or measured, where measuring itself takes no time and fills in twos."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "measure", lambda model, text, say=None: small_moments(model, 2.0))
        return calibration._from_disk_or_measured(model, None)


def pack(folder: Path, **parts: bytes) -> None:
    with zipfile.ZipFile(folder / "moments.npz", "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in parts.items():
            packed.writestr(f"{name}.npy", content)


def resigned(folder: Path) -> None:
    """Make the manifest agree with the file, as somebody would who wants it believed."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["sha256"] = weights_cache.sha256_of(folder / "moments.npz")
    (folder / "manifest.json").write_text(json.dumps(manifest))


def zeros_without_end(folder: Path) -> None:
    with zipfile.ZipFile(folder / "moments.npz", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in ("energy", "mean"):
            with packed.open(f"{name}.npy", "w", force_zip64=True) as part:
                np.lib.format.write_array_header_1_0(part, {"descr": "<f8", "fortran_order": False, "shape": (2**20,)})
                part.write(bytes(2**23))


def other_shape(folder: Path) -> None:
    np.savez(folder / "moments.npz", energy=np.ones((1, 2, 2)), mean=np.ones((1, 2)))


def not_numbers(folder: Path) -> None:
    with np.load(folder / "moments.npz") as kept:
        np.savez(folder / "moments.npz", energy=kept["energy"] * np.nan, mean=kept["mean"])


def a_pickle(folder: Path) -> None:
    np.savez(folder / "moments.npz", energy=np.array([{"a": 1}], dtype=object), mean=np.ones(1))


SPOILED: dict[str, Callable[[Path], object]] = {
    "cut in half": lambda folder: os.truncate(folder / "moments.npz", (folder / "moments.npz").stat().st_size // 2),
    "empty": lambda folder: os.truncate(folder / "moments.npz", 0),
    "gone": lambda folder: (folder / "moments.npz").unlink(),
    "a folder": lambda folder: ((folder / "moments.npz").unlink(), (folder / "moments.npz").mkdir()),
    "no archive": lambda folder: (folder / "moments.npz").write_bytes(b"PK not really"),
    "zeros without end": zeros_without_end,
    "another shape": other_shape,
    "not numbers": not_numbers,
    "a pickle": a_pickle,
    "an array missing": lambda folder: pack(folder, energy=b""),
    "manifest empty": lambda folder: (folder / "manifest.json").write_text(""),
    "manifest a list": lambda folder: (folder / "manifest.json").write_text("[]"),
}


@pytest.mark.parametrize("believed", [False, True], ids=["checksum as it was", "checksum made to agree"])
@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED.keys())
def test_moments_that_are_not_what_they_should_be_are_measured_again(
    tmp_path: Path, use_cache: Callable[[Path], Path], spoil: Callable[[Path], object], believed: bool
) -> None:
    use_cache(tmp_path)
    model = tiny("llama")
    text = bundled_text("calibration")
    folder = calibration._folder(model, text)
    folder.mkdir(parents=True)
    calibration._write(folder, small_moments(model), model)
    assert calibration.is_measured(model)
    assert measured_fast(model).mean.max() == 1.0, "sound ones are taken from the disk"
    spoil(folder)
    if believed and (folder / "moments.npz").is_file() and (folder / "manifest.json").read_text().startswith("{"):
        resigned(folder)
    assert not calibration.is_measured(model)
    assert measured_fast(model).mean.max() == 2.0
    assert calibration.is_measured(model), "and kept, sound again"


def test_an_archive_that_holds_too_much_is_not_unpacked(
    tmp_path: Path, use_cache: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_cache(tmp_path)
    model = tiny("llama")
    folder = calibration._folder(model, bundled_text("calibration"))
    folder.mkdir(parents=True)
    calibration._write(folder, small_moments(model), model)
    zeros_without_end(folder)
    resigned(folder)
    unpacked: list[object] = []
    monkeypatch.setattr(calibration.np, "load", lambda *given, **_: unpacked.append(given))
    assert not calibration.is_measured(model)
    assert unpacked == []


def test_a_full_disk_costs_one_measuring_not_two(
    mounted: Callable[[str], Path], use_cache: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = use_cache(mounted("size=64k"))
    (disk / "fills it").write_bytes(bytes(40_000))
    model = tiny("llama")
    times: list[int] = []

    def measure(model: LoadedModel, text: object, say: object = None) -> Moments:
        times.append(1)
        return small_moments(model)

    monkeypatch.setattr(calibration, "measure", measure)
    assert calibration._from_disk_or_measured(model, None).n_tokens == 8
    assert times == [1]
    assert not calibration.is_measured(model)
    assert not list((disk / "v1" / "bases").glob(".*")), "nothing half written stays"


def test_what_a_killed_measuring_left_is_cleared(tmp_path: Path, use_cache: Callable[[Path], Path]) -> None:
    use_cache(tmp_path)
    model = tiny("llama")
    folder = calibration._folder(model, bundled_text("calibration"))
    left = folder.parent / f".{folder.name}-killed"
    left.mkdir(parents=True)
    (left / "moments.npz").write_bytes(b"half")
    measured_fast(model)
    assert not left.exists()
    shutil.rmtree(folder)
