"""Regard without a server, and the start of one: `python -m peers.in_process RUN SENTENCES OPTIONS DEVICE THREADS`.

Says one line of JSON when the model is in memory and warm, and then one for each question: `predict` (all sentences in
bulk: the seconds they took, and those of the processor) or `stream` (one sentence after another: seconds to the first
piece of each). With `serve PORT` after the arguments it says when the model is in memory, and serves it.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

import regard

STREAMS = 32


def main(run: str, sentences: Path, options: str, device: str, threads: int) -> None:
    answer = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    if device == "cpu":
        torch.set_num_threads(threads)
    texts, settings = sentences.read_text(encoding="utf-8").splitlines(), json.loads(options)
    model = regard.load(run, device=device)
    if len(sys.argv) > 6:
        print(json.dumps({"at": time.monotonic()}), file=answer)
        regard.serve({"model": model}, port=int(sys.argv[7]))
        return
    model.predict(texts[:64], **settings)
    print(json.dumps({"sentences": len(texts)}), file=answer)
    for line in sys.stdin:
        found: dict[str, Any] = {}
        if line.strip() == "predict":
            start, before = time.perf_counter(), time.process_time()
            model.predict(texts, **settings)
            found = {
                "seconds": time.perf_counter() - start,
                "processor": time.process_time() - before,
            }
        elif line.strip() == "stream":
            found = {"seconds": [_first(model, text, settings) for text in texts[:STREAMS]]}
        print(json.dumps(found), file=answer)


def _first(model: regard.Predictor, text: str, settings: dict[str, Any]) -> float:
    start = time.perf_counter()
    pieces = model.stream(text, **{**settings, "beam_size": 1})
    next(pieces, None)
    took = time.perf_counter() - start
    for _ in pieces:
        pass
    return took


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))
