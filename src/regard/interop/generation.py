"""generation_config.json of a model folder: the options of decoding, and the tokens that begin and end outputs."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from regard.core.config import Config, Count, Range, doc, read
from regard.core.errors import InvalidData, InvalidRecipe
from regard.interop.architectures.base import GENERATION
from regard.interop.tensors import read_json

FILE = "generation_config.json"
Id = Annotated[int, Range(0.0, 1e8)]
log = logging.getLogger(__name__)

# Options that change no output, except an output of the largest length, which is cut instead of ended.
HARMLESS = frozenset({
    "_from_model_config", "transformers_version", "use_cache", "output_attentions", "output_hidden_states",
    "output_scores", "return_dict_in_generate", "remove_invalid_values", "forced_eos_token_id", "cache_implementation",
    "bos_token_id", "max_length", "min_length", "_commit_hash",
})  # fmt: skip
# Options without a counterpart here, with the values that turn them off.
TURNED_OFF = {
    "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0,
    "guidance_scale": 1.0, "renormalize_logits": False, "token_healing": False,
}  # fmt: skip
# Values that transformers uses where a file leaves an option out or says null, if the default here differs.
DEFAULTS = {"top_k": 50, "diversity_penalty": 0.0}


@dataclass(frozen=True)
class GenerationKeys(Config):
    """The keys of generation_config.json that are imported."""

    num_beams: Annotated[int, Range(1.0, 1000.0)] | None = doc(None, "hypotheses of beam search")
    num_beam_groups: Count | None = doc(None, "groups of diverse beam search")
    diversity_penalty: Annotated[float, Range(0.0)] | None = doc(None, "of diverse beam search")
    num_return_sequences: Count | None = doc(None, "outputs per input")
    max_new_tokens: Annotated[int, Range(1.0, 1e6)] | None = doc(
        None, "largest number of output tokens"
    )
    min_new_tokens: Annotated[int, Range(0.0, 1e6)] | None = doc(
        None, "smallest number of output tokens"
    )
    length_penalty: float | None = doc(None, "exponent of the length")
    early_stopping: bool | Literal["never"] | None = doc(None, "when beam search stops")
    no_repeat_ngram_size: Annotated[int, Range(0.0)] | None = doc(
        None, "n-grams that do not occur twice"
    )
    repetition_penalty: Annotated[float, Range(0.0)] | None = doc(
        None, "of tokens that were generated before"
    )
    do_sample: bool | None = doc(None, "sample instead of searching")
    temperature: Annotated[float, Range(0.0)] | None = doc(None, "of sampling")
    top_k: Annotated[int, Range(0.0)] | None = doc(None, "of sampling")
    top_p: Annotated[float, Range(0.0, 1.0)] | None = doc(None, "of sampling")
    min_p: Annotated[float, Range(0.0, 1.0)] | None = doc(None, "of sampling")
    typical_p: Annotated[float, Range(0.0, 1.0)] | None = doc(None, "of sampling")
    decoder_start_token_id: Id | None = doc(None, "the token before an output's first")
    pad_token_id: Id | None = doc(None, "padding")
    eos_token_id: Id | tuple[Id, ...] | None = doc(None, "ends an output")
    forced_bos_token_id: Id | None = doc(None, "the token that every output begins with")
    suppress_tokens: tuple[Id, ...] | None = doc(None, "tokens that are never generated")
    stop_strings: str | tuple[str, ...] | None = doc(None, "strings at which an output ends")


@dataclass(frozen=True)
class Generation:
    """The [decode] options of a model folder, and its tokens; None where the folder does not say."""

    decode: Mapping[str, Any]
    start: int | None
    pad: int | None
    ends: tuple[int, ...]  # () where the folder does not say
    suppressed: tuple[int, ...]  # never generated, also where they would end an output
    bad_words: tuple[int, ...]  # never generated, unless they end an output
    target_prefix: tuple[int, ...]


def read_generation(folder: Path, config: Mapping[str, Any], *, has_source: bool) -> Generation:
    """Read generation_config.json or, where a folder has none, config.json, which has these options in old files.

    As in transformers, config.json is not consulted for decoding options where there is a generation_config.json.

    has_source   whether the model has an encoder. The start token counts in max_length and min_length. In a language
                 model the prompt counts as well, so that these options are not imported for it.
    """
    path = folder / FILE
    if path.is_file():
        merged = read_json(path)
    else:
        merged = {key: config[key] for key in GENERATION if config.get(key) is not None}
        if config.get("force_bos_token_to_be_generated"):
            # 0 is the default of BART.
            merged["forced_bos_token_id"] = config.get("bos_token_id", 0)
    start = config.get("decoder_start_token_id")
    if start and "decoder_start_token_id" not in merged:
        merged["decoder_start_token_id"] = start
    merged = {key: value for key, value in merged.items() if value is not None and value != []}
    known = {field.name for field in fields(GenerationKeys)}
    lengths = {}
    if has_source:
        lengths = _lengths(merged, path)
    words = _bad_words(merged.pop("bad_words_ids", ()), path)
    given = {key: merged[key] for key in merged.keys() & known}
    keys = read(GenerationKeys, lengths | given, "")
    if isinstance(keys, list):
        raise InvalidRecipe(
            [replace(each, key=f"{path}: {each.key.removeprefix('.')}") for each in keys]
        )
    off = {key for key, value in TURNED_OFF.items() if merged.get(key) == value}
    for key in sorted(merged.keys() - known - HARMLESS - off):
        log.warning(
            "%s: %s = %.80r is not imported: there is no such option here", path, key, merged[key]
        )
    forced = keys.forced_bos_token_id
    suppressed = keys.suppress_tokens or ()
    return Generation(
        _decode(keys, path),
        start=keys.decoder_start_token_id,
        pad=keys.pad_token_id,
        ends=end_tokens(keys.eos_token_id),
        suppressed=tuple(sorted(set(suppressed))),
        bad_words=tuple(sorted(set(words))),
        target_prefix=() if forced is None else (forced,),
    )


def end_tokens(ids: int | tuple[int, ...] | None) -> tuple[int, ...]:
    """The value of eos_token_id as the different tokens that end an output."""
    if isinstance(ids, tuple):
        return tuple(dict.fromkeys(ids))
    if ids is None:
        return ()
    return (ids,)


def _lengths(merged: Mapping[str, Any], path: Path) -> dict[str, int]:
    """max_length and min_length as numbers of output tokens: in the file they count the start token too."""
    lengths = {}
    for key in ("max", "min"):
        value = merged.get(f"{key}_length")
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1_000_000:
            where = f"{path}: {key}_length"
            wanted = "a whole number from 0 to 1,000,000"
            raise InvalidData(
                where, wanted=wanted, got=repr(value)[:80], remedy="Change it, or leave it out."
            )
        if value > 1:
            lengths[f"{key}_new_tokens"] = value - 1
    return lengths


def _bad_words(words: Any, path: Path) -> list[int]:
    """The tokens among the sequences of tokens that are not generated; longer sequences are not imported."""
    if not isinstance(words, list | tuple) or not all(map(_is_list_of_ids, words)):
        remedy = "Change it, or leave it out."
        raise InvalidData(
            f"{path}: bad_words_ids", wanted="lists of ids", got=repr(words)[:80], remedy=remedy
        )
    if any(len(word) > 1 for word in words):
        log.warning(
            "%s: bad_words_ids of several tokens are not imported: ban these phrases in each call",
            path,
        )
    return [word[0] for word in words if len(word) == 1]


def _is_list_of_ids(word: Any) -> bool:
    if not isinstance(word, list):
        return False
    return all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in word)


def _decode(keys: GenerationKeys, path: Path) -> dict[str, Any]:
    """The table [decode]."""
    sample = bool(keys.do_sample)
    beams = keys.num_beams or 1
    decode: dict[str, Any] = {
        "max_length": keys.max_new_tokens,
        "min_length": keys.min_new_tokens,
        "num_hypotheses": keys.num_return_sequences,
        "no_repeat_ngram_size": keys.no_repeat_ngram_size,
        "stop": (keys.stop_strings,) if isinstance(keys.stop_strings, str) else keys.stop_strings,
    }
    if sample:
        if beams > 1:
            log.warning("%s: num_beams is not imported: outputs are sampled without a beam", path)
        top_k = DEFAULTS["top_k"] if keys.top_k is None else keys.top_k
        decode |= {
            "sample": True,
            "temperature": keys.temperature,
            "top_k": top_k or None,  # 0 turns the filter off
            "min_p": keys.min_p,
        }
        for key in ("top_p", "typical_p"):
            value = getattr(keys, key)
            decode[key] = None if value == 1.0 else value
    else:
        decode |= {"beam_size": beams, "length_penalty": keys.length_penalty}
        decode["early_stopping"] = keys.early_stopping if beams > 1 else None
        if (keys.num_beam_groups or 1) > 1:
            diversity = keys.diversity_penalty
            if diversity is None:
                diversity = DEFAULTS["diversity_penalty"]
            decode |= {"beam_groups": keys.num_beam_groups, "diversity_penalty": diversity}
    if (keys.repetition_penalty or 1.0) != 1.0:
        penalty = keys.repetition_penalty
        if beams > 1 and not sample and penalty is not None and penalty >= 1.0:
            decode["repetition_penalty"] = penalty
        else:
            log.warning(
                "%s: repetition_penalty is not imported: here it applies to beams, and is at least 1",
                path,
            )
    return {key: value for key, value in decode.items() if value is not None}
