"""Checks between the tables of a recipe, each valid on its own. Parts of a model declare what they support."""

from collections.abc import Iterator

from regard.core.errors import Problem
from regard.data.config import DataConfig
from regard.data.fields.base import FIELDS
from regard.generation.config import DEFAULT_THRESHOLD, DecodeConfig
from regard.model.model_config import ModelConfig
from regard.model.word_vector_keys import word_vector_parts
from regard.tasks.base import TASKS, Task, find_task, target_kinds
from regard.tasks.output_losses import LOSSES
from regard.training.config import TrainConfig


def model_problems(model: ModelConfig, data: DataConfig) -> Iterator[Problem]:
    """Data that the model cannot read or predict."""
    task = find_task(model, data)
    if model.head is None and task.head != model.head_kind:
        named = [each for each in TASKS if TASKS[each].head == model.head_kind]
        wanted = f"{' or '.join(map(repr, named))}, of a model with a {model.head_kind}"
        yield Problem("model.task", wanted, repr(task.name), "Leave it out, or change the model.")
        return
    if not task.predicts(data.target):
        wanted = f"{' or '.join(map(repr, target_kinds(model)))}, which this model gives"
        yield Problem("data.target.kind", wanted, repr(data.target.kind), "Change one.")
    yield from task.recipe_problems(model, data)
    if task.reads_target or not model.encoders:
        return
    if not data.source_fields:
        yield Problem("data.source", "what the encoder reads", "none", "Add [data.source].")
    elif data.join_sources and model.head_kind != "pool":
        wanted = "false unless the model has a pool"
        yield Problem("data.join_sources", wanted, "true", "Use [[model.encoders]], one for each.")
    elif data.join_sources and len(model.encoders) != 1:
        wanted = "one [model.encoder], which reads all texts of data.join_sources"
        yield Problem("model.encoders", wanted, str(len(model.encoders)), "Write one.")
    elif not data.join_sources and len(data.source_fields) != len(model.encoders):
        wanted = f"{len(data.source_fields)} encoders, one for each source"
        got = str(len(model.encoders))
        remedy = "Write one [[model.encoders]] for each of [[data.sources]]."
        yield Problem("model.encoders", wanted, got, remedy)
    else:
        yield from _input_problems(model, data)


def _input_problems(model: ModelConfig, data: DataConfig) -> Iterator[Problem]:
    """Sources whose values the input module of their encoder cannot read."""
    for i, ((name, field), reads) in enumerate(zip(data.fields.items(), model.reads, strict=False)):
        module = model.inputs[i].config
        # The name of the input module, or of the one whose batches it takes as well.
        accepted = {reads, model.inputs[i].module.reads}
        if accepted.isdisjoint(field.input_kinds()):
            kinds = [repr(kind) for kind in FIELDS if accepted & set(FIELDS[kind].input_kinds())]
            wanted = f"{' or '.join(kinds)}, which the encoder reads"
            yield Problem(f"data.{name}.kind", wanted, repr(field.kind), "Change one.")
        elif module.reads_characters and not field.gives_characters:
            wanted = f"true: model.{model.encoder_names[i]}.input reads characters"
            yield Problem(f"data.{name}.characters", wanted, "false", "Add it.")
        elif field.resizing is not None:
            size, *_ = field.resizing
            yield from model.image_conflicts(i, size)
            normalizes = model.encoders[i].config.normalizes_colors
            for problem in field.color_problems(normalized_by_encoder=normalizes):
                yield problem.under(f"data.{name}")


def decode_problems(
    decode: DecodeConfig, data: DataConfig, model: ModelConfig
) -> Iterator[Problem]:
    """Settings of outputs that mean nothing to the model's task."""
    task = find_task(model, data)
    if decode.threshold != DEFAULT_THRESHOLD and not task.has_threshold:
        wanted = "nothing unless a model predicts several labels"
        yield Problem("decode.threshold", wanted, str(decode.threshold), "Leave it out.")
    of_ctc = {"language_model": decode.language_model, "length_bonus": decode.length_bonus}
    for key, value in of_ctc.items():
        if value and not task.has_beam:
            wanted = "nothing unless a CTC head transcribes"
            yield Problem(f"decode.{key}", wanted, repr(value), "Leave it out.")
    if decode.thresholds is not None and not task.has_threshold:
        wanted = "nothing unless a model predicts several labels"
        yield Problem("decode.thresholds", wanted, str(decode.thresholds)[:80], "Leave it out.")


def training_problems(
    train: TrainConfig, data: DataConfig, model: ModelConfig
) -> Iterator[Problem]:
    """Training settings that do not fit the model or the data."""
    yield from _batch_problems(train, data, model)
    if train.precision == "float8":
        yield from model.float8_problems()
    yield from _monitor_problems(train, model, data)
    task = find_task(model, data)
    yield from _loss_problems(train, task)
    yield from task.training_problems(train, model)
    if train.reward is not None and (model.decoder is None or not model.encoders):
        wanted = "nothing unless a source becomes a text"
        yield Problem("train.reward", wanted, repr(train.reward), "Leave it out.")
    yield from _word_vector_problems(train, model)
    if "valid" not in data.splits:
        yield from _problems_without_validation(train)
    yield from _auxiliary_head_problems(train, model)
    if train.doubly_stochastic and not model.has_attention_penalty:
        wanted = "0 unless a recurrent decoder attends to a source"
        got = str(train.doubly_stochastic)
        yield Problem("train.doubly_stochastic", wanted, got, "Leave it out.")
    if train.scheduled_sampling is not None and model.decoder is None:
        wanted = "nothing: there is no decoder to feed"
        yield Problem("train.scheduled_sampling", wanted, "a table", "Leave it out.")


def _batch_problems(train: TrainConfig, data: DataConfig, model: ModelConfig) -> Iterator[Problem]:
    """Settings of batches, and of the weights that process them, that do not fit model or data."""
    running_text = data.context_length is not None
    if train.carry_state and not (model.carries_state and running_text):
        wanted = "false unless a recurrent language model reads running text"
        yield Problem("train.carry_state", wanted, "true", "Leave it out.")
    if _ties_two_vocabularies(train, data, model):
        wanted = "true with model.tie_embeddings = 'all': one matrix embeds one vocabulary"
        remedy = "Set it, or model.tie_embeddings = 'target'."
        yield Problem("data.shared_vocab", wanted, "false", remedy)
    if train.mixed_lengths and running_text:
        wanted = "false with running text, whose contexts are of one length"
        yield Problem("train.mixed_lengths", wanted, "true", "Leave it out.")
    # Without running text, contexts cannot overlap at all.
    overlap_limit = 1
    if model.is_language_model and data.context_length:
        overlap_limit = data.context_length
    if train.evaluation_overlap >= overlap_limit:
        wanted = "0 without running text"
        if running_text:
            wanted = "less than data.context_length, of a language model"
        got = str(train.evaluation_overlap)
        yield Problem("train.evaluation_overlap", wanted, got, "Lower it.")
    if train.cuda_graphs and not (train.packed or (model.is_language_model and running_text)):
        wanted = "false unless batches are packed, or a language model reads running text"
        yield Problem("train.cuda_graphs", wanted, "true", "Leave it out.")
    if train.packed:
        reason = _not_packable(data, model)
        if reason is not None:
            yield Problem("train.packed", f"false with {reason}", "true", "Leave it out.")
    if train.fsdp:
        reason = model.not_shardable()
        if reason is not None:
            remedy = "Leave it out: every process then has the whole model."
            yield Problem("train.fsdp", f"false with {reason}", "true", remedy)


def _not_packable(data: DataConfig, model: ModelConfig) -> str | None:
    """What keeps the sequences of a batch from being packed."""
    if data.context_length is not None:
        return "running text, which has no padding"
    reason = model.not_packable()
    for field in data.source_fields:
        setting = field.not_packable()
        if reason is None and setting:
            reason = f"data.source.{setting}"
    return reason


def _loss_problems(train: TrainConfig, task: Task) -> Iterator[Problem]:
    if train.loss is not None and task.name not in LOSSES[train.loss].tasks:
        fitting = [repr(name) for name in LOSSES if task.name in LOSSES[name].tasks]
        wanted = f"{' or '.join(fitting) or 'nothing'} for a model that gives {task.gives}"
        yield Problem("train.loss", wanted, repr(train.loss), "Change it, or leave it out.")
    elif train.loss is not None and train.label_smoothing and not LOSSES[train.loss].smooths:
        wanted = f"0 with train.loss = {train.loss!r}"
        yield Problem("train.label_smoothing", wanted, str(train.label_smoothing), "Leave it out.")


def _word_vector_problems(train: TrainConfig, model: ModelConfig) -> Iterator[Problem]:
    for role, config in word_vector_parts(model):
        if train.init_from is not None:
            wanted = "nothing with train.init_from, which brings the embeddings"
            remedy = "Leave out one of the two."
            yield Problem(f"model.{role}.word_vectors", wanted, repr(config.word_vectors), remedy)
        if train.fsdp and config.freeze_word_vectors:
            wanted = f"false with model.{role}.freeze_word_vectors: whole matrices are sharded"
            yield Problem("train.fsdp", wanted, "true", "Leave out one of the two.")


def _problems_without_validation(train: TrainConfig) -> Iterator[Problem]:
    needs_validation = {
        "patience": train.patience is not None,
        "lr_schedule": train.lr_schedule == "plateau",
        "monitor": train.monitor != "loss",
    }
    for key, is_set in needs_validation.items():
        if is_set:
            wanted = "nothing that waits for validation: there is no data.valid"
            got = repr(getattr(train, key))
            yield Problem(f"train.{key}", wanted, got, "Add data.valid, or leave it out.")


def _auxiliary_head_problems(train: TrainConfig, model: ModelConfig) -> Iterator[Problem]:
    """Settings of a CTC head that is trained beside a decoder."""
    default = TrainConfig.__dataclass_fields__["ctc_weight"].default
    if model.auxiliary is None and train.ctc_weight != default:
        wanted = "nothing without [model.head] kind = 'ctc' beside a decoder"
        yield Problem("train.ctc_weight", wanted, str(train.ctc_weight), "Leave it out.")
    if model.auxiliary is not None and not train.ctc_weight:
        wanted = "more than 0 with a CTC head beside the decoder"
        yield Problem("train.ctc_weight", wanted, "0.0", "Raise it, or leave model.head out.")
    if model.auxiliary is not None and train.reward is not None:
        wanted = "nothing with a CTC head beside the decoder"
        yield Problem("train.reward", wanted, repr(train.reward), "Leave one of them out.")


def _ties_two_vocabularies(train: TrainConfig, data: DataConfig, model: ModelConfig) -> bool:
    """Whether source and target would share an embedding matrix although each learns a vocabulary of its own.

    If training starts from another model, its vocabularies are used; they are compared when it is read.
    """
    if model.options.tie_embeddings != "all" or data.shared_vocab:
        return False
    return bool(data.splits) and train.init_from is None


def _monitor_problems(
    train: TrainConfig, model: ModelConfig, data: DataConfig
) -> Iterator[Problem]:
    task = find_task(model, data)
    if train.monitor in task.monitors or (task.searches and not model.is_language_model):
        return
    wanted = f"{' or '.join(task.monitors)} for a model that gives {task.gives}"
    yield Problem("train.monitor", wanted, repr(train.monitor), "Change it.")
