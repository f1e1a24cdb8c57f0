"""Names of the metrics and their direction: the one table that training (monitor) and evaluation (metrics) share."""

from typing import Literal, get_args

MetricName = Literal[
    "loss", "perplexity", "bleu", "bleu_lower", "chrf", "ter", "bleu1", "bleu2", "bleu3", "bleu4", "rouge_l", "meteor",
    "cider", "accuracy", "error_rate", "character_error_rate", "f1", "f1_micro", "precision", "recall",
]  # fmt: skip
LOWER_IS_BETTER: frozenset[str] = frozenset({"loss", "perplexity", "ter", "error_rate", "character_error_rate"})
HIGHER_IS_BETTER: dict[str, bool] = {name: name not in LOWER_IS_BETTER for name in get_args(MetricName)}
