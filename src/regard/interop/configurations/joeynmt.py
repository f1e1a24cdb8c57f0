"""Configuration files of Joey NMT 2.3 (https://github.com/joeynmt/joeynmt), with its names and defaults."""

from collections.abc import Mapping
from typing import Any

from regard.interop.configurations.options import (
    Options,
    adam,
    by_option,
    clipping,
    peak_of_warmup,
    vocabulary_size,
    word_vectors,
)

TOKENIZERS = {"word": "words", "char": "characters", "bpe": "bpe"}
METRICS = {"ppl": "perplexity", "loss": "loss", "bleu": "bleu", "chrf": "chrf", "acc": "loss"}
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu"}
REASONS = by_option({
    "the folder of a run is an argument: regard train RECIPE --out FOLDER": "name model_dir training.model_dir",
    "a version of Joey NMT": "joeynmt_version",
    'train.device = "auto" uses a GPU where there is one': "use_cuda training.use_cuda",
    "batches are prepared by one thread, from arrays on disk": "num_workers training.num_workers",
    "a run never overwrites another": "training.overwrite",
    "training data are always shuffled": "training.shuffle",
    "train.log_samples gives their number": "training.print_valid_sents",
    "checkpoints of Joey NMT are pickles, which Regard does not read":
        "training.load_model training.load_encoder training.load_decoder",
    "--resume continues a run; train.init_from begins another from its weights":
        "training.reset_best_ckpt training.reset_scheduler training.reset_optimizer training.reset_iter_state",
    "gradients are clipped by their norm only": "training.clip_grad_val",
    "training ends by max_steps, max_epochs or patience, not at a learning rate": "training.learning_rate_min",
    "the model is an argument: regard evaluate RUN": "testing.load_model",
    "decode.batch_tokens is chosen by the memory that is free": "testing.batch_size testing.batch_type",
    "metrics are arguments: regard evaluate RUN --metric NAME": "testing.eval_metrics testing.eval_metric",
    "BLEU is sacreBLEU's with its defaults (tokenizer 13a)": "testing.sacrebleu_cfg.* testing.sacrebleu.*",
    "regard look and regard align give attention, exactly": "testing.return_attention",
    "regard predict --json and regard score give log-probabilities": "testing.return_prob",
    "the unknown token may always be generated": "testing.generate_unk",
    "the special tokens of a vocabulary are fixed": "data.special_symbols.*",
    "columns and splits are given in [data]": "data.dataset_cfg.*",
    "all training data are used": "data.sample_train_subset data.random_train_subset",
    "all validation data are used": "data.sample_dev_subset data.random_dev_subset",
    "Regard initializes each kind of layer in one way":
        "model.initializer model.init_gain model.init_weight model.embed_initializer model.embed_init_gain "
        "model.embed_init_weight model.bias_initializer model.bias_init_weight model.init_rnn_orthogonal "
        "model.lstm_forget_gate",
})  # fmt: skip


def converted(tables: Mapping[str, Any]) -> Options:
    """The recipe of a configuration, and what it does not take over."""
    options = Options(tables, "Joey NMT")
    options.note_given(REASONS)
    _data(options)
    hidden = _model(options)
    _training(options, hidden)
    _decoding(options)
    return options


def _data(options: Options) -> None:
    languages = [options.path(f"data.{side}.lang") for side in ("src", "trg")]
    kind = options.text("data.dataset_type", "plain")
    if kind not in ("plain", "tsv"):
        options.note(
            "data.dataset_type", f"{kind}: write the files, or hf:NAME of a data set, in [data]"
        )
    for theirs, ours in (("train", "train"), ("dev", "valid"), ("test", "test")):
        prefix = options.text(f"data.{theirs}")
        if prefix is None:
            continue
        if kind == "tsv":
            options.put(f"data.{ours}", f"{prefix}.tsv")
        else:
            options.put(f"data.{ours}", [f"{prefix}.{each}" for each in languages])
    sides = {}
    for side, ours, language in (("src", "source", languages[0]), ("trg", "target", languages[1])):
        before = f"data.{side}"
        key = f"data.{ours}"
        sides[ours] = _field(options, before, key)
        if kind == "tsv":
            options.put(f"{key}.column", language)
    tied = options.flag("model.tied_embeddings")
    if tied and sides["source"] != sides["target"]:
        options.note(
            "model.tied_embeddings", "the tokenizers of source and target differ: not tied"
        )
        tied = False
    options.put("data.shared_vocab", tied)


def _field(options: Options, before: str, key: str) -> tuple[Any, ...]:
    level = options.text(f"{before}.level", "word") or "word"
    tokenizer = TOKENIZERS.get(level, "words")
    if level not in TOKENIZERS:
        options.note(f"{before}.level", f"no tokenizer {level}: words are used")
    if level == "bpe":
        tokenizer_type = options.text(f"{before}.tokenizer_type", "sentencepiece")
        if tokenizer_type == "sentencepiece":
            kind = options.text(f"{before}.tokenizer_cfg.model_type", "unigram")
            tokenizer = "bpe" if kind == "bpe" else "unigram"
    options.note_given({
        f"{before}.bpe_type": "tokenizers are trained on the training files",
        f"{before}.tokenizer_cfg.*": "tokenizers are trained on the training files, from raw text",
        f"{before}.voc_file": "vocabularies are made from the training files",
        f"{before}.voc_min_freq": "vocab_size limits a vocabulary, not a number of occurrences",
        f"{before}.min_length": "short examples are kept",
        f"{before}.normalize": "texts are read as they are",
        f"{before}.has_prompt": "texts that outputs begin with are arguments: regard predict --prefix",
        f"{before}.phase": "tokenizers are trained on the training files",
    })  # fmt: skip
    options.put(f"{key}.tokenizer", tokenizer)
    size = options.whole(f"{before}.voc_limit")
    vocabulary_size(options, f"{before}.voc_limit", f"{key}.vocab_size", size)
    lowercase = options.flag(f"{before}.lowercase")
    options.put(f"{key}.lowercase", lowercase)
    longest = options.whole(f"{before}.max_length", -1)
    if longest > 0:
        options.put(f"{key}.max_tokens", longest)
    return tokenizer, size, lowercase


def _model(options: Options) -> int:
    sizes = {}
    scales = {}
    dims = {}
    for part in ("encoder", "decoder"):
        before = f"model.{part}"
        key = f"model.{part}"
        default_kind = "recurrent" if part == "encoder" else "transformer"
        kind = options.text(f"{before}.type", default_kind)
        make = _transformer if kind == "transformer" else _recurrent
        sizes[part] = make(options, before, key, part)
        default_dim = 64 if kind == "recurrent" else sizes[part]
        dims[part] = options.whole(f"{before}.embeddings.embedding_dim", default_dim)
        scales[part] = options.flag(f"{before}.embeddings.scale")
        if options.flag(f"{before}.freeze"):
            options.recipe.setdefault("train", {}).setdefault("freeze", []).append(f"{part}.*")
        options.note_given({
            f"{before}.alpha": "the residual connection is not weighted",
        })  # fmt: skip
    options.put("model.scale_embeddings", scales["encoder"])
    if scales["decoder"] != scales["encoder"]:
        options.note(
            "model.decoder.embeddings.scale",
            "both embeddings are scaled, or neither: as in the encoder",
        )
    softmax = options.flag("model.tied_softmax")
    shared = options.recipe["data"]["shared_vocab"]
    if shared and sizes["encoder"] != sizes["decoder"]:
        options.note("model.tied_embeddings", "encoder and decoder differ in dimension: not tied")
        shared = False
    if shared and not softmax:
        options.note(
            "model.tied_embeddings",
            'tied without tied_softmax: Regard ties "target" or "all"; not tied',
        )
    tied = "none"
    if softmax:
        tied = "all" if shared else "target"
    options.put("model.tie_embeddings", tied)
    for part in ("encoder", "decoder"):
        before = f"model.{part}.embeddings"
        word_vectors(
            options,
            part,
            f"{before}.load_pretrained",
            f"{before}.freeze",
            dim=dims[part],
            is_output_layer=softmax and (shared or part == "decoder"),
        )
    return sizes["encoder"]


def _dropout(options: Options, before: str, default: float) -> float:
    dropout = options.number(f"{before}.dropout", default)
    own = f"{before}.embeddings.dropout"
    if own in options and options.number(own) != dropout:
        options.note(own, f"{before}.dropout holds for embeddings too")
    options.take(own)
    return dropout


def _transformer(options: Options, before: str, key: str, part: str) -> int:
    dim = options.whole(f"{before}.hidden_size", 512)
    # Joey NMT demands that it equals hidden_size.
    options.take(f"{before}.embeddings.embedding_dim")
    activation = options.text(f"{before}.activation", "relu") or "relu"
    if activation not in ACTIVATIONS:
        options.note(f"{before}.activation", f"no {activation} in a Transformer: relu is used")
    is_encoder = part == "encoder"
    norm = options.text(f"{before}.layer_norm", "pre" if is_encoder else "post")
    values = {
        "kind": "transformer",
        "dim": dim,
        "layers": options.whole(f"{before}.num_layers", 8 if is_encoder else 4),
        "heads": options.whole(f"{before}.num_heads", 4 if is_encoder else 8),
        "ffn_dim": options.whole(f"{before}.ff_size", 2048),
        "dropout": _dropout(options, before, 0.1),
        "norm_first": norm == "pre",
        "activation": ACTIVATIONS.get(activation, "relu"),
    }
    for name, value in values.items():
        options.put(f"{key}.{name}", value)
    return dim


def _recurrent(options: Options, before: str, key: str, part: str) -> int:
    size = options.whole(f"{before}.hidden_size", 1)
    both = part == "encoder" and options.flag(f"{before}.bidirectional", True)
    # Joey NMT gives each direction the whole size, Regard half of it.
    dim = 2 * size if both else size
    embedding = options.whole(f"{before}.embeddings.embedding_dim", 64)
    if embedding != dim:
        why = f"embeddings have the dimension of the states, {dim}"
        options.note(f"{before}.embeddings.embedding_dim", why)
    options.put(f"{key}.kind", "rnn")
    options.put(f"{key}.cell", options.text(f"{before}.rnn_type", "gru"))
    options.put(f"{key}.dim", dim)
    options.put(f"{key}.layers", options.whole(f"{before}.num_layers", 1))
    options.put(f"{key}.dropout", _dropout(options, before, 0.0))
    if part == "encoder":
        options.put(f"{key}.bidirectional", both)
        return dim
    attention = options.text(f"{before}.attention", "bahdanau")
    feeding = options.flag(f"{before}.input_feeding", True)
    start = options.text(f"{before}.init_hidden", "bridge")
    options.put(f"{key}.attention", attention)
    options.put(f"{key}.score", "bilinear" if attention == "luong" else "additive")
    if attention == "luong":
        options.put(f"{key}.input_feeding", feeding)
    elif feeding and f"{before}.input_feeding" in options:
        options.note(
            f"{before}.input_feeding", "only with luong: Bahdanau attention comes before the step"
        )
    options.put(f"{key}.initial_state", "zero" if start == "zero" else "summary")
    if start == "last":
        why = "last: the initial state is a linear map of the last encoder state"
        options.note(f"{before}.init_hidden", why)
    if options.number(f"{before}.hidden_dropout") != 0:
        options.note(f"{before}.hidden_dropout", f"{before}.dropout holds for the output too")
    options.note_given({f"{before}.activation": "the attentional state has tanh"})
    return dim


def _training(options: Options, hidden: int) -> None:
    options.put("train.accumulate_steps", options.whole("training.batch_multiplier", 1))
    options.put("train.validate_every", options.whole("training.validation_freq", 1000))
    options.put("train.log_every", options.whole("training.logging_freq", 100))
    kept = options.whole("training.keep_best_ckpts", options.whole("training.keep_last_ckpts", 5))
    options.put("train.keep_checkpoints", max(1, kept))
    options.put("train.label_smoothing", options.number("training.label_smoothing", 0.0))
    options.put("train.max_epochs", options.whole("training.epochs", 3))
    if "training.updates" in options:
        options.put("train.max_steps", options.whole("training.updates"))
    clipping(options, options.number("training.clip_grad_norm", 0.0))
    seed = options.whole("random_seed", options.whole("training.random_seed", 42))
    options.put("train.seed", seed)
    if options.flag("fp16", options.flag("training.fp16", False)):
        options.put("train.precision", "bfloat16")
        options.note("fp16", "bfloat16 is used, which needs no loss scaling")
    size = options.whole("training.batch_size", 64)
    if options.text("training.batch_type", "sentence") == "token":
        options.put("train.batch_tokens", size)
    else:
        options.note(
            "training.batch_type",
            f"{size} sentences: train.batch_tokens counts tokens; its default of 4,096 holds",
        )
    metric = options.text("training.early_stopping_metric", "ppl") or "ppl"
    # A metric is measured on validation data only.
    if "valid" in options.recipe["data"]:
        options.put("train.monitor", METRICS.get(metric, "loss"))
    if metric == "acc":
        options.note(
            "training.early_stopping_metric", "acc, the accuracy of tokens: the loss is monitored"
        )
    for name in ("loss", "normalization"):
        if options.text(f"training.{name}", "tokens") not in ("crossentropy", "tokens"):
            options.note(
                f"training.{name}", "the loss is divided by the target tokens of an update"
            )
    optimizer = (options.text("training.optimizer", "adam") or "adam").lower()
    betas = options.numbers("training.adam_betas", [0.9, 0.999])
    names = {"optimizer": "training.optimizer", "weight_decay": "training.weight_decay"}
    adam(options, optimizer, names, betas)
    options.note_given({"training.momentum": "AdamW is the optimizer"})
    _schedule(options, hidden)


def _schedule(options: Options, hidden: int) -> None:
    rate = options.number("training.learning_rate", 0.005)
    schedule = options.text("training.scheduling")
    default_warmup = 10000 if schedule == "warmupinversesquareroot" else 4000
    warmup = options.whole("training.learning_rate_warmup", default_warmup)
    peak = options.number("training.learning_rate_peak", rate)
    factor = options.number("training.learning_rate_factor", 1)
    patience = options.whole("training.patience", 5)
    decrease = options.number("training.decrease_factor", 0.5)
    known = {
        "noam": "inverse_root",
        "warmupinversesquareroot": "inverse_root",
        "plateau": "plateau",
    }
    ours = known.get(schedule or "", "constant")
    if schedule == "noam":
        rate = factor * peak_of_warmup(options, "training.learning_rate_warmup", warmup, hidden)
    elif schedule == "warmupinversesquareroot":
        rate = peak
    elif schedule == "plateau":
        # PyTorch lets `patience` validations pass before it counts.
        options.put("train.plateau", patience + 1)
        if decrease != 0.5:
            options.note("training.decrease_factor", "a plateau halves the learning rate")
    elif schedule is not None:
        options.note("training.scheduling", f"no {schedule}: the learning rate is constant")
    options.note_given({
        f"training.{name}": "no exponential decay of the learning rate"
        for name in ("decaying_step_size", "learning_rate_decay", "learning_rate_decay_length")
    })  # fmt: skip
    options.put("train.learning_rate", rate)
    options.put("train.lr_schedule", ours)
    options.put("train.warmup_steps", warmup if ours == "inverse_root" else 0)


def _decoding(options: Options) -> None:
    options.put("decode.beam_size", options.whole("testing.beam_size", 1))
    options.put("decode.num_hypotheses", options.whole("testing.n_best", 1))
    alpha = options.number("testing.beam_alpha", options.number("testing.alpha", -1))
    options.put("decode.length_penalty", max(alpha, 0.0))
    if alpha > 0:
        options.note(
            "testing.beam_alpha",
            "taken over, but scores are divided by length^alpha, not ((5 + length) / 6)^alpha",
        )
    longest = options.whole("testing.max_output_length", -1)
    if longest > 0:
        options.put("decode.max_length", longest)
    else:
        options.put("decode.max_length_ratio", 1.5)
    options.put("decode.min_length", max(0, options.whole("testing.min_output_length", 1)))
    penalty = options.number("testing.repetition_penalty", -1)
    ngram = options.whole("testing.no_repeat_ngram_size", -1)
    options.put("decode.repetition_penalty", max(1.0, penalty))
    options.put("decode.no_repeat_ngram_size", max(0, ngram))
