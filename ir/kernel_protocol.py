"""The protocol of rings: no slot is read before its copies have arrived, nor copied into before its readers are done.

All threads do the same to a ring, at slots that depend on loop counters alone. So the ring's statements are run, for one
thread, step by step, with the numbers of a slot's uses that are committed, have arrived, are released and known to be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType

from ir import kernel as K
from ir import term as T
from ir.node import IRError
from ir.term import Term

_OPS = {
    "add": "({x} + {y})", "sub": "({x} - {y})", "mul": "({x} * {y})", "floordiv": "({x} // {y})", "mod": "({x} % {y})",
    "truncdiv": "int({x} / {y})", "fmod": "({x} - int({x} / {y}) * {y})", "min": "min({x}, {y})", "max": "max({x}, {y})",
    "lt": "({x} < {y})", "le": "({x} <= {y})", "eq": "({x} == {y})", "ne": "({x} != {y})",
    "and": "({x} & {y})", "or": "({x} | {y})", "xor": "({x} ^ {y})", "neg": "(-{x})", "not": "(not {x})",
}  # fmt: skip
_STAGING = (K.Ring, K.Copy, K.BulkCopy, K.Commit, K.Wait, K.WaitSlot, K.Release, K.Alias)


def check_protocol(program: K.KernelProgram) -> None:
    """Raise `IRError` where the kernel's rings are used in a wrong order."""
    if any(isinstance(s, K.Ring) for s in K.walk(program.body)):
        protocol = _Protocol()
        protocol.body(_concerned(program.body), {})
        protocol.end()
    _check_aliases(program.body)


def is_one_thread(t: Term, known: Collection[Term] = ()) -> bool:
    """Whether a predicate holds in one thread at most; `known` are scalars that do."""
    return any(c in known or _names_a_thread(c) for c in T.conjuncts(t))


def _names_a_thread(t: Term) -> bool:
    if not isinstance(t, T.Binary) or t.op != "eq":
        return False
    sides = {x.x if isinstance(x, T.Round) else x for x in (t.x, t.y)}
    return K.THREAD in sides and any(isinstance(x, T.Const) for x in sides)


# ---- the statements that matter, with terms ready to be computed


@dataclass(frozen=True)
class _Step:
    """A statement, the code of its terms that follow from loop counters (None: another term), and its body."""

    statement: K.Statement
    codes: tuple[CodeType | None, ...] = ()
    body: tuple[_Step, ...] = ()


def _concerned(body: Sequence[K.Statement]) -> tuple[_Step, ...]:
    """The statements of a body that use rings, or give a value to what these depend on."""
    known: set[str] = set()

    def go(statements: Sequence[K.Statement]) -> Iterator[_Step]:
        for s in statements:
            match s:
                case K.Let(name, value):
                    code = _code(value, known)
                    if code is not None:
                        known.add(name)
                        yield _Step(s, (code,))
                case K.For(name, start, stop):
                    if any(map(_uses_rings, K.walk(s.body))):
                        known.add(name)
                        yield _Step(s, (_code(start, known), _code(stop, known)), tuple(go(s.body)))
                case K.If(pred):
                    if any(map(_uses_rings, K.walk(s.body))):
                        yield _Step(s, tuple(_code(c, known) for c in T.conjuncts(pred)), tuple(go(s.body)))
                case K.WaitSlot(_, _, slot, phase):
                    yield _Step(s, (_code(slot, known), _code(phase, known)))
                case K.Copy() | K.BulkCopy() | K.Release() | K.Commit() | K.LoadShared() if s.slot is not None:
                    yield _Step(s, (_code(s.slot, known),))
                case _ if isinstance(s, _STAGING):
                    yield _Step(s)

    return tuple(go(body))


def _uses_rings(s: K.Statement) -> bool:
    return isinstance(s, _STAGING) or (isinstance(s, K.LoadShared) and s.slot is not None)


def _code(t: Term, known: set[str]) -> CodeType | None:
    """Python code of an integer term over known scalars, or None."""
    text = _text(t, known)
    return None if text is None else compile(text, "term", "eval")


def _text(t: Term, known: set[str]) -> str | None:
    if t.dtype not in ("i32", "i64", "bool"):
        return None
    kids = [_text(k, known) for k in t.terms]
    if None in kids:
        return None
    match t:
        case T.Const():
            return str(int(t.value))
        case T.Var(name):
            return f"v_{name}" if name in known else None
        case T.Round() if t.dtype != "bool":
            return kids[0]
        case T.Select():
            return f"({kids[1]} if {kids[0]} else {kids[2]})"
        case T.Unary(op) if op in _OPS:
            return _OPS[op].format(x=kids[0])
        case T.Binary(op) if op in _OPS:
            return _OPS[op].format(x=kids[0], y=kids[1])
    return None


# ---- running them


@dataclass
class _Slot:
    """Uses of one slot, counted: the next one is `filling` from its first copy to its commit."""

    filling: bool = False
    committed: int = 0
    arrived: int = 0
    released: int = 0
    freed: int = 0
    """Of a bulk ring, the releases that the copying thread has waited for."""


@dataclass
class _Protocol:
    rings: dict[str, tuple[K.Ring, list[_Slot]]] = field(default_factory=dict)
    groups: list[list[_Slot]] = field(default_factory=list)

    def body(self, steps: Sequence[_Step], values: dict[str, int]) -> None:
        for step in steps:
            match step.statement:
                case K.Let(name):
                    values[f"v_{name}"] = self.number(step, 0, values)
                case K.For(name, _, _, by):
                    inner = dict(values)
                    for k in range(self.number(step, 0, values), self.number(step, 1, values), by):
                        inner[f"v_{name}"] = k
                        self.body(step.body, inner)
                case K.If():
                    if all(c is None or eval(c, {}, values) for c in step.codes):
                        self.body(step.body, dict(values))
                case s:
                    self.use(s, step, values)

    def number(self, step: _Step, k: int, values: Mapping[str, int]) -> int:
        code = step.codes[k]
        if code is None:
            raise IRError(
                f"{type(step.statement).__name__}: a slot, phase or bound depends on more than loop counters"
            )
        return int(eval(code, {}, dict(values)))

    def use(self, s: K.Statement, step: _Step, values: Mapping[str, int]) -> None:
        match s:
            case K.Ring(name, _, _, slots):
                self.rings[name] = s, [_Slot() for _ in range(slots)]
            case K.Commit(None):
                group = [
                    slot for ring, slots in self.rings.values() if not ring.bulk for slot in slots if slot.filling
                ]
                for slot in group:
                    slot.filling, slot.committed = False, slot.committed + 1
                self.groups.append(group)
            case K.Wait(pending):
                done = max(0, len(self.groups) - pending)
                for slot in (slot for group in self.groups[:done] for slot in group):
                    slot.arrived += 1
                self.groups = self.groups[done:]
            case K.Alias(name, _, _, of) if of in self.rings:
                if any(slot.filling or slot.arrived < slot.committed for slot in self.rings[of][1]):
                    raise IRError(f"{name}: copies into {of}, whose memory it takes, are on their way")
            case K.Copy(ring) | K.BulkCopy(ring) | K.Commit(str(ring)) | K.Release(ring) | K.WaitSlot(ring):
                self.at(s, ring, self.slot(ring, self.number(step, 0, values)), step, values)
            case K.LoadShared(_, _, ring):
                self.at(s, ring, self.slot(ring, self.number(step, 0, values)), step, values)

    def slot(self, ring: str, k: int) -> tuple[int, _Slot]:
        if ring not in self.rings or not 0 <= k < len(self.rings[ring][1]):
            raise IRError(f"{ring}: there is no slot {k}")
        return k, self.rings[ring][1][k]

    def at(
        self, s: K.Statement, ring: str, place: tuple[int, _Slot], step: _Step, values: Mapping[str, int]
    ) -> None:
        """A statement about one slot."""
        k, slot = place
        match s:
            case K.Copy() | K.BulkCopy():
                free = slot.freed if isinstance(s, K.BulkCopy) else slot.released
                if not slot.filling and free < slot.committed:
                    raise IRError(
                        f"{ring}: slot {k} is copied into before its use {slot.committed - 1} is released"
                    )
                slot.filling = True
            case K.Commit():
                slot.filling, slot.committed = False, slot.committed + 1
            case K.WaitSlot(_, "full"):
                self.phase(f"{ring}: slot {k}", slot.arrived, slot.committed, self.number(step, 1, values))
                slot.arrived += 1
            case K.WaitSlot():
                self.phase(
                    f"{ring}: the release of slot {k}", slot.freed, slot.released, self.number(step, 1, values)
                )
                slot.freed += 1
            case _:
                verb = "released" if isinstance(s, K.Release) else "read"
                if slot.filling or slot.arrived < slot.committed:
                    raise IRError(f"{ring}: slot {k} is {verb} before a wait for the copies into it")
                if slot.released == slot.committed:
                    raise IRError(f"{ring}: slot {k} is {verb} when it is released, or was never filled")
                if isinstance(s, K.Release):
                    slot.released = slot.committed

    @staticmethod
    def phase(what: str, over: int, begun: int, parity: int) -> None:
        if over == begun:
            raise IRError(f"{what} is waited for where nothing comes")
        if parity != over % 2:
            raise IRError(f"{what} is waited for at parity {parity}, where that of use {over} is {over % 2}")

    def end(self) -> None:
        """A bulk copy writes to the memory of a block, which must not end before."""
        for name, (ring, slots) in self.rings.items():
            if ring.bulk and any(slot.filling or slot.arrived < slot.committed for slot in slots):
                raise IRError(f"{name}: a bulk copy is on its way when the kernel ends")


# ---- aliases


def _check_aliases(body: Sequence[K.Statement]) -> None:
    memory = {s.name: s for s in K.walk(tuple(body)) if isinstance(s, K.Shared | K.Ring)}
    aliases = [s for s in K.walk(tuple(body)) if isinstance(s, K.Alias)]
    taken: dict[str, str] = {}
    for s in aliases:
        if s.of not in memory or s not in body:
            raise IRError(
                f"{s.name}: {s.of} is no shared memory of its own, or the alias stands in a loop or branch"
            )
        if K.shared_bytes(s) > K.shared_bytes(memory[s.of]):
            raise IRError(
                f"{s.name}: {K.shared_bytes(s)} bytes in {s.of}, which has {K.shared_bytes(memory[s.of])}"
            )
        before = taken.get(s.of, s.of)
        taken[s.of] = s.name
        uses = {n: [k for k, o in enumerate(body) if n in K.shared_uses(o)] for n in (before, s.name)}
        barriers = [k for k, o in enumerate(body) if isinstance(o, K.Barrier) and o.scope in ("block", "cluster")]
        last, first = max(uses[before], default=-1), min(uses[s.name], default=len(body))
        if not any(last < k < first for k in barriers):
            raise IRError(f"{s.name}: no barrier stands between the last use of {before} and its first")
