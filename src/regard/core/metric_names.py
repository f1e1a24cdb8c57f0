"""Names of the metrics and their direction: the one table that training (monitor) and evaluation (metrics) share."""

from typing import Annotated

from regard.core.registry import Registry

HIGHER_IS_BETTER: Registry[bool] = Registry(
    "metric",
    {"loss": False, "perplexity": False, "bleu": True, "bleu_lower": True, "chrf": True, "ter": False}
    | {"bleu1": True, "bleu2": True, "bleu3": True, "bleu4": True, "rouge_l": True, "meteor": True, "cider": True}
    | {"accuracy": True, "error_rate": False, "character_error_rate": False}
    | {"f1": True, "f1_micro": True, "precision": True, "recall": True},
)
MetricName = Annotated[str, HIGHER_IS_BETTER]
