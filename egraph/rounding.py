"""Laws that move a rounding past a positive factor of the row, in both factorings. None of them drops a rounding.

They hold without loss of range for bf16, which has the exponents of f32, and for f16 (dtype code 1) where what is
rounded stays in range: it is at most 1, or it already is an f16 value.
"""

from __future__ import annotations

from egraph.law import Rule, has_fold, relational


def _in_range(rounded: str) -> tuple[str, ...]:
    return "(= d 2)", f"(= d 1) (bounded {rounded})", f"(= d 1) (= 1 (dtype {rounded}))"


@relational("rounding", "rounding", "split")
def rounding_passes_factor_of_a_sum() -> list[Rule]:
    """Inside a sum, rounding a product is the positive factor of the row times the rounded rest."""
    rules = [("(pneed s e) (= e (Round d o b))", "(pneed s b)")]
    for guard in _in_range("b"):
        body = f'(pneed s e) (= e (Round d o b)) {guard} (psplit b s c r) (!= c (Identity "mul")) (positive c)'
        rules.append((body, "(psplit e s c (Round d o r))"))
    return rules


@relational("rounding", "rounding", "split")
def rounding_passes_streamed_factor() -> list[Rule]:
    """Inside a stream, a positive factor that changes from step to step passes a rounding.

    The value that is rounded at a step is the product as written, so its range is that of the product.
    """
    rules = [("(eneed j e) (= e (Round d o b))", "(eneed j b)")]
    for guard in _in_range("b"):
        body = f"(eneed j e) (= e (Round d o b)) {has_fold('e', 'j').facts} {guard} (esplit b j c r) (positive c)"
        rules.append((body, "(esplit e j c (Round d o r))"))
    return rules
