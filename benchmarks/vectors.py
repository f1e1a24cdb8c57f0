"""Speed of models of sequences of vectors, encoders with a head and decoders: Regard against plain PyTorch, in one run.

    .venv/bin/python benchmarks/vectors.py --rounds 7
    .venv/bin/python benchmarks/vectors.py --rounds 7 --decoders

All read the same sequences of unequal length, with the same sizes, the same loss and fused AdamW, and give one number
for each. The peers are nn.TransformerEncoder and nn.LSTM, with shuffled batches of 32 sequences, padded to the longest,
and a key padding mask or packed sequences, as PyTorch's tutorials write them; Regard those of its own training and
prediction. Prediction is from NumPy arrays to Python numbers.

With --decoders they give a sequence of vectors for each: nn.TransformerEncoder and nn.TransformerDecoder, and nn.LSTM
with a loop of nn.LSTMCell and additive attention, trained by teacher forcing; prediction is a loop that computes each
vector from those before it, for nn.TransformerDecoder by calling it with all of them.

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
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

import regard
from measure import ratio, seconds
from regard.api.train import epochs, make_model, prepare
from regard.data.from_python import with_python_data
from regard.recipe.recipe import Recipe
from regard.tasks.objective import Objective

Runs = dict[str, Callable[[], object]]
Row = tuple[NDArray[np.float32], float]
VectorRow = tuple[NDArray[np.float32], NDArray[np.float32]]
BATCH = 32  # sequences of a peer's batch
SIZE = 40  # numbers of a vector, as of a log-mel spectrogram
DIM = 128
LAYERS = 3
HEADS = 4
FFN_DIM = 512
LONGEST = 400
HORIZON = 48  # vectors of the longest target


def sequences(count: int) -> list[Row]:
    """Sequences of random vectors, with the lengths of short utterances, and a number for each."""
    drawn = np.random.default_rng(0)
    made = []
    for _ in range(count):
        length = int(np.clip(drawn.lognormal(4.3, 0.6), 5, LONGEST - 1))
        values = drawn.standard_normal((length, SIZE), dtype=np.float32)
        made.append((values, float(values[:, 0].mean())))
    return made


def with_targets(given: Sequence[Row]) -> list[VectorRow]:
    """The same sequences, each with its first vectors in reversed order as the target."""
    return [(values, values[:HORIZON][::-1].copy()) for values, _ in given]


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


class PlainTransformerDecoder(nn.Module):
    """PyTorch's own encoder and decoder, with learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(SIZE, DIM)
        self.read = nn.Linear(SIZE, DIM)
        self.positions = nn.Parameter(torch.zeros(LONGEST, DIM))
        self.target_positions = nn.Parameter(torch.zeros(HORIZON, DIM))
        self.transformer = nn.Transformer(
            DIM, HEADS, LAYERS, LAYERS, FFN_DIM, dropout=0.1, batch_first=True
        )
        self.output = nn.Linear(DIM, SIZE)

    def encode(self, values: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        is_padding = torch.arange(values.shape[1]) >= lengths[:, None]
        x = self.project(values) + self.positions[: values.shape[1]]
        memory = self.transformer.encoder(x, src_key_padding_mask=is_padding)
        return memory, is_padding[:, : memory.shape[1]]

    def decode(self, inputs: torch.Tensor, memory: tuple[torch.Tensor, ...]) -> torch.Tensor:
        x = self.read(inputs) + self.target_positions[: inputs.shape[1]]
        causal = nn.Transformer.generate_square_subsequent_mask(inputs.shape[1])
        states = self.transformer.decoder(
            x, memory[0], tgt_mask=causal, memory_key_padding_mask=memory[1], tgt_is_causal=True
        )
        output: torch.Tensor = self.output(states)
        return output

    def generate(self, values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        memory = self.encode(values, lengths)
        read = values.new_zeros(len(values), 1, SIZE)
        for _ in range(HORIZON):
            last = self.decode(read, memory)[:, -1:]
            read = torch.cat((read, last), 1)
        return read[:, 1:]


class PlainLstmDecoder(nn.Module):
    """PyTorch's own LSTM in both directions, and a loop of LSTM cells with additive attention."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(SIZE, DIM)
        self.lstm = nn.LSTM(DIM, DIM // 2, batch_first=True, bidirectional=True)
        self.read = nn.Linear(SIZE, DIM)
        self.cell = nn.LSTMCell(2 * DIM, DIM)
        self.query = nn.Linear(DIM, DIM)
        self.key = nn.Linear(DIM, DIM)
        self.score = nn.Linear(DIM, 1)
        self.output = nn.Linear(2 * DIM, SIZE)

    def encode(self, values: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        packed = pack_padded_sequence(
            self.project(values), lengths, batch_first=True, enforce_sorted=False
        )
        memory, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        is_padding = torch.arange(memory.shape[1]) >= lengths[:, None]
        return memory, is_padding, self.key(memory)

    def step(
        self,
        vector: torch.Tensor,
        state: tuple[torch.Tensor, torch.Tensor],
        memory: tuple[torch.Tensor, ...],
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        states, is_padding, keys = memory
        energies = self.score(torch.tanh(keys + self.query(state[0])[:, None]))[..., 0]
        weights = energies.masked_fill(is_padding, -torch.inf).softmax(-1)
        context = torch.bmm(weights[:, None], states)[:, 0]
        state = self.cell(torch.cat((self.read(vector), context), -1), state)
        return self.output(torch.cat((state[0], context), -1)), state

    def decode(self, inputs: torch.Tensor, memory: tuple[torch.Tensor, ...]) -> torch.Tensor:
        start = inputs.new_zeros(len(inputs), DIM)
        state = (start, start)
        found = []
        for vector in inputs.unbind(1):
            output, state = self.step(vector, state, memory)
            found.append(output)
        return torch.stack(found, 1)

    def generate(self, values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        memory = self.encode(values, lengths)
        start = values.new_zeros(len(values), DIM)
        state = (start, start)
        output = values.new_zeros(len(values), SIZE)
        found = []
        for _ in range(HORIZON):
            output, state = self.step(output, state, memory)
            found.append(output)
        return torch.stack(found, 1)


def decoder_training(
    model: PlainTransformerDecoder | PlainLstmDecoder, given: Sequence[VectorRow]
) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    drawn = np.random.default_rng(1)

    def epoch() -> None:
        model.train()
        order = drawn.permutation(len(given))
        for start in range(0, len(order), BATCH):
            batch = [given[i] for i in order[start : start + BATCH]]
            rows = [torch.from_numpy(target) for _, target in batch]
            targets = pad_sequence(rows, batch_first=True)  # (B, T, D)
            lengths = torch.tensor([len(row) for row in rows])
            inputs = nn.functional.pad(targets[:, :-1], (0, 0, 1, 0))
            outputs = model.decode(inputs, model.encode(*padded(batch)))
            is_there = torch.arange(targets.shape[1]) < lengths[:, None]
            loss = nn.functional.mse_loss(outputs[is_there], targets[is_there])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return epoch


def decoder_prediction(
    model: PlainTransformerDecoder | PlainLstmDecoder, given: Sequence[VectorRow]
) -> Callable[[], None]:
    @torch.inference_mode()
    def predict() -> None:
        model.eval()
        found: list[list[list[float]]] = []
        for start in range(0, len(given), BATCH):
            found += model.generate(*padded(given[start : start + BATCH])).tolist()
        assert len(found) == len(given)

    return predict


def padded(batch: Sequence[Row] | Sequence[VectorRow]) -> tuple[torch.Tensor, torch.Tensor]:
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


def decoder_recipe(encoder: dict[str, Any], decoder: dict[str, Any], budget: int) -> dict[str, Any]:
    table = regard_recipe(encoder, "mean", budget)
    data = {"source": {"kind": "vectors"}, "target": {"kind": "vectors"}}
    return table | {"model": {"encoder": encoder, "decoder": decoder}, "data": data}


def regard_training(
    table: dict[str, Any], given: Sequence[Row] | Sequence[VectorRow], cache: Path
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


def regard_prediction(
    predictor: Any, given: Sequence[Row] | Sequence[VectorRow]
) -> Callable[[], None]:
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
TRANSFORMER_DECODER = TRANSFORMER | {"max_positions": HORIZON}
RNN_DECODER = {"kind": "rnn", "cell": "lstm", "dim": DIM, "attention": "bahdanau"}
CONTESTS = (
    ("Regard Transformer", "nn.TransformerEncoder"),
    ("Regard BiLSTM", "nn.LSTM"),
)
DECODER_CONTESTS = (
    ("Regard Transformer", "nn.Transformer"),
    ("Regard LSTM with attention", "nn.LSTMCell with attention"),
)


def add_encoders(
    training: Runs, prediction: Runs, given: Sequence[Row], budget: int, folder: Path
) -> None:
    """Encoders with a number for each sequence."""
    peers = {"nn.TransformerEncoder": PlainTransformer(), "nn.LSTM": PlainLstm()}
    for name, model in peers.items():
        training[name] = peer_training(model, given)
        prediction[name] = peer_prediction(model, given)
    for name, encoder, pool in (
        ("Regard Transformer", TRANSFORMER, "mean"),
        ("Regard BiLSTM", RNN, "last"),
    ):
        table = regard_recipe(encoder, pool, budget)
        predictor, epoch = regard_training(table, given, folder)
        training[name] = epoch
        prediction[name] = regard_prediction(predictor, given)


def add_decoders(
    training: Runs, prediction: Runs, given: Sequence[VectorRow], budget: int, folder: Path
) -> None:
    """Decoders with a sequence of vectors for each sequence."""
    peers = {
        "nn.Transformer": PlainTransformerDecoder(),
        "nn.LSTMCell with attention": PlainLstmDecoder(),
    }
    for name, model in peers.items():
        training[name] = decoder_training(model, given)
        prediction[name] = decoder_prediction(model, given)
    for name, encoder, decoder in (
        ("Regard Transformer", TRANSFORMER, TRANSFORMER_DECODER),
        ("Regard LSTM with attention", RNN, RNN_DECODER),
    ):
        table = decoder_recipe(encoder, decoder, budget)
        predictor, epoch = regard_training(table, given, folder)
        training[name] = epoch
        prediction[name] = regard_prediction(predictor, given)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sequences", type=int, default=400)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--decoders", action="store_true", help="models that give sequences")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    given = sequences(options.sequences)
    positions = sum(len(values) for values, _ in given)
    training: dict[str, Callable[[], object]] = {}
    prediction: dict[str, Callable[[], object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        # As many vectors in a batch as a peer's has on average.
        budget = BATCH * positions // len(given)
        contests = CONTESTS
        if options.decoders:
            contests = DECODER_CONTESTS
            add_decoders(training, prediction, with_targets(given), budget, Path(folder))
        else:
            add_encoders(training, prediction, given, budget, Path(folder))
        print(f"{platform.processor() or platform.machine()}, {options.threads} threads")
        print(f"{len(given)} sequences, {positions} vectors, processor time")
        for title, runs in (("training", training), ("prediction", prediction)):
            times = seconds(runs, options.rounds, clock=time.process_time)
            for name, base in contests:
                speed = ratio(times, base, name)
                print(f"{title}: {name} has {speed:.2f} × the speed of {base}")


if __name__ == "__main__":
    main()
