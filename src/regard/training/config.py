"""The [train] table of a recipe."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from regard.core.config import Config, Count, Probability, Range
from regard.core.errors import Problem
from regard.core.metric_names import MetricName
from regard.model.scheduled_sampling import ScheduledSampling

Positive = Annotated[float, Range(0.0)]
DEFAULT_STEPS = 10_000


@dataclass(frozen=True)
class TrainConfig(Config):
    # Updates at most. With max_epochs as well, the run ends at whichever comes first; without either, after 10,000.
    max_steps: Count | None = None
    max_epochs: Count | None = None  # passes over the training data at most
    batch_tokens: Count = 4096  # rows times the longest sequence of a batch, at most
    # Batches of examples of all lengths: more padding, but no update is computed from short examples alone.
    mixed_lengths: bool = False
    accumulate_steps: Count = 1  # batches per update; the loss is weighted by tokens over all of them
    # "muon" trains the matrices of hidden layers with Muon (https://kellerjordan.github.io/posts/muon), all other
    # weights with AdamW (https://arxiv.org/abs/1711.05101); "adamw" trains all with AdamW.
    optimizer: Literal["adamw", "muon"] = "adamw"
    learning_rate: Positive = 1e-3  # the peak
    min_learning_rate: Positive = 0.0  # where cosine and linear end
    warmup_steps: Annotated[int, Range(0.0)] = 400  # updates until the peak
    lr_schedule: Literal["inverse_root", "cosine", "linear", "plateau", "constant"] = "inverse_root"
    plateau: Count = 2  # validations without progress until the plateau schedule halves the learning rate
    betas: tuple[Probability, ...] = (0.9, 0.98)  # of AdamW
    eps: Positive = 1e-9  # of AdamW
    weight_decay: Positive = 0.0  # of matrices; never of biases, norms and embeddings
    clip_norm: Positive | None = 1.0  # maximum norm of the gradient; 0: no clipping
    label_smoothing: Probability = 0.1  # probability taken from the gold token and spread over the vocabulary
    mask_probability: Probability = 0.15  # of a token, for a masked-token head
    # Weight of the R-Drop term, the symmetric KL divergence between two forward passes with different dropout masks
    # (https://arxiv.org/abs/2106.14448).
    r_drop: Positive = 0.0
    scheduled_sampling: ScheduledSampling | None = None  # None: the decoder's inputs are the gold tokens
    # Weight of the penalty of doubly stochastic attention (https://arxiv.org/abs/1502.03044): the attention that a
    # recurrent decoder pays to each source position should sum to 1 over all steps. It is part of the logged loss.
    doubly_stochastic: Positive = 0.0
    carry_state: bool = False  # running text: the recurrent state is carried from batch to batch
    ema_decay: Probability | None = None  # decay of a moving average of the weights, which is validated and saved
    average_checkpoints: Count = 1  # how many of the last checkpoints are averaged into the final weights
    # Self-critical training (https://arxiv.org/abs/1612.00563): sampled outputs, weighted by how far their reward
    # exceeds that of the greedy output, take the place of the targets; label smoothing has no effect.
    reward: Literal["cider"] | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    # Sequences of any length are concatenated without padding; `batch_tokens` counts the longer side. Recurrent layers
    # run as many steps as the longest sequence of the batch has, or on a GPU, where all batches have one shape, of the
    # corpus.
    packed: bool = False
    # Running text or packed batches on a GPU: forward and backward are captured as CUDA graphs, with equal results.
    cuda_graphs: bool = False
    fsdp: bool = False  # several processes: weights, gradients and optimizer state are sharded (docs/scale.md)
    distributed_timeout: Count = 600  # seconds that one process waits for another
    log_every: Count = 50  # updates
    loggers: tuple[Literal["tensorboard", "wandb"], ...] | None = None  # in addition to the run's log.jsonl
    validate_every: Count = 500  # updates
    monitor: MetricName = "loss"
    patience: Count | None = None  # validations without a better metric until training stops
    log_samples: Annotated[int, Range(0.0)] = 3  # outputs shown at each validation
    keep_checkpoints: Count = 3  # in addition to the best
    freeze: tuple[str, ...] | None = None  # patterns of names of weights that are not trained: "encoder.*"
    unfreeze_after: Count | None = None  # epochs after which frozen weights are trained too; None: never
    init_from: str | None = None  # a checkpoint whose weights and vocabularies training starts from
    on_nan: Literal["stop", "skip"] = "stop"  # when the loss or its gradient is not finite
    seed: Annotated[int, Range(0.0)] = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __post_init__(self) -> None:
        if self.max_steps is None and self.max_epochs is None:
            object.__setattr__(self, "max_steps", DEFAULT_STEPS)
        super().__post_init__()

    def conflicts(self) -> Iterator[Problem]:
        if len(self.betas) != 2:
            yield Problem("betas", "two numbers", str(list(self.betas)), "As in betas = [0.9, 0.98].")
        if self.max_steps is not None and self.warmup_steps > self.max_steps:
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
                "1 with ema_decay, which averages already",
                str(self.average_checkpoints),
                "Choose one of the two.",
            )
        if self.unfreeze_after is not None and self.freeze is None:
            yield Problem("unfreeze_after", "nothing unless freeze is there", str(self.unfreeze_after), "Leave it out.")
        exclusive = {  # each computes a batch or its loss in its own way, or stores weights differently
            "cuda_graphs": ("accumulate_steps", "carry_state", "scheduled_sampling", "reward"),
            "packed": ("carry_state", "scheduled_sampling", "reward", "doubly_stochastic"),
            "mixed_lengths": ("packed",),
            "reward": ("scheduled_sampling",),
            "carry_state": ("scheduled_sampling",),
            "r_drop": ("carry_state", "scheduled_sampling", "reward", "doubly_stochastic"),
            "doubly_stochastic": ("scheduled_sampling", "reward"),
            "fsdp": ("scheduled_sampling", "reward", "cuda_graphs", "unfreeze_after", "optimizer"),
        }
        for name, others in exclusive.items():
            for other in others if getattr(self, name) else ():
                if getattr(self, other) != TrainConfig.__dataclass_fields__[other].default:
                    got = str(getattr(self, name))
                    yield Problem(name, f"nothing with {other}", got, "Choose one of the two.")
