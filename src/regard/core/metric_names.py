"""Names of the metrics, their direction and meaning: what training, evaluation and help share, without imports."""

from typing import Annotated

from regard.core.registry import Registry

HIGHER_IS_BETTER: Registry[bool] = Registry(
    "metric",
    {
        "loss": False,
        "perplexity": False,
        "bleu": True,
        "bleu_lower": True,
        "chrf": True,
        "ter": False,
    }
    | {
        "bleu1": True,
        "bleu2": True,
        "bleu3": True,
        "bleu4": True,
        "rouge_l": True,
        "meteor": True,
        "cider": True,
    }
    | {"accuracy": True, "error_rate": False, "character_error_rate": False}
    | {"f1": True, "f1_micro": True, "precision": True, "recall": True},
)
DESCRIPTIONS = {  # one line each, for help
    "loss": "mean cross-entropy of a token, or label, in nats",
    "perplexity": "exp(loss)",
    "bleu": "BLEU, 0 to 100, as sacreBLEU's",
    "bleu_lower": "BLEU, ignoring case",
    "chrf": "chrF2 (character n-grams), 0 to 100, as sacreBLEU's",
    "ter": "translation edit rate: edits and shifts per 100 words, by sacreBLEU (extra ter)",
    **{f"bleu{n}": f"captions: BLEU-{n}, 0 to 1, as COCO" for n in range(1, 5)},
    "rouge_l": "captions: ROUGE-L, 0 to 1, as COCO",
    "meteor": "captions: METEOR without paraphrases, 0 to 1",
    "cider": "captions: CIDEr-D, 0 to 10, as COCO",
    "accuracy": "fraction of labels, or whole sequences, that equal a reference",
    "error_rate": "edits per reference token, split at spaces: word or phoneme error rate",
    "character_error_rate": "edits per reference character",
    "f1": "macro-averaged F1",
    "f1_micro": "micro-averaged F1, equal to accuracy",
    "precision": "macro-averaged precision",
    "recall": "macro-averaged recall",
}
MetricName = Annotated[str, HIGHER_IS_BETTER]
