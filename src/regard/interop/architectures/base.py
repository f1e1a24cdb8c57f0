"""What an architecture of Hugging Face's transformers declares, and the reading of its config.json."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from regard.core.config import Config, Count, doc, read
from regard.core.errors import InvalidData, InvalidRecipe, Problem
from regard.core.shapes import Tensor
from regard.interop.rules import Rule
from regard.interop.tensors import TensorFolder
from regard.model.model_config import ModelConfig
from regard.model.transformer_config import TransformerConfig

Activation = Literal["relu", "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "silu", "swish"]
ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "silu": "silu", "swish": "silu",
}  # fmt: skip
THEIR_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}

# Keys of any config.json that change no output: of training, of the file itself, of other heads.
HARMLESS = frozenset({
    "_name_or_path", "_num_labels", "architectures", "dtype", "finetuning_task", "gradient_checkpointing",
    "id2label", "init_std", "initializer_factor", "initializer_range", "is_encoder_decoder", "label2id", "model_type",
    "output_attentions", "output_hidden_states", "output_past", "prefix", "problem_type", "return_dict",
    "task_specific_params", "tokenizer_class", "torch_dtype", "transformers_version", "use_cache",
    "encoder_layerdrop", "decoder_layerdrop", "layerdrop", "_attn_implementation_autoset",
    "classifier_dropout", "classif_dropout", "sep_token_id", "unk_token_id", "mask_token_id", "cls_token_id",
    "torchscript", "use_bfloat16", "tf_legacy_loss", "chunk_size_feed_forward", "transformers.js_config",
    "is_llama_config", "save_step", "replacing_rate", "student_encoder_layers", "student_decoder_layers",
})  # fmt: skip
# Keys of any config.json that published files have with the only value that is supported.
FIXED = {"pruned_heads": {}, "tie_encoder_decoder": False}
# Options of generation, which old files have in config.json.
GENERATION = frozenset({
    "num_beams", "max_length", "max_new_tokens", "min_length", "length_penalty", "no_repeat_ngram_size",
    "repetition_penalty", "do_sample", "temperature", "top_k", "top_p", "typical_p", "min_p", "early_stopping",
    "num_beam_groups", "diversity_penalty", "num_return_sequences", "bad_words_ids", "forced_bos_token_id",
    "forced_eos_token_id", "encoder_no_repeat_ngram_size", "suppress_tokens", "begin_suppress_tokens",
    "exponential_decay_length_penalty", "remove_invalid_values", "return_dict_in_generate", "output_scores",
    "renormalize_logits", "cache_implementation",
})  # fmt: skip


@dataclass(frozen=True)
class SharedKeys(Config):
    """The keys of a config.json that every architecture has.

    A default is what transformers assumes where a file leaves the key out. null is read as None, which is not the
    default: in a field that allows None it means the same as null in transformers, and other fields refuse null.
    """

    pad_token_id: int | None = doc(None, "padding")
    bos_token_id: int | None = doc(None, "the first token of a text")
    eos_token_id: int | tuple[int, ...] | None = doc(None, "the end of a text")
    decoder_start_token_id: int | None = doc(None, "the token before an output's first")
    tie_word_embeddings: bool = doc(True, "whether embeddings and output layer share a matrix")
    vocab_size: Count = doc(1, "rows of the embedding")


Keys = TypeVar("Keys", bound=SharedKeys)


class Architecture(ABC, Generic[Keys]):
    """An architecture: reads its config.json and weights as a model of ours, and writes a model of ours as these."""

    model_type: ClassVar[str]  # in config.json
    # The classes of transformers that are read, and the head of each.
    classes: ClassVar[Mapping[str, str]]
    fixed: ClassVar[Mapping[str, Any]] = {}  # keys with the only value that is supported
    # Keys without effect on the outputs of these classes.
    unused: ClassVar[frozenset[str]] = frozenset()
    # Patterns of tensors that are not weights, or belong to other heads.
    ignored: ClassVar[Sequence[str]] = ()
    # Other names of keys. Older files have a key under both names, which must agree.
    aliases: ClassVar[Mapping[str, str]] = {}
    # The prefix of all tensors except the head's. Files of the bare model leave it out.
    base_prefix: ClassVar[str] = ""
    keys: type[Keys]

    @abstractmethod
    def table(self, keys: Keys, head: str, tensors: TensorFolder | None) -> dict[str, Any]:
        """The model's table for `regard.build`. The tensors show which embeddings are shared; None: as the keys say."""

    @abstractmethod
    def rules(self, keys: Keys, model: ModelConfig) -> list[Rule]:
        """The rules for the weights of a model that was built from the table of these keys."""

    def copies(self, keys: Keys, model: ModelConfig) -> Mapping[str, Sequence[str]]:
        """Names in the rules, each with the other names under which a file may have the same tensor."""
        return {}

    @abstractmethod
    def export_keys(self, model: ModelConfig) -> dict[str, Any]:
        """The keys of the config.json that comes nearest to a model of ours; {} if the parts are of other kinds."""

    def computed(self, keys: Keys, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors that transformers expects in a file in addition to the weights, `tensors`. They change no output."""
        return {}

    def problems(self, keys: Keys, head: str) -> Iterator[Problem]:
        """What prevents the import of a model with these keys, each valid on its own."""
        return iter(())

    def max_source_length(self, keys: Keys) -> int | None:
        """The number of tokens that the model was made for; None where config.json does not say."""
        return None

    def decoder_start(self, keys: Keys) -> int | None:
        """The token before an output's first."""
        if keys.decoder_start_token_id is None:
            return keys.bos_token_id
        return keys.decoder_start_token_id

    def head(self, config: Mapping[str, Any], where: Path) -> str:
        """The head of the class in config.json."""
        given = config.get("architectures")
        name = None
        if isinstance(given, list) and given:
            name = given[0]
        heads = set(self.classes.values())
        if name is None and given in (None, []) and len(heads) == 1:
            return next(iter(self.classes.values()))
        if not isinstance(name, str) or name not in self.classes:
            wanted = f"one of {', '.join(self.classes)}"
            remedy = "Other heads are not imported."
            raise InvalidData(
                f"{where}: architectures", wanted=wanted, got=repr(given)[:80], remedy=remedy
            )
        return self.classes[name]

    def read(self, config: Mapping[str, Any], head: str, where: Path) -> Keys:
        """The checked keys of a config.json. All unknown options and wrong values are refused together."""
        known = {field.name for field in fields(self.keys)}
        skipped = HARMLESS | GENERATION | self.unused | self.aliases.keys()
        fixed = {**FIXED, **self.fixed}
        problems = []
        for key, value in config.items():
            if key in known or key in skipped:
                continue
            # null says that there is no such thing: of an option that is unknown here, or is off.
            if value is None and not fixed.get(key):
                continue
            if key not in fixed:
                wanted = f"no such option: it is not known for {self.model_type}"
                remedy = "Use another model."
                problems.append(Problem(key, wanted, repr(value)[:80], remedy))
            elif value != fixed[key]:
                remedy = f"Models with another {key} are not imported."
                problems.append(Problem(key, repr(fixed[key]), repr(value)[:80], remedy))
        problems += label_problems(config, head)
        known_values = {key: config[key] for key in config.keys() & known}
        keys = read(self.keys, known_values, "", nulls=True)
        if isinstance(keys, list):
            problems += keys
        else:
            problems += self.problems(keys, head)
            problems += self.contradictions(config, keys)
        if problems or isinstance(keys, list):
            raise InvalidRecipe([_in_file(problem, where) for problem in problems])
        return keys

    def contradictions(self, config: Mapping[str, Any], keys: Keys) -> Iterator[Problem]:
        """Keys of a file that contradict `keys`, which alone describe the model."""
        for alias, key in self.aliases.items():
            value = getattr(keys, key)
            if alias in config and config[alias] != value:
                yield contradiction(alias, f"{value!r}, as {key}", config[alias])

    def renamed(self, names: Sequence[str]) -> dict[str, str]:
        """The tensors of a file by their names in the rules. Old files and files of the bare model have other names."""
        bare = self.base_prefix and not any(name.startswith(self.base_prefix) for name in names)
        heads = {rule for rule in names if self.is_head(rule)}
        found = {}
        for name in names:
            # Old files have the names of TensorFlow for the parameters of norms.
            own = re.sub(r"\.beta$", ".bias", name)
            own = re.sub(r"\.gamma$", ".weight", own)
            if bare and name not in heads:
                own = self.base_prefix + own
            found[own] = name
        return found

    def is_head(self, name: str) -> bool:
        """Whether a tensor belongs to the head, not to the bare model."""
        return name.split(".")[0] in ("lm_head", "cls", "classifier", "pre_classifier", "vocab_transform",
                                      "vocab_layer_norm", "vocab_projector", "final_logits_bias")  # fmt: skip

    # Whether a pair of texts has two separators between them: <s> one </s></s> other </s>.
    doubles_separator: ClassVar[bool] = False

    def is_ignored(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)


def contradiction(key: str, wanted: str, value: Any) -> Problem:
    """A key that contradicts another one of its file."""
    return Problem(key, wanted, repr(value)[:80], "Correct the file, or use another model.")


# By `problem_type` of a config.json, the kind of the target.
TARGET_KINDS = {
    "single_label_classification": "label",
    "multi_label_classification": "labels",
    "regression": "number",
}


def problem_type(config: Mapping[str, Any]) -> str:
    """What a classifier predicts. If the file does not say, one output is a number, as in transformers."""
    given = config.get("problem_type")
    if isinstance(given, str):
        return given
    if _outputs(config) == 1:
        return "regression"
    return "single_label_classification"


def _outputs(config: Mapping[str, Any]) -> int:
    names = config.get("id2label")
    if isinstance(names, dict):
        return len(names)
    count = config.get("num_labels", 2)
    return count if isinstance(count, int) else 2


def label_problems(config: Mapping[str, Any], head: str) -> Iterator[Problem]:
    """A problem if the file names an unknown problem type, or a classifier with a single label."""
    if "classification" not in head:
        return
    kind = config.get("problem_type")
    if kind is not None and kind not in TARGET_KINDS:
        wanted = " or ".join(map(repr, TARGET_KINDS))
        yield Problem("problem_type", wanted, repr(kind)[:80], "Correct the file.")
    elif kind == "single_label_classification" and _outputs(config) == 1:
        key = "num_labels" if config.get("id2label") is None else "id2label"
        remedy = "A model of one number has the problem_type 'regression'."
        yield Problem(key, "two labels or more", "one", remedy)


def _in_file(problem: Problem, where: Path) -> Problem:
    key = problem.key.removeprefix(".")
    return replace(problem, key=f"{where}: {key}")


def tied(tensors: TensorFolder | None, head: str, others: Sequence[str], *, keys_say: bool) -> bool:
    """Whether the output layer shares the matrix of an embedding. As in transformers, the file overrules the keys.

    others   the names under which the file may have the embedding
    """
    if tensors is None or head not in tensors:
        return keys_say
    embedding = next((name for name in others if name in tensors), None)
    return embedding is None or tensors.equal(embedding, head)


def transformer(part: Any) -> TransformerConfig | None:
    """The configuration of a part that is a Transformer."""
    if part is not None and isinstance(part.config, TransformerConfig):
        return part.config
    return None
