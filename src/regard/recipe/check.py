"""Checks between the tables of a recipe, each valid on its own. Parts of a model declare what they support."""

from collections.abc import Iterator

from regard.core.errors import Problem
from regard.data.config import DataConfig
from regard.model.model_config import ModelConfig
from regard.training.config import TrainConfig


def model_problems(model: ModelConfig, data: DataConfig) -> Iterator[Problem]:
    """What the model cannot read or predict of these data."""
    predicted = "label" if model.predicts == "label" else "text"
    if data.target.kind != predicted:
        wanted = f"{predicted!r}, which this model gives"
        yield Problem("data.target.kind", wanted, repr(data.target.kind), "Change one.")
    if model.predicts == "masked tokens":
        if data.source_fields:
            wanted = "nothing: a masked-token head reads the target"
            yield Problem("data.source", wanted, "a source", "Leave it out.")
    elif not model.encoders:
        if data.source_fields:
            wanted, remedy = (
                "nothing: the model has no encoder",
                "Add [model.encoder], or leave it out.",
            )
            yield Problem("data.source", wanted, "a source", remedy)
    elif not data.source_fields:
        yield Problem("data.source", "what the encoder reads", "none", "Add [data.source].")
    elif len(data.source_fields) != len(model.encoders):
        wanted, got = (
            f"{len(data.source_fields)} encoders, one for each source",
            str(len(model.encoders)),
        )
        yield Problem(
            "model.encoders",
            wanted,
            got,
            "Write one [[model.encoders]] for each of [[data.sources]].",
        )
    else:
        for i, ((name, field), reads) in enumerate(
            zip(data.fields.items(), model.reads, strict=False)
        ):
            read = "text" if reads == "tokens" else reads
            if field.kind != read:
                wanted = f"{read!r}, which the encoder reads"
                yield Problem(f"data.{name}.kind", wanted, repr(field.kind), "Change one.")
            elif read == "image":
                yield from model.image_conflicts(i, field.image_size)
                if model.encoders[i].config.normalizes_colors and not field.normalized_to_one:
                    wanted = "nothing here: the backbone normalizes colors itself"
                    got = f"{list(field.image_mean)}, {list(field.image_std)}"
                    yield Problem(
                        f"data.{name}.image_mean, image_std", wanted, got, "Leave them out."
                    )


def training_problems(
    train: TrainConfig, data: DataConfig, model: ModelConfig
) -> Iterator[Problem]:
    """Training settings that do not fit the model or the data."""
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
    if train.evaluation_overlap >= (data.context_length or 1 if model.is_language_model else 1):
        wanted = (
            "less than data.context_length, of a language model"
            if running_text
            else "0 without running text"
        )
        yield Problem(
            "train.evaluation_overlap", wanted, str(train.evaluation_overlap), "Lower it."
        )
    if train.cuda_graphs and not (train.packed or (model.is_language_model and running_text)):
        wanted = "false unless batches are packed, or a language model reads running text"
        yield Problem("train.cuda_graphs", wanted, "true", "Leave it out.")
    if train.packed:
        reason = "running text, which has no padding" if running_text else model.not_packable()
        if reason is not None:
            yield Problem("train.packed", f"false with {reason}", "true", "Leave it out.")
    if train.fsdp and (reason := model.not_shardable()) is not None:
        yield Problem(
            "train.fsdp",
            f"false with {reason}",
            "true",
            "Leave it out: every process then has the whole model.",
        )
    if train.precision == "float8":
        yield from model.float8_problems()
    yield from _monitor_problems(train, model)
    if train.reward is not None and (model.decoder is None or not model.encoders):
        wanted = "nothing unless a source becomes a text"
        yield Problem("train.reward", wanted, repr(train.reward), "Leave it out.")
    if "valid" not in data.splits:
        needs_validation = {
            "patience": train.patience is not None,
            "lr_schedule": train.lr_schedule == "plateau",
            "monitor": train.monitor != "loss",
        }
        for key in [key for key, needed in needs_validation.items() if needed]:
            wanted, got = (
                "nothing that waits for validation: there is no data.valid",
                repr(getattr(train, key)),
            )
            yield Problem(f"train.{key}", wanted, got, "Add data.valid, or leave it out.")
    if train.doubly_stochastic and not model.has_attention_penalty:
        wanted, got = (
            "0 unless a recurrent decoder attends to a source",
            str(train.doubly_stochastic),
        )
        yield Problem("train.doubly_stochastic", wanted, got, "Leave it out.")
    if train.scheduled_sampling is not None and model.decoder is None:
        wanted = "nothing: there is no decoder to feed"
        yield Problem("train.scheduled_sampling", wanted, "a table", "Leave it out.")


def _ties_two_vocabularies(train: TrainConfig, data: DataConfig, model: ModelConfig) -> bool:
    """Whether source and target would share a matrix, and each learn a vocabulary of its own.

    A model that training starts from brings its vocabularies: they are compared when it is read.
    """
    if model.options.tie_embeddings != "all" or data.shared_vocab:
        return False
    return bool(data.splits) and train.init_from is None


def _monitor_problems(train: TrainConfig, model: ModelConfig) -> Iterator[Problem]:
    allowed, wanted = {
        "masked tokens": (("loss", "perplexity"), "loss or perplexity for masked tokens"),
        "label": (("loss", "perplexity", "accuracy"), "loss or accuracy for labels"),
        "tokens": (("loss", "perplexity"), "loss or perplexity for a language model"),
    }[model.predicts]
    if train.monitor not in allowed and (model.predicts != "tokens" or model.is_language_model):
        yield Problem("train.monitor", wanted, repr(train.monitor), "Change it.")
