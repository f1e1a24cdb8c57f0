"""What is too large or too much is refused from the same size on in every version: a change is meant, or an error.

Others of a server are in tests/server/test_limits.py. What happens at a limit is tested where it is used, mostly with a
smaller one.
"""

from importlib import import_module

import pytest

LIMITS = {
    "api.compare": {"LARGEST": 4096},
    "api.convert": {"LARGEST": 1_000_000},
    "api.word_vectors": {"LONGEST_TEXT": 2**30},
    "checkpoint.signature": {"SHORTEST": 32, "LONGEST": 4096},
    "checkpoint.store": {"LARGEST_MANIFEST": 2**24, "FORMAT": 1},
    "core.config": {"MOST_NAMES": 40},
    "data.image_store": {"LARGEST": 2**28},
    "data.images": {"MAX_PIXELS": 2**26, "CELL": 16},
    "data.public_datasets": {"TIMEOUT": 30},
    "data.special_tokens": {"LONGEST": 64},
    "data.text": {"LONGEST_LINE": 2**22, "LARGEST_DOCUMENT": 2**30, "LONGEST_CELL": 2**26},
    "data.tokenizer": {"LARGEST": 10_000_000},
    "decoding.phrase_automaton": {"LONGEST": 256},
    "evaluation.bootstrap": {"RESAMPLES": 1000, "SEED": 1},
    "inference.example_inputs": {"EXAMPLES": 6},
    "inference.ray_data": {"ATTEMPTS": 4},
    "interop.configurations.options": {"DEEPEST": 8, "MOST": 10_000},
    "interop.ctranslate2": {"MIN_POSITIONS": 2048},
    "interop.express": {"POSITIONS_WRITTEN": 1024},
    "interop.huggingface": {"SHARD": 5_000_000_000},
    "interop.onnx.graph": {"OPSET": 18, "LARGEST": 1_900_000_000},
    "interop.page.program": {"LARGEST": 2**31 - 1, "INLINE": 64, "QUANTIZED": 1024, "ALIGNMENT": 16},
    "interop.page.target": {"LARGEST": 50_000_000},
    "interop.sentencepiece": {"LARGEST": 2**28, "MOST": 2_000_000},
    "interop.tensors": {"LARGEST_JSON": 2**26},
    "interop.tokenizer_files": {"LARGEST": 2**28},
    "interpret.look": {"VERSION": 1, "LIMIT": 2_000_000},
    "interpret.maps": {"TOP": 16},
    "training.config": {"DEFAULT_STEPS": 10_000},
    "training.trainer": {"SKIPS": 10},
    "word_vectors.similarity": {"LONGEST": 19},
}
SERVER_LIMITS = {
    "server.forms": {"MOST_FIELDS": 256},
    "server.long_inputs": {"SIDE": 256, "GRID": 1024, "STRIP": 2**26, "MOST_INPUTS": 8, "KEPT": 2, "LONGEST": 2**16},
    "server.processes.remote_engine": {"RETRY_SECONDS": 5},
    "server.routes.libretranslate": {"MOST_FIELDS": 1000, "MOST_ALTERNATIVES": 31},
    "server.routes.openai": {"MOST_CHOICES": 128, "MOST_STOPS": 4},
    "server.routes.studio_data": {"MOST_MODELS": 4, "MOST_ROWS": 200},
    "server.service": {"DEPTH": 32, "BULK_BYTES": 2**22},
    "server.studio_data": {"MOST_EXAMPLES": 10_000, "MEASURED": 128, "ABLATED": 32},
    "server.verified_looks": {"KEPT": 8, "LARGEST": 2**26},
}


@pytest.mark.parametrize("module", LIMITS)
def test_limits_are_those_of_earlier_versions(module):
    pytest.importorskip("ctranslate2" if module.endswith("ctranslate2") else "torch")
    found = import_module(f"regard.{module}")
    assert {name: getattr(found, name) for name in LIMITS[module]} == LIMITS[module]


@pytest.mark.parametrize("module", SERVER_LIMITS)
def test_limits_of_a_server_are_those_of_earlier_versions(module):
    pytest.importorskip("uvicorn", reason="needs the extra `serve`")
    found = import_module(f"regard.{module}")
    assert {name: getattr(found, name) for name in SERVER_LIMITS[module]} == SERVER_LIMITS[module]
