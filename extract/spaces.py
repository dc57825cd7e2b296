"""Schedule spaces: the lines that are legal for a kernel, best first by a small model, and the check of a line.

WORK=t256 TILE=x0:4,x1:2048/v8 REDUCE=lanes    256 threads a block; a tile of 4 x 2048; a thread holds 8 neighbours
                                               along x1; axes that TILE leaves out have tile 1; folds stay in a warp
WORK=t256+c8 TILE=x1:131072/v8                 clusters of 8 such blocks, which share a tile and the folds along its axes
WORK=t256 TILE=x1:2048/v8 REDUCE=lanes+split16 the longest swept axis, x1, in 16 pieces, numbered by a new axis x1p, and a
                                               second kernel that merges them, under its own default line
WORK=t512+c8 TILE=x1:16032/v8,x1p:8 REDUCE=split8
                                               the pieces of x1 are the blocks of a cluster, which merge them at once
WORK=t512+c8 TILE=x1:1024/v8,x1p:128 REDUCE=lanes+split128    the pieces of x1 are the warps of a cluster
WORK=t512 TILE=x1:4096/v4 STORE=plain           no cache hints; STORE=stream: all that is touched once passes by the caches;
                                               STORE=keep: what is loaded stays longer than what is stored; else by size
WORK=points128                                 the fall-back: results tiled over the threads, sweeps by single steps

A swept axis whose tile covers its extent stays in registers between its sweeps, else it is swept tile by tile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from extract.climbing import (
    CLIMBS,
    FEW_POINTS,
    FEW_SEEDS,
    FOLDING,
    MOST_THREADS,
    SEED_CLUSTERS,
    explored,
    seeds,
    staged_points,
)
from extract.points import Point, apart, point
from extract.roles import cluster, is_fallback, listed_tiles, padded, pieces, threads
from extract.splits import split_counts, streamed
from extract.staging import unstaged
from extract.subject import Subject
from extract.tile_cost import PartCost
from extract.tiles import Choice, Tiles
from extract.tiling import tile_program
from ir.loop import Buffer, KernelForm
from ir.machine import LANES, Machine
from ir.node import IRError
from ir.schedule import Schedule, parse_schedule, schedule, staging
from ir.tile import TileProgram

KEYS = ("WORK", "TILE", "REDUCE", "STAGE", "STORE")
STORES = ("", "plain", "stream", "keep")
HINTED_LINES = 3
"""The best lines, of which the space also has those with the other cache hints."""
FALLBACK_THREADS = 128
USUAL_THREADS, ALONE_THREADS = 128, 256
UNUSUAL = 0.01
"""Threads of a block where nothing else decides, when blocks share a multiprocessor and when a block has it alone, and
the price of each factor of two beside them."""
APART = 0.05
"""The share by which two launches must be faster than one, as they are told apart less surely than lines of one."""
SWEPT_ELEMENTS, MAP_ELEMENTS = 32, 8
"""Elements of a thread where nothing else decides, of a kernel that folds and of one that does not."""
ALIKE = 1.01
"""Times up to so much longer than the best are no worse."""
SHARED_THREADS = (256, 512, 1024)
"""Threads of a block of a cluster whose blocks or warps take a piece of a sweep each."""
SPLIT_CLIMBS, MOST_LINES = 2, 64
WIDEST_VECTOR = 16
WORTH_A_LAUNCH = 2.5
"""Launches that a kernel must last beyond what memory takes for a second one to be thought of."""

NO_TILES: Mapping[str, int] = {}


@dataclass(frozen=True)
class Space:
    """The listed lines of a kernel's space, best first by the model; the fall-back, which it does not time, is last.

    `us` are the modelled times of the others.
    """

    lines: tuple[Schedule, ...]
    us: tuple[float, ...]
    subject: Subject

    @property
    def size(self) -> int:
        """Number of listed lines."""
        return len(self.lines)

    def check(self, line: str | Schedule) -> Schedule:
        """The line in canonical spelling, with the pieces that are made.

        Raises `IRError` with the reason and the nearest listed lines.
        """
        try:
            given = parse_schedule(str(line))
            made = self.subject.made_pieces(pieces(given), cluster(given))
            return Rules(self.subject, made, cluster(given)).checked(given)
        except IRError as e:
            near = " | ".join(map(str, self.nearest(str(line))))
            raise IRError(f"{e}; near are {near}") from None

    def nearest(self, line: str, count: int = 3) -> tuple[Schedule, ...]:
        """The listed lines whose numbers differ least from those of a line, which need not be legal or a schedule."""
        return tuple(sorted(self.lines, key=lambda s: apart(str(s), line))[:count])


class Rules:
    """What makes a line legal for the first of the kernels that it launches, and what all of them cost.

    `before` are those of another number of pieces.
    """

    def __init__(self, subject: Subject, count: int = 1, cluster: int = 1, before: Rules | None = None) -> None:
        self.subject, self.pieces, self.before = subject, count, before
        first, *self.later = subject.pieces(count, cluster)
        self.axes, self.first = first.axes, first
        self.blocks_axis = next(iter(first.axes.keys() - subject.axes.keys()), "")
        self.parts = tuple(PartCost(p, first.buffers, first.axes, subject.machine) for p in first.kernel.parts)
        self.programs: dict[tuple[tuple[str, bool], ...], TileProgram | str] = {}

    @cached_property
    def sweeps(self) -> bool:
        """Whether the kernel folds anything."""
        return any(part.roles.swept for part in self.parts)

    @property
    def least_us(self) -> float:
        """The time that memory takes for the first launch."""
        return sum(part.least_us for part in self.parts)

    @cached_property
    def later_us(self) -> float:
        """The modelled time of the kernels after the first, each under its best line."""
        return sum(self.subject.machine.launch_us + min(priced.values()) for _, priced in self.later_priced)

    @cached_property
    def after(self) -> list[Rules]:
        """The kernels after the first."""
        return [Rules(Subject(p.kernel, p.buffers, p.axes, self.subject.machine)) for p in self.later]

    @property
    def later_least_us(self) -> float:
        """The time that memory takes for the kernels after the first, and what their launches must save."""
        return sum(WORTH_A_LAUNCH * self.subject.machine.launch_us + rules.least_us for rules in self.after)

    @cached_property
    def later_priced(self) -> list[tuple[Rules, dict[Point, float]]]:
        """Of each kernel after the first the points that are priced: those that are best for other pieces are near."""
        known = self.before.later_priced if self.before is not None else []
        out = []
        for n, rules in enumerate(self.after):
            priced = rules.near(*known[n]) if n < len(known) else {}
            if not any(us < math.inf for us in priced.values()):
                priced = explored(rules, seeds(rules, *FEW_SEEDS), 1, FEW_POINTS)
            out.append((rules, priced))
        return out

    def near(self, other: Rules, priced: Mapping[Point, float]) -> dict[Point, float]:
        """The best points of a kernel of other extents, with their times here; what covers an axis covers it here too."""
        best = _ranked(priced, other.sweeps)[:CLIMBS]
        wider = ({a: self.most_tile(a) for a, n in p.tiles if n == other.most_tile(a)} for p in best)
        found = {self.fitted(p, tiles) for p, tiles in zip(best, wider, strict=True)} | {
            self.fitted(p) for p in best
        }
        return {p: self.us(p) for p in sorted(found, key=str)}

    def checked(self, line: Schedule) -> Schedule:
        """The line in canonical spelling; raises `IRError` with the reason where it is not legal."""
        for key, _ in line.fields:
            if key not in KEYS:
                raise IRError(f"schedule: {key} has no meaning for this kernel")
        if threads(line) % LANES or not LANES <= threads(line) <= MOST_THREADS:
            raise IRError(f"WORK: {threads(line)} threads are no multiple of {LANES} up to {MOST_THREADS}")
        if is_fallback(line):
            if len(line.fields) > 1:
                raise IRError("WORK=points takes no other field")
            return line
        p = replace(point(line), pieces=self.pieces)
        if p.cluster & (p.cluster - 1) or not 1 <= p.cluster <= self.subject.machine.cluster_blocks:
            most = self.subject.machine.cluster_blocks
            raise IRError(f"WORK: a cluster of {p.cluster} blocks is no power of two up to {most}")
        if p.units and p.pieces != p.cluster * p.threads // p.units:
            count, takers = p.cluster * p.threads // p.units, "warps" if p.reduce == "lanes" else "blocks"
            raise IRError(f"REDUCE=split{p.pieces}: the {count} {takers} of a cluster take a piece each")
        if p.units and dict(p.tiles).get(self.blocks_axis, 1) != p.pieces:
            raise IRError(f"TILE: {self.blocks_axis} numbers the {p.pieces} pieces, so that is its tile")
        if p.cluster > 1 and (p.reduce not in (("block", "lanes") if p.units else ("block",)) or not self.sweeps):
            raise IRError(
                f"WORK: {p.cluster} blocks of a cluster share folds, of which REDUCE={p.reduce} leaves none"
            )
        if p.store not in STORES:
            raise IRError(f"STORE={p.store} is none of {', '.join(STORES[1:])}")
        if p.reduce not in FOLDING:
            raise IRError(f"REDUCE={p.reduce} is none of {', '.join(FOLDING)}")
        if p.reduce != "block" and not self.sweeps:
            raise IRError("REDUCE: the kernel folds nothing")
        if p.vector & (p.vector - 1) or p.vector > min(dict(p.tiles).get(p.vector_axis, 1), WIDEST_VECTOR):
            raise IRError(
                f"TILE: v{p.vector} is no power of two up to the tile of {p.vector_axis} and {WIDEST_VECTOR}"
            )
        for a in listed_tiles(line):
            if a not in self.axes:
                raise IRError(f"TILE: the kernel has no axis {a}")
        for part in self.parts:
            tiles = self.tiles(part, p)
            if part.words(tiles) > part.most_words(tiles):
                raise IRError(
                    f"TILE: a thread's tiles take {part.words(tiles)} register words, at most {part.most_words(tiles)} fit"
                )
        need, most = self.exchanged_bytes(p), self.subject.machine.smem_bytes_per_block
        if need > most:
            raise IRError(
                f"TILE: its exchange between threads takes {need} bytes of shared memory, at most {most} fit"
            )
        reason = self.unstaged(p)
        if reason is not None:
            raise IRError(f"STAGE={p.stage}: {reason}")
        return p.line()

    def exchanged_bytes(self, p: Point) -> int:
        """Shared memory of a block for what its threads exchange."""
        return sum(part.exchanged_bytes(self.tiles(part, p)) for part in self.parts)

    def unstaged(self, p: Point) -> str | None:
        """Why loads cannot go through shared memory as the point has it, or None where they can or need not."""
        wish = staging(p.line())
        if wish is None:
            return None
        tiles = [part.laid_out(self.tiles(part, p)) for part in self.parts]
        program = self.loading(p, tiles)
        if isinstance(program, str):
            return program
        return unstaged(program, tiles, wish, self.subject.machine, self.exchanged_bytes(p))

    def loading(self, p: Point, tiles: Sequence[Tiles]) -> TileProgram | str:
        """A tile program that loads what the point's does: where the same axes are swept in steps, of one or of more.

        Where a sweep's positions must be taken one by one under such tiles, it is why.
        """
        key = tuple((a.role, a.tile == 1) for t in tiles for a in t.axes.values())
        if key not in self.programs:
            line, exact = Point(LANES, p.tiles).line(), True  # nothing else changes what a tile program loads
            try:
                self.programs[key] = tile_program(self.first.kernel, self.first.buffers, self.axes, line, exact)
            except IRError as e:
                self.programs[key] = str(e)
        return self.programs[key]

    def tiles(self, part: PartCost, p: Point) -> Tiles:
        """The tiles of a part; raises where a tile is illegal."""
        sizes = dict(p.tiles)
        axes = {a: part.axis(a, sizes.get(a, 1)) for a in part.roles.order}
        vector, along = (p.vector, p.vector_axis) if p.vector_axis in axes else (1, None)
        unit, stage = (p.units, self.blocks_axis), staging(p.line()) if p.stage else None
        return part.tiles(axes, Choice(p.threads, vector, along, p.reduce, p.cluster, *unit, stage))

    def us(self, p: Point) -> float:
        """The modelled time; infinite where the point is not legal."""
        total, blocks, shared, most = self.later_us, 0, 0, self.subject.machine.smem_bytes_per_block
        for part in self.parts:
            tiles = self.tiles(part, p)
            shared += part.exchanged_bytes(tiles, most)
            total += part.us(tiles)
            blocks += tiles.count(part.roles.grid) * p.cluster
        if shared > most:
            return math.inf
        usual = USUAL_THREADS if blocks > self.subject.machine.sms else ALONE_THREADS
        return total * (1 + UNUSUAL * abs(math.log2(p.threads / usual)) + APART * bool(self.later))

    def fitted(self, p: Point, tiles: Mapping[str, int] = NO_TILES) -> Point:
        """The point of other extents or another number of pieces with tiles that are legal here, or with such `tiles`."""
        p = replace(p, pieces=self.pieces)
        for a, tile in p.tiles:
            p = p.tiled(a, tiles.get(a) or self.tile_up_to(a, tile))
        return p

    def blocks(self, p: Point) -> int:
        """Blocks of the first launch."""
        return sum(self.tiles(part, p).count(part.roles.grid) for part in self.parts)

    def most_tile(self, axis: str) -> int:
        """The largest tile of an axis: its extent where it is swept at once, a power of two where blocks number it."""
        return self.most_tiles.get(axis, 1)

    @cached_property
    def most_tiles(self) -> Mapping[str, int]:
        """`most_tile` of each axis that some part has."""
        roles = [part.roles for part in self.parts]
        found = {a: padded(self.axes[a]) if a in r.grid else max(1, self.axes[a]) for r in roles for a in r.order}
        found |= {a: padded(self.axes[a]) for r in roles for a in r.grid}
        return found | {a: 1 for r in roles for a in r.serial}

    def tile_up_to(self, axis: str, room: int) -> int:
        """The largest tile of an axis that a number of positions has room for."""
        most = self.most_tile(axis)
        return most if room >= most else 1 << room.bit_length() - 1

    def beside(self, axis: str, tile: int) -> tuple[int, ...]:
        """The next smaller and the next larger tile of an axis."""
        most = self.most_tile(axis)
        smaller = (1 << (tile - 1).bit_length() - 1,) if tile > 1 else ()
        return (*smaller, *((min(2 << tile.bit_length() - 1, most),) if tile < most else ()))

    def even_threads(self, p: Point) -> set[int]:
        """Numbers of threads near those of a point that leave fewer of them idle over a whole row."""
        found: set[int] = set()
        for axis, tile in p.tiles:
            runs = -(-tile // (p.vector if axis == p.vector_axis else 1))
            shares = (
                range(max(1, runs // (2 * p.threads)), 2 * runs // p.threads + 1) if tile == self.axes[axis] else ()
            )
            found |= {-(-runs // (n * LANES)) * LANES for n in shares}
        return {n for n in found if p.threads // 2 < n < 2 * p.threads}


def space(
    kernel: KernelForm,
    buffers: Sequence[Buffer],
    axes: Mapping[str, int],
    machine: Machine,
    most: int = MOST_LINES,
) -> Space:
    """The schedule space of a kernel whose axes have the extents `axes`: what climbing the model from a few seeds meets."""
    subject = Subject(kernel, tuple(buffers), axes, machine)
    whole = Rules(subject)
    priced = explored(whole, seeds(whole))
    best = _ranked(priced, whole.sweeps)[0]
    if priced[best] > whole.least_us + WORTH_A_LAUNCH * machine.launch_us:
        priced |= _split_points(subject, whole.blocks(best), priced[best]) | _shared_points(subject)
    staged = staged_points(whole, priced)
    priced |= staged
    legal = {p: us for p, us in priced.items() if us < math.inf}
    listed = {*_ranked(legal, whole.sweeps)[:most], *staged}
    lines = {p.line(): priced[p] for p in _ranked({p: legal[p] for p in listed}, whole.sweeps)}
    lines |= {best.line(): priced[best]} if priced[best] < math.inf else {}
    lines = _with_hints(lines, subject)
    return Space((*lines, fallback_schedule(kernel)), tuple(lines.values()), subject)


def _with_hints(lines: Mapping[Schedule, float], subject: Subject) -> dict[Schedule, float]:
    """The lines, and behind each of the best those with other hints than its sizes give it."""
    sizes, machine = [b.bytes for b in subject.buffers], subject.machine
    others = ("plain", "keep") if machine.streams(sum(sizes)) else ("plain", "stream")
    hinted = HINTED_LINES if any(map(machine.large, sizes)) else 0
    out: dict[Schedule, float] = {}
    for k, (line, us) in enumerate(lines.items()):
        out[line] = us
        out |= {replace(point(line), store=other).line(): us for other in others if k < hinted}
    return out


def _split_points(subject: Subject, blocks: int, us: float) -> dict[Point, float]:
    """Points that split the sweeps of a kernel that has so many blocks and takes so long when it is whole, with times."""
    axis = subject.split_axis
    found: dict[Point, float] = {}
    rules: Rules | None = None
    for count in () if axis is None else split_counts(subject.axes[axis], blocks, subject.machine.sms):
        try:
            rules = Rules(subject, count, before=rules)
        except IRError:  # no pieces over merged results
            continue
        if us < rules.least_us + rules.later_least_us or us < rules.least_us + rules.later_us:
            continue
        near = _ranked(found, True)[:CLIMBS]
        found |= explored(rules, (rules.fitted(p) for p in near) if near else seeds(rules), SPLIT_CLIMBS)
    return found


def _shared_points(subject: Subject) -> dict[Point, float]:
    """Points whose clusters hold a sweep of a stream at once, a piece in each block or warp, with their times."""
    axis = subject.split_axis
    if axis is None or not streamed(subject.kernel, axis):
        return {}
    sizes = [n for n in SEED_CLUSTERS if n <= subject.machine.cluster_blocks]
    wanted = [(n, size, "lanes", size * n // LANES) for size in sizes for n in SHARED_THREADS[:2]]
    even = [size for size in sizes if subject.axes[axis] % size == 0]
    wanted += [(n, size, "block", size) for size in even for n in SHARED_THREADS]
    found: dict[Point, float] = {}
    known: dict[tuple[int, str], Rules] = {}
    for count, size, reduce, many in wanted:
        try:
            rules = known[many, reduce] = known.get((many, reduce)) or Rules(subject, many, size)
            widest = max(part.widest_vector(axis) for part in rules.parts if axis in part.roles.order)
            tiles = tuple(sorted({rules.blocks_axis: many, axis: rules.axes[axis]}.items()))
            p = Point(count, tiles, reduce=reduce, pieces=many, cluster=size).with_vector(axis, widest)
            found[p] = rules.us(p)
        except IRError:  # some part has no such pieces, or no tile of one
            continue
    return found


def whole_schedule(subject: Subject) -> Schedule:
    """The model's first choice among the lines that split nothing."""
    rules = Rules(subject)
    priced = explored(rules, seeds(rules))
    best = _ranked(priced, rules.sweeps)[0]
    return best.line() if priced[best] < math.inf else fallback_schedule(subject.kernel)


def default_schedule(
    kernel: KernelForm, buffers: Sequence[Buffer], axes: Mapping[str, int], machine: Machine
) -> Schedule:
    """The model's first choice."""
    return space(kernel, buffers, axes, machine).lines[0]


def fallback_schedule(kernel: KernelForm) -> Schedule:
    """The line that is legal for every kernel."""
    return schedule(WORK=f"points{FALLBACK_THREADS}")


def _ranked(priced: Mapping[Point, float], sweeps: bool) -> list[Point]:
    """By time; those that are as good as the best, by the run of neighbours and by how usual a thread's elements are."""
    good, usual = ALIKE * min(priced.values(), default=0.0), SWEPT_ELEMENTS if sweeps else MAP_ELEMENTS

    def rank(p: Point) -> tuple[float, int, float, float, str]:
        elements = math.prod(n for _, n in p.tiles) / (p.threads * p.cluster)
        far = abs(math.log2(elements / usual))
        return max(priced[p], good), -dict(p.tiles).get(p.vector_axis, 1), far, priced[p], str(p)

    return sorted(priced, key=rank)
