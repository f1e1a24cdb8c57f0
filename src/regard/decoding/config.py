"""What a recipe's [decode] table may say."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from regard.core.config import Config, Count, Probability, Range
from regard.core.errors import Problem

Positive = Annotated[float, Range(0.0)]


@dataclass(frozen=True)
class DecodeConfig(Config):
    beam_size: Count = 1  # hypotheses that are followed at once; 1: the most likely token each time
    num_hypotheses: Count = 1  # outputs for each input, best first
    max_length: Count = 200  # tokens of an output, at most; learned positions may end before
    max_length_ratio: Positive | None = None  # and at most so many times the tokens of its source
    min_length: Annotated[int, Range(0.0)] = 0  # tokens of an output, at least
    min_length_ratio: Positive = 0.0  # and at least so many times the tokens of its source
    length_penalty: float = 1.0  # log-probabilities are divided by the length to this power: the higher, the longer
    # Outputs are ranked once more: for words of the source that little looked at, in all layers and heads together
    # (https://arxiv.org/abs/1609.08144)
    coverage_penalty: Positive = 0.0
    no_repeat_ngram_size: Annotated[int, Range(0.0)] = 0  # no run of so many tokens comes twice
    repetition_penalty: Annotated[float, Range(1.0)] = (
        1.0  # log-probabilities of tokens that were said are multiplied by it
    )
    beam_groups: Count = 1  # of the beam, each kept from what those before it say (https://arxiv.org/abs/1610.02424)
    diversity_penalty: Positive = 0.5  # how strongly, for more than one group
    sample: bool = False  # draw tokens by their probability
    temperature: Positive = 1.0  # of what is drawn from: below 1 sharper, above it flatter
    top_k: Count | None = None  # draw from so many of the most likely tokens
    top_p: Probability | None = None  # from the fewest that have this probability together
    min_p: Probability | None = None  # from those at least so likely as this share of the likeliest
    typical_p: Probability | None = (
        None  # from those nearest to the expected surprise (https://arxiv.org/abs/2202.00666)
    )
    seed: Annotated[int, Range(0.0)] = 1  # of what is drawn; an input's draws depend on this and its place alone
    precision: Literal["float32", "bfloat16"] = "float32"  # of a GPU's products: half the bytes, and not quite the same
    quantization: Literal["int8"] | None = (
        None  # weights in bytes where the processor and the decoder can: faster, and not quite the same
    )
    max_source_length: Count = 1000  # tokens of an input, at most
    batch_tokens: Count = 4096  # of inputs, read at once

    def conflicts(self) -> Iterator[Problem]:
        if self.num_hypotheses > self.beam_size and not self.sample:
            yield Problem(
                "num_hypotheses",
                f"at most beam_size = {self.beam_size}",
                str(self.num_hypotheses),
                "Widen the beam, or sample.",
            )
        if self.sample and self.beam_size > 1:
            yield Problem("sample", "false with a beam", "true", "Choose one of the two.")
        if self.sample and self.coverage_penalty:
            yield Problem("coverage_penalty", "0 for samples, which nothing ranks", "more", "Use a beam.")
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
            yield Problem("temperature", "a number above 0", "0.0", "sample = false takes the likeliest token.")
        if self.min_length > self.max_length:
            yield Problem(
                "min_length", f"at most max_length = {self.max_length}", str(self.min_length), "Change one of the two."
            )
