"""Shared memory for what threads exchange: modelled as the passes lay it out; lines that ask for too much are refused."""

import random

import pytest

from extract.points import Point, point
from extract.spaces import Rules
from ir import term as T
from ir.kernel_verify import footprint
from ir.node import IRError
from tests.extract.kernels import CASES, buffer, i, load, put
from tests.extract.test_spaces import listed, shape
from tests.extract.test_staging import exponents, lowered


def running(n, dtype="f32"):
    """Sums of all that stands before, along one long row."""
    x, out = buffer("x", dtype, n), buffer("out", dtype, n, role="output")
    return shape({"a": n}, [x, out], put(out, (i("a"),), T.Scan("a", "add", load(x, i("a")))))


@pytest.mark.parametrize(("n", "dtype"), [(58113, "f32"), (131077, "f32"), (60001, "f64")])
def test_the_default_line_of_a_long_scan_of_odd_length_is_lowered(n, dtype):
    c = running(n, dtype)
    lowered(c, listed(c).lines[0])


def test_a_line_whose_exchange_takes_too_much_shared_memory_is_refused_with_the_bytes():
    c = running(58113)
    with pytest.raises(IRError, match="takes 233472 bytes of shared memory, at most 232448 fit; near are WORK"):
        listed(c).check("WORK=t608+c8 TILE=a:58113")


def any_point(rng, rules):
    """A point of a few of each number, of which threads need not divide the tiles."""
    p = Point(32 * rng.randint(2, 20), (), reduce=rng.choice(["block", "block", "lanes", "serial"]))
    for a in rng.sample(list(rules.axes), len(rules.axes)):
        p = p.tiled(a, rules.tile_up_to(a, 1 << rng.randint(0, 10)))
    if p.tiles:
        p = p.with_vector(rng.choice(p.tiles)[0], 1 << rng.randint(0, 3))
    return p


def taken(c, seed, count, **more):
    """Lines of random points that check takes."""
    s, rng = listed(c), random.Random(seed)
    rules, found = Rules(s.subject), []
    for _ in range(count):
        p = any_point(rng, rules)
        fields = {k: rng.choice(v) for k, v in more.items()}
        if fields.get("cluster", 1) > 1:
            fields["reduce"] = "block"
        try:
            found.append(s.check(Point(**{**vars(p), **fields}).line()))
        except IRError:
            continue
    return rules, found


@pytest.mark.parametrize("name", CASES)
def test_the_modelled_shared_memory_is_at_least_that_of_the_kernel_and_mostly_equal(name):
    c = CASES[name]()
    rules, lines = taken(c, name, 8, cluster=[1, 1, 2, 4])
    for line in lines:
        (k,) = lowered(c, line)
        real, modelled = footprint(k).shared_bytes, rules.exchanged_bytes(point(line))
        assert real <= modelled <= 3 * real, f"{line}: {real} {modelled}"


@pytest.mark.parametrize("name", CASES)
def test_whatever_check_takes_is_lowered(name):
    c = CASES[name]()
    stages = ["shared", "async/d3", "bulk/d3", "shared+bulk", "shared+async/d3"]
    _, lines = taken(c, name, 16, stage=stages, store=["", "stream"])
    for line in lines:
        lowered(c, line)


@pytest.mark.parametrize(
    "m, n, dtype, line",
    [
        (9, 700, "f32", "WORK=t160 TILE=a:8/v8,b:16 REDUCE=lanes STAGE=shared+bulk"),
        (3, 4096, "bf16", "WORK=t160 TILE=a:4/v4,b:32 STAGE=bulk/d3 STORE=stream"),
    ],
)
def test_tiles_that_threads_do_not_divide_are_not_staged_in_bulk(m, n, dtype, line):
    with pytest.raises(IRError, match=r"no load of a swept axis.* can be staged; near are"):
        listed(exponents(m, n, dtype)).check(line)
