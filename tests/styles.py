"""What a component's style gives its names in either theme, to hold against attention/plots/colours.py."""

from __future__ import annotations

import re


def properties_in(style: str, theme: str) -> dict[str, str]:
    """Every ``--hs-name: value`` in a theme; where a name comes twice, the later value counts, as in a browser."""
    blocks = re.findall(r"([^{}]+)\{([^{}]*)\}", style)
    light = [body for selector, body in blocks if "data-theme" not in selector]
    dark = [body for selector, body in blocks if '[data-theme="dark"]' in selector]
    return dict(re.findall(r"--hs-([\w-]+): ([^;]+);", " ".join(light if theme == "light" else light + dark)))
