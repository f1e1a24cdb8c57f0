"""Importing holds the weights once: the peak memory of a process that imports a checkpoint of 256 MB."""

import subprocess
import sys

import pytest

pytest.importorskip("transformers")
MEASURE = """
import resource, sys
import torch, regard
from regard.interop.importing import ImportedModel

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

with torch.device("meta"):  # whose first use imports much
    regard.build({"decoder": {"kind": "transformer", "dim": 16, "heads": 2}, "vocab_size": 10})
verb, source, out = sys.argv[1:]
before = peak()
if verb == "import":
    regard.import_model(source, out)
else:
    regard.from_pretrained(source, device="cpu")
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "bound"), [("import", 0.5), ("from_pretrained", 1.3)])
def test_the_weights_are_held_once(verb, bound, tmp_path):
    import tokenizers
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=8000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=5,
        num_attention_heads=16,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "theirs")
    words = tokenizers.models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2}, unk_token="<unk>")
    tokenizers.Tokenizer(words).save(str(tmp_path / "theirs" / "tokenizer.json"))
    size = (tmp_path / "theirs" / "model.safetensors").stat().st_size / 2**20
    assert size > 256
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, verb, tmp_path / "theirs", tmp_path / "ours"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < bound * size, f"{float(done.stdout):.0f} MB for {size:.0f} MB"
