"""The interface of tasks, and the registry in which recipes, training, prediction and the server find them.

A task says which head of a model and which kind of target belong together, and owns what follows from it: the loss of
a batch, outputs and scores, metrics, what a look shows. Other packages ask the task of a model and never what kind of
model it is. A task of the user's own is registered with `regard.register.task`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from regard.core.errors import InvalidArgument, Problem
from regard.core.registry import Registry
from regard.core.shapes import Float, Tensor
from regard.data.config import DataConfig
from regard.data.corpus import Corpus, SourceVocabularies, VocabularyType
from regard.data.fields.base import Field
from regard.generation.shortlist import Shortlist
from regard.interpret.edits import Edit
from regard.interpret.maps import ForwardPass
from regard.interpret.record import DirectOutput, LookInput
from regard.model.interfaces import Source
from regard.model.memory import Memory, masked_mean
from regard.model.model_config import ModelConfig
from regard.model.seq2seq import Classifier, Model
from regard.tasks.carried import CarriedStates
from regard.tasks.inputs import EncodedInput, InputEncoder

if TYPE_CHECKING:
    from regard.data.batching import Batch
    from regard.tasks.objective import BatchLoss, Objective
    from regard.tasks.pipeline import Pipeline

TASKS: "Registry[Task]" = Registry("task")


@dataclass(frozen=True)
class TrainedModel:
    """A model with what prediction needs beside it.

    data         of the recipe it was trained with: its fields
    sources      what was learned of each source: a vocabulary, statistics, or None
    target       what was learned of the target
    inputs       encodes what the model reads
    shortlist    the vocabulary shortlist of its checkpoint, if it has one
    constant_weights   whether the weights never change while it predicts
    """

    model: Model
    data: DataConfig
    sources: SourceVocabularies
    target: VocabularyType
    inputs: InputEncoder
    shortlist: Shortlist | None = None
    constant_weights: bool = False

    @property
    def running_text(self) -> bool:
        """Whether it reads running text, whose outputs have several lines."""
        return self.data.context_length is not None


@dataclass(frozen=True)
class LookRequest:
    """What `regard.look` was asked to show of a trained model, its input encoded.

    ids         the token ids of the input, where it is one text
    batch       the input as the encoder reads it, as a batch of one; None for a model without a source
    shown       title and names of the input
    output      the output to look at instead of the model's own
    search      the token ids of the model's own output, found by a search
    text        the input as it was given
    horizon     how many vectors are generated; None: as many as in training
    """

    ids: list[int]
    batch: Source | None
    shown: LookInput
    output: Any
    edits: Sequence[Edit]
    search: Callable[[], Sequence[int]]
    text: Any = None
    horizon: int | None = None


class Task(ABC):
    """What a model is trained for.

    head           of the model: "decoder", "pool", or the kind of a head
    target_kinds   of the field [data.target]
    title          of the model card
    gives          what it gives, for messages: "gives labels"
    metrics        the group of metrics that apply to it (`regard.evaluation.metrics`)
    monitors       metrics that training may monitor; of outputs, unless the validation computes them without any
    searches       whether an output is searched for, token by token; otherwise it follows from one forward pass
    has_beam       whether decode.beam_size and the keys of a language model mean something although it does not search
                   token by token
    has_probabilities   whether an output has the probability of every label
    problem_type   its name in config.json of Hugging Face's transformers, if it has one
    has_scores     whether a target has a probability, by which it is scored
    has_threshold  whether decode.threshold chooses its outputs
    has_horizon    whether decode.horizon says how long its outputs are
    tags_words     whether an output has a tag for each word of the input
    continues_source   whether an output is what comes after its source
    reads_target   whether it reads the target instead of a source
    default_loss   the name of its loss where [train] can choose another (`regard.tasks.output_losses`)
    default_label_smoothing   train.label_smoothing, where it is left out
    """

    name: ClassVar[str]
    head: ClassVar[str]
    target_kinds: ClassVar[tuple[str, ...]]
    title: ClassVar[str]
    gives: ClassVar[str]
    metrics: ClassVar[str]
    monitors: ClassVar[tuple[str, ...]] = ("loss", "perplexity")
    searches: ClassVar[bool] = False
    has_beam: ClassVar[bool] = False
    has_probabilities: ClassVar[bool] = False
    problem_type: ClassVar[str | None] = None
    has_scores: ClassVar[bool] = True
    has_threshold: ClassVar[bool] = False
    has_horizon: ClassVar[bool] = False
    tags_words: ClassVar[bool] = False
    reads_target: ClassVar[bool] = False
    continues_source: ClassVar[bool] = False
    default_loss: ClassVar[str | None] = None
    default_label_smoothing: ClassVar[float] = 0.1

    # The recipe.

    def predicts(self, target: Field) -> bool:
        """Whether it predicts such a field."""
        return target.kind in self.target_kinds or target.like in self.target_kinds

    def recipe_problems(self, model: ModelConfig, data: DataConfig) -> Iterator[Problem]:
        """What the model of this task cannot read or predict of these data."""
        return iter(())

    def training_problems(self, train: Any, model: ModelConfig) -> Iterator[Problem]:
        """What the model of this task cannot have of the table [train]: terms of its loss, say."""
        return iter(())

    def monitor_problems(self, monitor: str, target: VocabularyType) -> Iterator[Problem]:
        """Why outputs cannot have the monitored metric, for what was learned of the target."""
        return iter(())

    @abstractmethod
    def sizes(self, target: VocabularyType) -> dict[str, Any]:
        """The keys of the model's table that the target gives."""

    def source_sizes(self, sources: SourceVocabularies) -> dict[str, Any]:
        """The keys of the model's table that the sources give, beside the sizes of what its encoders read."""
        return {}

    def window(self, sources: SourceVocabularies) -> int | None:
        """How many vectors of its source a model reads, of a longer one the last; None: all of them."""
        return None

    def separate_channels(self, model: Model) -> int:
        """How many channels of the source, the first ones, are read apart, with an attention each; 0: none."""
        return 0

    def metrics_of(self, data: DataConfig) -> str:
        """The group of metrics that apply to models of such data."""
        return self.metrics

    def default_metrics(
        self, data: DataConfig, monitor: str, target: VocabularyType | None = None
    ) -> list[str]:
        """The metrics of outputs that `regard evaluate` reports unless others are asked for.

        target   what was learned of the target, where that is known
        """
        return []

    def metric_options(self, data: DataConfig, target: VocabularyType | None) -> dict[str, Any]:
        """What the statistics of its metrics are made with."""
        return {}

    def check_examples(
        self, corpus: Corpus, model: ModelConfig, target: VocabularyType
    ) -> tuple[int, InvalidArgument] | None:
        """The first example of a split that its model cannot learn or be evaluated on, from 0, with the reason.

        target   what was learned of the target
        """
        return None

    # Training.

    @abstractmethod
    def loss(
        self,
        objective: "Objective",
        model: Model,
        batch: "Batch",
        *,
        step: int = 0,
        carried: CarriedStates | None = None,
    ) -> "BatchLoss":
        """The loss of a batch at an update."""

    def validation_values(
        self, model: Model, corpus: Corpus, target: VocabularyType, *, budget: int
    ) -> dict[str, float]:
        """Metrics of a validation beside the loss, by name.

        target   what was learned of the target: labels, or the statistics of numbers
        budget   the tokens of a batch
        """
        return {}

    def baseline_values(
        self, data: DataConfig, corpus: Corpus, target: VocabularyType
    ) -> dict[str, float]:
        """Metrics of a simple rule for the same examples, which are reported beside the model's."""
        return {}

    def output_error(self, data: DataConfig, output: str, reference: str) -> float:
        """How wrong an output is: 0 if it is the reference."""
        return float(output != reference)

    # Prediction.

    def pipeline(self, trained: TrainedModel) -> "Pipeline":
        """What computes outputs and scores; refused where the model gives none."""
        raise InvalidArgument(
            "model",
            wanted="one that gives sequences or labels",
            got=type(trained.model).__name__,
            remedy="Fine-tune it: train.init_from.",
        )

    def empty_values(self, target: VocabularyType) -> dict[str, Any]:
        """What the output for an empty or a refused input has beside an empty text.

        target   what was learned of the target
        """
        return {}

    def beside(self, trained: TrainedModel, language_model: TrainedModel) -> Any:
        """A language model as outputs are searched with it (decode.language_model)."""
        raise InvalidArgument(
            "language_model",
            wanted=f"nothing for a model that gives {self.gives}",
            got="a model",
            remedy="Leave it out.",
        )

    def ensemble(self, models: Sequence[Model]) -> Model:
        """Several models as one, whose distribution is the mean of theirs."""
        raise InvalidArgument(
            "path",
            wanted="models whose outputs can be averaged",
            got=f"models of the task {self.name!r}",
            remedy="Use one of them.",
        )

    def exported(self, model: Model, target: VocabularyType) -> Model:
        """The model as other libraries run it, which do not know what was learned of the target."""
        return model

    def embed(self, trained: TrainedModel, encoded: Sequence[EncodedInput]) -> Float[Tensor, "B W"]:
        """One vector for each encoded input."""
        memory = trained.model.encode(trained.inputs.collate(encoded))
        assert memory is not None
        return mean_state(memory)

    def look_output(self, names: Callable[[int], str]) -> DirectOutput | None:
        """What makes the output of a look from labels and their scores; None where one is generated, or there is none.

        names   of labels or tags, by their ids
        """
        return None

    def forward_pass(
        self, model: Model, source: Source | None, labels: Tensor | None
    ) -> ForwardPass:
        """The forward pass of a model without a decoder, with the labels that are looked at; None: its own."""
        return ForwardPass(model, source, None, labels)

    def look(self, trained: TrainedModel, request: LookRequest) -> tuple[ForwardPass, LookInput]:
        """The forward pass whose attention is shown, and the names of what it reads and gives."""
        raise InvalidArgument(
            "model",
            wanted="one whose task shows its attention",
            got=self.name,
            remedy="regard.capture_attention captures the attention of any module.",
        )


class PooledTask(Task):
    """A task whose model reduces a source to one vector, and that to as many numbers as it needs."""

    head = "pool"

    def sizes(self, target: VocabularyType) -> dict[str, Any]:
        found: dict[str, Any] = {"num_labels": target.size}
        if self.name != Classifier.task:
            found["task"] = self.name
        return found

    def embed(self, trained: TrainedModel, encoded: Sequence[EncodedInput]) -> Float[Tensor, "B W"]:
        if not isinstance(trained.model, Classifier):
            # A head of the user's own gives outputs and no vector.
            return super().embed(trained, encoded)
        memory = trained.model.encode(trained.inputs.collate(encoded))
        assert memory is not None
        pooled: Tensor = trained.model.pool(memory)
        return pooled


def mean_state(memory: Memory) -> Float[Tensor, "B W"]:
    """The mean of each sequence's states."""
    return masked_mean(memory.states, memory.mask)


def task_of(model: Model) -> Task:
    """The task of a model."""
    return TASKS[model.task]


def find_task(model: ModelConfig, data: DataConfig | None = None) -> Task:
    """The task that a recipe's model and target determine, unless the model's table names one.

    Without data, or where no task fits the target, the first task of the model's head.
    """
    named = model.options.task
    if named is None and model.head is not None:
        named = model.head.module.task
    if named is not None:
        return TASKS[named]
    of_head = [TASKS[name] for name in TASKS if TASKS[name].head == model.head_kind]
    fitting = [] if data is None else [task for task in of_head if task.predicts(data.target)]
    return (fitting or of_head)[0]


def target_kinds(model: ModelConfig) -> list[str]:
    """The kinds of targets that some task of the model's head predicts."""
    if model.options.task is not None or model.head is not None:
        return list(find_task(model).target_kinds)
    tasks = [TASKS[name] for name in TASKS if TASKS[name].head == model.head_kind]
    return [kind for task in tasks for kind in task.target_kinds]
