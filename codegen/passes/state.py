"""What the passes hand on: the tile program, what is decided about it, and then the kernel program."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ir.kernel import KernelProgram
from ir.kernel_text import show_kernel
from ir.layout import Family
from ir.machine import Machine
from ir.schedule import Staging
from ir.term import Term
from ir.text import show_term
from ir.tile import TileLoad, TileProgram, TileStore
from ir.tile_text import show_tile


@dataclass(frozen=True)
class Access:
    """How one load or store reaches memory.

    `offset` is the element over coordinates and values; `tests` must hold, and coordinates along `extents` be below
    the axis' extent, and positions along `tiles` below its tile, or nothing is touched. `width` elements move at once,
    with the cache hint `cache`. Elements that a load does not touch are what it `leaves`.
    """

    offset: Term
    tests: tuple[Term, ...] = ()
    extents: tuple[str, ...] = ()
    tiles: tuple[str, ...] = ()
    width: int = 1
    cache: str = "default"
    leaves: float | int | bool = 0

    def __str__(self) -> str:
        limits = [*map(show_term, self.tests), *(f"{a} < extent" for a in self.extents)]
        limits += [f"{a} < tile" for a in self.tiles]
        hint = f" {self.cache}" if self.cache != "default" else ""
        other = f" else {self.leaves}" if self.leaves or math.copysign(1.0, self.leaves) < 0 else ""
        when = f" when {', '.join(limits)}{other}" if limits else ""
        return f"[{show_term(self.offset)}]..{self.width}{hint}{when}"


@dataclass(frozen=True)
class Course:
    """Tiles of a buffer that come through shared memory: once for each of `loads`, the values of as many sweeps of `axis`.

    Kept tiles come for the first of them and stay for the others.
    """

    axis: str
    loads: tuple[str, ...]
    staging: Staging

    def __str__(self) -> str:
        how = f"{self.staging.how} copies" if self.staging.how else "loads"
        depth = f" of depth {self.staging.depth}" if self.staging.depth else ""
        return f"{', '.join(self.loads)} over {self.axis} by {how}{depth}{', kept' if self.staging.kept else ''}"


@dataclass(frozen=True)
class PartPlan:
    """What is decided about one part: the layouts of its tiles, its accesses by name, and what goes through shared memory.

    A load in `staged` comes in layouts of its own and changes to those of the part in shared memory. A fold that is
    `ended` along an axis sees its identity at what the layout has beyond the tile.
    """

    layouts: Family
    staged: Mapping[str, Family] = field(default_factory=dict)
    accesses: Mapping[str, Access] = field(default_factory=dict)
    courses: tuple[Course, ...] = ()
    ended: frozenset[tuple[str, str]] = frozenset()

    def __str__(self) -> str:
        lines = [str(self.layouts)]
        for name, family in self.staged.items():
            lines += [f"  {name} through shared memory from", f"  {family}".replace("\n", "\n  ")]
        lines += [f"  {k}: {a}" for k, a in self.accesses.items()]
        lines += [f"  {fold} sees its identity past {axis}" for fold, axis in sorted(self.ended)]
        return "\n".join([*lines, *(f"  through shared memory: {c}" for c in self.courses)])


@dataclass(frozen=True)
class State:
    """A program on its way down: `kernel` is there once statements are lowered, `plans` (one a part) before.

    `threads` are those of a cluster of `cluster` blocks.
    """

    tile: TileProgram
    machine: Machine
    threads: int
    cluster: int = 1
    plans: tuple[PartPlan, ...] = ()
    kernel: KernelProgram | None = None

    def __str__(self) -> str:
        if self.kernel is not None:
            return show_kernel(self.kernel)
        plans = [f"plan of part {k}, {self.threads} threads:\n{p}\n" for k, p in enumerate(self.plans)]
        return show_tile(self.tile) + "".join(plans)


@dataclass(frozen=True)
class Pass:
    """A named step from one state to the next."""

    name: str
    run: Callable[[State], State]


def access_name(s: TileLoad | TileStore) -> str:
    """The key of an access in a plan."""
    index = ", ".join(map(show_term, s.index))
    return f"load {s.out}" if isinstance(s, TileLoad) else f"store {s.buffer}[{index}] = {s.value}"
