"""Prediction of transcripts: sources in, texts out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from regard.core.errors import InvalidArgument
from regard.core.sequence import Tokens
from regard.core.shapes import Float, Tensor
from regard.data.tokenizer import Tokenizer
from regard.generation import ctc
from regard.generation.batch_plan import forward_batch_tokens
from regard.generation.config import DecodeConfig
from regard.model.ctc_head import CtcHead
from regard.model.seq2seq import EncoderWithHead, Seq2Seq
from regard.tasks.inputs import InputEncoder
from regard.tasks.pipeline import (
    EncodedInputs,
    IndexedOutputs,
    Output,
    OutputOptions,
    Pipeline,
    SequenceScore,
    check_direct_options,
    length_batches,
)

GIVES = "transcripts"


@dataclass(frozen=True)
class TextModel:
    """A language model beside a search for transcripts, which reads texts from `first` on."""

    model: Seq2Seq
    first: int
    end: int

    @torch.inference_mode()
    def __call__(self, prefixes: Sequence[tuple[int, ...]]) -> ctc.Probabilities:
        """Log-probabilities of the token after each of these texts."""
        device = next(self.model.parameters()).device
        read = Tokens.of([[self.first, *prefix] for prefix in prefixes], device=device)
        rows = torch.arange(len(prefixes), device=device)
        logits = self.model(None, read.ids)[rows, read.lengths - 1]  # (n, V)
        found: ctc.Probabilities = logits.double().log_softmax(-1).cpu().numpy()
        return found


def never_output(tokenizer: Tokenizer) -> list[int]:
    """Tokens that no transcript contains: those around texts."""
    special = tokenizer.special_tokens
    return sorted({*special.suppressed, *special.ends, special.pad})


@dataclass(frozen=True)
class TranscriptPipeline(Pipeline):
    """The texts of sources by CTC: of the most likely path, or by prefix beam search."""

    model: EncoderWithHead
    inputs: InputEncoder
    tokenizer: Tokenizer

    def outputs(
        self, encoded: EncodedInputs, config: DecodeConfig, options: OutputOptions
    ) -> IndexedOutputs:
        check_direct_options(options._replace(language_model=None), GIVES)
        fusion = self._fusion(config, options)
        for rows, scores in self._scores(encoded, forward_batch_tokens(config, self.model)):
            for row, frames in zip(rows, scores, strict=True):
                yield row, self._texts(frames, config, options, fusion)

    @torch.inference_mode()
    def score(
        self, encoded: EncodedInputs, targets: Sequence[str], batch_tokens: int
    ) -> list[SequenceScore]:
        ids_of = [list(ids) for ids in self.tokenizer.encode_batch(targets)]
        found: dict[int, SequenceScore] = {}
        for rows, scores in self._scores(encoded, batch_tokens):
            for row, frames in zip(rows, scores, strict=True):
                ids = ids_of[row]
                length = int((frames[:, self._blank] < 0).sum())
                if ctc.frames_needed(ids) > length:
                    raise InvalidArgument(
                        f"targets {row + 1}",
                        wanted=f"a text that fits into the {length} positions of its source",
                        got=f"one that needs {ctc.frames_needed(ids)}",
                        remedy="Give a shorter one.",
                    )
                log_p = self._token_scores(frames, ids)
                pieces = self.tokenizer.pieces([*ids, self.tokenizer.special_tokens.end])
                found[row] = SequenceScore(tuple(pieces), log_p)
        return [found[row] for row in range(len(targets))]

    @property
    def _blank(self) -> int:
        assert isinstance(self.model.head, CtcHead)
        return self.model.head.blank

    @torch.inference_mode()
    def _scores(
        self, encoded: EncodedInputs, batch_tokens: int
    ) -> Iterator[tuple[list[int], Float[Tensor, "B S V1"]]]:
        """The indices of some sources, and log-probabilities of the tokens of each frame, and of the blank."""
        for rows in length_batches(self.inputs.sizes(encoded), batch_tokens):
            batch = self.inputs.collate([encoded[row] for row in rows])
            yield rows, self.model(batch).float().log_softmax(-1)

    def _texts(
        self,
        frames: Float[Tensor, "S V1"],
        config: DecodeConfig,
        options: OutputOptions,
        fusion: ctc.Fusion,
    ) -> list[Output]:
        """The best texts of one source."""
        excluded = never_output(self.tokenizer)
        if config.beam_size == 1:
            permitted = frames.clone()
            permitted[:, excluded] = -torch.inf
            tokens = ctc.greedy(permitted, self._blank)
            return [self._output(frames, tokens, None, options)]
        found = ctc.prefix_beam_search(
            frames, self._blank, config.beam_size, excluded=excluded, fusion=fusion
        )
        best = found[: config.num_hypotheses]
        return [self._output(frames, each.tokens, each.score, options) for each in best]

    def _output(
        self,
        frames: Float[Tensor, "S V1"],
        tokens: tuple[int, ...],
        score: float | None,
        options: OutputOptions,
    ) -> Output:
        log_p = None
        if options.scores or score is not None:
            log_p = self._token_scores(frames, tokens)
        if options.scores and score is None:
            assert log_p is not None
            score = sum(log_p)
        shown = (*tokens, self.tokenizer.special_tokens.end)
        return Output(
            self.tokenizer.decode(tokens),
            tuple(self.tokenizer.pieces(shown)) if options.tokens else (),
            log_p,
            score,
            "end",
            token_ids=shown if options.tokens else (),
        )

    def _token_scores(
        self, frames: Float[Tensor, "S V1"], tokens: Sequence[int]
    ) -> tuple[float, ...]:
        """The log-probability of each token given those before it, and that nothing follows."""
        ids = torch.tensor(tokens, dtype=torch.int64, device=frames.device)
        with torch.inference_mode():
            scores = ctc.token_log_probabilities(frames, ids, self._blank)
        return tuple(scores.tolist())

    def _fusion(self, config: DecodeConfig, options: OutputOptions) -> ctc.Fusion:
        model = options.language_model
        if model is None:
            return ctc.Fusion(length_bonus=config.length_bonus)
        assert isinstance(model, TextModel)
        return ctc.Fusion(model, model.end, config.language_model_weight, config.length_bonus)
