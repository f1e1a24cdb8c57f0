"""CTranslate2 behind HTTP as it is often written: `python -m peers.naive_server FOLDER PORT WAY THREADS RATIO`.

One thread translates, one request after another: WAY `sentence` calls the library for each sentence, WAY `request` for
each request, whose sentences are a batch (as LibreTranslate does). No bound on the queue, no cancellation. RATIO is the
length of an output as a multiple of its source's tokens, 0 for outputs that end by themselves.
"""

import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ctranslate2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from tokenizers import Tokenizer

LONGEST = 256


class Translator:
    def __init__(self, folder: Path, threads: int, ratio: float) -> None:
        self.inner = ctranslate2.Translator(
            str(folder), "cpu", inter_threads=1, intra_threads=threads, compute_type="float32"
        )
        self.source = Tokenizer.from_file(str(folder / "source_tokenizer.json"))
        self.target = Tokenizer.from_file(str(folder / "target_tokenizer.json"))
        self.ratio = ratio

    def __call__(self, texts: list[str], beam: int) -> list[str]:
        tokens = [each.tokens for each in self.source.encode_batch(texts, add_special_tokens=False)]
        longest = int(self.ratio * max(len(each) + 1 for each in tokens)) if self.ratio else LONGEST
        results = self.inner.translate_batch(
            tokens, beam_size=beam, max_decoding_length=longest, min_decoding_length=0
        )
        return [
            self.target.decode([self.target.token_to_id(t) for t in each.hypotheses[0]])
            for each in results
        ]


def main(folder: Path, port: int, way: str, threads: int, ratio: float) -> None:
    translate, thread = Translator(folder, threads, ratio), ThreadPoolExecutor(1)

    def answer(texts: list[str], beam: int) -> list[str]:
        if way == "request":
            return translate(texts, beam)
        return [translate([text], beam)[0] for text in texts]

    async def predict(request: Request) -> JSONResponse:
        asked: dict[str, Any] = json.loads(await request.body())
        texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
        loop = asyncio.get_running_loop()
        outputs = await loop.run_in_executor(thread, answer, texts, asked.get("beam_size", 1))
        return JSONResponse({"results": [{"outputs": [{"text": text}]} for text in outputs]})

    async def ready(request: Request) -> JSONResponse:
        return JSONResponse({})

    answer(["a"], 1)
    app = Starlette(
        routes=[Route("/predict", predict, methods=["POST"]), Route("/health/ready", ready)]
    )
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    folder, port, way, threads, ratio = sys.argv[1:]
    main(Path(folder), int(port), way, int(threads), float(ratio))
