"""All laws, by family, and which of them a numerics setting allows."""

from __future__ import annotations

from collections.abc import Collection

from egraph import approximate, contraction, magnitude, normal, rounding, streaming, translation
from egraph.graph import EGraphError
from egraph.law import LAWS, NUMERICS, Law

__all__ = ["LAWS", "Law", "laws"]

FAMILIES = (normal, contraction, rounding, streaming, translation, approximate)
PLUMBING = "\n".join((magnitude.DEMAND, contraction.DEMAND, streaming.DEMAND, translation.DEMAND))
"""Relations and demand rules that the laws of several families share; they hold under every setting."""


def laws(numerics: str = "default", without: Collection[str] = ()) -> tuple[Law, ...]:
    """The laws that a numerics setting allows, less those named; raises on a name that is not a law."""
    if numerics not in NUMERICS:
        raise EGraphError(f"numerics {numerics!r} is none of {', '.join(NUMERICS)}")
    unknown = sorted(set(without) - LAWS.keys())
    if unknown:
        raise EGraphError(f"no law is named {unknown[0]!r}; `laws` lists the {len(LAWS)} there are")
    return tuple(x for x in LAWS.values() if x.class_ in NUMERICS[numerics] and x.name not in without)
