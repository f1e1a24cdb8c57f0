"""The axis letters, defined once.

    B   batch
    H   heads of the query
    G   heads of the key and the value; H is a multiple of G (grouped heads), often H itself
    N   queries
    M   keys
    D   dim of projected queries and keys
    E   dim of values and outputs
    R   a selection of the N queries
    C   consecutive keys of the M
    L   distances between N queries and M keys: N + M - 1
    W   dim of the model
    S   positions of a sequence

Signatures carry them as jaxtyping annotations, which the test run checks and production ignores: without jaxtyping,
`Float[Tensor, "B S"]` is `Tensor`. `#` before a letter means that the axis may also have size one. Public functions
check their arguments and raise `InvalidArgument`.
"""

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped
else:
    try:
        from jaxtyping import Bool, Float, Int, Shaped
    except ImportError:

        class Shaped:
            def __class_getitem__(cls, array_and_shape):
                return array_and_shape[0]

        Bool = Float = Int = Shaped

Queries = Float[Tensor, "B H N D"]
Keys = Float[Tensor, "B G M D"]
Values = Float[Tensor, "B _ M E"]  # the number of value heads may differ from that of key heads
Outputs = Float[Tensor, "B H N E"]
LogSumExp = Float[Tensor, "B H N"]

__all__ = [
    "Bool",
    "Float",
    "Int",
    "Keys",
    "LogSumExp",
    "Outputs",
    "Queries",
    "Shaped",
    "Tensor",
    "Values",
]
