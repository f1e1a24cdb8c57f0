"""Models under torch.compile, with the same results: Transformers in one graph, the others in as many as they take.

Each in a process of its own, without the tests' shape checks.
"""

import subprocess
import sys

import pytest

PROGRAM = """
import torch, regard
table, whole = TABLE
reads = table.get("encoder", {}).get("kind")
model = regard.build(table).eval()
tokens, images = regard.Tokens.of([[1, 2, 3], [4]]), torch.randn(2, 3, 16, 16)
source = {"vit": images, "cnn+transformer": images, "label": torch.tensor([1, 2]), None: None}.get(reads, tokens)
targets = torch.randint(50, (2, 4))
given = (source, targets) if "decoder" in table else (source,)
wanted = model(*given)
compiled = torch.compile(model, fullgraph=whole)(*given)
torch.testing.assert_close(compiled, wanted, atol=1e-5, rtol=1e-4)
for got, expected in zip(*(torch.autograd.grad(x.square().sum(), list(model.parameters()), allow_unused=True) for x in (compiled, wanted))):
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-3)
if "decoder" in table:
    with torch.no_grad():
        step = torch.compile(model.decoder.step, fullgraph=whole)
        state = model.decoder.start(model.encode(source), batch=2, capacity=8)
        for t in range(4):
            logits, state = step(targets[:, t], state)
            torch.testing.assert_close(logits, wanted[:, t], atol=1e-5, rtol=1e-4)
print("equal")
"""

TRANSFORMER = {
    "kind": "transformer",
    "dim": 32,
    "layers": 1,
    "heads": 2,
    "ffn_dim": 32,
    "dropout": 0.0,
}
RNN = {"kind": "rnn", "dim": 32, "dropout": 0.0}
CONV = {"kind": "conv", "dim": 32, "dilations": [1, 2], "dropout": 0.0}
BARE = {key: value for key, value in TRANSFORMER.items() if key != "kind"}
MODELS = {  # a table, and whether it must be one graph
    **{
        f"transformer {position}": (
            {key: TRANSFORMER | {"positions": position} for key in ("encoder", "decoder")} | {"vocab_size": 50},
            True,
        )
        for position in ("sinusoidal", "rotary", "relative")
    },
    "rnn, looking before": ({"encoder": RNN, "decoder": RNN | {"attention": "bahdanau"}, "vocab_size": 50}, False),
    "rnn, looking after": ({"encoder": RNN, "decoder": RNN | {"attention": "luong"}, "vocab_size": 50}, False),
    "conv": ({"encoder": CONV, "decoder": CONV, "vocab_size": 50}, False),
    "pixels to tokens": (
        {"encoder": {"kind": "cnn+transformer", "channels": [4, 8], "transformer": BARE}, "decoder": CONV, "vocab_size": 50},
        False,
    ),
    "vit": ({"encoder": {"kind": "vit", "patch_size": 4, "transformer": BARE}, "pool": {"kind": "attention"}, "num_labels": 3}, False),
    "label to tokens": ({"encoder": {"kind": "label", "dim": 32}, "decoder": RNN | {"attention": "none"}, "vocab_size": 50}, False),
    "bag to label": ({"encoder": {"kind": "bag", "dim": 32}, "pool": {"kind": "mean"}, "num_labels": 3, "source_vocab_size": 50}, False),
    "mlp to label": ({"encoder": {"kind": "mlp", "dim": 32}, "pool": {"kind": "mean"}, "num_labels": 3, "source_vocab_size": 50}, False),
    "perceiver": ({"encoder": {"kind": "perceiver", "dim": 32, "queries": 3, "layers": 1}, "decoder": CONV, "vocab_size": 50}, False),
    "hidden tokens": ({"encoder": TRANSFORMER | {"cls_token": True}, "head": "mlm", "vocab_size": 50}, False),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_compiled_equals_eager(name):
    program = PROGRAM.replace("TABLE", repr(MODELS[name]))
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert result.stdout == "equal\n", result.stderr[-3000:]


HEARD = """
import sys, torch, regard
first = FIRST
assert "torch._dynamo" not in sys.modules  # which takes as long to import as PyTorch itself
layer, x = regard.MultiHead(16, heads=2).eval(), torch.randn(2, 5, 16)
wanted, heard = layer(x, causal=True), []
if first:
    compiled = torch.compile(layer, backend="eager")
with regard.capture_attention(heard.append):
    if not first:
        compiled = torch.compile(layer, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(x, causal=True), wanted)
assert len(heard) == 2, len(heard)
with regard.capture_attention(heard.append):
    layer(x, causal=True)
torch.testing.assert_close(heard[1].weights(), heard[2].weights())
compiled(x, causal=True)
assert len(heard) == 3, len(heard)
print("heard")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", [True, False], ids=["compiled, then heard", "heard, then compiled"]
)
def test_a_compiled_layer_is_captured(first):
    program = HEARD.replace("FIRST", repr(first))
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert result.stdout == "heard\n", result.stderr[-3000:]
