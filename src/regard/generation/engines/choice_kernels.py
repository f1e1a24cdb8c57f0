"""What devices compute of the choice of a token: log-probabilities in compiled code, Triton kernels on a GPU."""

from functools import lru_cache
from types import ModuleType

import torch

from regard.core.shapes import Float, Tensor
from regard.generation.engines.cpu import compile
from regard.generation.engines.cpu.weight_layout import Count, Pointer
from regard.kernels import triton_launch


def log_softmax(logits: Float[Tensor, "*B V"]) -> Float[Tensor, "*B V"]:
    """Log-probabilities in float32, rounded on a CPU as the compiled loop rounds them."""
    library = (
        compile.library() if logits.device.type == "cpu" and logits.dtype == torch.float32 else None
    )
    if library is None:
        return logits.float().log_softmax(-1)
    logits = logits.contiguous()
    result = torch.empty_like(logits)
    width = logits.shape[-1]
    sizes = Count(logits.numel() // width), Count(width)
    library.regard_log_softmax(
        Pointer(logits.data_ptr()), *sizes, Pointer(result.data_ptr()), torch.get_num_threads()
    )
    return result


def kernels(x: Tensor) -> ModuleType | None:
    """The module of Triton kernels, if this tensor is on a GPU where they can be launched."""
    return _kernels() if x.is_cuda and triton_launch.available(x.device) else None


@lru_cache(maxsize=1)
def _kernels() -> ModuleType:
    from regard.generation.engines.cuda.kernels import step_triton

    return step_triton
