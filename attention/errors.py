"""The one error type for mistakes a person can mend."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake of the person asking, told in three short parts.

    Parameters are plain sentences or sentence fragments: ``wrong`` says what is
    wrong (with the value got), ``allowed`` what would be accepted, ``next_step``
    what to do. ``str(error)`` joins them; a page shows exactly that.
    """

    def __init__(self, wrong: str, allowed: str = "", next_step: str = "") -> None:
        self.wrong = wrong.strip()
        self.allowed = allowed.strip()
        self.next_step = next_step.strip()
        super().__init__(" ".join(part for part in (self.wrong, self.allowed, self.next_step) if part))

    def __reduce__(self) -> tuple[type[UserError], tuple[str, str, str]]:
        return type(self), (self.wrong, self.allowed, self.next_step)
