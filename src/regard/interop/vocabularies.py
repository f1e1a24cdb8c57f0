"""The vocabularies of a model folder: its tokenizers with the special tokens of its configuration."""

from regard.core.errors import InvalidData
from regard.data.corpus import SourceVocabularies, VocabularyType
from regard.interop.generation import FILE, Generation, end_tokens
from regard.interop.pretrained import PretrainedFolder
from regard.interop.pretrained_tokenizers import read_tokenizers

Vocabularies = tuple[SourceVocabularies, VocabularyType]


def read_vocabularies(pretrained: PretrainedFolder, generation: Generation) -> Vocabularies:
    """The vocabularies of the sources and of the target. A classifier has labels as targets: both are the source's.

    A tokenizer with more tokens than the model's embedding has rows is refused.
    """
    model = pretrained.model
    keys = pretrained.keys
    reads_text = bool(model.encoders) and model.reads != ("image",)
    ends = generation.ends or end_tokens(keys.eos_token_id)
    # As in transformers: bad words never exclude the end of an output; suppressed tokens may.
    bad_words = [token for token in generation.bad_words if token not in ends]
    start = None
    if model.encoders and model.decoder is not None:
        start = generation.start
        if start is None:
            start = pretrained.architecture.decoder_start(keys)
    pad = generation.pad
    if pad is None:
        pad = keys.pad_token_id
    suppressed = sorted({*generation.suppressed, *bad_words})
    config = {
        "model_type": pretrained.architecture.model_type,
        "is_encoder_decoder": reads_text and model.decoder is not None,
        "decoder_start_token_id": start,
        "eos_token_id": next(iter(ends), None),
        "other_eos_token_ids": ends[1:],
        "pad_token_id": pad,
        "forced_bos_token_id": next(iter(generation.target_prefix), None),
        "suppress_tokens": suppressed,
    }
    given_sizes = (*model.source_sizes(), model.options.vocab_size)
    *sizes, rows = [size for size in given_sizes if size is not None]
    _check_ids(pretrained, generation, rows)
    source, target = read_tokenizers(pretrained.folder, config, rows, next(iter(sizes), None))
    if not model.encoders or pretrained.head == "mlm":
        return (), target
    return (source,), target


def _check_ids(pretrained: PretrainedFolder, generation: Generation, rows: int) -> None:
    """Refuse ids of generation_config.json that are not tokens. Ids of config.json are checked with the tokenizer."""
    path = pretrained.folder / FILE
    given = {
        "eos_token_id": generation.ends,
        "suppress_tokens": generation.suppressed,
        "bad_words_ids": generation.bad_words,
        "forced_bos_token_id": generation.target_prefix,
        "pad_token_id": (generation.pad or 0,),
        "decoder_start_token_id": (generation.start or 0,),
    }
    for key, ids in given.items():
        wrong = [i for i in ids if i >= rows]
        if wrong and path.is_file():
            wanted = f"ids from 0 to {rows - 1}, the rows of the embedding"
            remedy = "Use the file of this model."
            raise InvalidData(f"{path}: {key}", wanted=wanted, got=str(wrong[0]), remedy=remedy)
