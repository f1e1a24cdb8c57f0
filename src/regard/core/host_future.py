"""Asynchronous copies from a device to the host."""

from typing import Any

import torch

from regard.core.shapes import Tensor


class HostFuture:
    """A device tensor copied to the host asynchronously. Calling it waits for the copy and returns a list."""

    def __init__(self, x: Tensor) -> None:
        self.copy = x.to("cpu", non_blocking=True) if x.is_cuda else x.clone()
        self.copied = torch.cuda.Event() if x.is_cuda else None  # type: ignore[no-untyped-call]
        if self.copied is not None:
            self.copied.record(torch.cuda.current_stream(x.device))

    def __call__(self) -> list[Any]:
        if self.copied is not None:
            self.copied.synchronize()
        values: list[Any] = self.copy.tolist()
        return values
