"""The model card of an exported model, with the front matter of the Hugging Face Hub."""

import json
from pathlib import Path
from typing import Any

from regard.core.errors import InvalidData
from regard.core.sanitize import printable
from regard.inference.predictor import Predictor
from regard.interop.tensors import read_json

# What a model does: the hub's name for it, the class of transformers that loads it, and a line of use.
USES = {
    "translation": (
        "translation",
        "AutoModelForSeq2SeqLM",
        'tokenizer.batch_decode(model.generate(**tokenizer("...", return_tensors="pt")), skip_special_tokens=True)',
    ),
    "language model": (
        "text-generation",
        "AutoModelForCausalLM",
        'tokenizer.batch_decode(model.generate(**tokenizer("...", return_tensors="pt")), skip_special_tokens=True)',
    ),
    "captions": (
        "image-to-text",
        "VisionEncoderDecoderModel",
        "tokenizer.batch_decode(model.generate(pixel_values=pixels), skip_special_tokens=True)",
    ),
    "text label": (
        "text-classification",
        "AutoModelForSequenceClassification",
        'model(**tokenizer("...", return_tensors="pt")).logits.argmax(-1)',
    ),
    "image label": (
        "image-classification",
        "AutoModelForImageClassification",
        "model(pixel_values=pixels).logits.argmax(-1)",
    ),
    "tags": (
        "token-classification",
        "AutoModelForTokenClassification",
        'model(**tokenizer(["A", "sentence"], is_split_into_words=True, return_tensors="pt")).logits.argmax(-1)',
    ),
    "masked tokens": (
        "fill-mask",
        "AutoModelForMaskedLM",
        'model(**tokenizer("...", return_tensors="pt")).logits',
    ),
}

# What follows the logits in the line of use, by the problem type, if not the choice of the most likely label.
CHOICES = {"regression": "", "multi_label_classification": ".sigmoid()"}

CARD = """# {title}

Trained with Regard and written for transformers as `{model_type}`.

```
{model}
```

## Use

```python
from transformers import {imports}

{loading}model = {model_class}.from_pretrained("this/folder")
{use}
```
"""


def hub_card(model: Predictor, model_type: str, report: str | None) -> str:
    """README.md; `report` is a file of `regard evaluate --json`, whose figures it lists."""
    kind = _kind(model)
    task, model_class, use = USES[kind]
    most_likely = ".argmax(-1)"
    use = use.replace(most_likely, CHOICES.get(model.task.problem_type or "", most_likely))
    results = []
    if report is not None:
        results = _results(Path(report))
    front: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": task,
        "tags": ["regard", model_type],
    }
    if results:
        metrics = [{"type": name, "value": value, "name": name} for name, value in results]
        entry = {
            "task": {"type": task},
            "dataset": {"type": "test", "name": "test data"},
            "metrics": metrics,
        }
        front["model-index"] = [{"name": kind, "results": [entry]}]
    # Every JSON value is YAML too.
    matter = "\n".join(f"{key}: {json.dumps(value)}" for key, value in front.items())
    has_text = kind != "image label"
    loading = ""
    if has_text:
        loading = 'tokenizer = AutoTokenizer.from_pretrained("this/folder")\n'
    card = CARD.format(
        title=f"{kind.capitalize()} with Regard",
        model_type=model_type,
        model=repr(model.model),
        imports=f"{model_class}, AutoTokenizer" if has_text else model_class,
        model_class=model_class,
        loading=loading,
        use=use,
    )
    text = f"---\n{matter}\n---\n\n{card}"
    if results:
        table = "".join(f"| {printable(name)} | {value:.4g} |\n" for name, value in results)
        text += f"\n## Results\n\n| metric | value |\n|---|---|\n{table}"
    return text


def _kind(model: Predictor) -> str:
    reads_image = model.image_size is not None
    task = model.task
    if task.reads_target:
        return task.gives
    if task.tags_words:
        return task.gives
    if not task.searches:
        return "image label" if reads_image else "text label"
    if reads_image:
        return "captions"
    return "translation" if model.sources else "language model"


def _results(path: Path) -> list[tuple[str, float]]:
    """The metrics of the first system of a report."""
    report = read_json(path)
    try:
        metrics = report["systems"][0]["metrics"]
        # A metric that is undefined has no value.
        defined = {name: each for name, each in metrics.items() if each["value"] is not None}
        return [(str(name), float(result["value"])) for name, result in defined.items()]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        wanted = "a report of `regard evaluate --json`"
        remedy = "Write it with this command."
        raise InvalidData(path, wanted=wanted, got="other JSON", remedy=remedy) from None
