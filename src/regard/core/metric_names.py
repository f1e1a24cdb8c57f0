"""Names of the metrics, their direction and meaning: what training, evaluation and help share, without imports."""

from typing import Annotated

from regard.core.registry import Registry

HIGHER_IS_BETTER: Registry[bool] = Registry(
    "metric",
    {
        # Of every model.
        "loss": False,
        "perplexity": False,
        # Of translations.
        "bleu": True,
        "bleu_lower": True,
        "chrf": True,
        "ter": False,
        # Of captions.
        "bleu1": True,
        "bleu2": True,
        "bleu3": True,
        "bleu4": True,
        "rouge_l": True,
        "meteor": True,
        "cider": True,
        # Of labels and sequences.
        "accuracy": True,
        "error_rate": False,
        "character_error_rate": False,
        "f1": True,
        "f1_micro": True,
        "precision": True,
        "recall": True,
        # Of several labels.
        "precision_micro": True,
        "recall_micro": True,
        "hamming_loss": False,
        "average_precision": True,
        "average_precision_micro": True,
        # Of tags.
        "token_accuracy": True,
        "span_precision": True,
        "span_recall": True,
        "span_f1": True,
        "span_f1_macro": True,
        "span_f1_strict": True,
        # Of numbers.
        "mse": False,
        "rmse": False,
        "mae": False,
        "r2": True,
        "pearson": True,
        "spearman": True,
        # Of vectors.
        "normalized_mse": False,
        "normalized_mae": False,
        "seasonal_naive_mse": False,
        "seasonal_naive_mae": False,
    },
)
DESCRIPTIONS = {  # one line each, for help
    "loss": "mean cross-entropy of a token, or label, in nats; of numbers, train.loss",
    "perplexity": "exp(loss)",
    "bleu": "BLEU, 0 to 100, as sacreBLEU's",
    "bleu_lower": "BLEU, ignoring case",
    "chrf": "chrF2 (character n-grams), 0 to 100, as sacreBLEU's",
    "ter": "translation edit rate: edits and shifts per 100 words, by sacreBLEU (extra ter)",
    **{f"bleu{n}": f"captions: BLEU-{n}, 0 to 1, as COCO" for n in range(1, 5)},
    "rouge_l": "captions: ROUGE-L, 0 to 1, as COCO",
    "meteor": "captions: METEOR without paraphrases, 0 to 1",
    "cider": "captions: CIDEr-D, 0 to 10, as COCO",
    "accuracy": "fraction of labels, sets of labels, tags, or whole sequences that equal a reference",
    "error_rate": "edits per reference token, split at spaces: word or phoneme error rate",
    "character_error_rate": "edits per reference character",
    "f1": "macro-averaged F1",
    "f1_micro": "micro-averaged F1; of one label, equal to accuracy",
    "precision": "macro-averaged precision",
    "recall": "macro-averaged recall",
    "token_accuracy": "tags: fraction of tokens whose tag is right, also of files of outputs",
    "span_precision": "tags: precision of spans, as seqeval's and conlleval's",
    "span_recall": "tags: recall of spans, as seqeval's and conlleval's",
    "span_f1": "tags: F1 of spans, as seqeval's and conlleval's",
    "span_f1_macro": "tags: F1 of spans, averaged over their types, as seqeval's",
    "span_f1_strict": "tags: F1 of well-formed spans, as seqeval's strict mode",
    "precision_micro": "several labels: precision of all decisions",
    "recall_micro": "several labels: recall of all decisions",
    "hamming_loss": "several labels: fraction of decisions that are wrong",
    "average_precision": "several labels: mean over labels of average precision, of any threshold",
    "average_precision_micro": "several labels: average precision of all decisions together",
    "mse": "numbers and vectors: mean squared error, in the units of the data",
    "rmse": "numbers: root of the mean squared error",
    "mae": "numbers and vectors: mean absolute error, in the units of the data",
    "r2": "numbers: R², the share of the variance that is explained, at most 1",
    "pearson": "numbers: Pearson's correlation, -1 to 1",
    "normalized_mse": "vectors: mean squared error, of numbers with mean 0 and scale 1 in the training data",
    "normalized_mae": "vectors: mean absolute error, of numbers with mean 0 and scale 1 in the training data",
    "seasonal_naive_mse": "forecasts: normalized_mse of repeating the last season of each window",
    "seasonal_naive_mae": "forecasts: normalized_mae of repeating the last season of each window",
    "spearman": "numbers: Spearman's correlation of ranks, -1 to 1",
}
MetricName = Annotated[str, HIGHER_IS_BETTER]
