"""Options of the training speed records at equal time on a GPU: the validation loss of each beside the baseline's.

    REGARD_DATA=/path/to/data .venv/bin/python benchmarks/training_options.py --seconds 6 --seeds 2

Two language models: characters of tiny Shakespeare with the recipe `language-model`, and words of WikiText-2 with
`word-language-model` without R-Drop, moving average and overlapping evaluation and with dropout 0.2, for a short run;
both in bfloat16 as CUDA graphs. The speed of each variant is measured first; it is then trained alone on the GPU for as
many updates as fit into --seconds, with the cosine schedule ending there and warmup for a twelfth of them.

Variants are AdamW (the recipe) and what differs from it: another learning rate, Muon at several, normalized queries and
keys, and four options that the package does not have, which are patched into the model here: squared ReLU
(https://arxiv.org/abs/2109.08668), output projections that begin as zero, logits capped by 30 · tanh(x / 30), and
values mixed with those of the first block by a learned weight (https://arxiv.org/abs/2410.17897). The cap has no fused
kernel, so it is trained for as many updates as the baseline whatever they take: it can only look better than it is.
"""

import argparse
import gc
import gzip
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import nn

from regard.api.train import epochs, make_model, prepare
from regard.kernels.layers.linear import linear
from regard.model.kv_cache import KeyValue
from regard.model.multihead import MultiHead
from regard.model.transformer_block import TransformerBlock
from regard.recipe.load import read_recipe
from regard.recipe.recipe import Recipe
from regard.recipe.shipped import find_recipe
from regard.tasks.losses import Losses, logit_loss
from regard.training import objective
from regard.training.trainer import Trainer
from regard.training.validation import mean_loss

CAP = 30.0
WARMED, TIMED = 20, 60  # updates before the speed is measured, and those it is measured on
FAST = {
    "precision": "bfloat16",
    "cuda_graphs": True,
    "validate_every": 1 << 30,
    "log_every": 1 << 30,
}
SHORT = {"r_drop": 0.0, "ema_decay": None, "evaluation_overlap": 0}

Patch = Callable[[nn.Module], None]


def squared_relu(model: nn.Module) -> None:
    def squared(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, activation: str | None = None
    ) -> Any:
        out = linear(x, weight, bias, activation)
        return out if activation is None else out.square()

    for block in blocks(model):
        block.ffn.kind, block.ffn.linear = "relu", squared


def zero_outputs(model: nn.Module) -> None:
    for block in blocks(model):
        nn.init.zeros_(block.self_attn.out_proj.weight)
        nn.init.zeros_(block.ffn.down.weight)
        nn.init.zeros_(block.ffn.down.bias)


def value_residuals(model: nn.Module) -> None:
    """Values of later blocks are mixed with those of the first, half and half to begin with."""
    first: list[torch.Tensor] = []
    attentions = [block.self_attn for block in blocks(model)]
    for attention in attentions[1:]:
        attention.value_mix = nn.Parameter(
            torch.full((2,), 0.5, device=attention.q_proj.weight.device)
        )
    for attention in attentions:
        attention._key_value = partial(
            mixed_values, attention, attentions[0], attentions[-1], first
        )


def mixed_values(
    attention: MultiHead, begins: MultiHead, ends: MultiHead, first: list[torch.Tensor], *given: Any
) -> KeyValue:
    memory = MultiHead._key_value(attention, *given)
    if attention is begins:
        first[:] = [memory.value]
        return memory
    own, shared = attention.value_mix.to(memory.value.dtype)
    value = own * memory.value + shared * first[0]
    if attention is ends:
        first.clear()  # or the graph of this update would live on in the recording of the next
    return KeyValue(memory.key, value)


@contextmanager
def capped_logits() -> Iterator[None]:
    plain = objective.token_loss

    def capped(
        states: torch.Tensor, project: Any, labels: torch.Tensor, **settings: float
    ) -> Losses:
        return logit_loss(CAP * torch.tanh(project(states).float() / CAP), labels, **settings)

    objective.token_loss = capped
    try:
        yield
    finally:
        objective.token_loss = plain


def blocks(model: nn.Module) -> list[TransformerBlock]:
    return [module for module in model.modules() if isinstance(module, TransformerBlock)]


@dataclass(frozen=True)
class Variant:
    name: str
    train: dict[str, Any] = field(default_factory=dict)
    rate: float = 1.0  # of the recipe's learning rate
    decoder: dict[str, Any] = field(default_factory=dict)
    patch: Patch | None = None
    capped: bool = False


MUON = {"optimizer": "muon"}
VARIANTS = (
    Variant("AdamW"),
    Variant("Muon", MUON),
    Variant("squared ReLU", patch=squared_relu),
    Variant("zero output projections", patch=zero_outputs),
    Variant("capped logits", capped=True),
    Variant("value residuals", patch=value_residuals),
    Variant("qk_norm", decoder={"qk_norm": True}),
    Variant("AdamW, half the rate", rate=0.5),
    Variant("AdamW, twice the rate", rate=2.0),
    Variant("Muon, half the rate", MUON, rate=0.5),
    Variant("Muon, twice the rate", MUON, rate=2.0),
)


@dataclass
class Trial:
    """A data set, and its recipe in the form in which it is trained here."""

    name: str
    table: dict[str, Any]
    data: Any

    def recipe(self, variant: Variant, seed: int, steps: int) -> Recipe:
        train = {**self.table["train"], **FAST, **variant.train}
        train |= {"learning_rate": train["learning_rate"] * variant.rate, "seed": seed}
        train |= {"max_steps": steps, "max_epochs": None, "warmup_steps": steps // 12}
        model = {
            **self.table["model"],
            "decoder": {**self.table["model"]["decoder"], **variant.decoder},
        }
        return Recipe.of({**self.table, "model": model, "train": train})

    def trainer(self, variant: Variant, seed: int, steps: int) -> Trainer:
        recipe = self.recipe(variant, seed, steps)
        gc.collect()  # the trainer before, with its recording
        model = make_model(recipe, recipe.sized(self.data))
        if variant.patch is not None:
            variant.patch(model)
        texts: dict[str, str] = {}
        batches = epochs(recipe, self.data.train)
        trainer = Trainer(model, batches, texts=texts, run=Path("."), data_key="")
        model.train()
        return trainer

    def speed(self, variant: Variant) -> float:
        """Updates a second."""
        trainer = self.trainer(variant, 0, 1 << 20)
        updates = trainer._groups()
        train(trainer, updates, WARMED)
        return TIMED / train(trainer, updates, TIMED)

    def loss(self, variant: Variant, seed: int, steps: int) -> tuple[float, float]:
        """The validation loss after so many updates, and the seconds that they took."""
        trainer = self.trainer(variant, seed, steps)
        seconds = train(trainer, trainer._groups(), steps)
        trainer.model.eval()
        return mean_loss(
            trainer.model, self.data.valid, budget=trainer.config.batch_tokens
        ), seconds


def train(trainer: Trainer, updates: Iterator[Any], count: int) -> float:
    """Take so many updates: seconds."""
    begin = time.perf_counter()
    for _ in range(count):
        trainer._update(next(updates))
    trainer._settle()  # waits for the last
    return time.perf_counter() - begin


def characters(data: Path, temporary: Path) -> Trial:
    text = gzip.decompress((data / "tinyshakespeare" / "input.txt.gz").read_bytes())
    (temporary / "train.txt").write_bytes(text[:1_003_854])
    (temporary / "valid.txt").write_bytes(text[1_003_854:])
    files = {"data.train": temporary / "train.txt", "data.valid": temporary / "valid.txt"}
    return made("characters", "language-model", files, temporary)


def words(data: Path, temporary: Path) -> Trial:
    folder = data / "wikitext2"
    files = {
        f"data.{split}": folder / f"wiki.{split}.tokens.gz" for split in ("train", "valid", "test")
    }
    trial = made("words", "word-language-model", files, temporary)
    trial.table["train"] |= SHORT
    trial.table["model"]["decoder"] |= {"dropout": 0.2, "ffn_dropout": 0.2}
    return trial


def made(name: str, recipe: str, files: dict[str, Path], temporary: Path) -> Trial:
    read = read_recipe(find_recipe(recipe), [f"{key}={path}" for key, path in files.items()])
    return Trial(name, read.as_dict(), prepare(read, temporary / "cache"))


TRIALS = {"characters": characters, "words": words}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("REGARD_DATA"))
    parser.add_argument("--only", choices=TRIALS)
    parser.add_argument(
        "--variants", type=int, nargs="*", help="numbers of variants, the baseline being 0"
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="of each run's updates")
    parser.add_argument(
        "--seeds", type=int, default=2, help="of each variant; those with another rate have one"
    )
    options = parser.parse_args()
    variants = (
        VARIANTS if options.variants is None else [VARIANTS[i] for i in (0, *options.variants)]
    )
    with tempfile.TemporaryDirectory() as temporary:
        for name, make in TRIALS.items():
            if options.only in (None, name):
                folder = Path(temporary) / name
                folder.mkdir()
                compare(
                    make(Path(options.data), folder), list(variants), options.seconds, options.seeds
                )


def compare(trial: Trial, variants: list[Variant], seconds: float, seeds: int) -> None:
    print(f"\n{trial.name}: {seconds:g} s of updates\n")
    print(
        "| variant | updates/s | updates | seconds | validation loss of each seed | − baseline's, mean |"
    )
    print("|---|---|---|---|---|---|")
    baseline: list[tuple[float, float]] = []
    baseline_steps = 0
    trial.speed(variants[0])  # compiles the kernels
    for variant in variants:
        with capped_logits() if variant.capped else nullcontext():
            speed = trial.speed(variant)
            steps = baseline_steps if variant.capped else max(1, int(speed * seconds))
            runs = [
                trial.loss(variant, 1 + i, steps)
                for i in range(seeds if variant.rate == 1.0 else 1)
            ]
        baseline, baseline_steps = baseline or runs, baseline_steps or steps
        difference = mean(one[0] - other[0] for one, other in zip(runs, baseline, strict=False))
        losses, took = (
            ", ".join(f"{run[i]:.{digits}f}" for run in runs) for i, digits in ((0, 4), (1, 1))
        )
        print(
            f"| {variant.name} | {speed:.1f} | {steps} | {took} | {losses} | {difference:+.4f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
