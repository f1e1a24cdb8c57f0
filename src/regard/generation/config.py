"""The [decode] table of a recipe."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from regard.core.config import Config, Count, Probability, Range, Seed, doc, nearest
from regard.core.errors import Problem
from regard.generation.choose.logits_processors import LOGITS_PROCESSORS

Positive = Annotated[float, Range(0.0)]
LengthRatio = Annotated[float, Range(0.0, 1000.0)]

DEFAULT_THRESHOLD = 0.5
MOST_STOP_STRINGS = 64

# What an exported page does with an option. One that says nothing of this is refused by the export
# where it differs from its default.
WRITTEN = "written"  # the page's search has the value of the recipe
CHOSEN = "chosen"  # it is chosen in the page
UNUSED = "unused"  # it has no effect: it is of a batch, a GPU, another task, or an option that is refused


@dataclass(frozen=True)
class DecodeConfig(Config):
    beam_size: Annotated[int, Range(1.0, 1000.0)] = doc(
        1, "hypotheses of beam search; 1 is greedy search", page=CHOSEN
    )
    num_hypotheses: Annotated[int, Range(1.0, 10_000.0)] = doc(
        1, "outputs per input, best first; with `sample`, so many independent samples", page=CHOSEN
    )
    max_length: Annotated[int, Range(1.0, 1_000_000.0)] = doc(
        200,
        "largest number of output tokens; learned positions end earlier, except in running text",
        page=WRITTEN,
    )
    max_length_ratio: LengthRatio | None = doc(
        None,
        "largest number of output tokens per source token; by default, where source and target are texts of "
        "bpe, unigram or words, outputs have at most 3 tokens per source token and 50 more",
        page=WRITTEN,
    )
    min_length: Annotated[int, Range(0.0)] = doc(
        0, "smallest number of output tokens", page=WRITTEN
    )
    min_length_ratio: LengthRatio = doc(
        0.0, "smallest number of output tokens per source token", page=WRITTEN
    )
    length_penalty: Annotated[float, Range(-5.0, 5.0)] = doc(
        1.0,
        "log-probabilities are divided by the length to this power: higher favors longer outputs "
        "(https://arxiv.org/abs/1609.08144)",
        page=WRITTEN,
    )
    early_stopping: bool | Literal["never"] = doc(
        False,
        "when beam search stops: true, as soon as beam_size outputs have ended; false, when besides no open one would "
        "rank among them if it ended now; never, when none could at its best length",
        page=WRITTEN,
    )
    coverage_penalty: Positive = doc(
        0.0,
        "weight of the coverage of the source by attention, averaged over layers and heads, when outputs are "
        "ranked (https://arxiv.org/abs/1609.08144)",
    )
    no_repeat_ngram_size: Annotated[int, Range(0.0)] = doc(
        0, "n-grams of this size do not occur twice; 0: no constraint", page=WRITTEN
    )
    repetition_penalty: Annotated[float, Range(1.0)] = doc(
        1.0,
        "log-probabilities of tokens that were generated before are multiplied by this "
        "(https://arxiv.org/abs/1909.05858)",
        page=WRITTEN,
    )
    exponential_decay_length_penalty: tuple[Positive, ...] | None = doc(
        None,
        "two numbers, a length and a factor, as in transformers: the log-probability p of an end token is increased by "
        "|p| times the factor to the power of n, less 1, n being the tokens of the output beyond this length",
    )
    beam_groups: Count = doc(1, "groups of diverse beam search (https://arxiv.org/abs/1610.02424)")
    diversity_penalty: Positive = doc(
        0.5,
        "subtracted from a token's score for each earlier group that chose it at the same step",
        page=UNUSED,
    )
    language_model: str | None = doc(
        None,
        "run or checkpoint of a language model with the same tokenizer, whose log-probabilities are added in the beam "
        "search of a CTC head (shallow fusion)",
    )
    language_model_weight: Positive = doc(0.3, "weight of language_model")
    length_bonus: Annotated[float, Range(-100.0, 100.0)] = doc(
        0.0, "added for each token in the beam search of a CTC head, against short outputs"
    )
    threshold: Probability = doc(
        DEFAULT_THRESHOLD,
        "smallest probability of a label that is predicted, by a model of several labels",
        page=UNUSED,
    )
    thresholds: dict[str, Probability] | None = doc(
        None,
        "thresholds of single labels, by name; other labels have `threshold`. "
        "`regard thresholds` chooses them on validation data",
        page=UNUSED,
    )
    horizon: Count | None = doc(
        None,
        "vectors of an output, of a model that generates them one after the other; by default as many as the longest "
        "target of the training data",
    )
    sample: bool = doc(False, "sample tokens instead of choosing the most likely", page=CHOSEN)
    temperature: Positive = doc(1.0, "logits are divided by this before sampling", page=CHOSEN)
    top_k: Count | None = doc(None, "sample from the k most likely tokens", page=CHOSEN)
    top_p: Probability | None = doc(
        None,
        "sample from the smallest set of tokens with this total probability (https://arxiv.org/abs/1904.09751)",
        page=CHOSEN,
    )
    min_p: Probability | None = doc(
        None, "sample from tokens with at least this fraction of the largest probability"
    )
    typical_p: Probability | None = doc(
        None,
        "locally typical sampling with this total probability (https://arxiv.org/abs/2202.00666)",
    )
    seed: Seed = doc(
        1,
        "seed of sampling; the draws of an input depend on it and on the input's position alone",
        page=CHOSEN,
    )
    logits_processors: tuple[Annotated[str, LOGITS_PROCESSORS], ...] | None = doc(
        None, "registered logits processors, applied in this order"
    )
    precision: Literal["float32", "bfloat16"] = doc(
        "float32", "precision of linear layers on a GPU", page=UNUSED
    )
    quantization: Literal["int8"] | None = doc(
        None,
        "store weights in int8, where processor and decoder support it: faster, slightly different outputs",
    )
    shortlist: bool = doc(
        False,
        "on a CPU, generate only likely translations of the source's tokens, and frequent tokens: faster, slightly "
        "different outputs; `regard shortlist` learns them",
    )
    stop: tuple[str, ...] | None = doc(
        None,
        "strings at which an output ends: what comes before the first of them is the output",
    )
    top_logprobs: Annotated[int, Range(0.0, 20.0)] = doc(
        0,
        "so many of the most likely tokens at each position of an output are given with it, with the model's own "
        "log-probabilities: before constraints, penalties and the options of sampling",
    )
    max_source_length: Count = doc(1000, "largest number of source tokens", page=UNUSED)
    batch_tokens: Count | Literal["auto"] = doc(
        "auto",
        "source tokens of a batch, with padding; auto: 4,096 on a CPU, up to 65,536 on a GPU, fewer for large models "
        "and where little memory is free",
        page=UNUSED,
    )

    def threshold_of(self, label: str) -> float:
        """The smallest probability at which this label is predicted."""
        return (self.thresholds or {}).get(label, self.threshold)

    def unknown_labels(self, labels: Sequence[str]) -> Iterator[Problem]:
        """A problem for each threshold of a label that is not one of these."""
        if not self.thresholds:
            return
        known = set(labels)  # a recipe may have thousands of thresholds
        for name in self.thresholds:
            if name not in known:
                key = f"decode.thresholds.{name}"
                yield Problem(key, "a label of the model", "an unknown one", nearest(name, labels))

    def conflicts(self) -> Iterator[Problem]:
        if self.num_hypotheses > self.beam_size and not self.sample:
            most = f"at most beam_size = {self.beam_size}"
            yield Problem(
                "num_hypotheses", most, str(self.num_hypotheses), "Raise beam_size, or sample."
            )
        if self.sample and self.beam_size > 1:
            yield Problem("sample", "false with a beam", "true", "Choose one of the two.")
        if self.sample and self.coverage_penalty:
            yield Problem(
                "coverage_penalty", "0 for samples, which are not ranked", "more", "Use a beam."
            )
        if self.beam_size % self.beam_groups:
            wanted = f"a divisor of beam_size = {self.beam_size}"
            yield Problem("beam_groups", wanted, str(self.beam_groups), "Change one of the two.")
        if not self.sample:
            for key in ("top_k", "top_p", "min_p", "typical_p"):
                if getattr(self, key) is not None:
                    yield Problem(
                        key,
                        "nothing without sample = true",
                        repr(getattr(self, key)),
                        "Set sample.",
                    )
        fuses = self.language_model is not None
        default = DecodeConfig.__dataclass_fields__["language_model_weight"].default
        if not fuses and self.language_model_weight != default:
            yield Problem(
                "language_model_weight",
                "nothing without language_model",
                str(self.language_model_weight),
                "Leave it out.",
            )
        if self.beam_size == 1 and (fuses or self.length_bonus):
            remedy = "Set beam_size = 8, say."
            yield Problem(
                "beam_size", "at least 2 with language_model or length_bonus", "1", remedy
            )
        if self.temperature == 0:
            yield Problem(
                "temperature",
                "a number above 0",
                "0.0",
                "sample = false takes the most likely token.",
            )
        decay = self.exponential_decay_length_penalty
        if decay is not None and (len(decay) != 2 or decay[0] % 1 or decay[1] == 0):
            yield Problem(
                "exponential_decay_length_penalty",
                "two numbers, a whole one and a factor above 0",
                str([*decay]),
                "Write [10, 1.2], say.",
            )
        if self.stop is not None and not all(self.stop):
            yield Problem("stop", "strings of at least one character", "an empty one", "Drop it.")
        if self.stop is not None and len(self.stop) > MOST_STOP_STRINGS:
            most = f"at most {MOST_STOP_STRINGS} strings"
            yield Problem("stop", most, str(len(self.stop)), "Leave out the least important ones.")
        if self.min_length > self.max_length:
            most = f"at most max_length = {self.max_length}"
            yield Problem("min_length", most, str(self.min_length), "Change one of the two.")
