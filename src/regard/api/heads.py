"""`regard.heads`: measured properties of every attention head,
over a data set or over given inputs.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from regard.api.ablate import ablate as losses_without_heads
from regard.api.align import head_agreements
from regard.api.look import look, pairs_of
from regard.core.errors import InvalidArgument, RegardError
from regard.data.fields.text import tokenizer_of
from regard.evaluation.alignment_error import Agreement
from regard.inference.load import load
from regard.inference.predictor import Predictor
from regard.interpret.alignment import AlignmentHeads
from regard.interpret.head_properties import HeadMeter, HeadReport
from regard.interpret.summaries import HeadMeans, HeadName

InputPair = tuple[Any, str | None]  # an input, and its output; None: the model's own


def heads(
    model: str | Path | Predictor,
    data: Sequence[str] = (),
    *,
    inputs: Iterable[InputPair | str] | None = None,
    columns: Sequence[str] = (),
    limit: int | None = None,
    alignment: Sequence[str | Path] | None = None,
    ablate: bool = False,
    trust_data_paths: bool = False,
    **options: Any,
) -> HeadReport:
    """Entropy, distance, positional, induction, copying and other scores of every head,
    and which heads are alike.

    data       a split of the model's own data, or files like those it was trained on (`columns` of
               a table)
    inputs     instead of all of the data: texts, or pairs of a text and its output (None: the
               model's own)
    limit      only so many inputs
    alignment  files of sources, targets and reference links: adds each cross-attention head's
               agreement with the links
    trust_data_paths   as of `regard.evaluate`
    ablate     adds the change of the loss on the data without each head, as `regard.ablate`
    options    of `regard.look`

    `regard.interpret.head_properties` defines each property. Weights are exact and streamed: memory
    grows with the length of an input, not with its square.
    """
    predictor = load(model)
    if inputs is None and not data:
        remedy = "data=['test'] is a split of the model's own data."
        raise InvalidArgument("data", wanted="data or inputs", got="neither", remedy=remedy)
    if ablate and not data:
        raise InvalidArgument(
            "ablate", wanted="data to compute a loss on", got="none", remedy="Give data=['test']."
        )
    if inputs is None:
        inputs = pairs_of(predictor.recipe, data, columns, trust_data_paths=trust_data_paths)
    meter = head_meter(predictor)
    for each in islice(inputs, limit):
        text, output = (each, None) if isinstance(each, str) else each
        meter.add(look(predictor, text, output=output, **options))
    if not meter.inputs:
        raise InvalidArgument(
            "data", wanted="at least one input", got="none", remedy="Give another file, or inputs."
        )
    aligned = None
    if alignment is not None:
        aligned = alignment_scores(predictor, alignment)
    ablation = None
    if ablate:
        _, changes = losses_without_heads(
            predictor, data, columns=columns, trust_data_paths=trust_data_paths
        )
        ablation = {(each.site.name, each.head): each.change for each in changes}
    return meter.report(alignment=aligned, ablation=ablation)


def head_meter(predictor: Predictor) -> HeadMeter:
    """A meter for the looks of a model."""
    target = tokenizer_of(predictor.target)
    sources = [tokenizer_of(each) for each in predictor.sources]
    shared = target is not None and all(
        each is not None and each.hash == target.hash for each in sources
    )
    return HeadMeter(shared_vocabulary=shared)


def alignment_scores(predictor: Predictor, files: Sequence[str | Path]) -> dict[HeadName, float]:
    """1 − the alignment error rate of each cross-attention head, at its better step."""
    if len(files) != 3:
        wanted = "files of sources, targets and reference links"
        remedy = "Give these three."
        raise InvalidArgument("alignment", wanted=wanted, got=f"{len(files)} files", remedy=remedy)
    return best_agreements(head_agreements(predictor, files))


def best_agreements(agreements: Mapping[AlignmentHeads, Agreement]) -> dict[HeadName, float]:
    """1 − the error rate of each single head, at its better step;
    of those with a link that is sure to be right.
    """
    scores: dict[HeadName, float] = {}
    for chosen, agreement in agreements.items():
        if chosen.layer is not None and chosen.head is not None and agreement.sure:
            name = f"decoder {chosen.layer} cross", chosen.head
            scores[name] = max(scores.get(name, 0.0), 1 - agreement.error_rate)
    return scores


def head_means(predictor: Predictor, pairs: Iterable[InputPair]) -> list[dict[str, Any]]:
    """The means of each head over a few inputs, for the log of a run;
    none of a model that cannot be looked at.
    """
    means = HeadMeans()
    if not predictor.model.inspectable:
        return []
    with suppress(RegardError):  # an input that the model refuses: training goes on
        for text, output in pairs:
            means.add(
                (each.name, head)
                for each, head in look(predictor, text, output=output, truncate=True).heads()
            )
    return [{"map": name, **head.as_dict()} for (name, _), head in means.means().items()]
