"""The [decode] table of a recipe."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from regard.core.config import Config, Count, Probability, Range
from regard.core.errors import Problem
from regard.decoding.logits_processors import LOGITS_PROCESSORS

Positive = Annotated[float, Range(0.0)]


@dataclass(frozen=True)
class DecodeConfig(Config):
    beam_size: Count = 1  # hypotheses of each input; 1: greedy search
    num_hypotheses: Count = 1  # outputs for each input, best first
    max_length: Count = 200  # tokens of an output, at most; a decoder with learned positions may have fewer
    max_length_ratio: Positive | None = None  # at most so many times the tokens of the source
    min_length: Annotated[int, Range(0.0)] = 0  # tokens of an output, at least
    min_length_ratio: Positive = 0.0  # at least so many times the tokens of the source
    length_penalty: float = 1.0  # total log-probabilities are divided by the length to this power: higher favors longer
    # Weight of the coverage of the source by attention, averaged over layers and heads, when outputs are ranked
    # (https://arxiv.org/abs/1609.08144)
    coverage_penalty: Positive = 0.0
    no_repeat_ngram_size: Annotated[int, Range(0.0)] = 0  # no n-gram of so many tokens occurs twice; 0: any may
    # Log-probabilities of generated tokens are multiplied by it (https://arxiv.org/abs/1909.05858)
    repetition_penalty: Annotated[float, Range(1.0)] = 1.0
    beam_groups: Count = (
        1  # diverse beam search: groups that avoid each other's tokens (https://arxiv.org/abs/1610.02424)
    )
    diversity_penalty: Positive = 0.5  # subtracted from a token's score for each earlier group that chose it
    sample: bool = False  # sample tokens from the distribution
    temperature: Positive = 1.0  # of the distribution: below 1 sharper, above it flatter
    top_k: Count | None = None  # sample from the k most likely tokens
    top_p: Probability | None = None  # from the fewest tokens whose probabilities sum to p
    min_p: Probability | None = None  # from tokens at least p times as likely as the most likely
    typical_p: Probability | None = None  # locally typical sampling (https://arxiv.org/abs/2202.00666)
    seed: Annotated[int, Range(0.0)] = 1  # of sampling; the draws of an input depend on this and its position only
    # Registered logits processors, applied in this order
    logits_processors: tuple[Annotated[str, LOGITS_PROCESSORS], ...] | None = None
    precision: Literal["float32", "bfloat16"] = "float32"  # of linear layers on a GPU
    quantization: Literal["int8"] | None = None  # of weights, where the processor and the decoder support it
    max_source_length: Count = 1000  # tokens of an input, at most
    batch_tokens: Count = 4096  # source tokens of a batch, with padding

    def conflicts(self) -> Iterator[Problem]:
        if self.num_hypotheses > self.beam_size and not self.sample:
            yield Problem(
                "num_hypotheses",
                f"at most beam_size = {self.beam_size}",
                str(self.num_hypotheses),
                "Raise beam_size, or sample.",
            )
        if self.sample and self.beam_size > 1:
            yield Problem("sample", "false with a beam", "true", "Choose one of the two.")
        if self.sample and self.coverage_penalty:
            yield Problem("coverage_penalty", "0 for samples, which are not ranked", "more", "Use a beam.")
        if self.beam_size % self.beam_groups:
            yield Problem(
                "beam_groups",
                f"a divisor of beam_size = {self.beam_size}",
                str(self.beam_groups),
                "Change one of the two.",
            )
        if not self.sample:
            for key in ("top_k", "top_p", "min_p", "typical_p"):
                if getattr(self, key) is not None:
                    yield Problem(key, "nothing without sample = true", repr(getattr(self, key)), "Set sample.")
        if self.temperature == 0:
            yield Problem("temperature", "a number above 0", "0.0", "sample = false takes the most likely token.")
        if self.min_length > self.max_length:
            yield Problem(
                "min_length", f"at most max_length = {self.max_length}", str(self.min_length), "Change one of the two."
            )
