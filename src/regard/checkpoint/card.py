"""The card of a model: what it is, what it was trained on and how, in words for people."""

from typing import Any

from regard.data.corpus import Prepared
from regard.model.seq2seq import Model
from regard.recipe.recipe import Recipe

CARD = """---
library_name: regard
tags: [regard, attention]
---

# {title}

Trained with [Regard](https://pypi.org/project/regard/).

## What it is

```
{model}
```

## What it was trained on

{data}

## How

| setting | value |
|---|---|
{settings}

## Use

```python
import regard

model = regard.load("this/folder")
model.predict(["..."])
```
"""


def card(recipe: Recipe, data: Prepared, model: Model) -> str:
    splits: dict[str, Any] = data.record["splits"]
    lines = [f"- {name}: {found['examples']:,} examples" for name, found in splits.items()]
    for name, found in splits.items():
        lines += [f"- left out of {name}: {n:,} ({why})" for why, n in found["left_out"].items() if n]
    plain = type(recipe.train)()
    changed = {key: value for key, value in vars(recipe.train).items() if value != getattr(plain, key)}
    settings = {"max_steps": recipe.train.max_steps, "seed": recipe.train.seed, **changed}
    title = {"Seq2Seq": "A sequence model", "Classifier": "A classifier"}.get(type(model).__name__, "An encoder")
    return CARD.format(
        title=title,
        model=repr(model),
        data="\n".join(lines),
        settings="\n".join(f"| train.{key} | {value} |" for key, value in sorted(settings.items())),
    )
