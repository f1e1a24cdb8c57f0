"""What a head is worth: how much worse predictions are without it; and a model without those that are worth little."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from regard.api.look import data_of
from regard.checkpoint import store
from regard.core.atomic_io import cache_folder
from regard.core.errors import InvalidArgument
from regard.core.shapes import Tensor
from regard.data.corpus import Corpus, prepare
from regard.evaluation.validation import mean_loss
from regard.inference.load import load
from regard.inference.predictor import Predictor
from regard.interpret.sites import AttentionSite, places
from regard.kernels.attention.spec import AttentionSpec
from regard.model.capture import Interceptor, intercepting
from regard.model.eval_mode import evaluating
from regard.model.multihead import MultiHead


@dataclass(frozen=True)
class AblatedHead:
    """A head that gave nothing."""

    place: AttentionSite
    head: int
    loss: float  # the mean of a prediction then, in nats
    change: float  # over that with all heads: what it is worth


def ablate(
    model: Predictor,
    data: Sequence[str],
    *,
    cache: Path | None = None,
    tell: Callable[[str], object] = lambda line: None,
) -> tuple[float, list[AblatedHead]]:
    """The loss on data, and what it becomes when each head in turn gives nothing; no weight is changed.

    `data` names a split of the model's own data, or files like those that it was trained on.
    """
    recipe, inner = model.recipe, model.model
    config, split = data_of(recipe, data)
    prepared = prepare(config, cache or cache_folder(), vocabularies=(model.source, model.target))
    corpus: Corpus = getattr(prepared, split)

    def loss() -> float:
        return mean_loss(inner, corpus, budget=recipe.train.batch_tokens, masked=recipe.train.mask_probability)

    found = []
    with evaluating(inner):
        whole = loss()
        for module, place in places(inner).items():
            for head in range(module.heads if isinstance(module, MultiHead) else 1):
                with intercepting(silence({(module, head)})):
                    without = loss()
                found.append(AblatedHead(place, head, without, without - whole))
                tell(f"{place.name}, head {head}: {found[-1].change:+.4f}")
    return whole, found


def silence(heads: set[tuple[nn.Module, int]]) -> Interceptor:
    """For `changing`: these heads give zeros."""

    def silent(module: nn.Module | None, spec: AttentionSpec, value: Tensor, out: Tensor) -> Tensor:
        quiet = [head for other, head in heads if other is module]
        if quiet:
            out = out.clone()
            out[:, quiet] = 0.0
        return out

    return silent


def prune(model: str | Path | Predictor, heads: Iterable[tuple[str, int]], out: str | Path) -> Predictor:
    """A checkpoint in a new folder whose model goes without these heads, each a map's name and a number.

    The columns of the output projection that read a head are set to zero; the shapes stay, so that it loads, predicts
    and trains on like any other. What training needs to go on where it stood is left out.
    """
    model = model if isinstance(model, Predictor) else load(model)
    if model.folder is None:
        raise InvalidArgument("model", wanted="one from a checkpoint", got="one without", remedy="Use regard.load.")
    out, wanted = Path(out), list(heads)
    if out.exists():
        raise InvalidArgument("out", wanted="a folder that is not there yet", got=str(out), remedy="Choose another.")
    content = store.read(model.folder)
    weights = store.tensors(content, "model.safetensors", model.folder)
    for name, module, head in _named(model.model, wanted):
        width = module.head_dim
        weights[f"{name}.out_proj.weight"][:, head * width : (head + 1) * width] = 0.0
    config = store.document(content, "config.json", model.folder)
    config["pruned"] = [*config.get("pruned", []), *wanted]
    left = ("model.safetensors", "config.json", "training.json", "training.safetensors")
    texts = {name: text.decode() for name, text in content.items() if name not in left}
    texts["config.json"] = store.as_json(config)
    store.write(out, texts, {"model.safetensors": weights})
    return load(out, device=str(next(model.model.parameters()).device))


def _named(model: nn.Module, heads: Sequence[tuple[str, int]]) -> list[tuple[str, MultiHead, int]]:
    """The modules whose heads these are, by the names of their weights."""
    there: dict[str, tuple[str, Any]] = {}
    paths = {module: path for path, module in model.named_modules()}
    for module, place in places(model).items():
        if isinstance(module, MultiHead):  # a recurrent decoder's only look cannot be cut out of its weights
            there[place.name] = paths[module], module
    found = []
    for name, head in heads:
        if name not in there or not 0 <= head < there[name][1].heads:
            told = ", ".join(f"{place} (heads 0 to {module.heads - 1})" for place, (_, module) in there.items())
            raise InvalidArgument(
                "heads", wanted=told or "none: this model has no heads", got=f"{name!r}, {head}", remedy="Name these."
            )
        found.append((*there[name], head))
    return found
