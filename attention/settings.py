"""Every HEADSCOPE_* setting, read once. The only module that looks at the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from attention.errors import UserError

TRUE_WORDS = {"1", "true", "yes", "on"}
DEFAULT_CACHE = Path("~/.cache/headscope").expanduser()
# A host's name or number (an IPv6 one in brackets) and a port: no user, path or query.
_ADDRESS = re.compile(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
FALSE_WORDS = {"0", "false", "no", "off", ""}


@dataclass(frozen=True)
class Settings:
    """What the owner of an installation may choose; README lists each in one table."""

    cache_dir: Path = DEFAULT_CACHE
    allow_hub: bool = False
    model_folders: tuple[Path, ...] = ()
    max_params: int = 2_000_000_000
    max_tokens: int = 512
    max_chars: int = 20_000
    trace_mb: int = 512
    forward_slots: int = 2
    threads: int = 1
    max_visitors: int = 300
    heavy_jobs: int = 2
    engine: str = ""


def settings_from(environ: Mapping[str, str]) -> Settings:
    """Settings from a mapping of environment variables. Raises UserError on a value of the wrong kind."""
    default = Settings()
    return Settings(
        cache_dir=Path(environ.get("HEADSCOPE_CACHE") or default.cache_dir).expanduser(),
        allow_hub=_flag(environ, "HEADSCOPE_ALLOW_HUB", default.allow_hub),
        model_folders=tuple(
            Path(part).expanduser()
            for part in environ.get("HEADSCOPE_MODEL_FOLDERS", "").split(os.pathsep)
            if part.strip()
        ),
        max_params=_count(environ, "HEADSCOPE_MAX_PARAMS", default.max_params),
        max_tokens=_count(environ, "HEADSCOPE_MAX_TOKENS", default.max_tokens),
        max_chars=_count(environ, "HEADSCOPE_MAX_CHARS", default.max_chars),
        trace_mb=_count(environ, "HEADSCOPE_TRACE_MB", default.trace_mb),
        forward_slots=_count(environ, "HEADSCOPE_FORWARD_SLOTS", default.forward_slots),
        threads=_count(environ, "HEADSCOPE_THREADS", default.threads),
        max_visitors=_count(environ, "HEADSCOPE_MAX_VISITORS", default.max_visitors),
        heavy_jobs=_count(environ, "HEADSCOPE_HEAVY_JOBS", default.heavy_jobs),
        engine=_address(environ, "HEADSCOPE_ENGINE", default.engine),
    )


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of this process, read from the environment on first use."""
    return settings_from(os.environ)


def _flag(environ: Mapping[str, str], name: str, default: bool) -> bool:
    word = environ.get(name)
    if word is None:
        return default
    if word.strip().lower() in TRUE_WORDS:
        return True
    if word.strip().lower() in FALSE_WORDS:
        return False
    raise UserError(f"{name} is {word!r}.", "It takes 1 or 0.", "Correct the setting and start again.")


def _address(environ: Mapping[str, str], name: str, default: str) -> str:
    word = (environ.get(name) or "").strip().rstrip("/")
    if not word:
        return default
    if not _ADDRESS.fullmatch(word) or int(word.rpartition(":")[2]) > 65_535:
        raise UserError(
            f"{name} is {word!r}.",
            "It takes the address of an engine, such as http://127.0.0.1:8600.",
            "Correct the setting and start again.",
        )
    return word


def _count(environ: Mapping[str, str], name: str, default: int) -> int:
    word = environ.get(name)
    if word is None or not word.strip():
        return default
    try:
        number = int(word)
    except ValueError:
        number = 0
    if number < 1:
        raise UserError(
            f"{name} is {word!r}.", "It takes a whole number from 1 up.", "Correct the setting and start again."
        )
    return number
