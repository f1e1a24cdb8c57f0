"""Muon, with all matrices of one shape orthogonalized in one batch of products."""

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch

from regard.core.shapes import Float, Tensor


class Muon(torch.optim.Muon):
    """`torch.optim.Muon` with the same updates and state,
    for Nesterov's momentum and adjust_lr_fn "match_rms_adamw".

    PyTorch's takes one matrix after the other, some twenty small kernels for each: on a GPU their
    launches take longer than the update of a small model. As with fused AdamW, `found_inf` skips an
    update without waiting for the device.
    """

    # 1 where gradients are not finite: nothing changes then.
    found_inf: Float[Tensor, ""] | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            assert group["nesterov"]
            assert group["adjust_lr_fn"] == "match_rms_adamw"
            shapes: dict[torch.Size, list[Tensor]] = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    shapes.setdefault(weight.shape, []).append(weight)
            for weights in shapes.values():
                self._update(weights, group)

    def _update(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        """Update weights of one shape."""
        rate = float(group["lr"])
        momentum = group["momentum"]
        for weight in weights:
            if "momentum_buffer" not in self.state[weight]:
                self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        buffers = [self.state[weight]["momentum_buffer"] for weight in weights]
        gradients = torch.stack([weight.grad for weight in weights])  # type: ignore[misc]
        before = torch.stack(buffers)  # (n, X, Y)
        means = before.lerp(gradients, 1 - momentum)
        ahead = gradients.lerp(means, momentum)
        changes = orthogonalize(ahead, group["ns_coefficients"], group["ns_steps"], group["eps"])
        changes = changes.to(ahead.dtype) * (-rate * 0.2 * sqrt(max(weights[0].shape)))
        shrink: float | Tensor = 1 - rate * group["weight_decay"]
        if self.found_inf is not None:
            finite = self.found_inf == 0
            means = torch.where(finite, means, before)
            changes = torch.where(finite, changes, 0.0)
            shrink = torch.where(finite, shrink, 1.0)
        torch._foreach_copy_(buffers, means.unbind())
        torch._foreach_mul_(weights, shrink)
        torch._foreach_add_(weights, changes.unbind())


def orthogonalize(
    matrices: Float[Tensor, "n X Y"],
    coefficients: tuple[float, float, float],
    steps: int,
    eps: float,
) -> Float[Tensor, "n X Y"]:
    """The nearest orthogonal matrices, roughly, in bfloat16,
    by Newton-Schulz iteration of the fifth order.
    """
    a, b, c = coefficients
    tall = matrices.shape[1] > matrices.shape[2]
    # The product with the transpose is smaller where a matrix has more columns than rows.
    wide = matrices.mT if tall else matrices
    x = wide.bfloat16()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)  # the spectral norm is at most 1
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT.contiguous() if tall else x
