"""Where in the user's text an error arises: the line, the column and the piece of text there, within the sentence."""

from __future__ import annotations

import linecache
import os
import traceback

import torch

from eggtile.echo import around

_PLACES = (torch.__file__, os.path.dirname(__file__), os.__file__)
_FOREIGN = tuple(os.path.dirname(os.path.abspath(p)) + os.sep for p in _PLACES)


def marked(line: str, start: int) -> str:
    """Where in a line of the user's text an error arises, as the end of a sentence."""
    text, indent = line.strip(), len(line) - len(line.lstrip())
    return f", at column {start + 1}, by {around(text, max(start - indent, 0))}" if text else ""


def innermost(error: BaseException) -> str:
    """The innermost line of the user that raised the error, as the end of a sentence; empty where there is none."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_FOREIGN)]
    frames = [
        f for f in frames if not f.filename.startswith("<frozen") and linecache.getline(f.filename, f.lineno or 0)
    ]
    if not frames or frames[-1].lineno is None:
        return ""
    frame, line = frames[-1], linecache.getline(frames[-1].filename, frames[-1].lineno)
    file = "" if frame.filename.startswith("<") else f" of {frame.filename}"
    return f", in line {frame.lineno}{file}{marked(line, frame.colno or 0)}"
