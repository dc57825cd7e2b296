"""The layout algebra: which thread and register of a block, or of a cluster, hold which element of a named tile.

A layout is two lists of modes, fastest first: digits of the linear thread index and of the linear register index. A
mode of `size` digits moves `stride` elements along `axis`; without an axis its digits are replicas, or, with a monoid,
partial results whose product is the element. Sub-tiles are projections; layouts are equal when their normal forms are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ir.node import IRError

LANES = 32


@dataclass(frozen=True)
class Mode:
    """`size` digits that move `stride` elements along `axis`; no axis: replicas, or partial results of `monoid`."""

    size: int
    axis: str | None = None
    stride: int = 0
    monoid: str | None = None

    def __str__(self) -> str:
        return f"{self.size}:{self.axis}*{self.stride}" if self.axis else f"{self.size}:{self.monoid or '_'}"


def normal(modes: Iterable[Mode]) -> tuple[Mode, ...]:
    """Neighbours that continue each other merged, modes of size 1 dropped."""
    out: list[Mode] = []
    for m in modes:
        if m.size == 1:
            continue
        last = out[-1] if out else None
        if last and (last.axis, last.monoid) == (m.axis, m.monoid) and last.size * last.stride == m.stride:
            out[-1] = replace(last, size=last.size * m.size)
        else:
            out.append(m)
    return tuple(out)


@dataclass(frozen=True)
class Layout:
    """Thread modes and register modes, fastest first."""

    thread: tuple[Mode, ...]
    register: tuple[Mode, ...]

    def __str__(self) -> str:
        return f"thread({', '.join(map(str, self.thread))}) register({', '.join(map(str, self.register))})"

    @property
    def threads(self) -> int:
        """Number of threads that the layout covers."""
        return math.prod(m.size for m in self.thread)

    @property
    def registers(self) -> int:
        """Number of elements a thread holds."""
        return math.prod(m.size for m in self.register)

    def normal(self) -> Layout:
        """The normal form: equal layouts have equal normal forms."""
        return Layout(normal(self.thread), normal(self.register))

    def same(self, other: Layout) -> bool:
        """Whether both place every element in the same threads and registers."""
        return self.normal() == other.normal()

    def project(self, axes: Iterable[str], monoid: str | None = None) -> Layout:
        """The layout of the sub-tile over `axes`: thread modes of other axes replicate (or are partial), registers drop."""
        kept = set(axes)
        thread = tuple(m if m.axis is None or m.axis in kept else Mode(m.size, monoid=monoid) for m in self.thread)
        return Layout(thread, tuple(m for m in self.register if m.axis in kept))

    def cover(self, axis: str) -> int:
        """Number of positions of `axis` that the layout has places for."""
        return math.prod(m.size for m in (*self.thread, *self.register) if m.axis == axis)

    def digits(self, axes: Iterable[str], block: int = 0) -> tuple[tuple[int, int, Mode], ...]:
        """(threads before the mode, size, mode) for each thread mode along one of `axes`.

        Modes are cut at the border of warps, and of blocks where `block` gives their threads.
        """
        wanted, before, out = set(axes), 1, []
        for m in self.thread:
            if m.axis in wanted:
                out += [(before * m_before, size, mode) for m_before, size, mode in _cut(m, before, (LANES, block))]
            before *= m.size
        return tuple(out)

    def table(self) -> dict[str, npt.NDArray[np.int64]]:
        """Coordinates [threads, registers] of every axis, by enumeration."""
        shape = (self.threads, self.registers)
        out: dict[str, npt.NDArray[np.int64]] = {}
        for modes, places in (
            (self.thread, np.arange(shape[0])[:, None]),
            (self.register, np.arange(shape[1])[None]),
        ):
            for m in modes:
                if m.axis is not None:
                    out[m.axis] = out.get(m.axis, np.zeros(shape, np.int64)) + places % m.size * m.stride
                places = places // m.size
        return out


def _cut(mode: Mode, before: int, borders: Iterable[int]) -> Iterator[tuple[int, int, Mode]]:
    """(threads of the mode before the piece, size, piece) for the pieces of a mode that begins after `before` threads."""
    done = 1
    for border in borders:
        here = before * done
        if here < border and done < mode.size:
            size = math.gcd(mode.size // done, max(1, border // here))
            if size * here < border and size < mode.size // done:
                raise IRError(f"layout: {mode.size} threads along {mode.axis} do not split at a border of {border}")
            if size > 1:
                yield done, size, Mode(size, mode.axis, mode.stride * done)
            done *= size
    if done < mode.size:
        yield done, mode.size // done, Mode(mode.size // done, mode.axis, mode.stride * done)


@dataclass(frozen=True)
class Family:
    """Layouts of all sub-tiles of a block, consistent under projection, because every axis has its modes once.

    `thread` gives each axis' thread modes with the threads before each; axes that no tile has together may share
    threads. `register` lists the register modes of all axes, fastest first. The threads are those of `cluster` blocks.
    """

    threads: int
    thread: Mapping[str, tuple[tuple[int, Mode], ...]]
    register: tuple[Mode, ...]
    cluster: int = 1

    @property
    def block(self) -> int:
        """Threads of one block."""
        return self.threads // self.cluster

    def __str__(self) -> str:
        axes = {a for a, modes in self.thread.items() if modes} | {m.axis for m in self.register if m.axis}
        return "\n".join(f"  {a}: {self.over((a,))}" for a in sorted(axes))

    def over(self, axes: Iterable[str]) -> Layout:
        """The layout of a tile over `axes`; threads that hold no axis replicate."""
        kept, modes, end = set(axes), [], 1
        for before, mode in sorted((p for a in kept for p in self.thread.get(a, ())), key=lambda p: p[0]):
            if before % end:
                raise IRError(f"layout: two of the axes {', '.join(sorted(kept))} share threads")
            modes += [Mode(before // end), mode]
            end = before * mode.size
        modes.append(Mode(self.threads // end))
        return Layout(tuple(m for m in modes if m.size > 1), tuple(m for m in self.register if m.axis in kept))
