"""What a recipe's [train] table may say."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from regard.configuration import Checked, Count, Probability, Range
from regard.errors import Problem
from regard.model.forcing import Forcing

Positive = Annotated[float, Range(0.0)]
METRICS = {  # name -> whether higher is better
    "loss": False,
    "perplexity": False,
    "accuracy": True,  # of labels, or of whole sequences
    "bleu": True,
    "chrf": True,
    "error_rate": False,  # edits for each token of the reference: phonemes, characters, words
}


@dataclass(frozen=True)
class TrainConfig(Checked):
    steps: Count = 10_000  # updates at most
    batch_tokens: Count = 4096  # rows times the longest sequence of a batch, at most
    accumulate: Count = 1  # batches to one update; the loss is weighted by tokens over all of them
    rate: Positive = 1e-3  # the highest learning rate
    final_rate: Positive = 0.0  # where cosine and linear end
    warmup: Annotated[int, Range(0.0)] = 400  # updates until the highest rate
    schedule: Literal["inverse_root", "cosine", "linear", "plateau", "constant"] = "inverse_root"
    plateau: Count = 2  # validations without progress until the rate halves, for that schedule
    beta1: Probability = 0.9
    beta2: Probability = 0.98
    epsilon: Positive = 1e-9
    weight_decay: Positive = 0.0  # of matrices; never of biases, norms and embeddings
    clip: Positive | None = 1.0  # the gradient's norm, at most
    smoothing: Probability = 0.1  # of the gold token, spread over all others
    masked: Probability = 0.15  # of the tokens, for a masked-token head
    agreement: Positive = 0.0  # of two readings with other dropout: what their disagreement counts; 0: one reading
    forcing: Forcing | None = None  # how much of the decoder's input is gold; None: all
    carry: bool = False  # running text: a recurrent state goes on from batch to batch
    ema: Probability | None = None  # decay of a running mean of the weights, which is then what validates and is kept
    average: Count = 1  # how many of the last checkpoints make the final weights
    precision: Literal["float32", "bfloat16"] = "float32"
    replay: bool = False  # running text on a GPU: its work on a batch is recorded and replayed, to the same result
    log_every: Count = 50
    log_to: tuple[Literal["tensorboard", "wandb"], ...] | None = None  # beside the run's log.jsonl
    validate_every: Count = 500
    metric: Literal["loss", "perplexity", "accuracy", "bleu", "chrf", "error_rate"] = "loss"
    patience: Count | None = None  # validations without a better metric until training stops
    samples: Annotated[int, Range(0.0)] = 3  # outputs shown at each validation
    keep: Count = 3  # checkpoints beside the best
    freeze: tuple[str, ...] | None = None  # patterns of names that are not trained: "encoder.*"
    start_from: str | None = None  # a checkpoint whose weights, and vocabularies, are the beginning
    on_nan: Literal["stop", "skip"] = "stop"  # when the loss or its gradient is not finite
    seed: Annotated[int, Range(0.0)] = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def conflicts(self) -> Iterator[Problem]:
        if self.warmup > self.steps:
            yield Problem("warmup", f"at most steps = {self.steps}", str(self.warmup), "Warm up for less.")
        if self.average > self.keep:
            yield Problem("keep", f"at least average = {self.average} checkpoints", str(self.keep), "Keep more.")
        if self.ema is not None and self.average > 1:
            yield Problem("average", "1 with ema, which is a mean already", str(self.average), "Choose one of the two.")
        if self.carry and self.forcing is not None:
            yield Problem("carry", "false with forcing", "true", "Choose one of the two.")
        if self.replay and (self.accumulate > 1 or self.carry or self.forcing is not None):
            yield Problem("replay", "false with accumulate, carry or forcing", "true", "Choose one of the two.")
        if self.agreement and (self.carry or self.forcing is not None):
            got = str(self.agreement)
            yield Problem("agreement", "0 with carry or forcing, which read a text once", got, "Choose one of the two.")
