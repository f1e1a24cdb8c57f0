"""Ensembles: several models that predict each token, or the label, with the mean of their probabilities."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log

import torch
from torch.nn import functional as F

from regard.core.errors import InvalidArgument
from regard.core.sequence import Packing
from regard.core.shapes import Float, Int, Tensor
from regard.model.interfaces import AnyDecoder, Decoder, DecoderState, Encoder, Source
from regard.model.kv_cache import Slots
from regard.model.memory import Memory
from regard.model.module_list import TypedModuleList
from regard.model.seq2seq import Classifier, EncoderWithHead, Model, Seq2Seq
from regard.model.vector_generator import VectorGenerator


@dataclass(frozen=True)
class EnsembleState(DecoderState):
    """The states of all members."""

    members: list[DecoderState]

    def reorder(self, index: Int[Tensor, " n"]) -> "EnsembleState":
        return EnsembleState([state.reorder(index) for state in self.members])

    def release(self, slots: Sequence[int]) -> None:
        for state in self.members:
            state.release(slots)

    def follow(self, parents: Int[Tensor, "B K"]) -> "EnsembleState":
        return EnsembleState([state.follow(parents) for state in self.members])

    def admit(self, slots: Slots, fresh: "EnsembleState") -> "EnsembleState":
        return EnsembleState(
            [mine.admit(slots, new) for mine, new in zip(self.members, fresh.members, strict=True)]
        )


@dataclass(frozen=True)
class EnsembleMemory(Memory):
    """The memories of all members; as a memory by itself, that of the first."""

    members: tuple[Memory, ...] = ()


class EnsembleEncoder(Encoder):
    """The encoders of all members."""

    def __init__(self, members: Sequence[Encoder]) -> None:
        super().__init__()
        self.members = TypedModuleList[Encoder](members)
        self.dim = members[0].dim

    def empty_memory(self, empty: Callable[[int], Memory]) -> EnsembleMemory:
        """The memories of all members, made by `empty` from their dimensions."""
        memories = tuple(empty(member.dim) for member in self.members)
        return EnsembleMemory(**vars(memories[0]), members=memories)

    def forward(self, source: Source) -> EnsembleMemory:
        memories: tuple[Memory, ...] = tuple(member(source) for member in self.members)
        return EnsembleMemory(**vars(memories[0]), members=memories)


class EnsembleDecoder(Decoder[EnsembleState]):
    """A decoder whose logits are the logarithm of its members' mean probability."""

    cross_attentions = ()  # the members' attention weights are not comparable
    has_hidden = False

    def __init__(self, members: Sequence[AnyDecoder]) -> None:
        super().__init__()
        self.members = TypedModuleList[AnyDecoder](members)
        self.project = members[0].project
        self.extrapolates = all(member.extrapolates for member in members)

    def hidden(
        self,
        targets: Int[Tensor, "B T"],
        memory: Memory | None = None,
        packing: Packing | None = None,
    ) -> Float[Tensor, "*lead W"]:
        raise NotImplementedError("the members of an ensemble have no common hidden states")

    def forward(
        self, targets: Int[Tensor, "B T"], memory: Memory | None = None
    ) -> Float[Tensor, "B T V"]:
        members = zip(self.members, self._memories(memory), strict=True)
        return _mean([member(targets, each) for member, each in members])

    def start(
        self, memory: Memory | None, *, batch: int, capacity: int, beams: int = 1
    ) -> EnsembleState:
        members = zip(self.members, self._memories(memory), strict=True)
        sizes = {"batch": batch, "capacity": capacity, "beams": beams}
        return EnsembleState([member.start(each, **sizes) for member, each in members])

    def _memories(self, memory: Memory | None) -> Sequence[Memory | None]:
        if memory is None:
            return [None] * len(self.members)
        assert isinstance(memory, EnsembleMemory)
        return memory.members

    def step(
        self, tokens: Int[Tensor, " BK"], state: EnsembleState
    ) -> tuple[Float[Tensor, "BK V"], EnsembleState]:
        steps = [
            member.step(tokens, each)
            for member, each in zip(self.members, state.members, strict=True)
        ]
        return _mean([logits for logits, _ in steps]), EnsembleState([moved for _, moved in steps])


class Ensemble(Seq2Seq):
    """Models of any architecture with one vocabulary, as one model."""

    inspectable = False  # the members' attention weights are not comparable

    def __init__(self, models: Sequence[Model]) -> None:
        members = [model for model in models if isinstance(model, Seq2Seq)]
        if not models or len(members) < len(models):
            got = ", ".join(type(model).__name__ for model in models) or "none"
            raise InvalidArgument(
                "models", wanted="models that give sequences", got=got, remedy="Leave others out."
            )
        sizes = [len(model.decoder.project.weight) for model in members]
        encoders = [model.encoder for model in members if model.encoder is not None]
        if len(set(sizes)) > 1 or len(encoders) not in (0, len(models)):
            raise InvalidArgument(
                "models",
                wanted="one vocabulary, and a source for all or none",
                got=f"vocabularies of {', '.join(map(str, sizes))}; {len(encoders)} of {len(models)} with a source",
                remedy="Train them on the same data.",
            )
        super().__init__(
            EnsembleEncoder(encoders) if encoders else None,
            EnsembleDecoder([model.decoder for model in members]),
        )


class ClassifierEnsemble(Classifier):
    """Classifiers of any architecture with the same labels, as one."""

    encoder: EnsembleEncoder
    inspectable = False

    def __init__(self, models: Sequence[Model]) -> None:
        members = [model for model in models if isinstance(model, Classifier)]
        if not models or len(members) < len(models):
            got = ", ".join(type(model).__name__ for model in models) or "none"
            raise InvalidArgument(
                "models", wanted="models that give labels", got=got, remedy="Leave others out."
            )
        Model.__init__(self)  # each member has its own pool and linear layer
        self.encoder = EnsembleEncoder([member.encoder for member in members])
        self.members = TypedModuleList[Classifier](members)

    @property
    def output_weights(self) -> tuple[Tensor, ...]:
        return tuple(weight for member in self.members for weight in member.output_weights)

    def forward(self, source: Source) -> Float[Tensor, "B labels"]:
        return _mean([member(source) for member in self.members])


class RegressionEnsemble(ClassifierEnsemble):
    """Regressions of any architecture that predict the same numbers, as one: the mean of theirs."""

    task = "regress"

    def forward(self, source: Source) -> Float[Tensor, "B numbers"]:
        numbers = [member(source).float() for member in self.members]
        return torch.stack(numbers).mean(0)


class TaggerEnsemble(EncoderWithHead):
    """Taggers of any architecture with the same tags, as one: of each word, the mean of their distributions."""

    task = "tag"
    encoder: EnsembleEncoder
    inspectable = False

    def __init__(self, models: Sequence[Model]) -> None:
        members = [model for model in models if isinstance(model, EncoderWithHead)]
        with_crf = [member for member in members if getattr(member.head, "crf", None) is not None]
        if with_crf:
            raise InvalidArgument(
                "path",
                wanted="an ensemble of taggers without a CRF, which have a distribution for each word",
                got=f"{len(with_crf)} with a CRF",
                remedy="Train without model.head.crf, or use one of them.",
            )
        if len({member.encodes_words for member in members}) > 1:
            raise InvalidArgument(
                "path",
                wanted="an ensemble of taggers that all read words, or all their tokens",
                got="both",
                remedy="Leave the others out.",
            )
        # The head says how the tags of all are chosen; each member computes its scores with its own.
        super().__init__(EnsembleEncoder([member.encoder for member in members]), members[0].head)
        self.members = TypedModuleList[EncoderWithHead](members)

    @property
    def output_weights(self) -> tuple[Tensor, ...]:
        return tuple(weight for member in self.members for weight in member.output_weights)

    @property
    def encodes_words(self) -> bool:
        return self.members[0].encodes_words

    def forward(self, source: Source) -> Float[Tensor, "B W tags"]:
        return _mean([member(source) for member in self.members])


class CtcEnsemble(EncoderWithHead):
    """Models with a CTC head and the same vocabulary, as one: at each position, the mean of their distributions."""

    task = "transcribe"
    encoder: EnsembleEncoder
    inspectable = False

    def __init__(self, models: Sequence[Model]) -> None:
        members = [model for model in models if isinstance(model, EncoderWithHead)]
        super().__init__(EnsembleEncoder([member.encoder for member in members]), members[0].head)
        self.members = TypedModuleList[EncoderWithHead](members)

    @property
    def output_weights(self) -> tuple[Tensor, ...]:
        return tuple(weight for member in self.members for weight in member.output_weights)

    def forward(self, source: Source) -> Float[Tensor, "B S V1"]:
        logits = [member(source) for member in self.members]
        lengths = {each.shape[1] for each in logits}
        if len(lengths) > 1:
            raise InvalidArgument(
                "path",
                wanted="models whose encoders shorten their sources alike",
                got=f"{' and '.join(map(str, sorted(lengths)))} positions of one source",
                remedy="Use one of them.",
            )
        return _mean(logits)


class VectorsEnsemble(EncoderWithHead):
    """Models of any architecture that give the same vectors, as one: the mean of theirs."""

    encoder: EnsembleEncoder
    inspectable = False

    def __init__(self, models: Sequence[Model], task: str) -> None:
        members = [model for model in models if isinstance(model, EncoderWithHead)]
        super().__init__(EnsembleEncoder([member.encoder for member in members]), members[0].head)
        self.task = task
        self.members = TypedModuleList[EncoderWithHead](members)

    @property
    def output_weights(self) -> tuple[Tensor, ...]:
        return tuple(weight for member in self.members for weight in member.output_weights)

    def forward(self, source: Source) -> Float[Tensor, "B T D"]:
        vectors = [member(source).float() for member in self.members]
        return torch.stack(vectors).mean(0)


class VectorGeneratorEnsemble(VectorGenerator):
    """Models of any architecture that generate vectors, as one: each generates its own, and the mean is the output."""

    encoder: EnsembleEncoder
    inspectable = False

    def __init__(self, models: Sequence[Model]) -> None:
        members = [model for model in models if isinstance(model, VectorGenerator)]
        encoder = EnsembleEncoder([member.encoder for member in members])
        super().__init__(encoder, members[0].decoder, min(member.horizon for member in members))
        self.members = TypedModuleList[VectorGenerator](members)

    def generate(self, source: Source, steps: int) -> Float[Tensor, "B T D"]:
        vectors = [member.generate(source, steps).float() for member in self.members]
        return torch.stack(vectors).mean(0)


class MultiLabelEnsemble(ClassifierEnsemble):
    """Multi-label classifiers of any architecture with the same labels, as one: the mean of their probabilities."""

    task = "multi_label"

    def forward(self, source: Source) -> Float[Tensor, "B labels"]:
        logits = torch.stack([member(source).float() for member in self.members])
        present = F.logsigmoid(logits).logsumexp(0)
        absent = F.logsigmoid(-logits).logsumexp(0)
        return present - absent


def _mean(logits: Sequence[Float[Tensor, "*shape V"]]) -> Float[Tensor, "*shape V"]:
    total = logits[0].float().log_softmax(-1)
    for each in logits[1:]:
        total = torch.logaddexp(total, each.float().log_softmax(-1))
    return total - log(len(logits))
