"""The axis letters, defined once.

    B   batch
    H   heads of the query
    G   heads of the key and the value; H is a multiple of G (grouped heads), often H itself
    N   queries
    M   keys
    D   the width in which queries and keys meet
    E   width of a value, and so of the result
    R   some of the N queries
    C   a run of the M keys
    L   distances between N queries and M keys: N + M - 1
    W   width of the model
    S   positions of a sequence

Signatures inside the package carry them as jaxtyping annotations, which the test run executes and production ignores.
`#` before a letter means that the axis may also have size one. Functions that users call check their arguments
themselves and raise `InvalidArgument`.
"""

from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

Queries = Float[Tensor, "B H N D"]
Keys = Float[Tensor, "B G M D"]
Values = Float[Tensor, "B _ M E"]  # values may be shared by heads that do not share keys
Outputs = Float[Tensor, "B H N E"]
LogSumExp = Float[Tensor, "B H N"]

__all__ = ["Bool", "Float", "Int", "Keys", "LogSumExp", "Outputs", "Queries", "Shaped", "Tensor", "Values"]
