"""Training on a GPU: updates of Regard's training loop against those of a plain loop over a peer's model.

The encoder-decoder of gpu_decoding.py, LSTMs and convolutions with attention train on pairs of 32,768 target tokens
per update, GPT-2 with 124 M parameters on 64 texts of 1,024 tokens. Dropout of 0.1, or none; label smoothing, clipped
gradients, fused AdamW, weights in float32 and products in bfloat16. Regard's batches are packed where there would be
padding, and its updates are CUDA graphs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from torch.nn import functional as F

import regard
from convolutions import DILATIONS, DIM, PlainConvolutions
from gpu_decoding import TRANSFORMER, marian, sources
from gpu_limits import GpuLimits, Run, timed
from regard.core.sequence import Packed, Tokens, pin_memory
from regard.data.batching import Batch, PackedCapacity, pack_batch
from regard.data.columns import LabelColumn
from regard.data.corpus import Corpus
from regard.data.special_tokens import END, START
from regard.model.embedding import Embedding
from regard.training.config import TrainConfig
from regard.training.epoch_batches import EpochBatches
from regard.training.trainer import Trainer

BATCHES = 4  # different ones, trained on in turn
BATCH_TOKENS = 32_768  # target tokens of a batch of pairs, at most
TEXTS = 64  # in a batch of a language model
GPT2_VOCABULARY = 50_304
LSTM_DIM = 640
PEERS = """\
Peers are Hugging Face's Marian and GPT-2, and models of nn.LSTM and nn.Conv1d with attention in PyTorch operations."""


@dataclass
class Comparison:
    name: str
    peer: Any
    model: Any
    batches: list[Batch]  # padded
    packed: list[Batch] | None = None  # for the model, where it takes them
    compiles: bool = True  # whether torch.compile takes the peer


def table(limits: GpuLimits, rounds: int, vocabulary: int, *, profiled: bool = False) -> list[str]:
    lines = [
        "Training: target tokens per second; the floor is six operations per token and weight of a product.\n",
        "| model | peer | peer, compiled | Regard | × the faster peer | floor | floor / Regard |",
        "|---|---|---|---|---|---|---|",
    ]
    models = (encoder_decoder, partial(gpt2, 0.1), partial(gpt2, 0.0), lstms, convolutions)
    for make in models:
        compared = make(vocabulary)
        model = compared.model.cuda()
        size = sum(weight.numel() for weight in model.parameters())
        modules = [module for module in model.modules() if not isinstance(module, Embedding)]
        multiplied = {
            id(weight): weight.numel()
            for each in modules
            for weight in each.parameters(recurse=False)
        }
        padded = [batch.to("cuda") for batch in compared.batches]
        peer = compared.peer.cuda().train()
        runs = {
            "regard": updates(model, compared.packed or compared.batches),
            "peer": plain_updates(peer, peer_loss(peer), padded),
        }
        if compared.compiles:
            torch._dynamo.reset()  # otherwise the sizes of the next model count as other sizes of the one before
            runs["compiled"] = plain_updates(
                peer, torch.compile(peer_loss(peer), dynamic=False), padded
            )
            try:
                runs["compiled"]()
            except Exception as error:
                why = str(error).partition("\n")[0]
                print(f"{compared.name}: the peer does not compile: {why}", flush=True)
                del runs["compiled"]
        seconds = timed(runs, rounds)
        tokens = sum(batch.tokens for batch in compared.batches)
        rate = {name: tokens / each for name, each in seconds.items()}
        floor = limits.speed / (6 * sum(multiplied.values()))
        best = max(rate["peer"], rate.get("compiled", 0.0))
        compiled = f"{rate['compiled']:,.0f}" if "compiled" in rate else "–"
        lines.append(
            f"| {compared.name}, {size / 1e6:.0f} M | {rate['peer']:,.0f} | {compiled} | **{rate['regard']:,.0f}** "
            f"| {rate['regard'] / best:.1f} | {floor:,.0f} | {floor / rate['regard']:.1f} |"
        )
        print(lines[-1], flush=True)
        if profiled:
            print(profile(runs["regard"]), flush=True)
    return [*lines, "", PEERS]


def pairs(vocabulary: int) -> list[Batch]:
    """Padded batches of source and target."""
    batches = []
    for seed in range(BATCHES):
        rows = sources(1250, vocabulary, seed)
        targets = [[START, *row, END] for row in sources(1250, vocabulary, 100 + seed)]
        tokens = sum(map(len, targets)) - len(targets)
        assert tokens <= BATCH_TOKENS, tokens
        batches.append(Batch(Tokens.of(rows), Tokens.of(targets), tokens, torch.arange(len(rows))))
    return batches


def packed(batches: list[Batch]) -> list[Batch]:
    """With room for an eighth more sequences than there are, as the training loop has it."""
    room = PackedCapacity((BATCH_TOKENS, BATCH_TOKENS), (33, 33), 1408, filled=True)
    return [pack_batch(each, room) for each in batches]


def encoder_decoder(vocabulary: int) -> Comparison:
    sizes = {
        "encoder": TRANSFORMER,
        "decoder": TRANSFORMER,
        "vocab_size": vocabulary,
        "tie_embeddings": "all",
    }
    batches = pairs(vocabulary)
    return Comparison(
        "encoder-decoder", marian(vocabulary).float(), regard.build(sizes), batches, packed(batches)
    )


def gpt2(dropout: float, vocabulary: int) -> Comparison:
    """With GPT-2's own vocabulary size."""
    sizes = {
        "kind": "transformer",
        "dim": 768,
        "layers": 12,
        "heads": 12,
        "ffn_dim": 3072,
        "max_positions": 1024,
    }
    options = {
        "activation": "gelu_tanh",
        "positions": "learned",
        "dropout": dropout,
        "attention_dropout": dropout,
    }
    model = regard.build({"decoder": sizes | options, "vocab_size": GPT2_VOCABULARY})
    config = transformers.GPT2Config(
        vocab_size=GPT2_VOCABULARY, embd_pdrop=dropout, attn_pdrop=dropout, resid_pdrop=dropout
    )
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, GPT2_VOCABULARY, (BATCHES, TEXTS, 1025), generator=generator)
    lengths = torch.full((TEXTS,), 1025)
    batches = [
        Batch(None, Tokens(each, lengths), TEXTS * 1024, torch.arange(TEXTS)) for each in ids
    ]
    return Comparison(
        f"GPT-2, dropout {dropout}", transformers.GPT2LMHeadModel(config), model, batches
    )  # type: ignore[no-untyped-call]


def lstms(vocabulary: int) -> Comparison:
    encoder = {"kind": "rnn", "cell": "lstm", "dim": LSTM_DIM, "layers": 2, "dropout": 0.1}
    decoder = encoder | {"attention": "luong", "score": "bilinear"}
    sizes = {
        "encoder": encoder,
        "decoder": decoder,
        "vocab_size": vocabulary,
        "tie_embeddings": "target",
    }
    batches = pairs(vocabulary)
    peer = PlainLstms(vocabulary)
    return Comparison(
        "LSTMs with attention", peer, regard.build(sizes), batches, packed(batches), compiles=False
    )


def convolutions(vocabulary: int) -> Comparison:
    side = {"kind": "conv", "dim": DIM, "dilations": DILATIONS, "dropout": 0.1}
    model = regard.build(
        {"encoder": side, "decoder": side, "vocab_size": vocabulary, "tie_embeddings": "all"}
    )
    batches = pairs(vocabulary)
    return Comparison(
        "convolutions with attention",
        PlainConvolutions(vocabulary),
        model,
        batches,
        packed(batches),
    )


class PlainLstms(nn.Module):
    """The same LSTMs and attention, in PyTorch's modules over padded batches."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.source_embedding = nn.Embedding(vocabulary, LSTM_DIM)
        self.target_embedding = nn.Embedding(vocabulary, LSTM_DIM)
        options = {"num_layers": 2, "batch_first": True, "dropout": 0.1}
        self.encoder = nn.LSTM(LSTM_DIM, LSTM_DIM // 2, bidirectional=True, **options)
        self.decoder = nn.LSTM(LSTM_DIM, LSTM_DIM, **options)
        self.key, self.combine = nn.Linear(LSTM_DIM, LSTM_DIM), nn.Linear(2 * LSTM_DIM, LSTM_DIM)
        self.dropout = nn.Dropout(0.1)
        self.project = nn.Linear(LSTM_DIM, vocabulary)
        self.project.weight = self.target_embedding.weight

    def forward(
        self,
        ids: torch.Tensor,
        *,
        attention_mask: torch.Tensor,
        decoder_input_ids: torch.Tensor,
        use_cache: bool,
    ) -> SimpleNamespace:
        memory, _ = self.encoder(self.dropout(self.source_embedding(ids)))
        states, _ = self.decoder(self.dropout(self.target_embedding(decoder_input_ids)))
        scores = states @ self.key(memory).mT
        weights = scores.masked_fill(attention_mask[:, None] == 0, -torch.inf).softmax(-1)
        context = weights.to(memory.dtype) @ memory
        combined = self.combine(torch.cat((states, context), -1)).tanh()
        return SimpleNamespace(logits=self.project(self.dropout(combined)))


def peer_loss(model: Any) -> Callable[[Batch], torch.Tensor]:
    def loss(batch: Batch) -> torch.Tensor:
        assert isinstance(batch.targets, Tokens)
        inputs = batch.targets.ids[:, :-1]
        labels = batch.targets.ids[:, 1:].masked_fill(~batch.targets.mask[:, 1:], -100)
        if isinstance(batch.source, Tokens):
            mask = batch.source.mask.long()
            logits = model(
                batch.source.ids, attention_mask=mask, decoder_input_ids=inputs, use_cache=False
            ).logits
        else:
            logits = model(inputs, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), label_smoothing=0.1)

    return loss


def plain_updates(model: Any, loss: Callable[[Batch], torch.Tensor], batches: list[Batch]) -> Run:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def run() -> None:
        for batch in batches:
            with torch.autocast("cuda", torch.bfloat16):
                value = loss(batch)
            value.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return run


def updates(model: Any, batches: list[Batch], precision: str = "bfloat16") -> Run:
    """Updates of the training loop, from batches in pinned memory of the host."""
    is_packed, batches = (
        isinstance(batches[0].targets, Packed),
        [pin_memory(batch) for batch in batches],
    )
    config = TrainConfig(
        max_steps=1 << 30, warmup_steps=0, learning_rate=1e-5, precision=precision, packed=is_packed,  # type: ignore[arg-type]
        cuda_graphs=batches[0].source is None or is_packed,
    )  # fmt: skip
    unused = Corpus(None, LabelColumn(np.zeros(1, np.uint32)))  # batches are given
    trainer = Trainer(model, EpochBatches(config, unused), texts={}, run=Path("."), data_key="")
    model.train()

    def run() -> None:
        for batch in batches:
            trainer._update([batch])

    return run


def profile(run: Run) -> str:
    """The time of each kernel in a run."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        run()
        torch.cuda.synchronize()
    return found.key_averages().table(
        sort_by="cuda_time_total", row_limit=30, max_name_column_width=70
    )  # type: ignore[no-any-return]
