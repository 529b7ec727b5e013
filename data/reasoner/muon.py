"""Muon in float32: momentum whose matrix updates are orthogonalised (Jordan and others, 2024).

torch.optim.Muon works in bfloat16, which CPUs without bf16 units run far slower; this one also handles all
matrices of one shape at once. Knows nothing of models or data.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

_A, _B, _C = 3.4445, -4.7750, 2.0315


def orthogonalise(stack: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Each matrix of the stack, its singular values brought near one (Newton-Schulz)."""
    tall = stack.size(-2) > stack.size(-1)
    x = stack.mT if tall else stack
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    direction: torch.Tensor = x.mT if tall else x
    return direction


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, with decoupled weight decay."""

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """One update of every matrix that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[torch.nn.Parameter]] = {}
            for param in group["params"]:
                if param.grad is not None:
                    by_shape.setdefault(param.shape, []).append(param)
            for shape, params in by_shape.items():
                directions = []
                for param in params:
                    gradient = param.grad
                    if gradient is None:  # sorted out above
                        continue
                    state = self.state[param]
                    if "momentum" not in state:
                        state["momentum"] = torch.zeros_like(param)
                    buffer = state["momentum"]
                    buffer.lerp_(gradient, 1 - group["momentum"])
                    directions.append(torch.lerp(gradient, buffer, group["momentum"]))
                update = orthogonalise(torch.stack(directions))
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for param, change in zip(params, update, strict=True):
                    param.mul_(1 - group["lr"] * group["weight_decay"])
                    param.add_(change, alpha=-scale)
