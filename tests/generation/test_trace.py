"""The trace of a beam search: its tree holds the outputs of the search, and recording it changes nothing."""

import pytest

from regard.core.errors import InvalidArgument
from regard.generation.choose.trace import ROOT, BeamTrace
from support.predictors import language_model, translator

TEXT = "the red dog sat"


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 4, "num_hypotheses": 4},
        {"beam_size": 3, "num_hypotheses": 2, "length_penalty": 0.0},
        {"beam_size": 4, "num_hypotheses": 4, "beam_groups": 2, "diversity_penalty": 0.5},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "model", [translator(), translator(decoder="rnn")], ids=["transformer", "rnn"]
)
def test_the_best_ended_nodes_are_the_outputs(model, options):
    trace = BeamTrace()
    outputs = model.outputs([TEXT], trace=trace, **options)[0]
    assert outputs == model.outputs([TEXT], **options)[0]
    best = trace.ended() if options.get("beam_groups", 1) == 1 else None
    ends = {tuple(trace.nodes[i].token for i in trace.path(end)): end for end in trace.ended()}
    for rank, output in enumerate(outputs):
        end = ends[output.token_ids]
        path = [trace.nodes[i] for i in trace.path(end)]
        assert [node.log_probability for node in path] == pytest.approx(
            list(output.log_probabilities), abs=1e-5
        )
        assert trace.nodes[end].score == pytest.approx(output.score, abs=1e-5)
        assert trace.nodes[end].total == pytest.approx(output.log_probability, abs=1e-4)
        if best is not None:
            assert trace.nodes[best[rank]].score == pytest.approx(output.score, abs=1e-5)


def test_every_node_hangs_on_one_that_was_kept():
    trace = BeamTrace()
    translator().outputs([TEXT], trace=trace, beam_size=3)
    depth: dict[int, int] = {ROOT: 0}
    kept: dict[int, int] = {}
    for i, node in enumerate(trace.nodes):
        assert node.parent < i
        assert node.parent == ROOT or (
            trace.nodes[node.parent].kept and trace.nodes[node.parent].score is None
        )
        depth[i] = depth[node.parent] + 1
        kept[depth[i]] = kept.get(depth[i], 0) + node.kept
    assert set(kept.values()) <= {0, 3}
    assert kept[1] == 3


def test_edits_and_prompts_are_traced():
    edits = [{"edit": "replace_token", "side": "output", "position": 1, "token": 9}]
    trace = BeamTrace()
    ((output, *_),) = translator().outputs([TEXT], trace=trace, edits=edits, beam_size=2)
    assert output.token_ids[1] == 9
    assert {trace.nodes[i].token for i in range(len(trace.nodes)) if len(trace.path(i)) == 2} == {9}
    trace, model = BeamTrace(), language_model()
    ((output, *_),) = model.outputs(["the cat"], trace=trace, beam_size=2)
    path = [trace.nodes[i].token for i in trace.path(trace.ended()[0])]
    assert path == [*model.target.encode("the cat"), *output.token_ids]


@pytest.mark.parametrize(("texts", "beam"), [([TEXT, TEXT], 2), ([TEXT], 1)])
def test_only_one_beam_search_is_traced(texts, beam):
    with pytest.raises(InvalidArgument, match="trace: wanted one text and a beam search"):
        translator().outputs(texts, trace=BeamTrace(), beam_size=beam)
