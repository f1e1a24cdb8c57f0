"""Speed on one GPU: Regard against Hugging Face, in tokens a second.

    .venv/bin/python benchmarks/gpu.py --out benchmarks/RESULTS.md
    .venv/bin/python benchmarks/gpu.py --only decoding --rounds 3

Random weights in bfloat16, sources of 18 to 32 tokens. Decoding: an encoder-decoder of 6 + 6 layers, width 512, 8
heads, perceptron 2,048, and outputs of 32 tokens, whatever they are; times are from lists of tokens to lists of tokens.
Training: updates of the same on pairs of 32,768 target tokens, of GPT-2 with 124 M parameters on 64 texts of 1,024
tokens, and of recurrent and convolutional models on these pairs; dropout of 0.1, or none; label smoothing, clipped
gradients, fused AdamW, weights in float32 and products in bfloat16. Ours are the training loop's own updates, packed
where there would be padding, and replayed.

Who takes part is warmed up and then timed in rounds, in turn; figures are of the median round. The floor is what the
card allows: the bytes of the weights that a step reads, or the operations of its products, whichever takes longer at
the bandwidth and the speed that were measured before. Regard's recorded outputs are held equal to its launched ones.

Another part is a function from the card, rounds and the vocabulary to lines, and a line in PARTS.
"""

import argparse
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import cache, partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from torch.nn import functional as F

import gpu_kernels
import regard
from convolutions import DILATIONS, WIDTH, PlainConvolutions
from measure import write_section
from regard.core.sequence import Packed, Tokens, pin_memory
from regard.data.arrays import LabelColumn
from regard.data.batching import Batch, PackedCapacity, pack_batch
from regard.data.corpus import Corpus
from regard.data.special_tokens import END, PAD, START
from regard.decoding import search
from regard.decoding.config import DecodeConfig
from regard.decoding.request import Request, SearchTask
from regard.model.embedding import Embedding
from regard.runtime import engines
from regard.runtime.cuda import buffers, cuda_graphs, encode
from regard.training.config import TrainConfig
from regard.training.epoch_batches import EpochBatches
from regard.training.trainer import Trainer

SIDE = {"kind": "transformer", "dim": 512, "layers": 6, "heads": 8, "ffn_dim": 2048}
NEW = 32  # tokens of an output
BATCHES = 4  # that are trained on in turn
ROOM = 32_768  # target tokens of a batch of pairs, at most
TEXTS = 64  # of 1,024 tokens each in a batch of a language model
WORDS = 50_304  # of its vocabulary
WIDE = 640  # the recurrent states
CELLS = ((1, 1), (1, 64), (1, 512), (5, 64), (5, 512))  # beam and batch
FLOOR = """\
The floor is the weights of every step and of one reading, fetched at the measured bandwidth, or their products at the
measured speed. It leaves out the keys and values of cache and source, the logits, what the host does before the first
step and after the last, and that a kernel takes some 2 to 4 µs to begin and end however little it does. Some fifty of
them follow each other in a step: with few rows that alone is many times the floor, which no search comes near."""

PEERS = """\
Peers are Hugging Face's Marian and GPT-2, and nn.LSTM and nn.Conv1d with looks at the source written out."""

Rows = list[list[int]]
Run = Callable[[], object]


def sources(count: int, vocabulary: int, seed: int = 0) -> Rows:
    generator = torch.Generator().manual_seed(count + seed)
    lengths = torch.randint(18, 33, (count,), generator=generator).tolist()
    return [torch.randint(5, vocabulary, (length,), generator=generator).tolist() for length in lengths]


@cache  # as one who serves has them; a peer's too
def wanted(beam: int) -> DecodeConfig:
    return DecodeConfig(beam_size=beam, max_length=NEW, batch_tokens=1 << 20, precision="bfloat16")


@cache
def peer_wanted(beam: int) -> Any:
    return transformers.GenerationConfig(
        max_new_tokens=NEW, min_new_tokens=NEW, num_beams=beam, do_sample=False, pad_token_id=PAD, eos_token_id=END,
        decoder_start_token_id=START,
    )  # fmt: skip


def translate(model: Any, rows: Rows, beam: int) -> Rows:
    config = wanted(beam)
    task = SearchTask(model, lambda some: Tokens.of(some, device="cuda"), config, ends=False)
    found = dict(search.search(task, [Request(row, len(row)) for row in rows]))
    return [list(found[number][0].tokens) for number in range(len(rows))]


@contextmanager
def patched(owner: Any, **names: Any) -> Iterator[None]:
    old = {name: getattr(owner, name) for name in names}
    for name, value in names.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in old.items():
            setattr(owner, name, value)


def launched(run: Callable[[], Rows]) -> Rows:
    """Without CUDA graphs: each kernel launched by itself."""
    pool = patched(search, buffer_pool=lambda decoder: buffers.BufferPool())
    with patched(encode, _encoders={}), patched(cuda_graphs, WARMUP=1 << 60), pool:
        return run()


def eager(run: Callable[[], Rows]) -> Rows:
    """The PyTorch engine, as for decoders that the CUDA engine does not support."""
    with patched(engines, ENGINES=(engines.PyTorchEngine(),)):
        return launched(run)


def marian(vocabulary: int) -> Any:
    config = transformers.MarianConfig(
        vocab_size=vocabulary, d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8,
        decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048, activation_function="relu",
        max_position_embeddings=512, pad_token_id=PAD, bos_token_id=START, eos_token_id=END,
        decoder_start_token_id=START, forced_eos_token_id=None,
    )  # fmt: skip
    return transformers.MarianMTModel(config).cuda().bfloat16().eval()


def peer_translate(model: Any, rows: Rows, beam: int) -> Rows:
    batch = Tokens.of(rows, device="cuda")
    with torch.inference_mode():
        mask = batch.mask.long()
        out = model.generate(batch.ids, attention_mask=mask, generation_config=peer_wanted(beam))
    return out[:, 1:].tolist()  # type: ignore[no-any-return]


def timed(runs: dict[str, Run], rounds: int) -> dict[str, float]:
    """Seconds of the median round of each."""
    for run in runs.values():
        for _ in range(3):
            run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            torch.cuda.synchronize()
            times[name].append(time.perf_counter() - start)
    return {name: median(each) for name, each in times.items()}


class Card:
    """What the card can do: bytes and operations a second."""

    def __init__(self) -> None:
        x, y = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        large = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        best = timed({"copy": lambda: large.clone(), "product": lambda: x @ y}, 10)
        self.bandwidth, self.speed = 2 * large.numel() / best["copy"], 2 * 8192**3 / best["product"]

    def floor(self, model: Any, batch: int, beam: int) -> float:
        """Seconds for the outputs of a batch: what each step and each token of the source must do."""
        numbers = {True: 0, False: 0}
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                numbers[name.startswith("encoder") or ".cross_attn.k_proj" in name or ".cross_attn.v_proj" in name] += (
                    weight.numel()
                )
        numbers[True] -= model.encoder.embed_tokens.weight.numel()
        numbers[False] += model.decoder.project.weight.numel()  # one matrix, named once
        work = ((1, numbers[True], 25 * batch), (NEW, numbers[False], beam * batch))
        return sum(n * max(2 * size / self.bandwidth, 2 * size * rows / self.speed) for n, size, rows in work)


def decoding(card: Card, rounds: int, vocabulary: int) -> list[str]:
    torch.manual_seed(0)
    ours = (
        regard.build({"encoder": SIDE, "decoder": SIDE, "vocab_size": vocabulary, "tie_embeddings": "all"})
        .cuda()
        .eval()
    )
    theirs = marian(vocabulary)
    size = sum(weight.numel() for weight in ours.parameters()) / 1e6
    lines = [
        f"Decoding: {size:.0f} M parameters, vocabulary {vocabulary:,}, {NEW} new tokens; tokens a second.\n",
        "| beam, batch | Hugging Face | Regard, PyTorch's way | launched | recorded | × the first | floor | × floor |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for beam, batch in CELLS:
        rows = sources(batch, vocabulary)

        def run(rows: Rows = rows, beam: int = beam) -> Rows:
            return translate(ours, rows, beam)

        seconds = timed(
            {
                "theirs": lambda rows=rows, beam=beam: peer_translate(theirs, rows, beam),
                "eager": lambda run=run: eager(run),
                "launched": lambda run=run: launched(run),
                "recorded": run,
            },
            rounds,
        )
        same = run() == launched(run)
        floor = card.floor(ours, batch, beam)
        rate = {name: f"{NEW * batch / each:,.0f}" for name, each in (*seconds.items(), ("floor", floor))}
        lines.append(
            f"| {beam}, {batch} | {rate['theirs']} | {rate['eager']} | {rate['launched']} | **{rate['recorded']}** "
            f"| {seconds['theirs'] / seconds['recorded']:.1f} | {rate['floor']} "
            f"| {seconds['recorded'] / floor:.1f} |{'' if same else ' recorded and launched DIFFER'}"
        )
        print(lines[-1], flush=True)
    return [*lines, "", FLOOR]


@dataclass
class Contest:
    name: str
    theirs: Any  # a peer's model
    ours: Any
    batches: list[Batch]  # padded
    packed: list[Batch] | None = None  # for ours, where it takes them
    compiles: bool = True  # the peer's


def training(card: Card, rounds: int, vocabulary: int, *, profiled: bool = False) -> list[str]:
    lines = [
        "Training: target tokens a second; the floor is six operations a token and a weight that multiplies.\n",
        "| model | peer | compiled | Regard | × the faster | floor | × floor |",
        "|---|---|---|---|---|---|---|",
    ]
    contests = (translators, partial(language_models, 0.1), partial(language_models, 0.0), recurrent, convolutional)
    for make in contests:
        contest = make(vocabulary)
        ours = contest.ours.cuda()
        size = sum(weight.numel() for weight in ours.parameters())
        parts = [module for module in ours.modules() if not isinstance(module, Embedding)]
        multiply = {id(weight): weight.numel() for part in parts for weight in part.parameters(recurse=False)}
        padded = [batch.to("cuda") for batch in contest.batches]
        theirs = contest.theirs.cuda().train()
        runs = {"ours": trained(ours, contest.packed or contest.batches)}
        runs["theirs"] = stepped(theirs, their_loss(theirs), padded)
        if contest.compiles:
            torch._dynamo.reset()  # or it takes the next model's sizes for the last one's, grown
            runs["compiled"] = stepped(theirs, torch.compile(their_loss(theirs), dynamic=False), padded)
            try:
                runs["compiled"]()
            except Exception as error:
                why = str(error).partition(chr(10))[0]
                print(f"{contest.name}: the peer does not compile: {why}", flush=True)
                del runs["compiled"]
        seconds = timed(runs, rounds)
        tokens = sum(batch.tokens for batch in contest.batches)
        rate = {each: tokens / time for each, time in seconds.items()}
        floor, best = card.speed / (6 * sum(multiply.values())), max(rate["theirs"], rate.get("compiled", 0.0))
        compiled = f"{rate['compiled']:,.0f}" if "compiled" in rate else "–"
        lines.append(
            f"| {contest.name}, {size / 1e6:.0f} M | {rate['theirs']:,.0f} | {compiled} | **{rate['ours']:,.0f}** "
            f"| {rate['ours'] / best:.1f} | {floor:,.0f} | {floor / rate['ours']:.1f} |"
        )
        print(lines[-1], flush=True)
        if profiled:
            print(profile(runs["ours"]), flush=True)
    return [*lines, "", PEERS]


def pairs(vocabulary: int) -> list[Batch]:
    """Under a budget of 32,768 target tokens, padded."""
    batches = []
    for seed in range(BATCHES):
        rows = sources(1250, vocabulary, seed)
        said = [[START, *row, END] for row in sources(1250, vocabulary, 100 + seed)]
        tokens = sum(map(len, said)) - len(said)
        assert tokens <= ROOM, tokens
        batches.append(Batch(Tokens.of(rows), Tokens.of(said), tokens, torch.arange(len(rows))))
    return batches


def packed(batches: list[Batch]) -> list[Batch]:
    room = PackedCapacity(
        (ROOM, ROOM), (33, 33), 1408, filled=True
    )  # an eighth more than there are, as `Room.of` has it
    return [pack_batch(each, room) for each in batches]


def translators(vocabulary: int) -> Contest:
    ours = regard.build({"encoder": SIDE, "decoder": SIDE, "vocab_size": vocabulary, "tie_embeddings": "all"})
    batches = pairs(vocabulary)
    return Contest("encoder-decoder", marian(vocabulary).float(), ours, batches, packed(batches))


def language_models(dropout: float, vocabulary: int) -> Contest:
    """Of GPT-2's own vocabulary."""
    shape = {"kind": "transformer", "dim": 768, "layers": 12, "heads": 12, "ffn_dim": 3072, "max_positions": 1024}
    kinds = {"activation": "gelu_tanh", "positions": "learned", "dropout": dropout, "attention_dropout": dropout}
    ours = regard.build({"decoder": shape | kinds, "vocab_size": WORDS})
    config = transformers.GPT2Config(vocab_size=WORDS, embd_pdrop=dropout, attn_pdrop=dropout, resid_pdrop=dropout)
    ids = torch.randint(5, WORDS, (BATCHES, TEXTS, 1025), generator=torch.Generator().manual_seed(0))
    full = torch.full((TEXTS,), 1025)
    batches = [Batch(None, Tokens(each, full), TEXTS * 1024, torch.arange(TEXTS)) for each in ids]
    return Contest(f"GPT-2, dropout {dropout}", transformers.GPT2LMHeadModel(config), ours, batches)  # type: ignore[no-untyped-call]


def recurrent(vocabulary: int) -> Contest:
    """LSTMs whose decoder looks at the source after each step; dropout of 0.1."""
    side = {"kind": "rnn", "cell": "lstm", "dim": WIDE, "layers": 2, "dropout": 0.1}
    looks = side | {"attention": "luong", "score": "bilinear"}
    ours = regard.build({"encoder": side, "decoder": looks, "vocab_size": vocabulary, "tie_embeddings": "target"})
    batches = pairs(vocabulary)
    peer = PlainLstms(vocabulary)
    return Contest("LSTMs with attention", peer, ours, batches, packed(batches), compiles=False)


def convolutional(vocabulary: int) -> Contest:
    """Whose decoder looks at the source after each layer; dropout of 0.1."""
    side = {"kind": "conv", "dim": WIDTH, "dilations": DILATIONS, "dropout": 0.1}
    ours = regard.build({"encoder": side, "decoder": side, "vocab_size": vocabulary, "tie_embeddings": "all"})
    batches = pairs(vocabulary)
    return Contest("convolutions with attention", PlainConvolutions(vocabulary), ours, batches, packed(batches))


class PlainLstms(nn.Module):
    """The same LSTMs as one would write them with PyTorch's, over padding and all."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.words, self.embedding = nn.Embedding(vocabulary, WIDE), nn.Embedding(vocabulary, WIDE)
        options = {"num_layers": 2, "batch_first": True, "dropout": 0.1}
        self.reader = nn.LSTM(WIDE, WIDE // 2, bidirectional=True, **options)
        self.speaker = nn.LSTM(WIDE, WIDE, **options)
        self.key, self.join, self.drop = nn.Linear(WIDE, WIDE), nn.Linear(2 * WIDE, WIDE), nn.Dropout(0.1)
        self.project = nn.Linear(WIDE, vocabulary)
        self.project.weight = self.embedding.weight

    def forward(
        self, ids: torch.Tensor, *, attention_mask: torch.Tensor, decoder_input_ids: torch.Tensor, use_cache: bool
    ) -> SimpleNamespace:
        memory, _ = self.reader(self.drop(self.words(ids)))
        said, _ = self.speaker(self.drop(self.embedding(decoder_input_ids)))
        scores = said @ self.key(memory).mT
        weights = scores.masked_fill(attention_mask[:, None] == 0, -torch.inf).softmax(-1)
        joined = self.join(torch.cat((said, weights.to(memory.dtype) @ memory), -1)).tanh()
        return SimpleNamespace(logits=self.project(self.drop(joined)))


def their_loss(model: Any) -> Callable[[Batch], torch.Tensor]:
    def loss(batch: Batch) -> torch.Tensor:
        assert isinstance(batch.targets, Tokens)
        given, gold = batch.targets.ids[:, :-1], batch.targets.ids[:, 1:].masked_fill(~batch.targets.mask[:, 1:], -100)
        if isinstance(batch.source, Tokens):
            mask = batch.source.mask.long()
            logits = model(batch.source.ids, attention_mask=mask, decoder_input_ids=given, use_cache=False).logits
        else:
            logits = model(given, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), gold.flatten(), label_smoothing=0.1)

    return loss


def stepped(model: Any, loss: Callable[[Batch], torch.Tensor], batches: list[Batch]) -> Run:
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def run() -> None:
        for batch in batches:
            with torch.autocast("cuda", torch.bfloat16):
                found = loss(batch)
            found.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad()

    return run


def trained(model: Any, batches: list[Batch]) -> Run:
    """The training loop's own updates, from batches in the host's memory, pinned as the loop is given them."""
    packed, batches = isinstance(batches[0].targets, Packed), [pin_memory(batch) for batch in batches]
    replay = batches[0].source is None or packed
    config = TrainConfig(
        max_steps=1 << 30, warmup_steps=0, learning_rate=1e-5, precision="bfloat16", cuda_graphs=replay, packed=packed
    )
    unused = Corpus(None, LabelColumn(np.zeros(1, np.uint32)))  # the batches are given
    trainer = Trainer(model, EpochBatches(config, unused), texts={}, run=Path("."), data_key="")
    model.train()

    def run() -> None:
        for batch in batches:
            trainer._update([batch])

    return run


def profile(run: Run) -> str:
    """Where a GPU's time goes in a run."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        run()
        torch.cuda.synchronize()
    return found.key_averages().table(sort_by="cuda_time_total", row_limit=30, max_name_column_width=70)  # type: ignore[no-any-return]


def own_kernels(card: Card, rounds: int, vocabulary: int) -> list[str]:
    lines = []
    for line in gpu_kernels.table(4 * rounds):
        print(line, flush=True)
        lines.append(line)
    return lines


PARTS: dict[str, Callable[[Card, int, int], list[str]]] = {
    "decoding": decoding,
    "training": training,
    "kernels": own_kernels,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=12_000, help="of the encoder-decoder")
    parser.add_argument("--out", type=Path, help="a file to keep the tables in")
    parser.add_argument("--profile", action="store_true", help="also print where the time of our training goes")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this measures a GPU, and there is none.")
    card = Card()
    lines = [
        f"`python benchmarks/gpu.py`, {date.today()}: {torch.cuda.get_device_name()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}, "
        f"Regard {regard.__version__}; copies {card.bandwidth / 1e12:.1f} TB/s, "
        f"products {card.speed / 1e12:.0f} TFLOP/s.\n",
    ]
    print("\n".join(lines), flush=True)
    for name in options.only:
        part = partial(training, profiled=options.profile) if name == "training" else PARTS[name]
        lines += [*part(card, options.rounds, options.vocabulary), ""]
        if options.out:
            write_section(options.out, "Speed on one GPU", "\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
