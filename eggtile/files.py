"""Files that commands write: one that cannot be written is named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eggtile.plan import RequestError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the file that cannot be written; where the disk is full, the system does not."""
    try:
        yield
    except OSError as e:
        raise RequestError(f"{path} cannot be written: {e.strerror or e}") from None


def write(path: Path, content: str | bytes) -> None:
    """Write the whole file."""
    with writing(path):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
