"""The files beside the graphs: configuration, tokenizers and image preprocessing, as transformers.js reads them.

transformers.js asks config.json for the shapes of the cache alone, by keys that depend on model_type. So model_type is
that of an architecture whose keys can hold these shapes, whatever the graph computes; it is "regard" where no
architecture of transformers.js has such inputs, and another program has to run the graph.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.processors import TemplateProcessing

from regard.data.config import FieldConfig
from regard.data.special_tokens import END, MASK, PAD, SPECIALS, START
from regard.data.tokenizer import Tokenizer
from regard.data.vocabulary import Labels
from regard.decoding.request import position_limit
from regard.inference.predictor import Predictor
from regard.interop.onnx.decoder_graphs import PAST
from regard.interop.onnx.graph import Graph

RESAMPLING = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}  # Pillow's numbers


def write_files(model: Predictor, graphs: list[Graph], folder: Path) -> None:
    """Write all files of a model but its graphs."""
    _write(folder / "config.json", config(model, graphs))
    if model.model.as_seq2seq() is not None:
        _write(folder / "generation_config.json", generation_config(model))
    write_tokenizers(model, folder)
    for field in model.recipe.data.source_fields:
        if field.kind == "image":
            _write(folder / "preprocessor_config.json", preprocessor_config(field))


def config(model: Predictor, graphs: list[Graph]) -> dict[str, Any]:
    """The content of config.json."""
    kinds = [field.kind for field in model.recipe.data.source_fields]
    special = {"bos_token_id": START, "eos_token_id": END, "pad_token_id": PAD}
    if model.model.as_seq2seq() is None:
        return _source_config(model, kinds) | ({"pad_token_id": PAD} if kinds == ["text"] else {})
    assert isinstance(model.target, Tokenizer)
    common = special | {"vocab_size": model.target.size, "is_encoder_decoder": bool(kinds)}
    common |= {"decoder_start_token_id": START} if kinds else {}
    inputs = {each.name: each.axes for each in graphs[-1].inputs}
    own = "decoder." if kinds else ""
    layers = 0
    while f"{PAST}.{layers}.{own}key" in inputs:
        layers += 1
    caches = {axes[1::2] for name, axes in inputs.items() if name.startswith(PAST) and len(axes) == 4}  # heads, dim
    if not layers or len(caches) != 1 or kinds not in ([], ["text"], ["image"]):
        return {"model_type": "regard", **common}
    ((heads, dim),) = caches
    assert isinstance(heads, int)
    assert isinstance(dim, int)
    if not kinds:
        shapes = {"num_hidden_layers": layers, "num_key_value_heads": heads, "head_dim": dim}
        return {"model_type": "gemma", "architectures": ["GemmaForCausalLM"], **common, **shapes}
    if kinds == ["text"]:
        shapes = {"num_layers": layers, "num_decoder_layers": layers, "num_heads": heads, "d_kv": dim}
        return {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], **common, **shapes}
    decoder = {"decoder_layers": layers, "decoder_attention_heads": heads, "d_model": heads * dim}
    parts = {"encoder": {"model_type": "vit"}, "decoder": {"model_type": "trocr", **common, **decoder}}
    return {"model_type": "vision-encoder-decoder", "architectures": ["VisionEncoderDecoderModel"], **common, **parts}


def _source_config(model: Predictor, kinds: Sequence[str]) -> dict[str, Any]:
    """Of a classifier or a masked language model."""
    names = {"text": ("bert", "Bert"), "image": ("vit", "ViT")}.get("+".join(kinds), ("regard", ""))
    if isinstance(model.target, Tokenizer):
        return {"model_type": names[0], "architectures": [f"{names[1]}ForMaskedLM"], "vocab_size": model.target.size}
    labels = dict(enumerate(model.target.tokens()))
    task = "ImageClassification" if kinds == ["image"] else "SequenceClassification"
    table = {"id2label": labels, "label2id": {name: number for number, name in labels.items()}}
    return {"model_type": names[0], "architectures": [f"{names[1]}For{task}"], **table}


def generation_config(model: Predictor) -> dict[str, Any]:
    """The content of generation_config.json: the recipe's [decode] table, as far as both have the option."""
    decode, running = model.recipe.decode, model.running_text
    seq2seq = model.model.as_seq2seq()
    assert seq2seq is not None
    limit = position_limit(seq2seq.decoder)
    return {
        "decoder_start_token_id": END if running else START,
        "bos_token_id": END if running else START,
        "pad_token_id": PAD,
        **({} if running else {"eos_token_id": END}),
        "bad_words_ids": [[PAD], [START], [MASK]],
        "max_new_tokens": decode.max_length if limit is None else min(limit, decode.max_length),
        "num_beams": 1 if decode.sample else decode.beam_size,
        "length_penalty": decode.length_penalty,
        "repetition_penalty": decode.repetition_penalty,
        "no_repeat_ngram_size": decode.no_repeat_ngram_size,
        "do_sample": decode.sample,
        **(
            {"temperature": decode.temperature, "top_k": decode.top_k or 0, "top_p": decode.top_p or 1.0}
            if decode.sample
            else {}
        ),
    }


def write_tokenizers(model: Predictor, folder: Path) -> None:
    """tokenizer.json of the source, which adds the end token; target_tokenizer.json where the target has another.

    Further sources have tokenizer_2.json, and so on. Labels that a model reads are in labels.json.
    """
    for number, vocabulary in enumerate(model.sources, start=1):
        suffix = "" if number == 1 else f"_{number}"
        if isinstance(vocabulary, Tokenizer):
            _write_text(folder / f"tokenizer{suffix}.json", _tokenizer(vocabulary, f"$A {SPECIALS[END]}"))
        elif isinstance(vocabulary, Labels):
            _write_text(folder / f"labels{suffix}.json", vocabulary.to_json())
    if isinstance(model.target, Tokenizer):
        source = model.sources[0] if model.sources else None
        if not isinstance(source, Tokenizer):
            _write_text(folder / "tokenizer.json", _tokenizer(model.target, f"{SPECIALS[START]} $A"))
        elif source.hash != model.target.hash:
            _write_text(folder / "target_tokenizer.json", _tokenizer(model.target, "$A"))
    special = {"pad_token": SPECIALS[PAD], "bos_token": SPECIALS[START], "eos_token": SPECIALS[END]}
    if (folder / "tokenizer.json").exists():
        _write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **special})


def _tokenizer(vocabulary: Tokenizer, template: str) -> str:
    """tokenizer.json with the special tokens of a template around each text."""
    inner = tokenizers.Tokenizer.from_str(vocabulary.to_json())
    inner.post_processor = TemplateProcessing(
        single=template, special_tokens=[(SPECIALS[START], START), (SPECIALS[END], END)]
    )
    return inner.to_str(pretty=True)


def preprocessor_config(field: FieldConfig) -> dict[str, Any]:
    """Images resized to a square, perhaps cropped, and normalized."""
    size, whole = field.image_size, field.image_crop_from or field.image_size
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
