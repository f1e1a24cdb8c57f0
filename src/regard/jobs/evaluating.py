"""How a trained model does on its data."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from regard.data.corpus import Prepared, prepare
from regard.data.examples import Example, examples
from regard.errors import InvalidArgument
from regard.evaluation.metrics import Scored
from regard.evaluation.validation import mean_loss, perplexity, score
from regard.recipe import Recipe
from regard.serving.loading import load
from regard.serving.predictor import Predictor
from regard.training.loop import Validation
from regard.training.objective import Model


def default_cache() -> Path:
    """Where prepared corpora lie: $REGARD_CACHE, or a folder of the user's cache."""
    given = os.environ.get("REGARD_CACHE")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "regard"


def evaluate(
    model: str | Path | Predictor,
    *,
    split: str = "test",
    metrics: Sequence[str] | None = None,
    cache: Path | None = None,
) -> dict[str, Scored]:
    """How a trained model does on a split of its own data."""
    predictor = model if isinstance(model, Predictor) else load(model)
    recipe = predictor.recipe
    data = prepare(recipe.data, cache or default_cache(), vocabularies=(predictor.source, predictor.target))
    corpus = getattr(data, split, None)
    if corpus is None:
        there = [name for name in ("train", "valid", "test") if getattr(data, name) is not None]
        raise InvalidArgument(
            "split", wanted=f"one of {', '.join(there)}", got=repr(split), remedy="Or add it to data."
        )
    loss = mean_loss(predictor.model, corpus, budget=recipe.train.batch_tokens, masked=recipe.train.masked)
    found = {"loss": Scored(loss), "perplexity": Scored(perplexity(loss))}
    names = list(metrics or _usual_metrics(recipe))
    if names and recipe.data.source is None:
        raise InvalidArgument(
            "metric", wanted="none for a model without a source", got=names[0], remedy="It has a loss and a perplexity."
        )
    if names:
        wanted = references(recipe, split)
        outputs = predictor.predict([source for source, _ in wanted])
        found |= score(names, outputs, [gold if len(gold) > 1 else gold[0] for _, gold in wanted])
    return found


def references(recipe: Recipe, split: str) -> list[tuple[Any, list[str]]]:
    """Every source of a split (a text or a picture) with its references; a word's pronunciations come together."""
    grouped: dict[Any, list[str]] = {}
    rows: list[tuple[Any, list[str]]] = []
    for example in examples(recipe.data, split):  # type: ignore[arg-type]
        source = example.source or ""
        if recipe.data.generate == "spelling" and source in grouped:
            grouped[source].append(_as_written(example, recipe))
            continue
        grouped[source] = [_as_written(example, recipe)]
        rows.append((source, grouped[source]))
    return rows


def _as_written(example: Example, recipe: Recipe) -> str:
    """The reference as the model would write it: in small letters where it knows no others."""
    return example.target.lower() if recipe.data.target.lower else example.target


def _usual_metrics(recipe: Recipe) -> list[str]:
    if recipe.data.source is None:
        return []
    if recipe.data.target.kind == "label":
        return ["accuracy"]
    if recipe.train.metric in ("accuracy", "error_rate"):
        return ["accuracy", "error_rate"]
    return ["bleu", "chrf"]


def validation(recipe: Recipe, data: Prepared) -> Callable[[Model], Validation]:
    """Loss always; outputs where the metric needs them or samples are to be shown."""
    rows = [] if recipe.data.source is None else references(recipe, "valid")
    metric = recipe.train.metric

    def validate(model: Model) -> Validation:
        assert data.valid is not None
        loss = mean_loss(model, data.valid, budget=recipe.train.batch_tokens, masked=recipe.train.masked)
        values = {"loss": loss, "perplexity": perplexity(loss)}
        predictor = Predictor(model, recipe, data.source, data.target)
        decoded = metric not in ("loss", "perplexity")
        shown = rows if decoded else rows[: recipe.train.samples]
        outputs = predictor.predict([source for source, _ in shown]) if shown else []
        if decoded:
            gold = [found if len(found) > 1 else found[0] for _, found in rows]
            values[metric] = score([metric], outputs, gold)[metric].value
        samples = [
            {"source": str(source), "output": output, "reference": gold[0]}
            for (source, gold), output in zip(shown, outputs, strict=True)
        ]
        return Validation(values, samples[: recipe.train.samples])

    return validate
