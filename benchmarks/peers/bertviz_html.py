"""Peer: the HTML that BertViz's ``head_view`` makes, run as a process of its own.

Started with one .npz file per trace, each holding ``weights`` (layer, head, query, key) and ``tokens``;
prints the HTML's bytes, one number per line.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any


class _Text:
    """What BertViz needs of IPython: something that holds a string as ``data``."""

    def __init__(self, data: str) -> None:
        self.data = data


def stand_in_for_ipython() -> None:
    """Let BertViz import where there is no notebook: it only wraps strings in IPython's HTML and Javascript."""
    if importlib.util.find_spec("IPython"):
        return
    package, display = ModuleType("IPython"), ModuleType("IPython.display")
    names: dict[str, Any] = {"HTML": _Text, "Javascript": _Text, "display": print}
    display.__dict__.update(names)

    sys.modules |= {"IPython": package, "IPython.display": display}


def main(files: list[str]) -> int:
    """Print the size of each file's page."""
    stand_in_for_ipython()
    import numpy as np
    import torch
    from bertviz import head_view  # type: ignore[import-not-found]

    for file in files:
        with np.load(file) as kept:
            attention = [torch.from_numpy(layer)[None] for layer in kept["weights"]]
            page = head_view(attention, [str(token) for token in kept["tokens"]], html_action="return")
        print(len(page.data.encode()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
