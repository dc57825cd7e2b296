"""What the user wrote, as refusals repeat it: on one line, and cut where it is long."""

from __future__ import annotations

LONGEST = 60  # characters
BESIDE = 15  # characters on either side of a place in a text


def cut(text: str, most: int = LONGEST) -> str:
    """The text, with dots for the end of one of more characters."""
    return text if len(text) <= most else text[: most - 3] + "..."


def echoed(value: object) -> str:
    """The text in quotes, or another value as it prints."""
    return repr(cut(value)) if isinstance(value, str) else cut(repr(value))


def around(text: str, start: int) -> str:
    """The piece of the text around a place, in quotes, with dots for what it leaves out."""
    left, right = max(start - BESIDE, 0), start + 2 * BESIDE
    return repr("..." * (left > 0) + text[left:right] + "..." * (right < len(text)))
