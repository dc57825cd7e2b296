"""Where in the user's text an error arises: the line, with a caret under the expression."""

from __future__ import annotations

import linecache
import os
import traceback

import torch

_PLACES = (torch.__file__, os.path.dirname(__file__), os.__file__)
_FOREIGN = tuple(os.path.dirname(os.path.abspath(p)) + os.sep for p in _PLACES)


def marked(line: str, start: int, end: int) -> str:
    """A line of the user's text (with its end) and carets under the columns [start, end), on lines of their own."""
    indent = len(line) - len(line.lstrip())
    carets = " " * max(start - indent, 0) + "^" * max(end - start, 1)
    return f"\n    {line.strip()}\n    {carets}"


def innermost(error: BaseException) -> str:
    """The innermost line of the user that raised the error, marked; empty where there is none."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_FOREIGN)]
    frames = [
        f for f in frames if not f.filename.startswith("<frozen") and linecache.getline(f.filename, f.lineno or 0)
    ]
    if not frames or frames[-1].lineno is None:
        return ""
    frame, line = frames[-1], linecache.getline(frames[-1].filename, frames[-1].lineno)
    start = frame.colno or 0
    one_line = frame.end_lineno == frame.lineno and frame.end_colno is not None
    return marked(line, start, frame.end_colno if one_line and frame.end_colno else len(line.rstrip()))
