"""Export to Hugging Face's transformers: a folder that `AutoModel….from_pretrained` and `AutoTokenizer` load."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from regard.core.atomic_io import with_usual_mode
from regard.core.shapes import Tensor
from regard.data.fields.image import require_image
from regard.data.spelling import HIDDEN
from regard.data.tokenizer import Tokenizer
from regard.generation.ensemble import ClassifierEnsemble, Ensemble
from regard.inference.predictor import Predictor
from regard.interop import images
from regard.interop.architectures.base import transformer
from regard.interop.express import Expression, express, lost_bias, unequal_copies
from regard.interop.hub_card import hub_card
from regard.interop.interfaces import ExportOptions, FolderTarget
from regard.model.build import parse_model
from regard.model.model_config import ModelConfig

NEVER = -1e4  # a logit whose probability is 0
SHARD = 5_000_000_000  # bytes of the largest file of weights
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class HuggingFaceTarget(FolderTarget):
    """Hugging Face's transformers."""

    name = "huggingface"
    title = "Hugging Face transformers"
    options = frozenset({"dtype", "report", "push"})

    def obstacles(self, model: Predictor) -> Sequence[str]:
        config = _model_config(model)
        if isinstance(config, str):
            return [config]
        expression = express(config)
        if isinstance(expression, list):
            return expression
        weights = expression.weights(model.model, config)
        problems = lost_bias(expression, model.model, config)
        problems += unequal_copies(expression, weights)
        return [*problems, *_token_obstacles(model, expression)]

    def write(self, model: Predictor, folder: Path, options: ExportOptions) -> None:
        model = replace(model, model=model.task.exported(model.model, model.target))
        config = _model_config(model)
        assert isinstance(config, ModelConfig)
        expression = express(config)
        assert isinstance(expression, Expression)
        dtype = next(model.model.parameters()).dtype
        if options.dtype is not None:
            dtype = DTYPES[options.dtype]
        weights = expression.weights(model.model, config)
        rows = _add_spare_rows(model, expression, weights)
        tensors = {step.theirs: step.to_theirs(weights) for step in expression.steps()}
        tensors |= expression.architecture.computed(expression.keys, tensors)
        converted = {name: x.to("cpu", dtype).contiguous() for name, x in tensors.items()}
        write_weights(folder, converted)
        tokens = _tokens(model)
        described = {
            **expression.config,
            **_max_positions(model, expression),
            **rows,
            **tokens,
            **output_names(model),
            "dtype": str(dtype).removeprefix("torch."),
        }
        _write_json(folder / "config.json", described)
        if expression.head == "generation":
            generation = generation_config(model, tokens)
            if "decoder_vocab_size" in rows:
                # Only the encoder reads the added rows.
                size = config.options.vocab_size or 0
                spare = list(range(size, rows["decoder_vocab_size"]))
                generation["suppress_tokens"] = [*generation.get("suppress_tokens", ()), *spare]
            _write_json(folder / "generation_config.json", generation)
        write_tokenizers(model, folder)
        if model.image_size is not None:
            field = require_image(model.recipe.data.source_fields[0])
            _write_json(folder / images.FILE, images.preprocessor_config(field))
        card = hub_card(model, expression.architecture.model_type, options.report)
        (folder / "README.md").write_text(card, "utf-8")


def _max_positions(model: Predictor, expression: Expression) -> dict[str, int]:
    """The largest number of tokens that are read, where the model has no table of positions that shows it."""
    if "rope_parameters" not in expression.config:
        return {}
    recipe = model.recipe
    longest = max(recipe.decode.max_source_length, recipe.data.context_length or 0)
    return {"max_position_embeddings": longest}


def _model_config(model: Predictor) -> ModelConfig | str:
    """The sized configuration of a model, or why there is none."""
    if isinstance(model.model, Ensemble | ClassifierEnsemble):
        return "an ensemble is several models: export one of them"
    config = parse_model(model.recipe.with_sizes(model.sources, model.target))
    assert isinstance(config, ModelConfig)
    return config


def _token_obstacles(model: Predictor, expression: Expression) -> list[str]:
    """What the tokenizer or the data have that transformers does not."""
    found = []
    pad = _tokens(model).get("pad_token_id")
    wanted = expression.config.get("pad_token_id")
    architecture = expression.architecture.model_type
    if wanted is not None and pad != wanted:
        found.append(f"padding is token {pad}, and {architecture} needs {wanted}")
    if _spare(model) and architecture != "marian":
        found.append("the tokenizer has pieces without a row of the embedding")
    return found


def _spare(model: Predictor) -> int:
    """Pieces of the source's tokenizer that have no row of the embedding, and are read as the unknown token."""
    if isinstance(model.source, Tokenizer):
        return int(model.source.settings.get("spare", 0))
    return 0


def _add_spare_rows(
    model: Predictor, expression: Expression, weights: dict[str, Tensor]
) -> dict[str, int]:
    """Give these pieces the row of the unknown token, which is never generated. Return changed sizes of config.json."""
    spare = _spare(model)
    if not spare or not isinstance(model.source, Tokenizer):
        return {}
    name = "encoder.embed_tokens.weight"
    unknown = model.source.special_tokens.unknown
    assert unknown is not None
    row = weights[name][unknown]  # (W,)
    weights[name] = torch.cat((weights[name], row.expand(spare, -1)))
    rows = {"vocab_size": len(weights[name])}
    if expression.model.options.tie_embeddings == "all":
        bias = weights["decoder.project.bias"]
        weights["decoder.project.bias"] = torch.cat((bias, bias.new_full((spare,), NEVER)))
        rows["decoder_vocab_size"] = rows["vocab_size"]
    return rows


def _tokens(model: Predictor) -> dict[str, Any]:
    """The special tokens, as config.json has them."""
    tokenizer = _source_tokenizer(model)
    if tokenizer is None:
        return {}
    own = tokenizer.special_tokens
    if isinstance(model.target, Tokenizer):
        own = model.target.special_tokens
    if model.running_text:
        # The end token is the line break, which begins a text and ends no output.
        return {"pad_token_id": own.pad, "bos_token_id": own.end, "eos_token_id": None}
    found: dict[str, Any] = {
        "pad_token_id": own.pad,
        "bos_token_id": own.start,
        "eos_token_id": own.end,
    }
    if own.other_ends:
        found["eos_token_id"] = list(own.ends)
    if model.model.generator is not None and model.sources:
        found |= {"decoder_start_token_id": own.start}
    return found


def output_names(model: Predictor) -> dict[str, Any]:
    """What a model with a pool or a tagger predicts, and the names of its outputs, as config.json has them."""
    kind = model.task.problem_type
    if kind is None and not model.task.tags_words:
        return {}
    names = model.target.tokens()
    if kind == "regression":
        # Numbers have no names.
        names = [f"LABEL_{number}" for number in range(model.target.size)]
    table: dict[str, Any] = {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
    # Token classification has no problem type.
    if kind is None:
        return table
    return {"problem_type": kind, **table}


def generation_config(model: Predictor, tokens: Mapping[str, Any]) -> dict[str, Any]:
    """The decoding options of a model as generation_config.json."""
    assert isinstance(model.target, Tokenizer)
    decode = model.recipe.decode
    own = model.target.special_tokens
    found: dict[str, Any] = {
        **tokens,
        "max_new_tokens": decode.max_length,
        "num_beams": decode.beam_size,
        "num_return_sequences": decode.num_hypotheses,
        "early_stopping": decode.early_stopping if decode.beam_size > 1 else False,
        "length_penalty": decode.length_penalty,
        "do_sample": decode.sample,
        "suppress_tokens": list(own.suppressed) or None,
        "forced_bos_token_id": own.target_prefix[0] if own.target_prefix else None,
    }
    if decode.min_length:
        found["min_new_tokens"] = decode.min_length
    if decode.no_repeat_ngram_size:
        found["no_repeat_ngram_size"] = decode.no_repeat_ngram_size
    if decode.repetition_penalty != 1.0 and decode.beam_size > 1:
        found["repetition_penalty"] = decode.repetition_penalty
    if decode.exponential_decay_length_penalty is not None and decode.beam_size > 1:
        start, factor = decode.exponential_decay_length_penalty
        found["exponential_decay_length_penalty"] = [int(start), factor]
    if decode.beam_groups > 1:
        found["num_beam_groups"] = decode.beam_groups
        found["diversity_penalty"] = decode.diversity_penalty
    if decode.sample:
        found["temperature"] = decode.temperature
        found["top_k"] = decode.top_k or 0
        found["top_p"] = 1.0 if decode.top_p is None else decode.top_p
        found["min_p"] = decode.min_p
        found["typical_p"] = decode.typical_p
    return {key: value for key, value in found.items() if value is not None}


def write_weights(folder: Path, weights: Mapping[str, Tensor], largest: int = SHARD) -> None:
    """model.safetensors; where it would be larger than `largest`, shards and their index."""
    from safetensors.torch import save_file

    shards = list(_shards(weights, largest))
    count = len(shards)
    names = ["model.safetensors"]
    if count > 1:
        names = [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
        files = {}
        for name, shard in zip(names, shards, strict=True):
            files.update(dict.fromkeys(shard, name))
        total = sum(tensor.nbytes for tensor in weights.values())
        index = {"metadata": {"total_size": total}, "weight_map": files}
        _write_json(folder / "model.safetensors.index.json", index)
    for name, shard in zip(names, shards, strict=True):
        # safetensors refuses tensors that share memory: one name keeps it, the others get copies.
        keepers = {tensor.data_ptr(): key for key, tensor in shard.items()}
        own = {}
        for key, tensor in shard.items():
            is_keeper = keepers[tensor.data_ptr()] == key
            own[key] = tensor if is_keeper else tensor.clone()
        with with_usual_mode(folder / name):
            save_file(own, folder / name, {"format": "pt"})


def _shards(weights: Mapping[str, Tensor], largest: int) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in weights.items():
        if shard and size + tensor.nbytes > largest:
            yield shard
            shard = {}
            size = 0
        shard[name] = tensor
        size += tensor.nbytes
    yield shard


def write_tokenizers(model: Predictor, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json of the inputs.

    If outputs have another vocabulary, its files are in target/.
    """
    source = _source_tokenizer(model)
    if source is None:
        return
    _write_tokenizer(
        source,
        folder,
        has_source=bool(model.sources) or model.task.reads_target,
        running=model.running_text,
        reads_words=model.task.tags_words,
        pair=_pair_template(model),
    )
    if isinstance(model.target, Tokenizer) and _names(model.target) != _names(source):
        (folder / "target").mkdir()
        _write_tokenizer(model.target, folder / "target", has_source=False)


def _names(tokenizer: Tokenizer) -> list[str]:
    """The token of each id. Tokenizers with the same names decode in the same way, even if they encode differently."""
    return [name.replace(HIDDEN, "") for name in tokenizer.tokens()]


def _source_tokenizer(model: Predictor) -> Tokenizer | None:
    """The tokenizer of the text that the model reads, or of the captions that it writes."""
    source = model.sources[0] if model.recipe.data.join_sources else model.source
    given = [each for each in (source, model.target) if isinstance(each, Tokenizer)]
    return given[0] if given else None


def _pair_template(model: Predictor) -> list[str] | None:
    """How two texts become one sequence, with the segment of each token; None where a model reads no pairs."""
    if not model.recipe.data.join_sources or len(model.sources) != 2:
        return None
    config = transformer(model.recipe.model.encoders[0])
    second = 1 if config is not None and config.token_types > 1 else 0
    template = []
    for name, segment, vocabulary in zip("AB", (0, second), model.sources, strict=True):
        assert isinstance(vocabulary, Tokenizer)
        special = vocabulary.special_tokens
        before = [vocabulary.pieces([i])[0] for i in special.source_prefix]
        after = [vocabulary.pieces([i])[0] for i in special.source_suffix]
        # "$A:0" stands for the first text, in the first segment.
        template += [f"{each}:{segment}" for each in (*before, f"${name}", *after)]
    return template


def _write_tokenizer(
    tokenizer: Tokenizer,
    folder: Path,
    *,
    has_source: bool,
    running: bool = False,
    reads_words: bool = False,
    pair: list[str] | None = None,
) -> None:
    import tokenizers
    from tokenizers.processors import TemplateProcessing

    own = tokenizer.special_tokens
    inner = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    if reads_words and isinstance(inner.pre_tokenizer, tokenizers.pre_tokenizers.ByteLevel):
        # Every word is encoded with a space before it, also the first.
        inner.pre_tokenizer.add_prefix_space = True
    first = own.end if running else own.start
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    if has_source:
        before = own.source_prefix
        after = own.source_suffix
    elif first is not None:
        before = (first,)
    names = {i: tokenizer.pieces([i])[0] for i in (*before, *after)}
    names_before = [names[i] for i in before]
    names_after = [names[i] for i in after]
    single = [*names_before, "$A", *names_after]
    special = [(name, i) for i, name in names.items()]
    inner.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=special)
    inner.save(str(folder / "tokenizer.json"))
    roles = {"pad": own.pad, "bos": first, "eos": own.end, "unk": own.unknown, "mask": own.mask}
    described: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    for role, i in roles.items():
        if i is not None:
            described[f"{role}_token"] = tokenizer.pieces([i])[0]
    if not tokenizer.settings and not running:
        # The name of a special token inside a text is ordinary text.
        described["split_special_tokens"] = True
    _write_json(folder / "tokenizer_config.json", described)


def _write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", "utf-8")
