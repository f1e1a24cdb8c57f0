"""Write docs/api.md: every public name of the package, and the interfaces that parts of one's own implement.

python docs/tools/api_reference.py > docs/api.md
"""

import inspect
from collections.abc import Iterator

import regard

INTRODUCTION = """# Python

Every public name, from its docstring. `import regard` loads nothing heavy: PyTorch is imported when the first name that
needs it is used. This page is generated: `python docs/tools/api_reference.py > docs/api.md`.
"""
GROUPS = {
    "Train and evaluate": [
        "train", "prepare", "sweep", "average", "plot", "plot_forecast", "evaluate", "compare", "demo",
    ],
    "Predict": [
        "load", "Predictor", "predict", "score", "caption", "transcribe", "shortlist", "thresholds", "verify", "sign",
    ],
    "Look inside": [
        "look", "Look", "AttentionMap", "view", "page", "heads", "ablate", "prune", "align", "Alignment",
        "AlignmentHeads", "with_markup",
    ],
    "Serve": ["serve", "studio"],
    "Other libraries": ["from_pretrained", "import_model", "export", "export_obstacles", "convert", "ConvertedRecipe"],
    "Attention": [
        "attend", "self_attend", "attention_weights", "attention_summary", "Summary", "capture_attention",
        "AttentionCall", "MultiHead", "SelfAttention2d", "DistanceBias", "KeyValue", "KeyValueCache",
    ],
    "Scores": [
        "Score", "Dot", "ScaledDot", "Bilinear", "ReducedRank", "Additive", "Uniform", "ProjectedKeys",
        "ScoreFunction", "SCORES",
    ],
    "Positions": [
        "PositionEncoding", "Sinusoidal", "Learned", "Add", "Concatenate", "Rotary", "PositionBias", "Alibi",
        "RelativeBias",
    ],
    "Models": ["build", "Tokens", "Vectors", "Memory"],
    "Word vectors": ["train_word_vectors", "WordVectors", "Word2VecConfig"],
    "Errors": ["RegardError", "InvalidArgument", "InvalidRecipe", "CheckpointRefused", "Diverged", "TrainingFailed"],
}  # fmt: skip
INTERFACES = {
    "regard.model.interfaces": [
        "Encoder",
        "Decoder",
        "DecoderState",
        "StatefulDecoder",
        "CarriedState",
        "Pool",
        "Head",
    ],
    "regard.model.inputs": ["InputModule", "InputVectors"],
    "regard.data.fields.base": ["Field"],
    "regard.tasks.base": ["Task"],
    "regard.tasks.pipeline": ["Pipeline", "DirectPipeline"],
    "regard.generation.choose.interfaces": ["LogitsProcessor", "Hypothesis", "SearchStrategy"],
    "regard.generation.engines.base": ["Engine", "EngineDecoder"],
    "regard.evaluation.metrics": ["Metric"],
    "regard.data.sources": ["DataSource"],
    "regard.model.part_config": ["EncoderConfig", "DecoderConfig", "PoolConfig", "HeadConfig"],
}
REGISTER = [
    "encoder",
    "decoder",
    "pool",
    "head",
    "input_module",
    "field",
    "task",
    "score",
    "position",
    "metric",
    "data_source",
    "logits_processor",
    "loss",
]


def reference() -> str:
    parts = [INTRODUCTION]
    for title, names in GROUPS.items():
        parts.append(f"## {title}\n")
        parts += [_entry(f"regard.{name}", getattr(regard, name)) for name in names]
    parts.append("## Registering parts\n")
    parts.append(_directive("automodule", "regard.register"))
    parts += [_directive("autofunction", f"regard.register.{name}") for name in REGISTER]
    parts.append(
        "## Interfaces\n\nWhat parts of your own implement; [Adding parts](extend.md) has an example of each.\n"
    )
    for module, names in INTERFACES.items():
        parts += [_directive("autoclass", f"{module}.{name}", members=True) for name in names]
    return "\n".join(parts)


def _entry(name: str, value: object) -> str:
    if inspect.isclass(value):
        return _directive("autoclass", name, members=True)
    return _directive("autofunction" if callable(value) else "autodata", name)


def _directive(kind: str, name: str, *, members: bool = False) -> str:
    lines = _options(kind, members)
    return "\n".join(["```{eval-rst}", f".. {kind}:: {name}", *lines, "```", ""])


def _options(kind: str, members: bool) -> Iterator[str]:
    if members:
        yield "   :members:"
    if kind == "autodata":
        yield "   :no-value:"


if __name__ == "__main__":
    print(reference(), end="")
