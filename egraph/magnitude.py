"""Which factors may leave a fold: those without which what stays inside is in range wherever the program is.

A program that divides by what it folds (x / max|x|, x / |x|) takes its rows to be of any magnitude, so a square of what
it divides, or a product with it, may leave the range of its type where the quotients do not. What a program computes as
written is in range, and so is a product of one such value with bounded ones. What a factor has left behind is no such
value: behind the second of two norms it would be the square of what either divides. A square root is within the root of
the range; what is only multiplied with, weights and scales, is taken to be of ordinary magnitude. So c may leave a fold
of c * r where

  - r is `level`: one value of the program as written times bounded ones; and c is `lone`: one value times mild ones,
  - or c is `mild`: a value that divides by no fold,
  - or c is `rooted`, a square root or its reciprocal, with what keeps it from 0, times mild values; and r is `fair`: one
    value of the program as written times bounded ones and mild ones without folds.

Range is kept up to the number of terms and the constants that are mild.
"""

from __future__ import annotations

DEMAND = """
(relation roots (String))
(roots "sqrt") (roots "rsqrt")
(relation lone (E))
(relation level (E))
(relation fair (E))
(relation rooted (E))
(relation leaves (E E))
(rule ((= e (Binary "mul" x y)) (bounded x) (level y)) ((level e)) :ruleset split)
(rule ((= e (Unary "neg" x)) (level x)) ((level e)) :ruleset split)
(rule ((= e (Round d o x)) (level x)) ((level e)) :ruleset split)
(rule ((level e)) ((fair e)) :ruleset split)
(rule ((mild e) (= g (folded e)) (= 0 (set-length g))) ((fair e)) :ruleset split)
(rule ((= e (Binary "mul" x y)) (bounded x) (fair y)) ((fair e)) :ruleset split)
(rule ((= e (Binary "mul" x y)) (mild x) (= g (folded x)) (= 0 (set-length g)) (fair y)) ((fair e)) :ruleset split)
(rule ((= e (Unary "neg" x)) (fair x)) ((fair e)) :ruleset split)
(rule ((= e (Round d o x)) (fair x)) ((fair e)) :ruleset split)
(rule ((= e (Unary o x)) (mild x) (!= o "recip") (!= o "rsqrt")) ((mild e)) :ruleset facts)
(rule ((= e (Unary o x)) (mild x) (= g (folded x)) (= 0 (set-length g))) ((mild e)) :ruleset facts)
(rule ((= e (Unary "recip" (Round d o n))) (= t (dtype n)) (> t 7)) ((mild e)) :ruleset facts)
(rule ((= e (Binary o x y)) (mild x) (mild y) (combines o)) ((mild e)) :ruleset facts)
(rule ((= e (Select p x y)) (mild x) (mild y)) ((mild e)) :ruleset facts)
(rule ((= e (Round d o x)) (mild x)) ((mild e)) :ruleset facts)
(rule ((= e (Unary o x)) (roots o)) ((rooted e) (ranged e)) :ruleset facts)
(rule ((= e (Unary "recip" x)) (rooted x)) ((rooted e) (ranged e)) :ruleset facts)
(rule ((= e (Binary o x y)) (rooted x) (ranged y) (combines o) (!= o "mul")) ((rooted e) (ranged e)) :ruleset facts)
(rule ((= e (Binary "mul" x y)) (mild x) (rooted y)) ((rooted e)) :ruleset facts)
(rule ((= e (Unary "neg" x)) (rooted x)) ((rooted e)) :ruleset facts)
(rule ((= e (Round d o x)) (rooted x)) ((rooted e)) :ruleset facts)
(rule ((= e (Binary "mul" x y)) (mild x) (lone y)) ((lone e)) :ruleset split)
(rule ((= e (Unary "neg" x)) (lone x)) ((lone e)) :ruleset split)
"""
