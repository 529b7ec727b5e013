"""How near a kernel must come to its specification: one table, and an assertion that prints its figure."""

from __future__ import annotations

import torch

from desist.proxy.studies.kernel_parity import relative_error

__all__ = ["TOLERANCE", "assert_close"]

#: Largest relative RMS error against the float32 specification, by the type of the hidden states and weights.
#: The specification gets the same rounded inputs, so what is left is the order of the sums.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-6, torch.bfloat16: 2e-6}


def assert_close(name: str, found: torch.Tensor, expected: torch.Tensor, bound: float) -> None:
    """Relative RMS error of `found` against `expected`; NaN must stand in the same places."""
    assert found.shape == expected.shape, f"{name}: shape {tuple(found.shape)}, not {tuple(expected.shape)}"
    assert torch.equal(found.isnan(), expected.isnan()), f"{name}: NaN in other places"
    error = relative_error(found, expected)
    print(f"{name}: relative RMS error {error:.2e} (bound {bound:.0e})")
    assert error <= bound, f"{name}: relative RMS error {error:.2e} > {bound:.0e}"
