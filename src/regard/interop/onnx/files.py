"""The files other than graphs: configuration, tokenizers and image preprocessing, as transformers.js reads them.

transformers.js reads only the shapes of the cache from config.json, by keys that depend on model_type. So model_type
names an architecture whose keys can hold these shapes, whatever the graph computes. It is "regard" where no
architecture of transformers.js has such inputs, and another program has to run the graph.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import tokenizers
from tokenizers.processors import TemplateProcessing

from regard.data.fields.image import ImageField
from regard.data.tokenizer import Tokenizer
from regard.data.vocabulary import Labels
from regard.generation.request import position_limit
from regard.inference.predictor import Predictor
from regard.interop.huggingface import output_names
from regard.interop.onnx.decoder_graphs import PAST
from regard.interop.onnx.encoder_graphs import SourceKind
from regard.interop.onnx.graph import Graph

# Pillow's numbers.
RESAMPLING = {
    "nearest": 0,
    "lanczos": 1,
    "bilinear": 2,
    "bicubic": 3,
    "box": 4,
    "hamming": 5,
}


def source_kinds(model: Predictor) -> list[SourceKind]:
    """What the model reads; a masked language model reads its text, which recipes call its target."""
    fields = model.recipe.data.source_fields
    kinds: list[SourceKind] = [cast(SourceKind, field.kind) for field in fields]
    if not kinds and model.model.encoder is not None:
        kinds = ["text"]
    return kinds


def write_files(model: Predictor, graphs: list[Graph], folder: Path) -> None:
    """Write all files of a model but its graphs."""
    described = config(model, graphs)
    if any(folder.glob("onnx/*_data")):
        # The weights are beyond the size of one file.
        described["transformers.js_config"] = {"use_external_data_format": True}
    _write(folder / "config.json", described)
    if model.model.generator is not None:
        _write(folder / "generation_config.json", generation_config(model))
    write_tokenizers(model, folder)
    for field in model.recipe.data.source_fields:
        if isinstance(field, ImageField):
            _write(folder / "preprocessor_config.json", preprocessor_config(field))


def config(model: Predictor, graphs: list[Graph]) -> dict[str, Any]:
    """The content of config.json."""
    kinds = source_kinds(model)
    if model.model.generator is None:
        return _source_config(model, kinds)
    assert isinstance(model.target, Tokenizer)
    common = _special_ids(model) | {
        "vocab_size": model.target.size,
        "is_encoder_decoder": bool(kinds),
    }
    inputs = {each.name: each.axes for each in graphs[-1].inputs}
    own = "decoder." if kinds else ""
    layers = 0
    while f"{PAST}.{layers}.{own}key" in inputs:
        layers += 1
    cached = [axes for name, axes in inputs.items() if name.startswith(PAST) and len(axes) == 4]
    caches = {axes[1::2] for axes in cached}  # heads and dim of each
    if not layers or len(caches) != 1 or kinds not in ([], ["text"], ["image"]):
        return {"model_type": "regard", **common}
    ((heads, dim),) = caches
    assert isinstance(heads, int)
    assert isinstance(dim, int)
    if not kinds:
        shapes = {"num_hidden_layers": layers, "num_key_value_heads": heads, "head_dim": dim}
        return {"model_type": "gemma", "architectures": ["GemmaForCausalLM"], **common, **shapes}
    if kinds == ["text"]:
        shapes = {
            "num_layers": layers,
            "num_decoder_layers": layers,
            "num_heads": heads,
            "d_kv": dim,
        }
        described = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}
        return {**described, **common, **shapes}
    decoder = {"decoder_layers": layers, "decoder_attention_heads": heads, "d_model": heads * dim}
    parts = {
        "encoder": {"model_type": "vit"},
        "decoder": {"model_type": "trocr", **common, **decoder},
    }
    return {
        "model_type": "vision-encoder-decoder",
        "architectures": ["VisionEncoderDecoderModel"],
        **common,
        **parts,
    }


def _special_ids(model: Predictor) -> dict[str, Any]:
    """The special tokens of the output, by the names of Hugging Face. The end of running text is its line break."""
    assert isinstance(model.target, Tokenizer)
    special = model.target.special_tokens
    running = model.running_text
    start = _start(model)
    ids: dict[str, Any] = {}
    if start is not None:
        ids["decoder_start_token_id"] = start
        ids["bos_token_id"] = start
    ids["pad_token_id"] = special.pad
    if not running:
        ids["eos_token_id"] = list(special.ends) if special.other_ends else special.end
    return ids


def _start(model: Predictor) -> int | None:
    """The token before an output: in running text, the line break."""
    assert isinstance(model.target, Tokenizer)
    special = model.target.special_tokens
    return special.end if model.running_text else special.start


def _source_config(model: Predictor, kinds: Sequence[str]) -> dict[str, Any]:
    """The configuration of a classifier or a masked language model."""
    known = {"text": ("bert", "Bert"), "image": ("vit", "ViT")}
    model_type, class_name = known.get("+".join(kinds), ("regard", ""))
    if isinstance(model.target, Tokenizer):
        return {
            "model_type": model_type,
            "architectures": [f"{class_name}ForMaskedLM"],
            "vocab_size": model.target.size,
        }
    task = "ImageClassification" if kinds == ["image"] else "SequenceClassification"
    return {
        "model_type": model_type,
        "architectures": [f"{class_name}For{task}"],
        **output_names(model),
    }


def generation_config(model: Predictor) -> dict[str, Any]:
    """The content of generation_config.json: the recipe's [decode] table, as far as both have the option."""
    decode = model.recipe.decode
    seq2seq = model.model.generator
    assert seq2seq is not None
    assert isinstance(model.target, Tokenizer)
    special = model.target.special_tokens
    limit = position_limit(seq2seq.decoder)
    max_length = decode.max_length
    if limit is not None:
        max_length = min(limit, max_length)
    options: dict[str, Any] = {
        **_special_ids(model),
        "bad_words_ids": [[token] for token in special.suppressed],
        "max_new_tokens": max_length,
        "num_beams": 1 if decode.sample else decode.beam_size,
        "length_penalty": decode.length_penalty,
        "early_stopping": decode.early_stopping,
        "repetition_penalty": decode.repetition_penalty,
        "no_repeat_ngram_size": decode.no_repeat_ngram_size,
        "do_sample": decode.sample,
    }
    if len(special.target_prefix) == 1:
        options["forced_bos_token_id"] = special.target_prefix[0]
    elif special.target_prefix:
        forced = enumerate(special.target_prefix, start=1)
        options["forced_decoder_ids"] = [[i, token] for i, token in forced]
    if decode.sample:
        options["temperature"] = decode.temperature
        options["top_k"] = decode.top_k or 0
        options["top_p"] = decode.top_p or 1.0
    return options


def write_tokenizers(model: Predictor, folder: Path) -> None:
    """Write tokenizer.json of the source, which adds its special tokens, and target_tokenizer.json if it is another.

    Further sources have tokenizer_2.json, and so on. Labels that a model reads are in labels.json.
    """
    for number, vocabulary in enumerate(model.sources, start=1):
        suffix = "" if number == 1 else f"_{number}"
        if isinstance(vocabulary, Tokenizer):
            _write_text(folder / f"tokenizer{suffix}.json", _source_tokenizer(vocabulary))
        elif isinstance(vocabulary, Labels):
            _write_text(folder / f"labels{suffix}.json", vocabulary.to_json())
    first = model.sources[0] if model.sources else None
    target = model.target
    bos = None
    if isinstance(target, Tokenizer):
        if isinstance(first, Tokenizer):
            if first.hash != target.hash:
                _write_text(folder / "target_tokenizer.json", _tokenizer(target, (), ()))
        elif model.model.generator is None:
            # A masked language model reads its target.
            _write_text(folder / "tokenizer.json", _source_tokenizer(target))
        else:
            bos = _start(model)
            before = () if bos is None else (bos,)
            _write_text(folder / "tokenizer.json", _tokenizer(target, before, ()))
    if (folder / "tokenizer.json").exists():
        written = first if isinstance(first, Tokenizer) else target
        assert isinstance(written, Tokenizer)
        _write(folder / "tokenizer_config.json", _tokenizer_config(written, bos))


def _source_tokenizer(vocabulary: Tokenizer) -> str:
    special = vocabulary.special_tokens
    return _tokenizer(vocabulary, special.source_prefix, special.source_suffix)


def _tokenizer(vocabulary: Tokenizer, before: tuple[int, ...], after: tuple[int, ...]) -> str:
    """tokenizer.json with these special tokens around each text."""
    inner = tokenizers.Tokenizer.from_str(vocabulary.to_json())
    names = {token: inner.id_to_token(token) for token in (*before, *after)}
    names_before = [names[token] for token in before]
    names_after = [names[token] for token in after]
    template = [*names_before, "$A", *names_after]
    special = [(name, token) for token, name in names.items()]
    inner.post_processor = TemplateProcessing(single=template, special_tokens=special)
    return inner.to_str(pretty=True)


def _tokenizer_config(vocabulary: Tokenizer, bos: int | None) -> dict[str, Any]:
    """The content of tokenizer_config.json. `bos` is the token before the prompt of a language model."""
    special = vocabulary.special_tokens
    roles = {
        "pad_token": special.pad,
        "bos_token": special.start if bos is None else bos,
        "eos_token": special.end,
        "unk_token": special.unknown,
        "mask_token": special.mask,
    }
    names = vocabulary.tokens()
    tokens = {role: names[token] for role, token in roles.items() if token is not None}
    described: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **tokens}
    # transformers.js adds the special tokens of a prompt only if this key says so, whatever tokenizer.json has.
    if bos is not None:
        described["add_bos_token"] = True
    return described


def preprocessor_config(field: ImageField) -> dict[str, Any]:
    """Images resized to a square, perhaps cropped, and normalized."""
    size = field.image_size
    whole = field.image_crop_from or field.image_size
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"height": whole, "width": whole},
        "resample": RESAMPLING[field.image_resize],
        "do_center_crop": whole != size,
        "crop_size": {"height": size, "width": size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(field.image_mean),
        "image_std": list(field.image_std),
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    _write_text(path, json.dumps(content, ensure_ascii=False, indent=2))


def _write_text(path: Path, text: str) -> None:
    path.write_text(text + "\n", "utf-8")
