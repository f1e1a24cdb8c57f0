"""Gradient norms through a deep Transformer, layer by layer: at the start, and after some training.

    .venv/bin/python benchmarks/depth.py --layers 24 --steps 200 --device cuda

A language model learns sequences that repeat themselves, which takes attention to tell. For blocks that norm before
each part and after it, the table gives the norm of the loss's gradient at every fourth block's weights, and the loss.
The rate warms up over a quarter of the steps.
"""

import argparse

import torch
from torch.nn import functional as F

import regard

VOCABULARY, LENGTH, BATCH = 32, 24, 16


def batch(generator: torch.Generator) -> torch.Tensor:
    """Sequences that repeat with a period of their own, from 2 to 6."""
    seeds = torch.randint(VOCABULARY, (BATCH, 6), generator=generator)
    period = torch.randint(2, 7, (BATCH, 1), generator=generator)
    return seeds.gather(1, torch.arange(LENGTH + 1) % period)


def norms(model: torch.nn.Module) -> list[float]:
    """Of the gradient at each block's weights, all taken together."""
    return [
        float(torch.cat([p.grad.flatten() for p in block.parameters()]).norm())
        for block in model.decoder.stack.layers
    ]


def train(options: argparse.Namespace, norm_first: bool) -> list[tuple[int, float, list[float]]]:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    dim, steps = options.dim, options.steps
    part = {
        "dim": dim,
        "layers": options.layers,
        "heads": 4,
        "ffn_dim": 4 * dim,
        "norm_first": norm_first,
    }
    model = regard.build({"decoder": {"kind": "transformer", **part}, "vocab_size": VOCABULARY}).to(
        options.device
    )
    optimiser = torch.optim.AdamW(model.parameters(), lr=options.rate, betas=(0.9, 0.98))
    warm = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, (step + 1) / (steps / 4))
    )
    seen = []
    for step in range(steps + 1):
        tokens = batch(generator).to(options.device)
        loss = F.cross_entropy(model(None, tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        if step in (0, steps):
            seen.append((step, float(loss.detach()), norms(model)))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        warm.step()
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rate", type=float, default=1e-3)
    options = parser.parse_args()
    shown = [*range(0, options.layers, 4), options.layers - 1]
    print(
        f"| norm | step | loss | {' | '.join(f'block {i + 1}' for i in shown)} | largest / smallest |"
    )
    print(f"|{'---|' * (len(shown) + 4)}")
    for norm_first in (True, False):
        for step, loss, found in train(options, norm_first):
            row = " | ".join(f"{found[i]:.3f}" for i in shown)
            name = "before" if norm_first else "after"
            print(
                f"| {name} | {step} | {loss:.2f} | {row} | {max(found) / min(found):.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
