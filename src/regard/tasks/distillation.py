"""Knowledge distillation: a model learns the distributions of trained teachers beside the gold tokens or labels.

Hinton et al. (https://arxiv.org/abs/1503.02531). Of sequences, the distribution of each token given the gold tokens
before it: the word-level distillation of Kim and Rush (https://arxiv.org/abs/1606.07947).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from regard.core.config import Config, Range, doc
from regard.core.errors import Problem
from regard.core.shapes import Float, Int, Tensor
from regard.model.seq2seq import Model
from regard.tasks import losses
from regard.tasks.loss_terms import Computed, LossTerm, Predictions


@dataclass(frozen=True)
class DistillationConfig(Config):
    """Knowledge distillation from trained models."""

    teachers: tuple[str, ...] | None = doc(
        None,
        "runs or checkpoints of the same data, whose mean distribution is learned beside the targets",
    )
    weight: Annotated[float, Range(0.0, 1.0)] = doc(
        0.5, "share of the teachers' term in the loss; the rest is the loss without teachers"
    )
    temperature: Annotated[float, Range(0.0)] = doc(
        1.0,
        "softmax temperature of teachers and student in that term, which is multiplied by its square",
    )

    def conflicts(self) -> Iterator[Problem]:
        if not self.teachers:
            yield Problem(
                "teachers", "at least one trained model", "none", "As in teachers = ['runs/a']."
            )
        if self.temperature == 0:
            yield Problem(
                "temperature", "a number above 0", "0.0", "1.0 takes the distributions as they are."
            )


@dataclass(frozen=True)
class Distillation(LossTerm):
    """Adds the divergence from the teachers' mean distribution to a loss.

    teachers      in evaluation mode, on the device of the student, with its vocabularies
    fingerprints  of their weights, which a resumed run must find again
    """

    teachers: Sequence[Model]
    weight: float = 0.5
    temperature: float = 1.0
    fingerprints: tuple[str, ...] = ()

    @property
    def evaluated(self) -> Sequence[Model]:
        """The teachers that predict; none where they have no weight."""
        return self.teachers if self.weight else ()

    def predictions(self, forward: Callable[[Model], Predictions]) -> list[Predictions]:
        """Those of each teacher for the student's batch."""
        with torch.no_grad():
            return [forward(teacher) for teacher in self.evaluated]

    def add_to(self, loss: Float[Tensor, ""], computed: Computed) -> Float[Tensor, ""]:
        """The loss with the teachers' term. With several passes, that is the mean over them."""
        if not computed.teachers:
            return loss
        terms = []
        for number, states in enumerate(computed.predicted.states.chunk(computed.passes)):
            student = computed.predicted._replace(states=states)
            taught = [self._of_pass(each, number, computed) for each in computed.teachers]
            terms.append(divergence(student, taught, computed.gold, self.temperature))
        term = torch.stack(terms).mean()
        return (1 - self.weight) * loss + self.weight * term

    @staticmethod
    def _of_pass(teacher: Predictions, number: int, computed: Computed) -> Predictions:
        """What a teacher predicted in a pass; the same in each, unless the passes read different inputs."""
        if len(teacher.states) != len(computed.predicted.states):
            return teacher
        return teacher._replace(states=teacher.states.chunk(computed.passes)[number])


def divergence(
    student: Predictions,
    teachers: Sequence[Predictions],
    gold: Int[Tensor, " N"],
    temperature: float,
) -> Float[Tensor, ""]:
    """temperature² times the KL divergence of the student from the mean of the teachers, summed over predictions.

    Predictions of a gold token below 0 are ignored. As in `token_loss`, logits exist for a chunk of rows at a time:
    with several chunks they are computed again in the backward pass.
    """
    rows = max(1, losses.chunk_size(gold.device) // student.classes)

    def of_chunk(start: int) -> Float[Tensor, ""]:
        chunk = slice(start, start + rows)
        with torch.no_grad():
            p = torch.stack(
                [(each.logits(chunk) / temperature).softmax(-1) for each in teachers]
            ).mean(0)  # (rows, V)
        log_q = (student.logits(chunk) / temperature).log_softmax(-1)
        each = F.kl_div(log_q, p, reduction="none").sum(-1)
        return temperature**2 * each.masked_fill(gold[chunk] < 0, 0.0).sum()

    if len(gold) <= rows:
        return of_chunk(0)
    chunks = range(0, len(gold), rows)
    sums = [
        checkpoint(of_chunk, start, use_reentrant=False, preserve_rng_state=False)
        for start in chunks
    ]
    return torch.stack(sums).sum()
