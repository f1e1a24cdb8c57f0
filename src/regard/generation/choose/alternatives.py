"""The most likely tokens at each position of an output, beside the one that was chosen.

They are those of the model's own distribution: before logits processors, and before the temperature and the filters of
sampling, as the log-probabilities of outputs are. A step keeps k tokens and their log-probabilities as 2 · k numbers.
"""

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from regard.core.shapes import Float, Tensor
from regard.generation.choose.interfaces import Alternatives

# Ids are kept in float32, which has all whole numbers up to 2^24; a vocabulary has at most 10 million tokens.


def most_likely(log_p: Float[Tensor, "B K V"], count: int) -> Float[Tensor, "B K A"]:
    """The `count` most likely tokens, best first, and then their log-probabilities; −∞ where there are fewer."""
    found = min(count, log_p.shape[-1])
    values, tokens = log_p.topk(found)
    missing = (0, count - found)
    return torch.cat((F.pad(tokens.float(), missing), F.pad(values, missing, value=-torch.inf)), -1)


def read_alternatives(rows: Sequence[Sequence[float]]) -> tuple[Alternatives, ...]:
    """The tokens and log-probabilities in rows of `most_likely`, without those that cannot be generated."""
    found = []
    for row in rows:
        count = len(row) // 2
        pairs = zip(row[:count], row[count:], strict=True)
        found.append(tuple((int(token), value) for token, value in pairs if value > -torch.inf))
    return tuple(found)
