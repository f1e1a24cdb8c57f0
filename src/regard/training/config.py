"""The [train] table of a recipe."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from regard.core.config import Config, Count, Probability, Range, Seed, doc
from regard.core.errors import Problem
from regard.core.metric_names import MetricName
from regard.model.scheduled_sampling import ScheduledSampling
from regard.tasks.base import Task
from regard.tasks.distillation import DistillationConfig
from regard.tasks.output_losses import LOSSES

Positive = Annotated[float, Range(0.0)]
DEFAULT_STEPS = 10_000
MOST_DEFAULT_WARMUP = 400
REWARD_OPTIONS = ("reward_samples", "reward_temperature", "reward_likelihood", "reward_dropout")


@dataclass(frozen=True)
class TrainConfig(Config):
    max_steps: Count | None = doc(
        None, f"largest number of updates; by default {DEFAULT_STEPS:,}, unless max_epochs is given"
    )
    max_epochs: Count | None = doc(
        None,
        "largest number of passes over the training data; training ends at max_steps or "
        "max_epochs, whichever comes first",
    )
    batch_tokens: Count = doc(4096, "largest size of a batch: rows times the longest sequence")
    mixed_lengths: bool = doc(
        False,
        "batches of examples of all lengths instead of similar lengths: more padding, but no "
        "update from short examples alone",
    )
    accumulate_steps: Count = doc(
        1, "batches per update; the loss is weighted by tokens over all of them"
    )
    optimizer: Literal["adamw", "muon"] = doc(
        "adamw", "optimizer; muon for matrices and AdamW for the rest"
    )
    learning_rate: Positive = doc(1e-3, "peak learning rate")
    min_learning_rate: Positive = doc(0.0, "final learning rate of the cosine and linear schedules")
    warmup_steps: Annotated[int, Range(0.0)] | None = doc(
        None,
        f"updates of linear warmup to the peak learning rate; by default {MOST_DEFAULT_WARMUP}, "
        "or a quarter of max_steps where that is less",
    )
    lr_schedule: Literal["inverse_root", "cosine", "linear", "plateau", "constant"] = doc(
        "inverse_root", "learning-rate schedule after warmup"
    )
    plateau: Count = doc(
        2,
        "validations without improvement until the learning rate is "
        'halved, for lr_schedule = "plateau"',
    )
    betas: tuple[Probability, ...] = doc((0.9, 0.98), "decay rates of AdamW's moments")
    eps: Positive = doc(1e-9, "added to the denominator of AdamW")
    weight_decay: Positive = doc(
        0.0, "weight decay of matrices; biases, norms and embeddings have none"
    )
    clip_norm: Positive | None = doc(1.0, "largest norm of the gradient; 0: no clipping")
    loss: Annotated[str, LOSSES] | None = doc(
        None,
        "loss of the outputs of a model with a pool: by default mse for numbers, which mae or "
        "huber can replace, and cross-entropy for labels. Numbers are compared as normalized",
    )
    label_smoothing: Probability | None = doc(
        None,
        "probability mass spread uniformly over all tokens or labels, the right one included, as "
        "in PyTorch; by default 0.1, and 0 for several labels or numbers",
    )
    mask_probability: Probability = doc(0.15, 'probability of masking a token, for head = "mlm"')
    r_drop: Positive = doc(
        0.0,
        "weight of the R-Drop term, the symmetric KL divergence between two forward passes with "
        "different dropout masks (https://arxiv.org/abs/2106.14448); 0: one forward pass",
    )
    distillation: DistillationConfig | None = doc(
        None, "knowledge distillation from trained models; left out: none", arxiv="1503.02531"
    )
    scheduled_sampling: ScheduledSampling | None = doc(
        None, "scheduled sampling of the decoder's inputs; left out: teacher forcing"
    )
    doubly_stochastic: Positive = doc(
        0.0,
        "weight of the penalty on attention that does not sum to 1 over the steps for each source "
        "position (https://arxiv.org/abs/1502.03044); part of the logged loss",
    )
    ctc_weight: Positive = doc(
        0.3,
        "weight of the loss of a CTC head beside a decoder, the sum over target tokens divided as "
        "the decoder's; part of the logged loss of training, not of validation",
        arxiv="1609.06773",
    )
    carry_state: bool = doc(
        False, "carry a recurrent language model's state from batch to batch of running text"
    )
    ema_decay: Probability | None = doc(
        None, "decay of an exponential moving average of the weights, which is validated and saved"
    )
    average_checkpoints: Count = doc(
        1, "number of last checkpoints averaged into the final weights"
    )
    reward: Literal["cider"] | None = doc(
        None,
        "self-critical sequence training on this metric instead of the targets "
        "(https://arxiv.org/abs/1612.00563)",
    )
    reward_samples: Count = doc(
        1,
        "outputs sampled for each source, for reward; with several, the baseline of each is the "
        "mean reward of the others instead of the greedy output's "
        "(https://arxiv.org/abs/2003.09971)",
    )
    reward_temperature: Positive = doc(
        1.0,
        "softmax temperature of the outputs that are sampled and made more or less probable, for "
        "reward; below 1 these are nearer to the outputs of a search",
    )
    reward_likelihood: Positive = doc(
        0.0,
        "weight of the targets' loss beside the reward, with label_smoothing and r_drop as "
        "without a reward (https://arxiv.org/abs/1609.08144)",
    )
    reward_dropout: bool = doc(
        False,
        "dropout in the forward pass whose gradient is taken, for reward; outputs are sampled "
        "without it, and the ratio of their tokens' probabilities with and without it, at "
        "most 2, weights the gradient",
    )
    precision: Literal["float32", "bfloat16", "float8"] = doc(
        "float32",
        "precision of forward and backward passes; weights stay in float32. float8: "
        "as bfloat16, with the products of Transformer blocks in 8-bit floating "
        "point, on Hopper GPUs and newer ones",
    )
    packed: bool = doc(
        False,
        "pack sequences of any length instead of padding them; batch_tokens then counts the "
        "tokens of the longer side",
    )
    cuda_graphs: bool = doc(
        False,
        "record the work of a batch as a CUDA graph and replay it: running "
        "text or packed batches, on a GPU",
    )
    fsdp: bool = doc(
        False, "shard weights, gradients and moments over the processes (docs/scale.md)"
    )
    distributed_timeout: Count = doc(600, "seconds that a process waits for the others")
    log_every: Count = doc(50, "updates between two lines of the log")
    loggers: tuple[Literal["tensorboard", "wandb"], ...] | None = doc(
        None, "experiment loggers beside the run's log.jsonl"
    )
    validate_every: Count = doc(500, "updates between two validations")
    evaluation_overlap: Annotated[int, Range(0.0)] = doc(
        0,
        "language models of running text: tokens of the context before that each evaluated "
        "context begins with, and does not predict again",
    )
    monitor: MetricName = doc("loss", "metric that chooses the best checkpoint")
    patience: Count | None = doc(None, "validations without improvement until training stops")
    log_samples: Annotated[int, Range(0.0)] = doc(3, "outputs shown at each validation")
    keep_checkpoints: Count = doc(3, "number of checkpoints kept beside the best")
    freeze: tuple[str, ...] | None = doc(
        None, 'patterns of parameter names that are not trained: "encoder.*"'
    )
    unfreeze_after: Count | None = doc(
        None, "epochs after which frozen parameters are trained too; left out: never"
    )
    init_from: str | None = doc(
        None, "checkpoint whose weights and vocabularies training starts from"
    )
    on_nan: Literal["stop", "skip"] = doc(
        "stop", "what to do when the loss or a gradient is not finite"
    )
    seed: Seed = doc(1, "seed of initialization, data order and dropout")
    device: Literal["auto", "cpu", "cuda"] = doc("auto", "device to train on")

    def __post_init__(self) -> None:
        if self.max_steps is None and self.max_epochs is None:
            object.__setattr__(self, "max_steps", DEFAULT_STEPS)
        super().__post_init__()

    @property
    def warmup(self) -> int:
        """The updates of warmup: as written, or else the default for a run of this length."""
        if self.warmup_steps is not None:
            return self.warmup_steps
        return self.default_warmup

    def with_defaults(self, task: Task) -> "TrainConfig":
        """The same with a number for label_smoothing, which differs between tasks."""
        if self.label_smoothing is not None:
            return self
        smooths = self.loss is None or LOSSES[self.loss].smooths
        default = task.default_label_smoothing if smooths else 0.0
        return replace(self, label_smoothing=default)

    @property
    def default_warmup(self) -> int:
        if self.max_steps is None:
            return MOST_DEFAULT_WARMUP
        return min(MOST_DEFAULT_WARMUP, self.max_steps // 4)

    def conflicts(self) -> Iterator[Problem]:
        if len(self.betas) != 2:
            got = str(list(self.betas))
            yield Problem("betas", "two numbers", got, "As in betas = [0.9, 0.98].")
        if self.max_steps is not None and self.warmup > self.max_steps:
            wanted = f"at most max_steps = {self.max_steps}"
            remedy = f"Lower it, or leave it out for the default of {self.default_warmup}."
            yield Problem("warmup_steps", wanted, str(self.warmup_steps), remedy)
        yield from self._averaging_conflicts()
        yield from self._reward_conflicts()
        if self.unfreeze_after is not None and self.freeze is None:
            got = str(self.unfreeze_after)
            yield Problem("unfreeze_after", "nothing without freeze", got, "Leave it out.")
        if self.precision == "float8":
            for other in ("fsdp", "reward"):
                if getattr(self, other):
                    wanted = f"'bfloat16' with {other}"
                    yield Problem("precision", wanted, "'float8'", "Choose one of the two.")
        yield from self._exclusive_conflicts()

    def _averaging_conflicts(self) -> Iterator[Problem]:
        averaged = self.average_checkpoints
        if averaged > self.keep_checkpoints:
            wanted = f"at least average_checkpoints = {averaged} checkpoints"
            yield Problem("keep_checkpoints", wanted, str(self.keep_checkpoints), "Keep more.")
        if self.ema_decay is not None and averaged > 1:
            wanted = "1 with ema_decay, which averages already"
            yield Problem("average_checkpoints", wanted, str(averaged), "Choose one of the two.")

    def _reward_conflicts(self) -> Iterator[Problem]:
        if self.reward is None:
            for name in REWARD_OPTIONS:
                value = getattr(self, name)
                default = _default(name)
                if value != default:
                    yield Problem(name, f"{default} without reward", str(value), "Leave it out.")
        if self.reward_temperature == 0:
            remedy = "1.0 samples from the model as it is."
            yield Problem("reward_temperature", "a number above 0", "0.0", remedy)

    def _exclusive_conflicts(self) -> Iterator[Problem]:
        """Options that are set although another one is, with which they cannot be combined."""
        # The loss of the targets, where there is none beside the reward.
        of_targets = () if self.reward_likelihood else ("reward",)
        exclusive = {
            # A recorded graph repeats one computation of one shape,
            # and its inputs come from the batch alone.
            "cuda_graphs": ("accumulate_steps", "carry_state", "scheduled_sampling", "reward"),
            # A rank holds parts of the weights, which a search and a recording cannot use.
            "fsdp": ("reward", "cuda_graphs", "unfreeze_after", "optimizer"),
            # Packed batches are of mixed lengths already.
            "mixed_lengths": ("packed",),
            # Running text, in which a state is carried, has no padding.
            "packed": ("carry_state",),
            # A carried state holds the tokens before a context already.
            "carry_state": ("evaluation_overlap",),
            "scheduled_sampling": of_targets,
            "distillation": of_targets,
            "r_drop": of_targets,
            "doubly_stochastic": of_targets,
        }
        for name, others in exclusive.items():
            value = getattr(self, name)
            if not value:
                continue
            got = "a table" if isinstance(value, Config) else str(value)
            for other in others:
                if getattr(self, other) != _default(other):
                    yield Problem(name, f"nothing with {other}", got, "Choose one of the two.")


def _default(name: str) -> Any:
    """The default of an option of [train]."""
    return TrainConfig.__dataclass_fields__[name].default
