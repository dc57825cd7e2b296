"""Schedule spaces: the lines that are legal for a kernel, best first by a small model, and the check of a line.

WORK=t256 TILE=x0:4,x1:2048/v8 REDUCE=lanes    256 threads a block; a tile of 4 x 2048; a thread holds 8 neighbours
                                               along x1; axes that TILE leaves out have tile 1; folds stay in a warp
WORK=points128                                 the fall-back: results tiled over the threads, sweeps by single steps

A swept axis whose tile covers its extent stays in registers between its sweeps, else it is swept tile by tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from extract.roles import is_fallback, listed_tiles, padded, threads, tile_axes
from extract.tile_cost import FOLD_US, PartCost, Tiles
from ir.loop import Buffer, KernelForm
from ir.machine import Machine
from ir.node import IRError
from ir.schedule import Schedule, parse_schedule, schedule

THREADS = (64, 128, 256, 512, 1024)
ELEMENTS = (1, 2, 4, 8, 16, 32, 64)
FALLBACK = 128
LANES = 32
MOST_LINES = 64
KEYS = ("WORK", "TILE", "REDUCE")


@dataclass(frozen=True)
class Space:
    """The listed lines of a kernel's space, best first by the model; the fall-back is last."""

    lines: tuple[Schedule, ...]
    rules: _Rules

    @property
    def size(self) -> int:
        """Number of lines."""
        return len(self.lines)

    def check(self, line: str | Schedule) -> Schedule:
        """The line in canonical spelling; raises `IRError` with the reason and the nearest legal lines."""
        try:
            given = parse_schedule(str(line))
            self.rules.check(given)
        except IRError as e:
            near = self.nearest(str(line))
            raise IRError(f"{e}; near are " + " | ".join(map(str, near))) from None
        return (
            spelled(threads(given), listed_tiles(given), given.get("REDUCE")) if not is_fallback(given) else given
        )

    def nearest(self, line: str, count: int = 3) -> tuple[Schedule, ...]:
        """The listed lines that differ least from a line, which need not be legal or even a schedule."""
        wanted = _sizes(line)

        def distance(s: Schedule) -> float:
            own = _sizes(str(s))
            return sum(abs(math.log2(own.get(k, 1)) - math.log2(wanted.get(k, 1))) for k in {*own, *wanted})

        return tuple(sorted(self.lines, key=distance)[:count])


def _sizes(line: str) -> dict[str, int]:
    """Every number of a line by the word before it, for comparison only."""
    out: dict[str, int] = {}
    for word in line.replace("=", ",").replace("/", ",").split(","):
        for piece in word.split():
            name, _, number = piece.rpartition(":") if ":" in piece else (piece.rstrip("0123456789"), "", piece)
            digits = "".join(c for c in number if c.isdigit())
            out[name] = max(1, int(digits)) if digits else 2
    return out


def spelled(work: int, tiles: Mapping[str, tuple[int, int]], reduce: str = "") -> Schedule:
    """The canonical line: axes by name, tiles of 1 left out, the default way of folding left out."""
    listed = [
        f"{a}:{tile}" + (f"/v{vector}" if vector > 1 else "")
        for a, (tile, vector) in sorted(tiles.items())
        if tile > 1
    ]
    fields = {"WORK": f"t{work}"} | ({"TILE": ",".join(listed)} if listed else {})
    return schedule(**fields | ({"REDUCE": reduce} if reduce not in ("", "block") else {}))


@dataclass(frozen=True)
class _Rules:
    """What makes a line legal for a kernel."""

    parts: tuple[PartCost, ...]
    axes: Mapping[str, int]

    def check(self, line: Schedule) -> None:
        """Raise `IRError` with the reason where the line is not legal."""
        for key, _ in line.fields:
            if key not in KEYS:
                raise IRError(f"schedule: {key} has no meaning for this kernel")
        count = threads(line)
        if count % LANES or not LANES <= count <= 1024:
            raise IRError(f"WORK: {count} threads are no multiple of {LANES} up to 1024")
        if is_fallback(line):
            if len(line.fields) > 1:
                raise IRError("WORK=points takes no other field")
            return
        if line.get("REDUCE", "block") not in FOLD_US:
            raise IRError(f"REDUCE={line.get('REDUCE')} is none of {', '.join(FOLD_US)}")
        tiles = listed_tiles(line)
        for name, (tile, vector) in tiles.items():
            if name not in self.axes:
                raise IRError(f"TILE: the kernel has no axis {name}")
            if vector & (vector - 1) or not 1 <= vector <= min(tile, 16):
                raise IRError(f"TILE: v{vector} is no power of two up to the tile {tile} and 16")
        for part in self.parts:
            self.fits(part, choice(part, self.axes, line))

    def fits(self, part: PartCost, c: Tiles) -> None:
        """Raise `IRError` where a part cannot run with these tiles."""
        words, most = part.words(c), part.most_words(c)
        if words > most:
            raise IRError(f"TILE: tiles of {words} register words a thread exceed {most}")


def choice(part: PartCost, axes: Mapping[str, int], line: Schedule) -> Tiles:
    """The tile sizes of a part under a line."""
    tiles = {a.name: a for a in tile_axes(part.roles, axes, line)}
    vectors = {a: v for a, (_, v) in listed_tiles(line).items() if v > 1 and a in tiles}
    axis = next(iter(vectors), None)
    return Tiles(tiles, threads(line), vectors[axis] if axis else 1, axis, line.get("REDUCE", "block"))


def space(kernel: KernelForm, buffers: Sequence[Buffer], axes: Mapping[str, int], machine: Machine) -> Space:
    """The schedule space of a kernel whose axes have the extents `axes`."""
    parts = tuple(PartCost(p, buffers, axes, machine) for p in kernel.parts)
    rules = _Rules(parts, axes)
    priced: dict[Schedule, float] = {}
    main = max(parts, key=lambda p: sum(a.buffer.bytes for a in (*p.loads, *p.stores)))
    for work in THREADS:
        others: dict[str, tuple[int, int]] = {}
        for part in parts:
            if part is not main:
                others |= _best(part, work, rules)
        for tiles, reduce in _candidates(main, work, axes):
            line = spelled(work, others | tiles, reduce)
            if line not in priced:
                priced[line] = _price(line, parts, rules)
    ranked = sorted((us, str(line), line) for line, us in priced.items() if us < math.inf)
    return Space((*(line for _, _, line in ranked[:MOST_LINES]), fallback_schedule(kernel)), rules)


def default_schedule(
    kernel: KernelForm, buffers: Sequence[Buffer], axes: Mapping[str, int], machine: Machine
) -> Schedule:
    """The model's first choice."""
    return space(kernel, buffers, axes, machine).lines[0]


def fallback_schedule(kernel: KernelForm) -> Schedule:
    """The line that is legal for every kernel."""
    return schedule(WORK=f"points{FALLBACK}")


def _price(line: Schedule, parts: Sequence[PartCost], rules: _Rules) -> float:
    total = 0.0
    for part in parts:
        c = choice(part, rules.axes, line)
        try:
            rules.fits(part, c)
        except IRError:
            return math.inf
        total += part.us(c)
    return total


def _best(part: PartCost, work: int, rules: _Rules) -> dict[str, tuple[int, int]]:
    """The best tiles of one part alone."""
    options = [tiles for tiles, reduce in _candidates(part, work, rules.axes) if not reduce]
    return min(options, key=lambda tiles: _price(spelled(work, tiles), (part,), rules), default={})


def _candidates(
    part: PartCost, work: int, axes: Mapping[str, int]
) -> Iterator[tuple[dict[str, tuple[int, int]], str]]:
    """Tiles of `work` threads times a few elements each, dealt out to the axes that matter in several orders."""
    order = [a for a in reversed(part.roles.order) if axes[a] > 1 and a not in part.roles.serial]
    near = [a for a in order if any(x.contiguous == a for x in (*part.loads, *part.stores))]
    active = list(dict.fromkeys([*near, *(a for a in order if a in part.roles.swept), *order]))[:3]
    seen: set[str] = set()
    if not active:
        yield {}, ""
        return
    for first in permutations(active):
        widest = part.widest_vector(first[0])
        for elements in ELEMENTS:
            for cut in range(7):
                tiles: dict[str, tuple[int, int]] = {}
                room = work * elements
                for k, a in enumerate(first):
                    tile = min(padded(axes[a]), max(room >> cut, 1) if k == 0 else room)
                    vector = min(widest, tile) if k == 0 else 1
                    tiles[a], room = (tile, vector), room // tile
                yield from _ways(part, work, tiles, first[0], seen)


def _ways(
    part: PartCost, work: int, tiles: dict[str, tuple[int, int]], first: str, seen: set[str]
) -> Iterator[tuple[dict[str, tuple[int, int]], str]]:
    """The tiles once for each way of folding that keeps all threads busy."""
    key = str(sorted(tiles.items()))
    if key in seen:
        return
    seen.add(key)
    yield tiles, ""
    rows = math.prod(tile for a, (tile, _) in tiles.items() if a not in part.roles.swept)
    if first in part.roles.swept and rows * LANES >= work and tiles[first][0] > LANES:
        yield tiles, "lanes"
