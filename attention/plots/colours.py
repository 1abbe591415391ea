"""One colour per concept, on every page and in both themes. The letter is always printed as well."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Colour:
    """A concept's colour on a light and on a dark ground; contrast with either ground is at least 4.5.

    The six below stay apart for eyes without one kind of cone as well (tests/test_colour_vision.py).
    """

    light: str
    dark: str

    def on(self, theme: str) -> str:
        """The shade for ``"light"`` or ``"dark"``."""
        return self.dark if theme == "dark" else self.light


QUERY = Colour("#1d4ed8", "#8ab0ff")
KEY = Colour("#a8480a", "#f5a35c")
VALUE = Colour("#0b7350", "#4fd1a1")
LATENT = Colour("#8f478a", "#d57ecd")
CACHE = Colour("#0f4354", "#88ecf4")
BROKEN = Colour("#8b0f1a", "#ff6b76")

# Weights run 0 -> 1 on one sequential scale, light to dark blue; differences on one diverging scale about 0.
WEIGHT_SCALE = ((0.0, "#f7faff"), (0.25, "#bcd0f5"), (0.5, "#7596dc"), (0.75, "#3a5bb5"), (1.0, "#12256b"))
DIFFERENCE_SCALE = ((0.0, "#8c3b00"), (0.25, "#e8a56b"), (0.5, "#f7f7f7"), (0.75, "#7ba3e0"), (1.0, "#123f94"))
WEIGHT_SCALE_DARK = ((0.0, "#1d2026"), (0.25, "#2c4374"), (0.5, "#4a70bf"), (0.75, "#8ab0ff"), (1.0, "#eaf1ff"))
