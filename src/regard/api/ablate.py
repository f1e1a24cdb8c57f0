"""`regard.ablate`: the loss without each attention head; `regard.prune`:
a checkpoint without some of them.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from regard.api.look import data_of
from regard.checkpoint import store
from regard.checkpoint.format import CONFIG, TRAINING_STATE, TRAINING_TENSORS, WEIGHTS
from regard.core.atomic_io import cache_folder
from regard.core.errors import InvalidArgument
from regard.data.corpus import Corpus, prepare
from regard.inference.load import load
from regard.inference.predictor import Predictor
from regard.interpret.ablation import AblatedHead, ablate_heads, prune_heads
from regard.training.validation import mean_loss


def ablate(
    model: str | Path | Predictor,
    data: Sequence[str],
    *,
    columns: Sequence[str] = (),
    cache: Path | None = None,
    trust_data_paths: bool = False,
) -> tuple[float, list[AblatedHead]]:
    """The loss on data, and the loss with each head's output set to zero in turn;
    no weight changes.

    model     a run, a checkpoint, or a loaded model
    data      a split of the model's own data ("valid"), or files like those it was trained on
    columns   of a file that is a table; default: the recipe's
    cache     the folder of prepared data; default: $REGARD_CACHE, or ~/.cache/regard
    trust_data_paths   as of `regard.evaluate`
    """
    model = load(model)
    recipe = model.recipe
    config, split = data_of(recipe, data, columns, trust_data_paths=trust_data_paths)
    prepared = prepare(
        config, cache or cache_folder(), vocabularies=(model.sources, model.target), splits=[split]
    )
    corpus: Corpus = getattr(prepared, split)
    budget = recipe.train.batch_tokens
    masked = recipe.train.mask_probability
    loss = partial(
        mean_loss,
        model.model,
        corpus,
        budget=budget,
        masked=masked,
        output_loss=recipe.train.loss,
    )
    return ablate_heads(model.model, loss)


def prune(
    model: str | Path | Predictor, heads: Iterable[tuple[str, int]], out: str | Path
) -> Predictor:
    """Write a checkpoint without these heads to a new folder, and load it.

    model   a run, a checkpoint, or a loaded model
    heads   pairs of the name of a map and the number of a head, from 0: [("decoder 1 cross", 2)]
    out     the folder of the new checkpoint

    The columns of the output projection that read a head are set to zero. Shapes stay, so that the
    checkpoint loads, predicts and trains like any other. The state of training is left out.
    """
    model = load(model)
    if model.folder is None:
        raise InvalidArgument(
            "model", wanted="one from a checkpoint", got="one without", remedy="Use regard.load."
        )
    out = Path(out)
    pruned = list(heads)
    if out.exists():
        raise InvalidArgument(
            "out", wanted="a folder that is not there yet", got=str(out), remedy="Choose another."
        )
    content = store.read(model.folder)
    weights = store.tensors(content, WEIGHTS, model.folder)
    prune_heads(model.model, weights, pruned)
    config = store.document(content, CONFIG, model.folder)
    config["pruned"] = [*config.get("pruned", []), *pruned]
    left_out = (WEIGHTS, CONFIG, TRAINING_STATE, TRAINING_TENSORS)
    texts = {name: text.decode() for name, text in content.items() if name not in left_out}
    texts[CONFIG] = store.as_json(config)
    store.write(out, texts, {WEIGHTS: weights})
    return load(out, device=str(next(model.model.parameters()).device))
