"""The model card of a checkpoint (README.md): what the model is, its data and its settings, for people."""

from collections.abc import Mapping
from typing import Any

CARD = """---
library_name: regard
tags: [regard, attention]
---

# {title}

Trained with Regard.

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


def model_card(
    title: str, model: str, splits: Mapping[str, Any], settings: Mapping[str, Any]
) -> str:
    """Fill in the card: a title, a description of the model, the counts of each data split, and settings by key."""
    lines = [f"- {name}: {split['examples']:,} examples" for name, split in splits.items()]
    for name, split in splits.items():
        for reason, count in split["left_out"].items():
            if count:
                lines.append(f"- left out of {name}: {count:,} ({reason})")
    rows = [f"| {key} | {value} |" for key, value in sorted(settings.items())]
    return CARD.format(
        title=title,
        model=model,
        data="\n".join(lines),
        settings="\n".join(rows),
    )
