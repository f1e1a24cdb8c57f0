"""Options of fairseq 0.12 (https://github.com/facebookresearch/fairseq), with its names, presets and defaults."""

from collections.abc import Mapping
from typing import Any

from regard.core.errors import InvalidArgument
from regard.interop.configurations.options import (
    Options,
    adam,
    by_option,
    clipping,
    vocabulary_size,
    word_vectors,
)

LARGE = {"embed_dim": 1024, "ffn_embed_dim": 4096, "attention_heads": 16, "dropout": 0.3}
SMALL = {"embed_dim": 512, "ffn_embed_dim": 1024, "attention_heads": 4}
PRESETS: dict[str, dict[str, Any]] = {  # the architectures of fairseq, as far as they differ from its base
    "transformer": {},
    "transformer_tiny": {"embed_dim": 64, "ffn_embed_dim": 64, "layers": 2, "attention_heads": 2},
    "transformer_iwslt_de_en": SMALL,
    "transformer_wmt_en_de": {},
    "transformer_vaswani_wmt_en_de_big": LARGE,
    "transformer_vaswani_wmt_en_fr_big": LARGE | {"dropout": 0.1},
    "transformer_wmt_en_de_big": LARGE | {"attention_dropout": 0.1},
    "transformer_wmt_en_de_big_t2t": LARGE
    | {"attention_dropout": 0.1, "activation_dropout": 0.1, "normalize_before": True},
    "transformer_lm": {},
    "transformer_lm_big": {"layers": 12, "embed_dim": 1024, "ffn_embed_dim": 4096, "attention_heads": 16},
    "transformer_lm_gpt": {"layers": 12, "embed_dim": 768, "ffn_embed_dim": 3072, "attention_heads": 12,
                           "attention_dropout": 0.1, "activation_fn": "gelu"},
    "transformer_lm_gpt2_small": {"layers": 24, "embed_dim": 1024, "ffn_embed_dim": 4096, "attention_heads": 16,
                                  "attention_dropout": 0.1, "activation_fn": "gelu"},
    "lstm": {},
    "lstm_wiseman_iwslt_de_en": {"embed_dim": 256},
    "lstm_luong_wmt_en_de": {"embed_dim": 1000, "layers": 4},
}  # fmt: skip
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "swish": "silu",
}
METRICS = {"loss": "loss", "ppl": "perplexity", "bleu": "bleu", "nll_loss": "loss"}
REASONS = by_option({
    "Regard reads texts and trains tokenizers itself: no files of fairseq-preprocess":
        "data destdir workers srcdict tgtdict thresholdsrc thresholdtgt bpe tokenizer dataset_impl "
        "padding_factor",
    "regard evaluate RUN --metric bleu; its texts are detokenized by the tokenizer that made them":
        "remove_bpe eval_bleu eval_bleu_args eval_bleu_detok eval_bleu_detok_args eval_bleu_remove_bpe "
        "eval_bleu_print_samples eval_tokenized_bleu sacrebleu scoring",
    "the folder of a run is an argument: regard train RECIPE --out FOLDER": "save_dir",
    "regard.register adds parts of your own (docs/extend.md)": "user_dir",
    "": "no_progress_bar log_format no_early_stop",
    'train.loggers = ["tensorboard"], with pip install regard[tensorboard]': "tensorboard_logdir",
    'train.loggers = ["wandb"], with pip install regard[wandb]': "wandb_project",
    "log.jsonl of the run": "log_file",
    "the direction of each metric is known": "maximize_best_checkpoint_metric",
    "train.keep_checkpoints": "no_epoch_checkpoints keep_interval_updates",
    "a checkpoint is written at each validation": "save_interval save_interval_updates",
    "train.validate_every counts updates": "validate_interval",
    "checkpoints of fairseq are pickles, which Regard does not read": "restore_file finetune_from_model",
    "train.init_from begins a new run": "reset_optimizer reset_dataloader reset_lr_scheduler reset_meters",
    "torchrun starts several processes (docs/scale.md)":
        "distributed_world_size distributed_port distributed_init_method distributed_rank",
    "train.fsdp shards a model": "ddp_backend",
    "batches come from arrays on disk": "num_workers",
    "bfloat16 needs no loss scaling": "fp16_init_scale fp16_scale_window min_loss_scale",
    "weights stay in float32": "memory_efficient_fp16",
    "the warm-up begins at 0": "warmup_init_lr",
    "training ends by max_steps, max_epochs or patience": "stop_min_lr",
    "regard evaluate RUN --metric accuracy": "report_accuracy",
    "padding has no influence on results": "left_pad_source left_pad_target",
    "all validation examples count": "skip_invalid_size_inputs_valid_test",
    "chosen by the memory that is free": "max_tokens_valid batch_size_valid",
    "batches of any size": "required_batch_size_multiple",
    "subwords and bytes leave no unknown words": "replace_unk",
    "regard align": "print_alignment",
    "no LayerDrop": "encoder_layerdrop decoder_layerdrop",
    "no adaptive softmax": "adaptive_softmax_cutoff",
    "no adaptive input": "adaptive_input tie_adaptive_weights",
    "the decoder's dimension": "decoder_output_dim decoder_input_dim",
    "the loss is divided by the target tokens of an update": "sentence_avg",
    "a setting of Hydra": "hydra",
    "files of Hydra: give the composed configuration (--cfg job)": "defaults",
    "data.train": "train_subset",
    "data.valid": "valid_subset",
    "AdamW is PyTorch's": "use_old_adam",
    'train.device = "auto"': "cpu",
    "the output layer reads the decoder's state": "decoder_out_embed_dim",
    "regard predict --truncate": "truncate_source",
})  # fmt: skip


def converted(tables: Mapping[str, Any]) -> Options:
    """The recipe of the options, and what it does not take over."""
    options = Options(tables, "fairseq")
    options.note_given(REASONS)
    options.notes = {name: why for name, why in options.notes.items() if why}
    task = options.text("task", "translation") or "translation"
    if task not in ("translation", "language_modeling"):
        wanted = "translation or language_modeling"
        raise InvalidArgument(
            "task", wanted=wanted, got=task, remedy="Regard's recipes list the others that it has."
        )
    language_model = task == "language_modeling"
    _data(options, language_model=language_model)
    _model(options, language_model=language_model)
    _training(options)
    _decoding(options)
    return options


def _data(options: Options, *, language_model: bool) -> None:
    languages = [options.text(f"{side}_lang") for side in ("source", "target")]
    for ours, name in (("train", "trainpref"), ("valid", "validpref"), ("test", "testpref")):
        prefix = options.text(name)
        # A recipe needs training and validation data; test data may be missing.
        if prefix is None and ours == "test":
            continue
        if prefix is None:
            options.note(
                name, f"no fairseq-preprocess in the file: enter the text files in data.{ours}"
            )
        if language_model:
            options.put(f"data.{ours}", prefix or f"{ours}.txt")
            continue
        suffixes = [
            language or side for language, side in zip(languages, ("src", "tgt"), strict=True)
        ]
        options.put(f"data.{ours}", [f"{prefix or ours}.{suffix}" for suffix in suffixes])
    joined = options.flag("joined_dictionary") or options.flag("share_all_embeddings")
    options.put("data.shared_vocab", joined or language_model)
    for side, ours in (("src", "source"), ("tgt", "target")):
        size = options.whole(f"nwords{side}", -1)
        if language_model and side == "src":
            continue
        options.put(f"data.{ours}.tokenizer", "words")
        vocabulary_size(options, f"nwords{side}", f"data.{ours}.vocab_size", size)
    options.note(
        "tokenizer",
        'the files of fairseq are cut into subwords already: words here; tokenizer = "bpe" for raw text',
    )
    if language_model:
        length = options.whole("tokens_per_sample", 1024)
        if options.text("sample_break_mode", "none") == "none":
            options.put("data.context_length", length)
        elif "sample_break_mode" in options:
            options.note("sample_break_mode", "each line is a text of its own")
    else:
        for side, ours in (("source", "source"), ("target", "target")):
            options.put(f"data.{ours}.max_tokens", options.whole(f"max_{side}_positions", 1024))


def _model(options: Options, *, language_model: bool) -> None:
    default = "transformer_lm" if language_model else "transformer"
    arch = options.text("arch", default) or ""
    if arch not in PRESETS:
        wanted = f"one of {', '.join(PRESETS)}"
        raise InvalidArgument(
            "arch",
            wanted=wanted,
            got=arch,
            remedy="Give the nearest, and change the recipe's model.",
        )
    preset = PRESETS[arch]
    is_recurrent = arch.startswith("lstm")
    parts = ["decoder"] if language_model else ["encoder", "decoder"]
    dims = {}  # of the embeddings
    for part in parts:
        if is_recurrent:
            _recurrent(options, part, preset)
            dims[part] = options.whole(f"{part}_embed_dim", preset.get("embed_dim", 512))
        else:
            _transformer(options, part, preset)
            dims[part] = options.recipe["model"][part]["dim"]
    everything = options.flag("share_all_embeddings")
    output = options.flag("share_decoder_input_output_embed")
    tied = "target" if output else "none"
    if everything:
        tied = "all"
    options.put("model.tie_embeddings", tied)
    scaled = not options.flag("no_scale_embedding")
    options.put("model.scale_embeddings", scaled and not is_recurrent)
    options.put("model.output_bias", False)
    for part in parts:
        word_vectors(
            options,
            part,
            f"{part}_embed_path",
            f"{part}_freeze_embed",
            dim=dims[part],
            is_output_layer=everything or (output and part == "decoder"),
        )


def _transformer(options: Options, part: str, preset: Mapping[str, Any]) -> None:
    base = {"embed_dim": 512, "ffn_embed_dim": 2048, "layers": 6, "attention_heads": 8, **preset}
    # The decoder takes the encoder's dimensions unless it has its own.
    dims = {}
    for name in ("embed_dim", "ffn_embed_dim"):
        of_encoder = options.whole(f"encoder_{name}", base[name])
        dims[name] = options.whole(f"{part}_{name}", of_encoder)
    activation = options.text("activation_fn", preset.get("activation_fn", "relu")) or "relu"
    if activation not in ACTIVATIONS:
        options.note("activation_fn", f"no {activation}: relu is used")
    learned = options.flag(f"{part}_learned_pos")
    positions = "learned" if learned else "sinusoidal"
    if options.flag("no_token_positional_embeddings"):
        positions = "none"
    # Older configurations say relu_dropout.
    relu_dropout = options.number("relu_dropout", preset.get("activation_dropout", 0.0))
    ffn_dropout = options.number("activation_dropout", relu_dropout)
    attention_dropout = preset.get("attention_dropout", 0.0)
    norm_first = preset.get("normalize_before", False)
    values = {
        "kind": "transformer",
        "dim": dims["embed_dim"],
        "ffn_dim": dims["ffn_embed_dim"],
        "layers": options.whole(f"{part}_layers", base["layers"]),
        "heads": options.whole(f"{part}_attention_heads", base["attention_heads"]),
        "dropout": options.number("dropout", preset.get("dropout", 0.1)),
        "attention_dropout": options.number("attention_dropout", attention_dropout),
        "ffn_dropout": ffn_dropout,
        "norm_first": options.flag(f"{part}_normalize_before", norm_first),
        "norm_input": options.flag("layernorm_embedding"),
        "activation": ACTIVATIONS.get(activation, "relu"),
        "positions": positions,
        "activation_checkpointing": options.flag("checkpoint_activations"),
    }
    if learned:
        side = "source" if part == "encoder" else "target"
        values["max_positions"] = options.whole(f"max_{side}_positions", 1024)
    for name, value in values.items():
        options.put(f"model.{part}.{name}", value)


def _recurrent(options: Options, part: str, preset: Mapping[str, Any]) -> None:
    embedding = options.whole(f"{part}_embed_dim", preset.get("embed_dim", 512))
    size = options.whole(f"{part}_hidden_size", embedding)
    both = part == "encoder" and options.flag("encoder_bidirectional")
    # fairseq gives each direction the whole size, Regard half of it.
    dim = 2 * size if both else size
    if embedding != dim:
        options.note(f"{part}_embed_dim", f"embeddings have the dimension of the states, {dim}")
    dropout = options.number("dropout", 0.1)
    for end in ("in", "out"):
        name = f"{part}_dropout_{end}"
        if options.number(name, dropout) != dropout:
            options.note(name, "dropout holds for inputs, between layers and for the output")
    layers = options.whole(f"{part}_layers", preset.get("layers", 1))
    values: dict[str, Any] = {
        "kind": "rnn",
        "cell": "lstm",
        "dim": dim,
        "layers": layers,
        "dropout": dropout,
    }
    if part == "encoder":
        values["bidirectional"] = both
    elif options.flag("decoder_attention", True):
        values |= {"attention": "luong", "score": "bilinear", "input_feeding": True}
    else:
        values["attention"] = "none"
    for name, value in values.items():
        options.put(f"model.{part}.{name}", value)


def _training(options: Options) -> None:
    for key, name in (("max_steps", "max_update"), ("max_epochs", "max_epoch")):
        if options.whole(name) > 0:
            options.put(f"train.{key}", options.whole(name))
    options.put("train.accumulate_steps", int(options.numbers("update_freq", [1.0])[-1]))
    options.put("train.log_every", options.whole("log_interval", 100))
    interval = options.whole("validate_interval_updates")
    if interval:
        options.put("train.validate_every", interval)
    else:
        why = "not given, which means once an epoch there; here every 500 updates"
        options.note("validate_interval_updates", why)
    if options.whole("patience", -1) > 0:
        options.put("train.patience", options.whole("patience"))
    kept = max(options.whole("keep_last_epochs", -1), options.whole("keep_best_checkpoints", -1))
    if kept > 0:
        options.put("train.keep_checkpoints", kept)
    metric = options.text("best_checkpoint_metric", "loss") or "loss"
    options.put("train.monitor", METRICS.get(metric, "loss"))
    if metric not in METRICS:
        options.note("best_checkpoint_metric", f"no {metric}: the loss is monitored")
    criterion = options.text("criterion", "cross_entropy") or "cross_entropy"
    if criterion not in ("cross_entropy", "label_smoothed_cross_entropy"):
        options.note("criterion", f"no {criterion}: cross-entropy is used")
    smoothing = options.number("label_smoothing", 0.0)
    is_smoothed = criterion.startswith("label_smoothed")
    options.put("train.label_smoothing", smoothing if is_smoothed else 0.0)
    options.put("train.seed", options.whole("seed", 1))
    clipping(options, options.number("clip_norm", 0.0))
    if any(options.flag(name) for name in ("fp16", "bf16", "amp", "memory_efficient_bf16")):
        options.put("train.precision", "bfloat16")
        if options.flag("fp16"):
            options.note("fp16", "bfloat16 is used, which needs no loss scaling")
    if options.flag("store_ema"):
        options.put("train.ema_decay", options.number("ema_decay", 0.9999))
    if "max_tokens" in options:
        options.put("train.batch_tokens", options.whole("max_tokens"))
    if "batch_size" in options:
        options.note("batch_size", "train.batch_tokens counts tokens, not sentences")
    betas = options.numbers("adam_betas", (0.9, 0.999))
    optimizer = options.text("optimizer", "nag") or "nag"
    names = {"optimizer": "optimizer", "weight_decay": "weight_decay"}
    eps = options.number("adam_eps", 1e-8)
    adam(options, optimizer, names, betas, eps, decoupled=True)
    options.note_given({"momentum": "AdamW is the optimizer"})
    _schedule(options)


def _schedule(options: Options) -> None:
    rates = options.numbers("lr", [0.25])
    if len(rates) > 1:
        options.note("lr", "one learning rate, the first; train.lr_schedule changes it")
    schedule = options.text("lr_scheduler", "fixed") or "fixed"
    ours = {
        "inverse_sqrt": "inverse_root",
        "cosine": "cosine",
        "polynomial_decay": "linear",
        "fixed": "constant",
        "reduce_lr_on_plateau": "plateau",
    }
    if schedule not in ours:
        options.note("lr_scheduler", f"no {schedule}: the learning rate is constant")
    options.put("train.learning_rate", rates[0])
    options.put("train.lr_schedule", ours.get(schedule, "constant"))
    default_warmup = 4000 if schedule == "inverse_sqrt" else 0
    options.put("train.warmup_steps", options.whole("warmup_updates", default_warmup))
    if schedule == "cosine":
        options.put("train.min_learning_rate", options.number("min_lr"))
    if schedule == "polynomial_decay":
        options.put("train.min_learning_rate", options.number("end_learning_rate"))
        if options.number("power", 1.0) != 1:
            options.note("power", "the decay is linear")
    if schedule == "reduce_lr_on_plateau":
        options.put("train.plateau", options.whole("lr_patience") + 1)
    options.note_given({
        "lr_shrink": "a plateau halves the learning rate; nothing else shrinks it", "force_anneal": "see lr_scheduler",
        "lr_period_updates": "cosine has one period, the whole run", "t_mult": "cosine has one period, the whole run",
        "total_num_update": "linear decay ends with the run", "lr_threshold": "any improvement counts",
    })  # fmt: skip


def _decoding(options: Options) -> None:
    options.put("decode.beam_size", options.whole("beam", 5))
    options.put("decode.num_hypotheses", options.whole("nbest", 1))
    if share := options.number("max_len_a"):
        most = options.whole("max_len_b", 200)
        options.note(
            "max_len_a",
            f"no limit of {share:g} · length + {most}: decode.max_length holds, 200 tokens",
        )
    else:
        options.put("decode.max_length", options.whole("max_len_b", 200))
    options.put("decode.min_length", options.whole("min_len", 1))
    options.put(
        "decode.length_penalty",
        0.0 if options.flag("unnormalized") else options.number("lenpen", 1.0),
    )
    options.put("decode.no_repeat_ngram_size", options.whole("no_repeat_ngram_size"))
    groups = options.whole("diverse_beam_groups", -1)
    strength = options.number("diverse_beam_strength", 0.5)
    if groups > 0:
        options.put("decode.beam_groups", groups)
        options.put("decode.diversity_penalty", strength)
    top_k = options.whole("sampling_topk", -1)
    top_p = options.number("sampling_topp", -1.0)
    temperature = options.number("temperature", 1.0)
    if options.flag("sampling"):
        options.put("decode.sample", True)
        options.put("decode.beam_size", 1)
        options.put("decode.temperature", temperature)
        if top_k > 0:
            options.put("decode.top_k", top_k)
        if 0 < top_p < 1:
            options.put("decode.top_p", top_p)
