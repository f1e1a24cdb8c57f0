"""Models under torch.compile, in one graph, with the same results. In a process without the tests' shape checks."""

import subprocess
import sys

import pytest

PROGRAM = """
import torch, regard
part = {"kind": "transformer", "width": 32, "layers": 1, "heads": 2, "hidden": 32, "dropout": 0.0, "position": POSITION}
model = regard.build({"encoder": part, "decoder": part, "vocabulary": 50}).eval()
source, targets = regard.Tokens.of([[1, 2, 3], [4]]), torch.randint(50, (2, 4))
wanted = model(source, targets)
compiled = torch.compile(model, fullgraph=True)(source, targets)
torch.testing.assert_close(compiled, wanted)
for got, expected in zip(*(torch.autograd.grad(x.square().sum(), list(model.parameters()), allow_unused=True) for x in (compiled, wanted))):
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-3)
with torch.no_grad():
    step = torch.compile(model.decoder.step, fullgraph=True)
    state = model.decoder.start(model.encode(source), batch=2, capacity=8)
    for t in range(4):
        logits, state = step(targets[:, t], state)
        torch.testing.assert_close(logits, wanted[:, t], atol=1e-5, rtol=1e-4)
print("equal")
"""


@pytest.mark.slow
@pytest.mark.parametrize("position", ["sinusoidal", "rotary", "relative"])
def test_transformer_compiles_in_one_graph(position):
    program = PROGRAM.replace("POSITION", repr(position))
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.stdout == "equal\n", result.stderr[-3000:]
