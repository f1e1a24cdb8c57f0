"""What a recipe's [train] table may say."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from regard.core.config import Config, Count, Probability, Range
from regard.core.errors import Problem
from regard.core.metric_names import MetricName
from regard.model.scheduled_sampling import ScheduledSampling

Positive = Annotated[float, Range(0.0)]


@dataclass(frozen=True)
class TrainConfig(Config):
    max_steps: Count = 10_000  # updates at most
    batch_tokens: Count = 4096  # rows times the longest sequence of a batch, at most
    # Batches of all lengths, not each of one: with more padding, but then no update is made by short examples alone.
    mixed_lengths: bool = False
    accumulate_steps: Count = 1  # batches to one update; the loss is weighted by tokens over all of them
    learning_rate: Positive = 1e-3  # the highest learning rate
    min_learning_rate: Positive = 0.0  # where cosine and linear end
    warmup_steps: Annotated[int, Range(0.0)] = 400  # updates until the highest rate
    lr_schedule: Literal["inverse_root", "cosine", "linear", "plateau", "constant"] = "inverse_root"
    plateau: Count = 2  # validations without progress until the rate halves, for that schedule
    betas: tuple[Probability, ...] = (0.9, 0.98)
    eps: Positive = 1e-9
    weight_decay: Positive = 0.0  # of matrices; never of biases, norms and embeddings
    clip_norm: Positive | None = 1.0  # the gradient's norm, at most; 0: whatever it is
    label_smoothing: Probability = 0.1  # of the gold token, spread over all others
    mask_probability: Probability = 0.15  # of the tokens, for a masked-token head
    r_drop: Positive = 0.0  # of two readings with other dropout: what their disagreement counts; 0: one reading
    scheduled_sampling: ScheduledSampling | None = None  # how much of the decoder's input is gold; None: all
    # Weight of a penalty on what a recurrent decoder looks at too little or too often, in all steps of a sequence
    # together (doubly stochastic attention, https://arxiv.org/abs/1502.03044); it is part of the loss in the log.
    doubly_stochastic: Positive = 0.0
    carry_state: bool = False  # running text: a recurrent state goes on from batch to batch
    ema_decay: Probability | None = (
        None  # decay of a running mean of the weights, which is then what validates and is kept
    )
    average_checkpoints: Count = 1  # how many of the last checkpoints make the final weights
    # Learn from samples of the model's own, by how much better each is than its likeliest output, and not from targets,
    # whose smoothing then means nothing (https://arxiv.org/abs/1612.00563)
    reward: Literal["cider"] | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    # Sequences lie end to end, those of a batch of any length; `batch_tokens` are those of the longer side. Of
    # Transformers and convolutions there is no padding then. Recurrent steps go on until the batch's longest has ended,
    # or on a GPU, where all batches have one shape, the corpus's.
    packed: bool = False
    # Running text, or packed batches, on a GPU: the work on a batch is recorded and replayed, to the same result.
    cuda_graphs: bool = False
    fsdp: bool = False  # several processes: weights, gradients and moments are divided among them (docs/scale.md)
    distributed_timeout: Count = 600  # seconds that one process waits for another
    log_every: Count = 50
    loggers: tuple[Literal["tensorboard", "wandb"], ...] | None = None  # beside the run's log.jsonl
    validate_every: Count = 500
    monitor: MetricName = "loss"
    patience: Count | None = None  # validations without a better metric until training stops
    log_samples: Annotated[int, Range(0.0)] = 3  # outputs shown at each validation
    keep_checkpoints: Count = 3  # checkpoints beside the best
    freeze: tuple[str, ...] | None = None  # patterns of names that are not trained: "encoder.*"
    unfreeze_after: Count | None = None  # epochs after which these are trained too; None: never
    init_from: str | None = None  # a checkpoint whose weights, and vocabularies, are the beginning
    on_nan: Literal["stop", "skip"] = "stop"  # when the loss or its gradient is not finite
    seed: Annotated[int, Range(0.0)] = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def conflicts(self) -> Iterator[Problem]:
        if self.reward is not None and self.scheduled_sampling is not None:
            yield Problem(
                "reward",
                "nothing with scheduled_sampling, which feeds targets",
                repr(self.reward),
                "Choose one of the two.",
            )
        if len(self.betas) != 2:
            yield Problem("betas", "two numbers", str(list(self.betas)), "As in betas = [0.9, 0.98].")
        if self.warmup_steps > self.max_steps:
            yield Problem(
                "warmup_steps", f"at most max_steps = {self.max_steps}", str(self.warmup_steps), "Warm up for less."
            )
        if self.average_checkpoints > self.keep_checkpoints:
            yield Problem(
                "keep_checkpoints",
                f"at least average_checkpoints = {self.average_checkpoints} checkpoints",
                str(self.keep_checkpoints),
                "Keep more.",
            )
        if self.ema_decay is not None and self.average_checkpoints > 1:
            yield Problem(
                "average_checkpoints",
                "1 with ema_decay, which is a mean already",
                str(self.average_checkpoints),
                "Choose one of the two.",
            )
        if self.unfreeze_after is not None and self.freeze is None:
            yield Problem("unfreeze_after", "nothing unless freeze is there", str(self.unfreeze_after), "Leave it out.")
        if self.carry_state and self.scheduled_sampling is not None:
            yield Problem("carry_state", "false with scheduled_sampling", "true", "Choose one of the two.")
        apart = {  # each reads a batch in its own way, has a loss of its own, or another hold of the weights
            "cuda_graphs": ("accumulate_steps", "carry_state", "scheduled_sampling", "reward"),
            "packed": ("carry_state", "scheduled_sampling", "reward", "doubly_stochastic"),
            "mixed_lengths": ("packed",),
            "r_drop": ("carry_state", "scheduled_sampling", "reward", "doubly_stochastic"),
            "doubly_stochastic": ("scheduled_sampling", "reward"),
            "fsdp": ("scheduled_sampling", "reward", "cuda_graphs", "unfreeze_after"),
        }
        for name, others in apart.items():
            for other in others if getattr(self, name) else ():
                if getattr(self, other) != TrainConfig.__dataclass_fields__[other].default:
                    got = str(getattr(self, name))
                    yield Problem(name, f"nothing with {other}", got, "Choose one of the two.")
