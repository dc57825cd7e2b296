"""Points of a schedule space: lines as numbers, which a search changes one by one."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from extract.roles import cluster, folding, listed_tiles, pieces, threads
from extract.warps import LANES
from ir.node import IRError
from ir.schedule import Schedule, schedule


@dataclass(frozen=True)
class Point:
    """A choice of the space: threads, the tile of each axis over 1, one vector, how folds go, a cluster's blocks, hints.

    `stage` is how loads go through shared memory, if they do.
    """

    threads: int
    tiles: tuple[tuple[str, int], ...]
    vector_axis: str = ""
    vector: int = 1
    reduce: str = "block"
    pieces: int = 1
    cluster: int = 1
    store: str = ""
    stage: str = ""

    @property
    def units(self) -> int:
        """Threads that take a piece of a sweep in a cluster, a block or a warp; 0 where launches or nobody take pieces."""
        apart = self.cluster > 1 and self.pieces > 1
        return (LANES if self.reduce == "lanes" else self.threads) if apart else 0

    def line(self) -> Schedule:
        """The canonical line."""
        listed = [
            f"{a}:{n}" + (f"/v{self.vector}" if a == self.vector_axis and self.vector > 1 else "")
            for a, n in self.tiles
        ]
        work = f"t{self.threads}" + (f"+c{self.cluster}" if self.cluster > 1 else "")
        fields = {"WORK": work} | ({"TILE": ",".join(listed)} if listed else {})
        words = [self.reduce] if self.reduce != "block" else []
        words += [f"split{self.pieces}"] if self.pieces > 1 else []
        fields |= {"STAGE": self.stage} if self.stage else {}
        fields |= ({"REDUCE": "+".join(words)} if words else {}) | ({"STORE": self.store} if self.store else {})
        return schedule(**fields)

    def tiled(self, axis: str, tile: int) -> Point:
        """The point with another tile of one axis."""
        tiles = [t for t in self.tiles if t[0] != axis]
        return self._with(
            tuple(sorted([*tiles, (axis, tile)]) if tile > 1 else tiles), self.vector_axis, self.vector
        )

    def with_vector(self, axis: str, vector: int) -> Point:
        """The point with a vector along an axis, as far as its tile reaches."""
        return self._with(self.tiles, axis, vector)

    def _with(self, tiles: tuple[tuple[str, int], ...], axis: str, vector: int) -> Point:
        vector = min(vector, max([n for a, n in tiles if a == axis], default=1))
        rest = self.reduce, self.pieces, self.cluster, self.store, self.stage  # half the time of `replace`
        return Point(self.threads, tiles, axis if vector > 1 else "", vector, *rest)


def point(line: Schedule) -> Point:
    """The point of a line that is not the fall-back; raises where more than one axis has a vector."""
    listed = listed_tiles(line)
    vectors = [(a, v) for a, (_, v) in listed.items() if v > 1]
    if len(vectors) > 1:
        raise IRError(f"TILE: {vectors[0][0]} and {vectors[1][0]} both have a vector")
    tiles = tuple(sorted((a, n) for a, (n, _) in listed.items() if n > 1))
    axis, vector = vectors[0] if vectors else ("", 1)
    words = line.get("STORE"), line.get("STAGE")
    return Point(threads(line), tiles, axis, vector, folding(line), pieces(line), cluster(line), *words)


def apart(line: str, other: str) -> float:
    """How far two lines are from each other: factors of two between their numbers, and half of one for other words."""
    a, b = _numbers(line), _numbers(other)
    between = sum(abs(math.log2(a.get(k, 1) / b.get(k, 1))) for k in {*a, *b})
    return between + (_words(line) != _words(other)) / 2


def _numbers(line: str) -> dict[str, int]:
    """Every number of a line by the word before it."""
    return {name: max(1, int(number)) for name, number in re.findall(r"(\w*?[a-z]\d*:|[a-z]+)(\d+)", line)}


def _words(line: str) -> str:
    """The line without its numbers."""
    return re.sub(r"\d+", "", line)
