"""Speed of encoders with a head over sequences of vectors: Regard against plain PyTorch, in one run.

    .venv/bin/python benchmarks/vectors.py --rounds 7

All read the same sequences of unequal length, with the same sizes, the same loss and fused AdamW, and give one number
for each. The peers are nn.TransformerEncoder and nn.LSTM, with shuffled batches of 32 sequences, padded to the longest,
and a key padding mask or packed sequences, as PyTorch's tutorials write them; Regard those of its own training and
prediction. Prediction is from NumPy arrays to Python numbers.

A round takes every contestant once over all sequences; a speed is the median over rounds of the base's time through
its own. Times are processor time of the process, so that others on a busy machine count little.
"""

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

import regard
from measure import ratio, seconds
from regard.api.train import epochs, make_model, prepare
from regard.data.from_python import with_python_data
from regard.recipe.recipe import Recipe
from regard.tasks.objective import Objective

Row = tuple[NDArray[np.float32], float]
BATCH = 32  # sequences of a peer's batch
SIZE = 40  # numbers of a vector, as of a log-mel spectrogram
DIM = 128
LAYERS = 3
HEADS = 4
FFN_DIM = 512
LONGEST = 400


def sequences(count: int) -> list[Row]:
    """Sequences of random vectors, with the lengths of short utterances, and a number for each."""
    drawn = np.random.default_rng(0)
    made = []
    for _ in range(count):
        length = int(np.clip(drawn.lognormal(4.3, 0.6), 5, LONGEST - 1))
        values = drawn.standard_normal((length, SIZE), dtype=np.float32)
        made.append((values, float(values[:, 0].mean())))
    return made


class PlainTransformer(nn.Module):
    """PyTorch's own encoder, with learned positions, and the mean of its states."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(SIZE, DIM)
        self.positions = nn.Parameter(torch.zeros(LONGEST, DIM))
        layer = nn.TransformerEncoderLayer(DIM, HEADS, FFN_DIM, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS)
        self.output = nn.Linear(DIM, 1)

    def forward(self, values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        is_padding = torch.arange(values.shape[1]) >= lengths[:, None]
        x = self.project(values) + self.positions[: values.shape[1]]
        states = self.encoder(x, src_key_padding_mask=is_padding)
        kept = states.masked_fill(is_padding[:, : states.shape[1], None], 0.0)
        output: torch.Tensor = self.output(kept.sum(1) / lengths[:, None])
        return output[:, 0]


class PlainLstm(nn.Module):
    """PyTorch's own LSTM in both directions, and its last states."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(SIZE, DIM)
        self.lstm = nn.LSTM(DIM, DIM // 2, batch_first=True, bidirectional=True)
        self.output = nn.Linear(DIM, 1)

    def forward(self, values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(
            self.project(values), lengths, batch_first=True, enforce_sorted=False
        )
        _, (last, _) = self.lstm(packed)
        output: torch.Tensor = self.output(torch.cat((last[0], last[1]), -1))
        return output[:, 0]


def padded(batch: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [torch.from_numpy(values) for values, _ in batch]
    return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])


def peer_training(model: nn.Module, given: Sequence[Row]) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    drawn = np.random.default_rng(1)

    def epoch() -> None:
        model.train()
        order = drawn.permutation(len(given))
        for start in range(0, len(order), BATCH):
            batch = [given[i] for i in order[start : start + BATCH]]
            targets = torch.tensor([target for _, target in batch])
            loss = nn.functional.mse_loss(model(*padded(batch)), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return epoch


def peer_prediction(model: nn.Module, given: Sequence[Row]) -> Callable[[], None]:
    @torch.inference_mode()
    def predict() -> None:
        model.eval()
        found: list[float] = []
        for start in range(0, len(given), BATCH):
            found += model(*padded(given[start : start + BATCH])).tolist()
        assert len(found) == len(given)

    return predict


def regard_recipe(encoder: dict[str, Any], pool: str, budget: int) -> dict[str, Any]:
    return {
        "model": {"encoder": encoder, "pool": {"kind": pool}},
        "data": {"source": {"kind": "vectors"}, "target": {"kind": "number"}},
        "train": {"max_epochs": 1, "batch_tokens": budget, "device": "cpu", "warmup_steps": 1},
    }


def regard_training(
    table: dict[str, Any], given: Sequence[Row], cache: Path
) -> tuple[Any, Callable[[], None]]:
    data = with_python_data(table["data"], {"train": list(given)}, cache)
    recipe = Recipe.of(table | {"data": data})
    prepared = prepare(recipe, cache)
    assert prepared.train is not None
    model = make_model(recipe, recipe.sized(prepared))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batches = epochs(recipe, prepared.train)
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

    predictor = regard.Predictor(model.eval(), recipe, prepared.sources, prepared.target)
    return predictor, epoch


def regard_prediction(predictor: Any, given: Sequence[Row]) -> Callable[[], None]:
    asked = [values for values, _ in given]

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
    "norm_first": False,
    "positions": "learned",
    "max_positions": LONGEST,
}
RNN = {"kind": "rnn", "cell": "lstm", "dim": DIM}
CONTESTS = (
    ("Regard Transformer", "nn.TransformerEncoder"),
    ("Regard BiLSTM", "nn.LSTM"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sequences", type=int, default=400)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    given = sequences(options.sequences)
    positions = sum(len(values) for values, _ in given)
    training: dict[str, Callable[[], object]] = {}
    prediction: dict[str, Callable[[], object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        peers = {"nn.TransformerEncoder": PlainTransformer(), "nn.LSTM": PlainLstm()}
        for name, model in peers.items():
            training[name] = peer_training(model, given)
            prediction[name] = peer_prediction(model, given)
        # As many vectors in a batch as a peer's has on average.
        budget = BATCH * positions // len(given)
        for name, encoder, pool in (
            ("Regard Transformer", TRANSFORMER, "mean"),
            ("Regard BiLSTM", RNN, "last"),
        ):
            table = regard_recipe(encoder, pool, budget)
            predictor, epoch = regard_training(table, given, Path(folder))
            training[name] = epoch
            prediction[name] = regard_prediction(predictor, given)
        print(f"{platform.processor() or platform.machine()}, {options.threads} threads")
        print(f"{len(given)} sequences, {positions} vectors, processor time")
        for title, runs in (("training", training), ("prediction", prediction)):
            times = seconds(runs, options.rounds, clock=time.process_time)
            for name, base in CONTESTS:
                speed = ratio(times, base, name)
                print(f"{title}: {name} has {speed:.2f} × the speed of {base}")


if __name__ == "__main__":
    main()
