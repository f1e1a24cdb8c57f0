"""Gensim's word2vec, in its own process and environment: a JSON line of settings in, vectors to a file, times out."""

import json
import sys
import time
from typing import Any

from gensim.models import Word2Vec


def learn(corpus: str, vectors: str, **settings: Any) -> dict[str, float]:
    with open(corpus, encoding="utf-8") as file:
        sentences = [line.split() for line in file]
    clock, busy = time.perf_counter(), time.process_time()
    model = Word2Vec(sentences, **settings)
    times = {"clock": time.perf_counter() - clock, "busy": time.process_time() - busy}
    model.wv.save_word2vec_format(vectors)
    return times


if __name__ == "__main__":
    print(json.dumps(learn(**json.loads(sys.argv[1]))))
