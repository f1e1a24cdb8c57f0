"""One contestant in a process of its own: `python -m peers.worker NAME CORPUS.npz KIND THREADS`.

Says what it is in one line of JSON when it is warm; then, for each number that comes in, takes one training step on
that batch and says how long it took, and how long the processors were busy with it. Between numbers it waits for input
and costs nothing.
"""

import json
import os
import sys
import time
import warnings
from pathlib import Path

import torch
from torch.nn import functional as F

from peers.batches import PAD, SMOOTHING, VOCABULARY, Batch, batches
from peers.builders import BUILDERS

WARM = 3


def main(name: str, file: Path, kind: str, threads: int) -> None:
    answer = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints must not be taken for an answer
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, forward = BUILDERS[name]()
    model.train()
    parameters = list(model.parameters())
    optimiser = torch.optim.AdamW(parameters, lr=1e-4, fused=True)

    def step(batch: Batch) -> dict[str, float]:
        start, busy = time.perf_counter(), time.process_time()
        optimiser.zero_grad()
        loss = forward(batch)
        if loss.dim():  # logits of every position
            wanted = batch.wanted.reshape(-1)
            loss = F.cross_entropy(
                loss.reshape(-1, VOCABULARY), wanted, ignore_index=PAD, label_smoothing=SMOOTHING
            )
        loss.backward()
        optimiser.step()
        return {
            "seconds": time.perf_counter() - start,
            "busy": time.process_time() - busy,
            "loss": float(loss),
        }

    data = batches(file, kind)
    first = step(data[-1])["loss"]
    untouched = [key for key, p in model.named_parameters() if p.grad is None]
    for batch in data[-WARM:-1]:
        step(batch)
    about = {
        "parameters": sum(p.numel() for p in parameters),
        "loss": first,
        "untouched": untouched,
    }
    print(json.dumps(about), file=answer)
    for line in sys.stdin:
        print(json.dumps(step(data[int(line) % len(data)])), file=answer)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
