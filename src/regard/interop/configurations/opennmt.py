"""Configuration files of OpenNMT-py 3.5 (https://github.com/OpenNMT/OpenNMT-py), with its names and defaults.

A file of onmt_train; options of onmt_translate may stand in the same file.
"""

from collections.abc import Mapping
from typing import Any

from regard.core.errors import InvalidArgument
from regard.interop.configurations.options import (
    Options,
    adam,
    by_option,
    clipping,
    peak_of_warmup,
    vocabulary_size,
    word_vectors,
)

SUBWORDS = {"bpe": "bpe", "sentencepiece": "unigram", "onmt_tokenize": "bpe"}
# OpenNMT-py gates silu.
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "silu": "swiglu",
    "gated-gelu": "geglu",
}
SCORES = {"dot": "dot", "general": "bilinear", "mlp": "additive"}
# Keys of a corpus that change its texts.
ADDED_TO_TEXTS = (
    "src_prefix",
    "tgt_prefix",
    "src_suffix",
    "tgt_suffix",
    "src_feats",
    "path_align",
)
REASONS = by_option({
    "vocabularies and tokenizers are made from the training files":
        "save_data overwrite n_sample dump_samples src_vocab tgt_vocab vocab_size_multiple src_subword_model "
        "tgt_subword_model src_subword_vocab tgt_subword_vocab src_onmttok_kwargs tgt_onmttok_kwargs",
    "vocab_size limits a vocabulary, not a number of occurrences": "src_words_min_frequency tgt_words_min_frequency",
    "tokens of a text do not vary in training":
        "src_subword_nbest tgt_subword_nbest src_subword_alpha tgt_subword_alpha",
    "empty lines are kept as examples": "skip_empty_level",
    "the folder of a run is an argument: regard train RECIPE --out FOLDER": "save_model",
    "checkpoints hold safetensors": "save_format",
    "log.jsonl of the run's folder": "log_file",
    'train.loggers = ["tensorboard"], with pip install regard[tensorboard]': "tensorboard",
    "the run's folder": "tensorboard_log_dir",
    "torchrun starts several processes (docs/scale.md)":
        "world_size gpu_ranks master_ip master_port gpu_backend parallel_mode",
    "batches are made from arrays on disk, with a fixed order for each seed":
        "num_workers bucket_size bucket_size_init bucket_size_increment prefetch_factor batch_size_multiple "
        "valid_batch_size",
    "train.monitor chooses one metric": "valid_metrics",
    "a checkpoint is written at each validation (train.validate_every)": "save_checkpoint_steps",
    "checkpoints of OpenNMT-py are not read; train.init_from reads Regard's": "train_from",
    "--resume continues a run; train.init_from begins another from its weights": "reset_optim",
    "Regard initializes each kind of layer in one way": "param_init param_init_glorot",
    "pickles of PyTorch are not read: give the text file in model.encoder.word_vectors": "pre_word_vecs_enc",
    "pickles of PyTorch are not read: give the text file in model.decoder.word_vectors": "pre_word_vecs_dec",
    "the format of a file of word vectors is recognized": "embeddings_type",
    "the fastest kernel that supports a call computes it": "self_attn_type",
    "at every update": "average_every",
    "see decay_method": "start_decay_steps learning_rate_decay decay_steps",
    "train.monitor, the loss": "early_stopping_criteria",
    "train.accumulate_steps does not change": "accum_steps",
    "dropout does not change": "dropout_steps",
    "a gate of another form: model.decoder.context_gate": "context_gate",
    "has no counterpart": "copy_attn coverage_attn lambda_coverage lambda_align num_experts",
    "the model is an argument: regard predict RUN": "model",
    "regard predict RUN FILE": "src",
    "regard score": "tgt",
    "regard predict writes to stdout": "output",
    'train.device = "auto"': "gpu",
    "regard predict --json": "verbose",
    "regard align": "report_align",
    "regard look": "attn_debug",
    "subwords and bytes leave no unknown words": "replace_unk",
    "regard predict --constraints": "ban_unk_token",
    "the penalty ranks finished outputs": "stepwise_penalty",
    "text only": "model_type data_type",
    "the initial state is always a linear map": "bridge",
})  # fmt: skip


def converted(tables: Mapping[str, Any]) -> Options:
    """The recipe of a configuration, and what it does not take over."""
    corpora = tables.get("data")
    given = {key: value for key, value in tables.items() if key != "data"}
    options = Options(given, "OpenNMT-py")
    options.note_given(REASONS)
    language_model = options.text("model_task", "seq2seq") == "lm"
    _data(options, corpora, language_model)
    hidden = _model(options, language_model)
    _training(options, hidden)
    _decoding(options)
    return options


def _data(options: Options, corpora: object, language_model: bool) -> None:
    if not isinstance(corpora, Mapping) or not all(
        isinstance(each, Mapping) for each in corpora.values()
    ):
        raise InvalidArgument(
            "data", wanted="a table of corpora", got=repr(corpora)[:80], remedy="As in onmt_train."
        )
    one_corpus = "one training corpus: join the files (cat), as often as their weights say"
    training = [name for name in corpora if name != "valid"]
    for name in training[1:]:
        options.note(f"data.{name}", one_corpus)
    paths = ["path_src"] if language_model else ["path_src", "path_tgt"]
    transforms = set(options.texts("transforms"))
    for split, name in (("train", training[0] if training else ""), ("valid", "valid")):
        corpus = corpora.get(name)
        if not isinstance(corpus, Mapping):
            continue
        files = [corpus.get(key) for key in paths]
        if not all(isinstance(file, str) for file in files):
            raise InvalidArgument(
                f"data.{name}",
                wanted="path_src and path_tgt",
                got=repr(dict(corpus))[:80],
                remedy="Add them.",
            )
        options.put(f"data.{split}", files[0] if language_model else files)
        transforms |= set(corpus.get("transforms") or ())
        if corpus.get("weight") is not None and len(training) > 1:
            options.note(f"data.{name}.weight", one_corpus)
        for key in ADDED_TO_TEXTS:
            if corpus.get(key) is not None:
                why = "a corpus is its texts: write prefixes and tags into the files"
                options.note(f"data.{name}.{key}", why)
    for name in sorted(transforms - {*SUBWORDS, "filtertoolong"}):
        options.note(f"transforms: {name}", "no such change of texts: make it before training")
    subwords = [name for name in SUBWORDS if name in transforms]
    shared = options.flag("share_vocab")
    options.put("data.shared_vocab", shared or language_model)
    for side, ours in (("src", "source"), ("tgt", "target")):
        size = options.whole(f"{side}_vocab_size", 32768)
        longest = options.whole(f"{side}_seq_length", 192)
        if language_model and side == "src":
            continue
        options.put(f"data.{ours}.tokenizer", SUBWORDS[subwords[0]] if subwords else "words")
        vocabulary_size(options, f"{side}_vocab_size", f"data.{ours}.vocab_size", size)
        if "filtertoolong" in transforms:
            options.put(f"data.{ours}.max_tokens", longest)


def _model(options: Options, language_model: bool) -> int:
    hidden = options.whole("hidden_size", -1)
    layers = options.whole("layers", -1)
    dims = {}
    depths = {}
    for part in ("enc", "dec"):
        # An option for both sides overrules those of each side, which are read in any case.
        own_dim = options.whole(f"{part}_hid_size", 500)
        own_depth = options.whole(f"{part}_layers", 2)
        dims[part] = hidden if hidden > 0 else own_dim
        depths[part] = layers if layers > 0 else own_depth
    vectors = options.whole("word_vec_size", -1)
    sizes = {}
    for side, part in (("src", "enc"), ("tgt", "dec")):
        size = options.whole(f"{side}_word_vec_size", 500)
        given = dims[part]
        if vectors > 0:
            given = vectors
        elif f"{side}_word_vec_size" in options:
            given = size
        sizes[part] = given
        if given != dims[part]:
            name = "word_vec_size" if vectors > 0 else f"{side}_word_vec_size"
            options.note(name, f"embeddings have the dimension of the states, {dims[part]}")
    are_transformers = [
        _part(options, part, dims[part], depths[part], language_model) for part in ("enc", "dec")
    ]
    positions = options.flag("position_encoding")
    options.put("model.scale_embeddings", positions and any(are_transformers))
    embeddings = options.flag("share_embeddings")
    output = options.flag("share_decoder_embeddings")
    if embeddings and not output:
        options.note(
            "share_embeddings",
            'without share_decoder_embeddings: Regard ties "target" or "all"; not tied',
        )
    tied = "none"
    if output:
        tied = "all" if embeddings else "target"
    options.put("model.tie_embeddings", tied)
    options.note_given({
        "freeze_encoder": 'train.freeze = ["encoder.*"]', "freeze_decoder": 'train.freeze = ["decoder.*"]',
    })  # fmt: skip
    _word_vectors(options, sizes, language_model, embeddings, output)
    return dims["dec"]


def _word_vectors(
    options: Options,
    sizes: Mapping[str, int],
    language_model: bool,
    shares_embeddings: bool,
    shares_output: bool,
) -> None:
    """The word vectors of each side, or one file for both."""
    for side, short, part in (("src", "enc", "encoder"), ("tgt", "dec", "decoder")):
        if language_model and part == "encoder":
            continue
        both = options.text("both_embeddings")
        own = f"{side}_embeddings"
        name = own if own in options or both is None else "both_embeddings"
        word_vectors(
            options,
            part,
            name,
            f"freeze_word_vecs_{short}",
            dim=sizes[short],
            is_output_layer=shares_output and (shares_embeddings or part == "decoder"),
        )


def _part(options: Options, part: str, dim: int, layers: int, language_model: bool) -> bool:
    """Put one table of [model]. Return whether it is a Transformer."""
    if part == "enc":
        name = "encoder_type"
        key = "model.encoder"
    else:
        name = "decoder_type"
        key = "model.decoder"
    kind = options.text(name, "rnn") or "rnn"
    if language_model and part == "enc":
        return False
    kinds = {
        "rnn": _recurrent,
        "brnn": _recurrent,
        "transformer": _transformer,
        "transformer_lm": _transformer,
        "cnn": _convolution,
    }
    if kind not in kinds:
        wanted = ", ".join(kinds)
        raise InvalidArgument(
            name, wanted=f"one of {wanted}", got=kind, remedy="Regard has no such part."
        )
    options.put(f"{key}.dim", dim)
    options.put(f"{key}.dropout", options.number("dropout", 0.3))
    kinds[kind](options, key, layers, kind)
    return kind.startswith("transformer")


def _transformer(options: Options, key: str, layers: int, kind: str) -> None:
    activation = options.text("pos_ffn_activation_fn", "relu") or "relu"
    if activation not in ACTIVATIONS:
        options.note("pos_ffn_activation_fn", f"no {activation}: relu is used")
    heads = options.whole("heads", 8)
    groups = options.whole("num_kv")
    has_rms_norm = options.text("layer_norm", "standard") == "rms"
    has_attention_bias = options.flag("add_qkvbias")
    values = {
        "kind": "transformer",
        "layers": layers,
        "heads": heads,
        "ffn_dim": options.whole("transformer_ff", 2048),
        "attention_dropout": options.number("attention_dropout", 0.1),
        "norm_first": True,
        "ffn_dropout": options.number("dropout", 0.3),
        "norm": "rms" if has_rms_norm else "layer",
        "norm_eps": options.number("norm_eps", 1e-6),
        "activation": ACTIVATIONS.get(activation, "relu"),
        "attention_bias": "all" if has_attention_bias else "none",
        "ffn_bias": options.flag("add_ffnbias"),
    }
    if options.flag("multiquery") or groups:
        values["kv_heads"] = groups or 1
    if options.whole("sliding_window"):
        values["sliding_window"] = options.whole("sliding_window")
    relative = options.whole("max_relative_positions")
    buckets = options.whole("relative_positions_buckets")
    has_sinusoids = options.flag("position_encoding")
    values["positions"] = "sinusoidal" if has_sinusoids else "none"
    if relative == -1:
        values |= {"positions": "rotary", "rotary_base": options.number("rotary_theta", 10000)}
    elif relative == -2:
        values["positions"] = "alibi"
    elif buckets:
        values |= {"positions": "relative", "relative_buckets": buckets}
    elif relative > 0:
        why = "no relative position representations (Shaw): relative biases are used"
        options.note("max_relative_positions", why)
        values |= {"positions": "relative", "relative_max_distance": relative}
    for name, value in values.items():
        options.put(f"{key}.{name}", value)


def _recurrent(options: Options, key: str, layers: int, kind: str) -> None:
    cell = (options.text("rnn_type", "LSTM") or "LSTM").lower()
    if cell == "sru":
        options.note("rnn_type", "no SRU: gru is used")
    values: dict[str, Any] = {
        "kind": "rnn",
        "cell": "gru" if cell == "sru" else cell,
        "layers": layers,
    }
    if key == "model.encoder":
        values["bidirectional"] = kind == "brnn"
    else:
        score = options.text("global_attention", "general") or "general"
        values["attention"] = "none" if score == "none" else "luong"
        if score in SCORES:
            values |= {"score": SCORES[score], "input_feeding": options.flag("input_feed", True)}
        if options.text("global_attention_function", "softmax") != "softmax":
            options.note("global_attention_function", "attention weights are a softmax")
    for name, value in values.items():
        options.put(f"{key}.{name}", value)


def _convolution(options: Options, key: str, layers: int, kind: str) -> None:
    options.put(f"{key}.kind", "conv")
    options.put(f"{key}.kernel_size", options.whole("cnn_kernel_width", 3))
    options.put(f"{key}.dilations", [1] * layers)


def _training(options: Options, hidden: int) -> None:
    options.put("train.max_steps", options.whole("train_steps", 100000))
    options.put("train.validate_every", options.whole("valid_steps", 10000))
    options.put("train.log_every", options.whole("report_every", 50))
    counts = options.numbers("accum_count", [1.0])
    options.put("train.accumulate_steps", int(counts[-1]))
    if len(counts) > 1:
        options.note(
            "accum_count", "train.accumulate_steps does not change: the last value is used"
        )
    options.put("train.label_smoothing", options.number("label_smoothing", 0.0))
    options.put("train.seed", max(0, options.whole("seed", 1)))
    clipping(options, options.number("max_grad_norm", 5))
    kept = options.whole("keep_checkpoint", -1)
    if kept > 0:
        options.put("train.keep_checkpoints", kept)
    if options.whole("early_stopping"):
        options.put("train.patience", options.whole("early_stopping"))
    if decay := options.number("average_decay", 0):
        # OpenNMT-py gives the share of the newest weights.
        options.put("train.ema_decay", 1 - decay)
    if (options.text("model_dtype", "fp32") or "fp32") == "fp16":
        options.put("train.precision", "bfloat16")
        options.note("model_dtype", "bfloat16 is used, which needs no loss scaling")
    size = options.whole("batch_size", 64)
    if options.text("batch_type", "sents") == "tokens":
        options.put("train.batch_tokens", size)
    else:
        options.note(
            "batch_type",
            f"{size} sentences: train.batch_tokens counts tokens; its default of 4,096 holds",
        )
    if options.text("normalization", "sents") == "sents":
        options.note(
            "normalization",
            "the loss is divided by the target tokens of an update, not by sentences",
        )
    betas = [options.number("adam_beta1", 0.9), options.number("adam_beta2", 0.999)]
    optimizer = options.text("optim", "sgd") or "sgd"
    adam(options, optimizer.lower(), {"optimizer": "optim"}, betas)
    _schedule(options, hidden)


def _schedule(options: Options, hidden: int) -> None:
    rate = options.number("learning_rate", 1.0)
    warmup = options.whole("warmup_steps", 4000)
    method = options.text("decay_method", "none")
    if method == "noam":
        rate *= peak_of_warmup(options, "warmup_steps", warmup, hidden)
    elif method == "rsqrt":
        rate *= peak_of_warmup(options, "warmup_steps", warmup)
        why = "the learning rate is constant until warmup_steps; here it rises"
        options.note("decay_method", f"rsqrt has no warm-up there: {why}")
    else:
        options.note(
            "decay_method", f"{method}: the learning rate is constant; choose train.lr_schedule"
        )
    known = method in ("noam", "rsqrt")
    options.put("train.learning_rate", rate)
    options.put("train.lr_schedule", "inverse_root" if known else "constant")
    options.put("train.warmup_steps", warmup if known else 0)


def _decoding(options: Options) -> None:
    options.put("decode.beam_size", options.whole("beam_size", 5))
    options.put("decode.num_hypotheses", options.whole("n_best", 1))
    options.put("decode.max_length", options.whole("max_length", 250))
    options.put("decode.min_length", options.whole("min_length", 0))
    if ratio := options.number("max_length_ratio", 1.25):
        options.note(
            "max_length_ratio", f"no limit of {ratio:g} · length + 5: decode.max_length holds"
        )
    options.put("decode.no_repeat_ngram_size", options.whole("block_ngram_repeat", 0))
    kind = options.text("length_penalty", "avg")
    alpha = options.number("alpha", 1.0)
    options.put("decode.length_penalty", 0.0 if kind == "none" else alpha)
    if kind == "wu":
        options.note(
            "length_penalty",
            "alpha is taken over, but scores are divided by length^alpha, not ((5 + length) / 6)^alpha",
        )
    coverage = options.text("coverage_penalty", "none")
    beta = options.number("beta", 0.0)
    if coverage == "wu":
        options.put("decode.coverage_penalty", max(0.0, beta))
    elif coverage != "none":
        options.note("coverage_penalty", f"no {coverage} penalty")
    top_k = options.whole("random_sampling_topk")
    top_p = options.number("random_sampling_topp")
    temperature = options.number("random_sampling_temp", 1.0)
    if top_k in (0, 1) and not top_p:
        return
    options.put("decode.sample", True)
    options.put("decode.beam_size", 1)
    options.put("decode.temperature", temperature)
    if top_k > 1:
        options.put("decode.top_k", top_k)
    if 0 < top_p < 1:
        options.put("decode.top_p", top_p)
