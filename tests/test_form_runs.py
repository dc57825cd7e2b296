"""What the runs of forms hold masks to: infinity or NaN where they are factors, what is written elsewhere."""

from __future__ import annotations

import torch

from eggtile.pipeline import Options
from tests.form_runs import Forms, masked, of_one_kind, with_finite_masks


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_a_sum_of_infinite_products_is_infinite_or_nan_by_its_order() -> None:
    inputs = [rand(2, 3, 32) / 32, rand(2, 32, 4), rand(2, 4, 3)]
    forms = Forms.of(lambda a, b, c: (a @ b) @ c, inputs, Options(k=12))
    assert forms.count > 2
    as_written = forms.count - 1
    assert {number for number, _ in forms.wrong(masked(inputs), "masked")} <= {as_written}


def test_shares_do_not_grow_with_a_mask_and_are_nan_where_a_row_is_masked_everywhere() -> None:
    inputs = masked([rand(3, 8)])
    forms = Forms.of(lambda x: torch.softmax(x, -1), inputs, Options(k=12))
    (grown, _) = forms.run(forms.count - 1, [with_finite_masks(t) for t in inputs], True)
    assert grown.abs().max() <= 1
    infinite = torch.full((3, 8), torch.inf)
    assert torch.equal(of_one_kind([infinite], [grown])[0], infinite)
