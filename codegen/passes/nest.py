"""Loop nests over the registers of a tile: coordinates, register indices and names while a body is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from codegen.passes.terms import conjunction, digit, linear, widened
from ir import kernel as K
from ir import term as T
from ir.dtype import DType
from ir.layout import LANES, Family, Mode
from ir.term import Term, Var
from ir.tile import TilePart

THREAD = widened(K.THREAD)
WARP = T.binary("floordiv", THREAD, T.number(LANES))


class Names:
    """Gives out names that no other part of the kernel uses."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.taken = {*taken, K.BLOCK.name, K.THREAD.name}

    def fresh(self, wish: str) -> str:
        """`wish`, or `wish` with a number where it is taken."""
        name, k = wish, 1
        while name in self.taken:
            name, k = f"{wish}_{k}", k + 1
        self.taken.add(name)
        return name


class Nests:
    """Writes statements into nests of unrolled loops, one loop for each register mode of a tile.

    Statements over the same axes share the open nest until one of them needs what a fold in it has not finished.
    """

    def __init__(self, part: TilePart, layouts: Family, names: Names) -> None:
        self.part, self.layouts, self.names = part, layouts, names
        self.out: list[K.Statement] = []
        self.inner: list[K.Statement] = []
        self.space: tuple[tuple[str, ...], int, str] | None = None
        self.after: list[Callable[[], None]] = []
        self.digits = {
            m: Var(names.fresh(f"{m.axis}_{'e' if m.stride == 1 else 'r'}"), "i32", ()) for m in layouts.register
        }
        self.inside: dict[str, Term] = {}
        self.base: dict[str, Term] = {}
        self.start: dict[str, Term] = {}

    # ---- coordinates

    def enter(self, axis: str, start: Term) -> None:
        """From here on the current tile of `axis` starts at coordinate `start`."""
        if axis not in self.inside:
            modes = self.layouts.thread.get(axis, ())
            self.inside[axis] = self.let(
                f"{axis}_t", linear({digit(THREAD, before, m.size): m.stride for before, m in modes})
            )
        self.start[axis] = start
        self.base[axis] = self.let(f"{axis}_0", T.binary("add", start, self.inside[axis]))

    def let(self, wish: str, value: Term) -> Term:
        """A scalar with that value; leaves need no name."""
        if not value.terms or isinstance(value, T.Round):
            return value
        name = self.names.fresh(wish)
        self.out.append(K.Let(name, value))
        return Var(name, value.dtype, ())

    def beside(self, axes: Iterable[str], layouts: Family) -> Nests:
        """Nests in other layouts, with the tiles of `axes` where they are here."""
        out = Nests(self.part, layouts, self.names)
        for a in axes:
            out.enter(a, self.start[a])
        return out

    def local(self, axis: str) -> Term:
        """The position in the tile of the element at hand, i64."""
        return self._moved(self.inside[axis], axis)

    def coordinate(self, axis: str) -> Term:
        """The coordinate of the element at hand, i64."""
        return self._moved(self.base[axis], axis)

    def _moved(self, base: Term, axis: str) -> Term:
        steps = {widened(v): m.stride for m, v in self.digits.items() if m.axis == axis}
        return T.binary("add", base, linear(steps)) if steps else base

    def element(self, axes: Iterable[str]) -> Term:
        """The register that holds the element at hand of a tile over `axes`, i32."""
        return self.register(self.modes(axes))

    def register(self, modes: Iterable[Mode]) -> Term:
        """The linear index of the digits at hand of some register modes, fastest first, i32."""
        total: Term = T.const(0, "i32")
        weight = 1
        for mode in modes:
            total = T.binary("add", total, T.binary("mul", self.digits[mode], T.const(weight, "i32")))
            weight *= mode.size
        return total

    def registers(self, axes: Iterable[str]) -> int:
        """Elements that a thread holds of a tile over `axes`."""
        return self.layouts.over(axes).registers

    def owner(self, axes: Iterable[str]) -> Term | None:
        """True in one of the threads that hold the same elements of a tile over `axes`; None where all differ."""
        before, tests = 1, []
        for m in self.layouts.over(axes).thread:
            if m.axis is None:
                tests.append(T.binary("eq", digit(THREAD, before, m.size), T.number(0)))
            before *= m.size
        return conjunction(tests)

    # ---- statements

    def array(self, wish: str, dtype: DType, size: int) -> str:
        """A new register array, declared in front of the open nest."""
        name = self.names.fresh(wish)
        self.out.append(K.Array(name, dtype, size))
        return name

    def over(self, axes: Iterable[str], width: int = 1, kind: str = "compute") -> list[K.Statement]:
        """The body of a nest over the registers of a tile over `axes`, the fastest loop in steps of `width`.

        Nests of another kind stand apart, so that all loads are issued before the first value is used.
        """
        kept = set(axes)
        space = tuple(a.name for a in self.part.axes if a.name in kept), width, kind
        if self.space != space:
            self.close()
            self.space = space
        return self.inner

    def close(self) -> None:
        """End the open nest, then finish the folds that it holds."""
        if self.space is not None:
            axes, width, _ = self.space
            self.out += self._wrapped(tuple(self.inner), self.modes(axes), width)
        self.space, self.inner = None, []
        after, self.after = self.after, []
        for finish in after:
            finish()

    @contextmanager
    def now(self, modes: Iterable[Mode]) -> Iterator[None]:
        """A nest of its own over register modes, in front of the open nest."""
        waiting, self.inner = self.inner, []
        yield
        self.out += self._wrapped(tuple(self.inner), tuple(modes), 1)
        self.inner = waiting

    def _wrapped(
        self, body: tuple[K.Statement, ...], modes: tuple[Mode, ...], width: int
    ) -> tuple[K.Statement, ...]:
        zero = T.const(0, "i32")
        for k, mode in enumerate(modes):
            stop = T.const(mode.size, "i32")
            body = (K.For(self.digits[mode].name, zero, stop, width if k == 0 else 1, True, body),) if body else ()
        return body

    def modes(self, axes: Iterable[str]) -> tuple[Mode, ...]:
        """Register modes of a tile over `axes`, fastest first."""
        return self.layouts.over(axes).register

    @contextmanager
    def block(self) -> Iterator[list[K.Statement]]:
        """Statements written inside go to a list of their own, the body of a loop."""
        self.close()
        outer, self.out = self.out, []
        places = dict(self.base), dict(self.start)
        yield self.out
        self.close()
        self.out, (self.base, self.start) = outer, places
