"""The task `generate`: a sequence of tokens; without a source, the continuation of a text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

from regard.core.errors import InvalidArgument, Problem
from regard.core.sequence import Tokens
from regard.core.shapes import Float, Tensor
from regard.data.batching import Batch
from regard.data.config import DataConfig
from regard.data.corpus import Corpus, VocabularyType
from regard.data.fields.base import check_list
from regard.data.fields.text import require_tokenizer
from regard.data.tokenizer import Tokenizer
from regard.generation import phrases
from regard.generation.choose.interfaces import Alternatives, Hypothesis, finish_reason
from regard.generation.choose.stop_strings import StopCondition
from regard.generation.config import DecodeConfig
from regard.generation.ensemble import Ensemble
from regard.generation.request import GenerationRequest, SearchTask
from regard.generation.shortlist import Shortlist
from regard.generation.text_stream import pieces_before, text_pieces, token_texts
from regard.interpret.editing import ForceTokens
from regard.interpret.maps import ForwardPass
from regard.interpret.output_attention import (
    coverage_reranker,
    output_attention,
    require_cross_attention,
)
from regard.interpret.record import LookInput
from regard.model.memory import masked_mean
from regard.model.model_config import ModelConfig
from regard.model.seq2seq import Model, Seq2Seq
from regard.tasks.base import LookRequest, Task, TrainedModel, mean_state
from regard.tasks.carried import CarriedStates
from regard.tasks.ctc_loss import first_too_long
from regard.tasks.inputs import EncodedInput, InputEncoder
from regard.tasks.look_inputs import teacher_forced
from regard.tasks.objective import BatchLoss, Objective
from regard.tasks.pipeline import (
    EncodedInputs,
    IndexedOutputs,
    Output,
    OutputOptions,
    Pipeline,
    SequenceScore,
    TokenLogprob,
    length_batches,
)
from regard.tasks.sequence_loss import sequence_loss
from regard.tasks.stop_strings import before_stop

CAPTION_METRICS = ["bleu1", "bleu2", "bleu3", "bleu4", "meteor", "rouge_l", "cider"]


class Generate(Task):
    """A sequence of tokens for each example, searched for token by token."""

    name = "generate"
    head = "decoder"
    target_kinds = ("text",)
    title = "A sequence model"
    gives = "sequences"
    metrics = "text"
    searches = True

    def recipe_problems(self, model: ModelConfig, data: DataConfig) -> Iterator[Problem]:
        if not model.encoders and data.source_fields:
            wanted = "nothing: the model has no encoder"
            remedy = "Add [model.encoder], or leave it out."
            yield Problem("data.source", wanted, "a source", remedy)

    def sizes(self, target: VocabularyType) -> dict[str, int]:
        return {"vocab_size": target.size}

    def metrics_of(self, data: DataConfig) -> str:
        return "text" if data.source_fields else "language"

    def default_metrics(
        self, data: DataConfig, monitor: str, target: VocabularyType | None = None
    ) -> list[str]:
        """Accuracy and error rate where there is one correct answer; otherwise what is usually reported."""
        if not data.source_fields:
            return []
        if data.synthetic or monitor in ("accuracy", "error_rate"):
            in_words = data.target.unit == "words"
            return ["accuracy", "error_rate" if in_words else "character_error_rate"]
        has_images = any(field.is_file for field in data.source_fields)
        return CAPTION_METRICS if has_images else ["bleu", "chrf"]

    def check_examples(
        self, corpus: Corpus, model: ModelConfig, target: VocabularyType
    ) -> tuple[int, InvalidArgument] | None:
        """With a CTC head beside the decoder, the first target that is longer than its encoded source."""
        if model.auxiliary is None:
            return None
        return first_too_long(corpus, model, require_tokenizer(target, "model").special_tokens)

    def loss(
        self,
        objective: Objective,
        model: Model,
        batch: Batch,
        *,
        step: int = 0,
        carried: CarriedStates | None = None,
    ) -> BatchLoss:
        assert isinstance(model, Seq2Seq)
        return sequence_loss(objective, model, batch, step=step, carried=carried)

    def pipeline(self, trained: TrainedModel) -> "SequencePipeline":
        assert isinstance(trained.model, Seq2Seq)
        return SequencePipeline(
            trained.model,
            require_tokenizer(trained.target, "model"),
            trained.inputs,
            trained.data.context_length,
            trained.shortlist,
            bounded=trained.data.bounds_outputs,
            constant_weights=trained.constant_weights,
        )

    def ensemble(self, models: Sequence[Model]) -> Ensemble:
        return Ensemble(models)

    def embed(self, trained: TrainedModel, encoded: Sequence[EncodedInput]) -> Float[Tensor, "B W"]:
        assert isinstance(trained.model, Seq2Seq)
        if trained.sources:
            memory = trained.model.encode(trained.inputs.collate(encoded))
            assert memory is not None
            # Without attention, all that the decoder knows of a source is one vector.
            bottleneck = trained.model.decoder.bottleneck(memory)
            return mean_state(memory) if bottleneck is None else bottleneck
        special = require_tokenizer(trained.target, "model").special_tokens
        first = special.end if trained.running_text else special.start
        texts = [ids for ids in encoded if isinstance(ids, list)]
        if first is not None:
            texts = [[first, *ids] for ids in texts]
        tokens = Tokens.of(texts, device=next(trained.model.parameters()).device)
        return masked_mean(trained.model.decoder.hidden(tokens.ids), tokens.mask)

    def look(self, trained: TrainedModel, request: LookRequest) -> tuple[ForwardPass, LookInput]:
        target = require_tokenizer(trained.target, "model")
        special = target.special_tokens
        prompt = [] if trained.sources else request.ids
        if isinstance(request.output, str):
            tokens = target.encode(request.output)
            output = tokens if trained.running_text else special.output(tokens)
        elif request.output is not None:
            output = request.output
        else:
            output = list(request.search())
        first = special.end if trained.running_text else special.start
        return teacher_forced(
            trained.model,
            request.batch,
            [*prompt, *output],
            first,
            request.shown,
            target,
            request.edits,
        )


@dataclass(frozen=True)
class SequencePipeline(Pipeline):
    """Search and teacher forcing with a model that generates sequences. A language model continues its inputs.

    context_length   of the training sequences of running text, where the end token is the line break and ends no output
    shortlist        of its checkpoint, for searches with config.shortlist
    bounded          whether the source bounds the length of an output where max_length_ratio is not set
    constant_weights   whether the model's weights never change
    """

    model: Seq2Seq
    tokenizer: Tokenizer
    inputs: InputEncoder
    context_length: int | None
    shortlist: Shortlist | None = None
    bounded: bool = False
    constant_weights: bool = False

    @property
    def running(self) -> bool:
        return self.context_length is not None

    @property
    def _first(self) -> int | None:
        """The token before an output's first; None: that of a language model's prompt."""
        special = self.tokenizer.special_tokens
        return special.end if self.running else special.start

    def outputs(
        self, encoded: EncodedInputs, config: DecodeConfig, options: OutputOptions
    ) -> IndexedOutputs:
        requests = self.requests(encoded, options)
        task = self.task(config, options)
        if options.attention:
            require_cross_attention("attention", self.model)
        for index, hypotheses in phrases.search(self.tokenizer, task, requests):
            yield (
                index,
                self.finished(
                    task,
                    requests[index],
                    hypotheses,
                    attention=options.attention,
                    tokens=options.tokens,
                ),
            )

    def finished(
        self,
        task: SearchTask,
        request: GenerationRequest,
        hypotheses: Sequence[Hypothesis],
        *,
        attention: bool,
        truncated: bool = False,
        size: int | None = None,
        tokens: bool = True,
        texts: bool = False,
        echoed: int = 0,
    ) -> list[Output]:
        """The outputs of a request from the hypotheses of its search, with their attention if asked for.

        truncated, size   of its input: the outputs have them
        tokens            whether they have their tokens, and the ids of these
        texts             whether they have the text that each token adds
        echoed            tokens at their beginning that are a prompt, in which no stop string is sought
        """
        condition = request.stops or task.stops
        stops = () if condition is None else condition.strings
        weights: Sequence[Tensor | None] = [None] * len(hypotheses)
        if attention:
            weights = output_attention(
                self.model, task.collate([request.source]), hypotheses, self._first
            )
        outputs = []
        for hypothesis, rows in zip(hypotheses, weights, strict=True):
            ids = hypothesis.tokens
            log_p = hypothesis.log_probabilities
            likely = hypothesis.alternatives
            end = hypothesis.end
            if request.given:  # a language model's prompt
                ids = ids[request.given :]
                log_p = None if log_p is None else log_p[request.given :]
                likely = None if likely is None else likely[request.given :]
            token_ids: tuple[int, ...] = ()
            if tokens:
                token_ids = tuple(ids) if end is None else (*ids, end)
            output = Output(
                self.tokenizer.decode(ids),
                tuple(self.tokenizer.pieces(ids)) if tokens else (),
                log_p,
                hypothesis.score,
                finish_reason(ids, ended=end is not None),
                truncated=truncated,
                token_ids=token_ids,
                attention=rows,
                input_tokens=size,
                top_logprobs=self._top_logprobs(likely) if tokens and likely is not None else None,
            )
            outputs.append(self._with_texts(output, ids, stops, echoed, texts=texts))
        # none: where the logits processors leave no token
        return outputs or [Output("", truncated=truncated, input_tokens=size)]

    def _with_texts(
        self,
        output: Output,
        ids: Sequence[int],
        stops: Sequence[str],
        echoed: int,
        *,
        texts: bool,
    ) -> Output:
        """An output that ends before its stop strings, with the text of each token where these are wanted."""
        if not texts and not any(each in output.text for each in stops):
            return output
        each_text = tuple(token_texts(self.tokenizer, ids))
        output = replace(output, text="".join(each_text), token_texts=each_text)
        output = before_stop(output, stops, echoed)
        return output if texts else replace(output, token_texts=None)

    def _top_logprobs(
        self, alternatives: Sequence[Alternatives]
    ) -> tuple[tuple[TokenLogprob, ...], ...]:
        """Alternatives with their tokens as text."""
        return tuple(
            tuple(self._token_logprob(token, value) for token, value in row) for row in alternatives
        )

    def _token_logprob(self, token: int, log_probability: float) -> TokenLogprob:
        (piece,) = self.tokenizer.pieces([token])
        (spelling,) = self.tokenizer.spellings([token])
        text = spelling.decode("utf-8", "backslashreplace")
        return TokenLogprob(piece, log_probability, token, text or piece)

    def stream(
        self, encoded: EncodedInputs, config: DecodeConfig, options: OutputOptions
    ) -> Iterator[str]:
        (request,) = self.requests(encoded, options)
        tokens = phrases.stream(self.tokenizer, self.task(config, options), request)
        pieces = text_pieces(self.tokenizer, islice(tokens, request.given, None))
        return pieces if config.stop is None else pieces_before(pieces, config.stop)

    @torch.inference_mode()
    def score(
        self, encoded: EncodedInputs, targets: Sequence[str], batch_tokens: int
    ) -> list[SequenceScore]:
        rows_of = self.tokenizer.encode_batch(targets)
        special = self.tokenizer.special_tokens
        ids = [[special.end, *row] if self.running else special.target(row) for row in rows_of]
        device = next(self.model.parameters()).device
        source = None
        sizes = [len(row) for row in ids]
        found = dict[int, SequenceScore]()
        if self.model.encoder is not None:
            sizes = [max(pair) for pair in zip(sizes, self.inputs.sizes(encoded), strict=True)]
        for rows in length_batches(sizes, batch_tokens):
            if self.model.encoder is not None:
                source = self.inputs.collate([encoded[row] for row in rows])
            read = Tokens.of([ids[row] for row in rows], device=device).ids
            for row, values in zip(
                rows, self.model.log_probabilities(source, read).tolist(), strict=True
            ):
                pieces = self.tokenizer.pieces(ids[row][1:])
                found[row] = SequenceScore(tuple(pieces), tuple(values[: len(pieces)]))
        return [found[row] for row in range(len(targets))]

    def task(self, config: DecodeConfig, options: OutputOptions) -> SearchTask:
        """What all requests share."""
        lines = options.lines
        return SearchTask(
            self.model,
            self.inputs.collate,
            config,
            [ForceTokens(options.forced)] if options.forced else (),
            special_tokens=self.tokenizer.special_tokens,
            first=self._first,
            ends=not self.running,
            rerank=coverage_reranker(self.model, config, self._first),
            scored=options.scores,
            context_length=self.context_length,
            numbers=None if lines is None else [line - 1 for line in lines],
            trace=options.trace,
            workers=options.workers,
            attention=options.attention,
            shortlist=self._shortlist() if config.shortlist else None,
            constant_weights=self.constant_weights,
            stops=None if config.stop is None else StopCondition(self.tokenizer, config.stop),
        )

    def _shortlist(self) -> Shortlist:
        """Refused where the checkpoint has none, and on a GPU, whose searches are recorded for all tokens."""
        if self.shortlist is None:
            wanted = "a checkpoint with a shortlist"
            remedy = "Learn one: regard shortlist RUN. Or set shortlist = false."
            raise InvalidArgument("shortlist", wanted=wanted, got="one without", remedy=remedy)
        if (device := next(self.model.parameters()).device.type) != "cpu":
            remedy = "Set shortlist = false, or --device cpu."
            raise InvalidArgument("shortlist", wanted="a model on a CPU", got=device, remedy=remedy)
        return self.shortlist

    def requests(self, encoded: EncodedInputs, options: OutputOptions) -> list[GenerationRequest]:
        """One request for each input."""
        count = len(encoded)
        prefixes: Sequence[Sequence[int]] = [()] * count
        if options.prefixes is not None:
            prefixes = self.tokenizer.encode_batch(check_list("prefixes", options.prefixes, count))
        lists = {"required": options.required, "banned_in": options.banned_in}
        required, banned = (
            [()] * count
            if phrases_of is None
            else check_list(name, phrases_of, count, texts_only=False)
            for name, phrases_of in lists.items()
        )
        everywhere = phrases.banned(self.tokenizer, options.banned)
        requests = []
        for source, size, prefix, no, yes in zip(
            encoded, self.inputs.sizes(encoded), prefixes, banned, required, strict=True
        ):
            limits: tuple[Sequence[Any], Sequence[Any]] = everywhere, ()
            if no or yes:
                limits = (
                    everywhere + phrases.banned(self.tokenizer, no),
                    phrases.required(self.tokenizer, yes),
                )
            if self.model.encoder is not None:
                requests.append(
                    GenerationRequest(source, size, prefix, *limits, bounded=self.bounded)
                )
            elif isinstance(source, list):
                own = int(
                    self._first is None and bool(source)
                )  # the token before an output's first is its own
                whole = [*source, *prefix]
                request = GenerationRequest(None, 0, whole[own:], *limits, given=len(source) - own)
                requests.append(request._replace(first=whole[0]) if own else request)
        if options.forced:
            begins = len(self.tokenizer.special_tokens.target_prefix)
            forced = options.forced
            requests = [
                each._replace(
                    prefix=[forced.get(i, token) for i, token in enumerate(each.prefix, begins)]
                )
                for each in requests
            ]
        return requests
