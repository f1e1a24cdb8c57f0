"""Write the golden checkpoints of this version: PYTHONPATH=tests python tests/golden/write.py

One small trained model of each family, with the loss and some logits it gave. They are written once for a release and
never again: `tests/checkpoint/test_golden.py` holds every later version to them.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import regard
from regard.checkpoint import store
from regard.data.batching import evaluation_batches
from regard.inference.predictor import Predictor
from regard.model.seq2seq import Model
from regard.tasks.sequence_loss import shift_targets
from regard.training.validation import mean_loss
from support.corpora import corpus_of

HERE = Path(__file__).parent
TEXTS = ["the cat sat", "a dog ran home", "où est le chat ?", "", "the end of it all"]
PAIRS = [(text, text.upper()) for text in TEXTS]
LABELLED = [(text, "long" if len(text) > 11 else "short") for text in TEXTS]
BYTES = {"tokenizer": "bytes"}
SMALL = {"dim": 8}
TRANSFORMER = {"kind": "transformer", "dim": 8, "heads": 2, "ffn_dim": 16, "layers": 1}
CONV = {"kind": "conv", "dim": 8, "dilations": [1, 2]}
TRAIN = {
    "max_steps": 20,
    "warmup_steps": 2,
    "batch_tokens": 128,
    "learning_rate": 1e-2,
    "validate_every": 20,
    "device": "cpu",
}

FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any], list[Any]]] = {  # data, model, examples
    "rnn": (
        {"source": BYTES, "target": BYTES},
        {
            "encoder": {"kind": "rnn", "cell": "lstm", **SMALL},
            "decoder": {"kind": "rnn", "attention": "bahdanau", "score": "additive", **SMALL},
        },
        PAIRS,
    ),
    "transformer": (
        {"source": BYTES, "target": BYTES},
        {"encoder": TRANSFORMER, "decoder": TRANSFORMER},
        PAIRS,
    ),
    "convolution": ({"source": BYTES, "target": BYTES}, {"encoder": CONV, "decoder": CONV}, PAIRS),
    "classifier": (
        {"source": BYTES, "target": {"kind": "label"}},
        {"encoder": {"kind": "rnn", **SMALL}, "pool": {"kind": "attention"}},
        LABELLED,
    ),
    "language-model": (
        {"target": {"tokenizer": "bpe", "vocab_size": 270}},
        {"decoder": TRANSFORMER},
        TEXTS,
    ),
}


def measured(found: Predictor, examples: list[Any]) -> dict[str, Any]:
    """The loss of a model on the examples, and the first logits of the first batch."""
    pairs = [(None, example) if isinstance(example, str) else example for example in examples]
    corpus = corpus_of(pairs, found.source, found.target)
    batch = next(evaluation_batches(corpus, budget=512))
    model: Model = found.model
    with torch.no_grad():
        if isinstance(batch.targets, torch.Tensor):
            logits = model(batch.source)
        else:
            inputs, _, _ = shift_targets(batch.targets)
            logits = model(batch.source, inputs)
    return {
        "loss": mean_loss(model, corpus, budget=512),
        "logits": logits.flatten()[:: max(1, logits.numel() // 64)][:64].tolist(),
    }


def main() -> None:
    place = HERE / regard.__version__
    if place.exists():
        sys.exit(f"{place} exists: golden checkpoints are written once.")
    for name, (data, model, examples) in FAMILIES.items():
        with tempfile.TemporaryDirectory() as folder:
            recipe = {"data": data, "model": model, "train": TRAIN}
            regard.train(recipe, Path(folder) / "run", data={"train": examples}, cache=Path(folder))
            (best,) = (Path(folder) / "run").glob("step-*")
            content = store.read(best)
            config = store.document(content, "config.json", best)
            config["recipe"]["data"]["train"] = "train.jsonl"  # the temporary file is gone
            texts = {
                n: c.decode()
                for n, c in content.items()
                if not n.endswith(".safetensors") and n != "training.json"
            }
            texts["config.json"] = store.as_json(config)
            weights = store.tensors(content, "model.safetensors", best)
            store.write(place / name, texts, {"model.safetensors": weights})
        found = measured(regard.load(place / name, device="cpu"), examples)
        (place / f"{name}.json").write_text(
            json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        print(place / name, f"loss {found['loss']:.4f}")


if __name__ == "__main__":
    main()
