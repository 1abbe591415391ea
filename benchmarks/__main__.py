"""``python -m benchmarks``: measure against peers in the same run, print one table, keep every run as JSON.

``--only tracing`` (several may follow) measures a part; ``--quick`` takes about a quarter of the time.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.ratios import Row, as_json, table
from benchmarks.server import ROOT

RESULTS = ROOT / "benchmarks" / "results"
# In the order of the table; each module has measure(quick) -> rows.
MEASURES = (
    "tracing",
    "viewer_bytes",
    "browser",
    "shapes",
    "ladder",
    "planner",
    "numpy_heads",
    "growth",
    "cold_start",
    "memory",
    "engines",
)
PACKAGES = ("torch", "transformers", "streamlit", "plotly", "numpy")
BUSY = 1.0  # other processes waiting for a core, beyond which the figures are marked


def main(arguments: list[str] | None = None) -> int:
    """Measure and print. 0 when every part ran and every target is met, else 1."""
    chosen = _options(arguments)
    _quiet()
    rows: list[Row] = []
    failed: list[str] = []
    before = _load()
    for name in chosen.only or MEASURES:
        began = time.monotonic()
        print(f"Measuring {name}…", file=sys.stderr, flush=True)
        try:
            rows += importlib.import_module(f"benchmarks.{name}").measure(chosen.quick)
        except Exception as error:  # the other parts' figures must not be lost with this one's
            traceback.print_exc()
            failed.append(f"{name} ({type(error).__name__})")
        print(f"  {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(table(rows))
    print(
        f"\nMedians; in brackets the middle half of the runs. {os.cpu_count()} cores, load {before:.1f} at the start."
    )
    if before > BUSY:
        print("Other programs were running: take the ratios, not the times.")
    print(f"Every run is in {keep(rows, chosen.quick, before).relative_to(ROOT)}.")
    if failed:
        print("Not measured, the error is above: " + "; ".join(failed))
    missed = [row.measure for row in rows if row.met is False]
    if missed:
        print("Missed: " + "; ".join(name.strip() for name in missed))
    return 1 if missed or failed else 0


def keep(rows: list[Row], quick: bool, load: float, folder: Path = RESULTS) -> Path:
    """Write every run of every row, and the machine they ran on, to a JSON file named by the time."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{time.strftime('%Y-%m-%d-%H%M%S')}.json"
    path.write_text(json.dumps({"machine": machine(load), "quick": quick, "rows": as_json(rows)}, indent=1) + "\n")
    return path


def machine(load: float) -> dict[str, Any]:
    """What the figures depend on besides the code."""
    return {
        "cores": os.cpu_count(),
        "load_at_start": load,
        "python": platform.python_version(),
        "system": platform.platform(),
        **{name: version(name) for name in PACKAGES},
    }


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=MEASURES, metavar="PART", help=f"of {', '.join(MEASURES)}")
    parser.add_argument("--quick", action="store_true", help="fewer runs: about a quarter of the time")
    return parser.parse_args(arguments)


def _quiet() -> None:
    """Progress bars of the libraries, here and in every process started, would bury the table."""
    os.environ |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1"}


def _load() -> float:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


if __name__ == "__main__":
    sys.exit(main())
