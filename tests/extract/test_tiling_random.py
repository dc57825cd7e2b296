"""Random kernels under random schedules: folds in folds, scans, positions, shared terms, any tile."""

import random

import numpy as np
import pytest

from extract.roles import padded, roles
from ir import term as T
from tests.extract.kernels import add, buffer, case, i, load, mul, put, sub
from tests.extract.test_tiling import check

AXES = "abc"
POINTWISE = (add, mul, sub, lambda x, y: T.binary("max", x, y))


class Maker:
    """Random terms over the axes a, b and c; loads make their buffers, and earlier terms are used again."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.extents = {"a": self.pick(1, 3, 4, 5), "b": self.pick(1, 2, 4, 7), "c": self.pick(2, 3, 6)}
        self.buffers, self.pool = [], []

    def pick(self, *options):
        return self.rng.choice(options)

    def load(self, free):
        axes = self.rng.sample(sorted(free), self.rng.randint(min(1, len(free)), len(free)))
        self.buffers.append(buffer(f"x{len(self.buffers)}", "f32", *(self.extents[a] for a in axes)))
        return load(self.buffers[-1], *map(i, axes))

    def term(self, depth, free):
        known = [t for t in self.pool if t.free <= free]
        if known and self.rng.random() < 0.1:
            return self.pick(*known)
        kinds = (
            ["load"]
            if not depth
            else ["point"] * 4 + ["tanh"] + ["fold"] * 3 + ["select", "scan", "arg"] * bool(free)
        )
        t = getattr(self, self.pick(*kinds))(depth - 1, frozenset(free)) if depth else self.load(free)
        self.pool.append(t)
        return t

    def point(self, depth, free):
        return self.pick(*POINTWISE)(self.term(depth, free), self.term(depth, free))

    def tanh(self, depth, free):
        return T.unary("tanh", self.term(depth, free))

    def fold(self, depth, free):
        axes = tuple(self.rng.sample(AXES, self.pick(1, 1, 2)))
        return T.fold(axes, self.pick("add", "max", "min"), self.term(depth, free | set(axes)))

    def arg(self, depth, free):
        axis = self.pick(*AXES)
        return T.round_to("f32", "op", T.fold(axis, self.pick("argmax", "argmin"), self.term(depth, free | {axis})))

    def scan(self, depth, free):
        return T.Scan(self.pick(*sorted(free)), self.pick("add", "max"), self.term(depth, free))

    def select(self, depth, free):
        bound = add(i(self.pick(*sorted(free))), T.number(self.pick(0, 1)))
        other = self.pick(T.const(0.0, "f32"), self.term(depth, free))
        return T.select(T.binary("le", i(self.pick(*sorted(free))), bound), self.term(depth, free), other)

    def kernel(self):
        stores = []
        for k in range(self.pick(1, 1, 2)):
            axes = sorted(self.rng.sample(AXES, self.rng.randint(0, 3)))
            value = self.term(self.rng.randint(2, 5), frozenset(axes))
            out = buffer(f"out{k}", "f32", *(self.extents[a] for a in axes), role="output")
            self.buffers.append(out)
            stores.append(put(out, [i(a) for a in axes], value))
        c = case(self.extents, self.buffers, *stores)
        c.inputs = {k: np.round(4 * v) / 4 for k, v in c.inputs.items()}
        return c

    def line(self, c):
        used = roles(c.kernel.parts[0], c.form.buffers).order
        tiles = {a: min(self.pick(1, 2, 4, 8), padded(self.extents[a])) for a in sorted(used)}
        listed = ",".join(f"{a}:{tile}" for a, tile in tiles.items() if tile > 1)
        return f"WORK=t32 TILE={listed}" if listed else "WORK=t32"


@pytest.mark.parametrize("seed", range(32))
def test_a_random_kernel_is_right_under_random_schedules(seed):
    maker = Maker(seed)
    c = maker.kernel()
    for line in {maker.line(c), maker.line(c), "WORK=points4"}:
        check(c, line)
