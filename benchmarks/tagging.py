"""Speed of taggers: Regard against Hugging Face's token classification and a plain PyTorch BiLSTM, in one run.

    REGARD_DATA=/path/to/data .venv/bin/python benchmarks/tagging.py --rounds 5

All tag the same sentences, with the same words as tokens, the same sizes, the same loss and fused AdamW. The peers use
shuffled batches of 32 sentences, padded to the longest, as their tutorials and `Trainer` do by default; Regard those of
its own training and prediction. Prediction is from lists of words to lists of tags. Hugging Face's
transformers is a dependency of the tests. DATA/ud_ewt holds train.tsv.gz; without REGARD_DATA, sentences of random
words take its place, with the lengths of newspaper text.

A round takes every contestant once over all sentences; a speed is the median over rounds of the base's time through
its own.
"""

import argparse
import gzip
import json
import os
import platform
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

import regard
from measure import ratio, seconds
from regard.api.train import epochs, make_model, prepare
from regard.recipe.recipe import Recipe
from regard.tasks.objective import Objective

Sentence = tuple[list[str], list[str]]
BATCH = 32  # sentences of a peer's batch
BUDGET = 1024  # tokens of Regard's: about as many
DIM = 256
LAYERS = 4
HEADS = 4
FFN_DIM = 1024
IGNORED = -100


def sentences(count: int) -> list[Sentence]:
    """Tagged sentences, from the folder of real data where there is one."""
    data = os.environ.get("REGARD_DATA")
    if data is None:
        return random_sentences(count)
    content = gzip.decompress((Path(data) / "ud_ewt" / "train.tsv.gz").read_bytes()).decode()
    found = []
    for block in content.strip().split("\n\n"):
        tokens = [line.split("\t") for line in block.splitlines()]
        found.append(([token[0] for token in tokens], [token[1] for token in tokens]))
    return random.Random(0).sample(found, min(count, len(found)))


def random_sentences(count: int) -> list[Sentence]:
    drawn = random.Random(0)
    words = [f"word{number}" for number in range(5000)]
    tags = [f"T{number}" for number in range(17)]
    made = []
    for _ in range(count):
        length = max(1, min(80, round(drawn.lognormvariate(2.6, 0.7))))
        chosen = drawn.choices(words, k=length)
        made.append((chosen, [tags[crc32(word.encode()) % len(tags)] for word in chosen]))
    return made


class Ids:
    """Words and tags by number, as the peers read them."""

    def __init__(self, given: Sequence[Sentence]) -> None:
        self.words = {
            word: i + 2 for i, word in enumerate(sorted({w for s, _ in given for w in s}))
        }
        self.tags = sorted({tag for _, tags in given for tag in tags})
        self.tag_ids = {tag: i for i, tag in enumerate(self.tags)}
        self.size = len(self.words) + 2

    def source(self, batch: Sequence[Sentence]) -> tuple[torch.Tensor, torch.Tensor]:
        rows = [torch.tensor([self.words.get(word, 1) for word in words]) for words, _ in batch]
        return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])

    def target(self, batch: Sequence[Sentence]) -> torch.Tensor:
        rows = [torch.tensor([self.tag_ids[tag] for tag in tags]) for _, tags in batch]
        return pad_sequence(rows, batch_first=True, padding_value=IGNORED)


class BiLstm(nn.Module):
    """The tagger of PyTorch's tutorial, in both directions and in batches."""

    def __init__(self, size: int, tags: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(size, DIM, padding_idx=0)
        self.lstm = nn.LSTM(DIM, DIM // 2, batch_first=True, bidirectional=True)
        self.project = nn.Linear(DIM, tags)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(
            self.embed(ids), lengths, batch_first=True, enforce_sorted=False
        )
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        logits: torch.Tensor = self.project(states)
        return logits


class HuggingFace(nn.Module):
    """BertForTokenClassification."""

    def __init__(self, size: int, tags: int) -> None:
        super().__init__()
        from transformers import BertConfig, BertForTokenClassification

        config = BertConfig(
            vocab_size=size,
            hidden_size=DIM,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=FFN_DIM,
            num_labels=tags,
            max_position_embeddings=512,
        )
        self.model = BertForTokenClassification(config)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(ids.shape[1]) < lengths[:, None]
        logits: torch.Tensor = self.model(input_ids=ids, attention_mask=mask.long()).logits
        return logits


def peer_training(model: nn.Module, ids: Ids, given: Sequence[Sentence]) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    order = list(given)

    def epoch() -> None:
        model.train()
        random.shuffle(order)
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            logits = model(*ids.source(batch))
            loss = nn.functional.cross_entropy(
                logits.flatten(0, 1), ids.target(batch).flatten(), ignore_index=IGNORED
            )
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return epoch


def peer_prediction(model: nn.Module, ids: Ids, given: Sequence[Sentence]) -> Callable[[], None]:
    @torch.inference_mode()
    def predict() -> None:
        model.eval()
        found = []
        for start in range(0, len(given), BATCH):
            batch = given[start : start + BATCH]
            best = model(*ids.source(batch)).argmax(-1).tolist()
            for (words, _), row in zip(batch, best, strict=True):
                found.append([ids.tags[tag] for tag in row[: len(words)]])
        assert len(found) == len(given)

    return predict


def regard_recipe(encoder: dict[str, Any]) -> Recipe:
    return Recipe.of(
        {
            "model": {"encoder": encoder, "head": "tags"},
            "data": {
                "train": "train.jsonl",
                "source": {
                    "kind": "words",
                    "tokenizer": "words",
                    "vocab_size": 100_000,
                    "column": "words",
                },
                "target": {"kind": "tags", "column": "tags"},
            },
            "train": {
                "max_epochs": 1,
                "batch_tokens": BUDGET,
                "label_smoothing": 0.0,
                "device": "cpu",
                "warmup_steps": 1,
            },
        }
    )


def regard_training(recipe: Recipe, cache: Path) -> tuple[Any, Callable[[], None]]:
    data = prepare(recipe, cache)
    assert data.train is not None
    model = make_model(recipe, recipe.sized(data))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batches = epochs(recipe, data.train)
    objective = Objective()
    number = 0

    def epoch() -> None:
        nonlocal number
        model.train()
        for batch in batches(number, 0):
            found = objective(model, batch)
            (found.loss / found.predictions).backward()
            optimizer.step()
            optimizer.zero_grad()
        number += 1

    predictor = regard.Predictor(model.eval(), recipe, data.sources, data.target)
    return predictor, epoch


def regard_prediction(predictor: Any, given: Sequence[Sentence]) -> Callable[[], None]:
    asked = [words for words, _ in given]

    def predict() -> None:
        predictor.model.eval()
        assert len(predictor.outputs(asked)) == len(given)

    return predict


TRANSFORMER = {
    "kind": "transformer",
    "dim": DIM,
    "heads": HEADS,
    "layers": LAYERS,
    "ffn_dim": FFN_DIM,
    "positions": "learned",
    "max_positions": 512,
}
RNN = {"kind": "rnn", "cell": "lstm", "dim": DIM}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    given = sentences(options.sentences)
    ids = Ids(given)
    training: dict[str, Callable[[], object]] = {}
    prediction: dict[str, Callable[[], object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write(Path("train.jsonl"), given)
        peers = {"Hugging Face BERT": HuggingFace, "PyTorch BiLSTM": BiLstm}
        for name, make in peers.items():
            model = make(ids.size, len(ids.tags))
            training[name] = peer_training(model, ids, given)
            prediction[name] = peer_prediction(model, ids, given)
        for name, encoder in (("Regard Transformer", TRANSFORMER), ("Regard BiLSTM", RNN)):
            predictor, epoch = regard_training(regard_recipe(encoder), Path("cache"))
            training[name] = epoch
            prediction[name] = regard_prediction(predictor, given)
        print(f"{platform.processor() or platform.machine()}, {options.threads} threads")
        print(f"{len(given)} sentences, {sum(len(words) for words, _ in given)} words")
        for title, runs in (("training", training), ("prediction", prediction)):
            times = seconds(runs, options.rounds)
            for name, base in (
                ("Regard Transformer", "Hugging Face BERT"),
                ("Regard BiLSTM", "PyTorch BiLSTM"),
            ):
                print(f"{title}: {name} has {ratio(times, base, name):.2f} × the speed of {base}")


def write(path: Path, given: Sequence[Sentence]) -> None:
    rows = (json.dumps({"words": words, "tags": tags}) for words, tags in given)
    path.write_text("".join(f"{row}\n" for row in rows), "utf-8")


if __name__ == "__main__":
    main()
