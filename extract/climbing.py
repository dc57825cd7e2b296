"""Which points of a schedule space are priced: what climbing the model from a few seeds meets, and staged ones."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, permutations, product
from typing import Protocol

from extract.points import Point
from extract.sharing_cost import FOLD_THREADS
from extract.subject import Subject
from extract.tile_cost import PartCost
from ir.machine import LANES

FOLDING = ("block", *FOLD_THREADS)
LEAST_THREADS, MOST_THREADS = 64, 1024
SEED_THREADS, SEED_ELEMENTS, SEED_CUTS, SEED_CLUSTERS = (128, 512), (1, 4, 16, 64), (0, 2, 4, 6), (4, 8)
FEW_SEEDS = (1, 16), (0, 2), ()
"""Elements, cuts and clusters where a merge is only to be priced."""
CLIMBS, MOST_STEPS, MOST_POINTS, FEW_POINTS = 4, 24, 400, 150
"""Starts from which the model is climbed, steps of a climb, and points after which none goes on, or of a mere merge."""
STAGES = ("shared+async/d3", "shared", "shared+bulk"), ("async/d3", "async/d4", "bulk/d3", "bulk/d4")
"""The ways through shared memory that are listed, of which those in a row go well with the same tiles."""
STAGED_THREADS, STAGED_VECTORS = (256, 512, 1024), (1, 2, 4)
"""Threads of a block, and vectors of a thread and step, where loads go through shared memory."""
STAGED_NEAR, STAGED_STEPS = 3, 4
"""Other points that are tried with it, and how many of their steps shared memory has room for."""


class Priced(Protocol):
    """The legal points of a kernel, and what they cost."""

    subject: Subject
    pieces: int
    axes: Mapping[str, int]
    parts: tuple[PartCost, ...]

    @property
    def sweeps(self) -> bool: ...
    def us(self, p: Point) -> float: ...
    def unstaged(self, p: Point) -> str | None: ...
    def most_tile(self, axis: str) -> int: ...
    def tile_up_to(self, axis: str, room: int) -> int: ...
    def beside(self, axis: str, tile: int) -> tuple[int, ...]: ...
    def even_threads(self, p: Point) -> set[int]: ...


def explored(
    rules: Priced, starts: Iterable[Point], climbs: int = CLIMBS, most: int = MOST_POINTS
) -> dict[Point, float]:
    """What climbing the model from a few starts meets, with its times; no climb goes on past so many points."""
    priced = {p: rules.us(p) for p in dict.fromkeys(starts)}
    best = sorted(priced, key=lambda p: (priced[p], str(p)))
    clustered = [p for p in best if p.cluster > 1]  # these lead to no others where a cluster of two is worst
    for start in (*clustered[: climbs // 2], *[p for p in best if p.cluster == 1][: -(-climbs // 2)]):
        _climb(start, rules, priced, most)
    return priced


def seeds(
    rules: Priced,
    counts: Sequence[int] = SEED_ELEMENTS,
    cuts: Sequence[int] = SEED_CUTS,
    clusters: Sequence[int] = SEED_CLUSTERS,
) -> Iterator[Point]:
    """Threads times a few elements, dealt out to the axes that lie side by side in memory or are swept, in any order."""
    main = max(rules.parts, key=lambda p: sum(a.buffer.bytes for a in p.accesses))
    beside = dict.fromkeys(a for part in rules.parts if part is not main for a in part.near)
    others = [a for a in beside if a not in main.roles.order]
    active = [a for a in dict.fromkeys((*main.near, *main.roles.order[::-1])) if rules.most_tile(a) > 1][:3]
    for count in SEED_THREADS:
        rest = tuple((a, rules.tile_up_to(a, count)) for a in others if rules.most_tile(a) > 1)
        for order in permutations(active):
            for elements in counts:
                start = Point(count, tuple(sorted(rest)), pieces=rules.pieces)
                yield from (_dealt(start, order, elements, cut, rules) for cut in cuts)
                for size in clusters if rules.sweeps and rules.pieces == 1 else ():
                    if size <= rules.subject.machine.cluster_blocks:
                        yield _dealt(replace(start, cluster=size), order, elements, 0, rules)


def _dealt(p: Point, order: Sequence[str], elements: int, cut: int, rules: Priced) -> Point:
    """The point with the tile of a block dealt out to the axes in order, the first getting 2**cut less than it could."""
    room = p.threads * p.cluster * elements
    for k, a in enumerate(order):
        tile = rules.tile_up_to(a, max(room >> cut, 1) if k == 0 else room)
        p, room = p.tiled(a, tile), max(1, room // tile)
    if order:
        widest = max(part.widest_vector(order[0]) for part in rules.parts if order[0] in part.roles.order)
        p = p.with_vector(order[0], widest)
    return p


def _climb(start: Point, rules: Priced, priced: dict[Point, float], most: int) -> None:
    """Price the neighbours of a point, go to the best, and so on while it is better."""
    here = start
    for _ in range(MOST_STEPS):
        if len(priced) > most:
            return
        around = list(_neighbours(here, rules))
        for p in around:
            if p not in priced:
                priced[p] = rules.us(p)
        best = min(around, key=lambda p: (priced[p], str(p)), default=here)
        if priced[best] >= priced[here]:
            return
        here = best


def _neighbours(p: Point, rules: Priced) -> Iterator[Point]:
    """Points that differ by a factor of two in one number, or two that keep the tile's size, or in how folds go."""
    sizes = dict(p.tiles)
    for count in (p.threads // 2, p.threads * 2, *sorted(rules.even_threads(p))):
        if LEAST_THREADS <= count <= MOST_THREADS and count % LANES == 0:
            yield replace(p, threads=count)
    for a in rules.axes:
        for tile in rules.beside(a, sizes.get(a, 1)):
            yield p.tiled(a, tile)
            for b in rules.axes if tile > sizes.get(a, 1) else ():
                if b != a and sizes.get(b, 1) > 1:
                    yield p.tiled(a, tile).tiled(b, rules.beside(b, sizes[b])[0])
    for axis, _ in p.tiles:
        widest = max(part.widest_vector(axis) for part in rules.parts if axis in part.roles.order)
        if axis != p.vector_axis and widest > 1:
            yield p.with_vector(axis, widest)
    if p.vector > 1:
        yield p.with_vector(p.vector_axis, p.vector // 2)
    if rules.sweeps and p.cluster == 1:
        yield from (replace(p, reduce=r) for r in FOLDING if r != p.reduce)
    if rules.sweeps and p.reduce == "block" and p.pieces == 1:
        for count in (p.cluster // 2, p.cluster * 2):
            if 1 <= count <= rules.subject.machine.cluster_blocks:
                yield replace(p, cluster=count)
                threads = p.threads * p.cluster // count
                if LEAST_THREADS <= threads <= MOST_THREADS and threads % LANES == 0:
                    yield replace(p, cluster=count, threads=threads)


# ---- through shared memory


def staged_points(rules: Priced, priced: Mapping[Point, float]) -> dict[Point, float]:
    """The best point of each way in which loads of a long sweep go through shared memory, with their times.

    They have the tiles of the best priced points that go through a sweep in several steps, or rows of whole vectors.
    """
    swept = {a for part in rules.parts for a in part.roles.swept - part.roles.serial}
    axis = max(sorted(swept), key=lambda a: rules.axes[a], default=None)
    if axis is None:
        return {}
    widest = max(part.widest_vector(axis) for part in rules.parts if axis in part.roles.order)
    tiles = [(n, n * vectors * widest) for n, vectors in product(STAGED_THREADS, STAGED_VECTORS)]
    rows = (Point(n, ((axis, t),)).with_vector(axis, widest) for n, t in tiles if 2 * t <= rules.axes[axis])
    starts = dict.fromkeys((*rows, *islice(_stepping(rules, priced, swept), STAGED_NEAR)))
    found: dict[Point, float] = {}
    for first, *others in STAGES:
        best = {p: rules.us(p) for p in (replace(s, stage=first) for s in starts)}
        near = sorted((p for p in best if best[p] < math.inf), key=lambda p: (best[p], str(p)))
        for stage in (first, *others):
            legal = (p for p in (replace(p, stage=stage) for p in near) if rules.unstaged(p) is None)
            found |= {p: rules.us(p) for p in islice(legal, 1)}
    return found


def _stepping(rules: Priced, priced: Mapping[Point, float], swept: Collection[str]) -> Iterator[Point]:
    """Priced points, best first, that take a sweep in steps of which shared memory has room for a few."""
    sizes = [a.element_bytes for part in rules.parts for a in part.loads]
    room = rules.subject.machine.smem_bytes_per_block // (STAGED_STEPS * max(sizes, default=1))
    for p in sorted(priced, key=lambda p: (priced[p], str(p))):
        steps = any(a in swept and n < rules.axes[a] for a, n in p.tiles)
        if steps and p.cluster == p.pieces == 1 and math.prod(n for _, n in p.tiles) <= room:
            yield p
