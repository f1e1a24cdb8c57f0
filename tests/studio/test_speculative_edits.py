"""Looks under edits from a draft are those of a search, and are given only where they are."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch

pytest.importorskip("msgspec", reason="needs the extra `serve`")

import regard
from regard.core.errors import InvalidArgument
from regard.studio import speculative_edits
from regard.studio.jobs import LiveLook
from support import page_members
from support.captioners import question_answerer
from support.predictors import translator

DATES = [each.source for each in page_members.DATES[:6]]
EDITS = {
    "nothing changes": [{"edit": "scale_head", "map": "decoder 1 cross", "head": 0, "factor": 1.0}],
    "a head is off": [{"edit": "switch_head_off", "map": "decoder 1 cross", "head": 1}],
    "a source token is masked": [{"edit": "mask_source", "token": 2}],
    "a source token is replaced": [{"edit": "replace_token", "position": 0, "token": "9"}],
    "an output token is forced": [
        {"edit": "replace_token", "position": 3, "token": "7", "side": "output"}
    ],
}


def plant(model, text, ids, *, changes: bool = False) -> None:
    """Another draft for an input, and whether edits have changed its output before."""
    drafts = speculative_edits._drafts.of(model)
    drafts.keep(text, drafts.get(text)._replace(ids=tuple(ids), changes=changes))


@pytest.fixture(scope="module")
def trained():
    return regard.load(page_members.SHIPPED, device="cpu")


@pytest.mark.parametrize("name", EDITS)
def test_a_verified_look_is_that_of_a_search(trained, name):
    edits, verified = EDITS[name], 0
    for text in DATES:
        plain = LiveLook(text, options={"beam_size": 1}).look(trained)
        found = speculative_edits.verified_look(trained, text, edits, {"beam_size": 1})
        wanted = regard.look(trained, text, edits=edits, beam_size=1)
        if found is not None:
            verified += 1
            assert found.output.tokens == wanted.output.tokens
            assert found.output.scores == pytest.approx(wanted.output.scores, abs=1e-4)
            assert json.loads(found.to_json())["maps"] == json.loads(wanted.to_json())["maps"]
        if name == "nothing changes":
            assert found.output == plain.output
        assert (
            LiveLook(text, tuple(edits), options={"beam_size": 1}).look(trained).output.text
            == wanted.output.text
        )
    assert verified >= 3


def test_an_input_of_an_image_and_a_text_is_looked_at_with_edits():
    """No draft of it is kept: an image is no key."""
    model = question_answerer()
    pixels = np.random.default_rng(0).integers(0, 256, (40, 48, 3), dtype=np.uint8)
    edits = ({"edit": "switch_head_off", "map": "decoder 1 cross", "head": 0},)
    for given in ((), edits):
        seen = LiveLook((pixels, "the cat"), given, options={"beam_size": 1}).look(model)
        wanted = regard.look(model, (pixels, "the cat"), edits=given, beam_size=1)
        assert seen.output == wanted.output


def test_only_greedy_search_without_constraints_is_verified(trained):
    text, edits = DATES[0], EDITS["nothing changes"]
    assert (
        speculative_edits.verified_look(trained, "another", edits, {"beam_size": 1}) is None
    )  # no draft
    LiveLook(text, options={"beam_size": 1}).look(trained)
    assert speculative_edits.verified_look(trained, text, edits, {"beam_size": 1}) is not None
    for options in (
        {"beam_size": 2}, {"sample": True}, {"min_length": 3}, {"repetition_penalty": 1.5}
    ):  # fmt: skip
        assert speculative_edits.verified_look(trained, text, edits, options) is None


def test_an_output_that_was_not_complete_is_no_draft(trained):
    """A stream that is given up leaves the beginning of an output."""
    text = DATES[1]
    ids = trained.outputs([text], beam_size=1)[0][0].token_ids
    LiveLook(text, output=ids[:4]).look(trained)
    assert (
        speculative_edits.verified_look(trained, text, EDITS["nothing changes"], {"beam_size": 1})
        is None
    )


def test_drafts_are_kept_for_few_inputs_and_are_corrected():
    model = translator().with_decode(max_length=8, beam_size=1)
    for number in range(20):
        LiveLook(f"the cat {number}").look(model)
    kept = [speculative_edits._drafts.of(model).get(f"the cat {number}") for number in range(20)]
    assert [draft is not None for draft in kept] == [False] * 12 + [True] * 8
    assert [draft.look is not None for draft in kept[12:]] == [False] * 7 + [True]
    look = LiveLook("a dog").look(model)
    own = look.forward.labels.tolist()
    wrong = (own[0], (own[1] + 1) % model.target.size, *own[2:])
    plant(model, "a dog", wrong)
    with torch.inference_mode():
        found = speculative_edits.verified_look(model, "a dog", EDITS["nothing changes"], {})
    assert found.output.tokens == look.output.tokens


def test_outputs_without_repeated_runs_are_verified(trained):
    """Most recipes of translation exclude repeated n-grams."""
    text, options, repeating = DATES[0], {"beam_size": 1, "no_repeat_ngram_size": 5}, translator()
    LiveLook(text, options=options).look(trained)
    for edits in EDITS.values():
        found = speculative_edits.verified_look(trained, text, edits, options)
        wanted = regard.look(trained, text, edits=edits, **options)
        assert found is None or found.output.tokens == wanted.output.tokens
    assert (
        speculative_edits.verified_look(trained, text, EDITS["nothing changes"], options)
        is not None
    )
    options = {"beam_size": 1, "no_repeat_ngram_size": 2, "max_length": 12}
    plain = LiveLook("a dog", options=options).look(repeating)
    looping = regard.look(repeating, "a dog", beam_size=1, max_length=12).output.tokens
    assert len({*pairwise(looping)}) < 11  # there is a loop
    assert looping != plain.output.tokens
    for name in ("nothing changes", "a head is off"):
        found = speculative_edits.verified_look(repeating, "a dog", EDITS[name], options)
        assert (
            found.output.tokens
            == regard.look(repeating, "a dog", edits=EDITS[name], **options).output.tokens
        )


@pytest.mark.parametrize("change", ["a token is missing", "another token"])
def test_a_draft_continues_where_it_agrees_again(trained, monkeypatch, change):
    text, passes, options = "24 June 1937", [], {"beam_size": 1}
    own = LiveLook(text, options=options).look(trained).forward.labels.tolist()  # 1937-06-24
    draft = own[:3] + own[4:] if change == "a token is missing" else [*own[:3], own[6], *own[4:]]
    plant(trained, text, draft)
    monkeypatch.setattr(
        speculative_edits, "draft_search", lambda *given: None
    )  # as without compiled code
    look = speculative_edits.look_at_output
    monkeypatch.setattr(
        speculative_edits, "look_at_output", lambda *given: passes.append(1) or look(*given)
    )
    found = speculative_edits.verified_look(trained, text, EDITS["nothing changes"], options)
    assert found.forward.labels.tolist() == own
    assert len(passes) == (3 if change == "a token is missing" else 2)


@pytest.mark.parametrize("apart", [speculative_edits.TOKENS - 1, speculative_edits.TOKENS])
def test_a_draft_is_given_up_that_was_right_in_too_few_tokens_since_its_correction(
    trained, monkeypatch, apart
):
    text, options = "24 June 1937", {"beam_size": 1}
    own = LiveLook(text, options=options).look(trained).forward.labels.tolist()  # 1937-06-24
    wrong = [own[9] if place in (2, 2 + apart) else token for place, token in enumerate(own)]
    assert sum(one != other for one, other in zip(own, wrong, strict=True)) == 2
    plant(trained, text, wrong)
    monkeypatch.setattr(
        speculative_edits, "draft_search", lambda *given: None
    )  # as without compiled code
    found = speculative_edits.verified_look(trained, text, EDITS["nothing changes"], options)
    assert (found and found.forward.labels.tolist()) == (
        own if apart == speculative_edits.TOKENS else None
    )


@pytest.mark.parametrize(
    "changes", [False, True], ids=["after a draft", "for the first draft, too"]
)
def test_the_compiled_decoder_is_asked_four_times_at_most(trained, monkeypatch, changes):
    text, options, calls = "24 June 1937", {"beam_size": 1}, []
    own = LiveLook(text, options=options).look(trained).forward.labels.tolist()  # 1937-06-24

    def wrong_at(place):
        return *own[:place], own[-2] if own[place] != own[-2] else own[0], *own[place + 1 :]

    def draft(model, memory, edits, given, special, config):
        calls.append(len(given))
        return wrong_at(len(given))

    plant(trained, text, wrong_at(0), changes=changes)
    monkeypatch.setattr(speculative_edits, "draft_search", draft)
    found = speculative_edits.verified_look(trained, text, EDITS["nothing changes"], options)
    assert found.forward.labels.tolist() == own
    assert calls == ([0, 1, 2, 3] if changes else [1, 2, 3, 4])


STRONG = {
    "a layer is off": [{"edit": "switch_head_off", "map": "decoder 1 cross"}],
    "a layer is doubled, a token masked": [
        {"edit": "scale_head", "map": "decoder 1 self", "factor": 2.0},
        {"edit": "mask_source", "token": 1},
    ],
    "the encoder is off": [{"edit": "scale_head", "map": "encoder", "factor": 0}],
    "a painted row": [
        {"edit": "paint_row", "map": "decoder 1 cross", "row": 1, "keys": [0], "weights": [1.0]},
        {"edit": "scale_head", "map": "decoder 1 cross", "factor": 0.0},
    ],
    "a forced token": [
        {"edit": "replace_token", "position": 4, "token": 9, "side": "output"},
        {"edit": "scale_head", "map": "decoder cross", "factor": -2.0},
    ],
}


def counted(monkeypatch, name) -> list[object]:
    """The results of a function of `verified_looks`."""
    results, function = [], getattr(speculative_edits, name)
    monkeypatch.setattr(
        speculative_edits, name, lambda *given: results.append(function(*given)) or results[-1]
    )
    return results


@pytest.mark.parametrize("size", [0, 2])
@pytest.mark.parametrize("name", STRONG)
def test_a_changed_output_is_that_of_a_search(monkeypatch, name, size):
    """Random weights: hardly a token stays, so that the compiled decoder makes the draft."""
    options, drafts, verified = (
        {"beam_size": 1, "max_length": 16, "no_repeat_ngram_size": size},
        0,
        0,
    )
    for seed in range(1, 5):
        model = translator(seed=seed, encoder="transformer")
        plain = LiveLook("a dog and a cat", options=options).look(model)
        searches = counted(monkeypatch, "draft_search")
        found = speculative_edits.verified_look(model, "a dog and a cat", STRONG[name], options)
        wanted = regard.look(model, "a dog and a cat", edits=STRONG[name], **options)
        monkeypatch.undo()
        if found is not None:
            assert found.output.tokens == wanted.output.tokens
            assert json.loads(found.to_json())["maps"] == json.loads(wanted.to_json())["maps"]
        changed = wanted.output.tokens != plain.output.tokens
        drafts, verified = drafts + len(searches), verified + (changed and found is not None)
    assert drafts >= 1
    assert verified >= 1


@pytest.mark.parametrize(("name", "wanted"), [("a layer is off", 0), ("the encoder is off", 1)])
def test_the_encoder_runs_once_or_not_at_all(monkeypatch, name, wanted):
    options, most = {"beam_size": 1, "max_length": 16}, 0
    for seed in range(1, 5):
        model, runs = translator(seed=seed, encoder="transformer"), []
        LiveLook("a dog and a cat", options=options).look(model)
        passes = counted(monkeypatch, "look_at_output")
        with model.model.encoder.register_forward_hook(lambda *call, runs=runs: runs.append(1)):
            speculative_edits.verified_look(model, "a dog and a cat", STRONG[name], options)
        monkeypatch.undo()
        assert len(runs) == wanted
        most = max(most, len(passes))
    assert most > 1


def test_edits_beyond_the_output_without_them_are_those_of_a_longer_output(trained):
    """Positions are those of the edited output, which may be longer than the draft."""
    text, options = DATES[0], {"beam_size": 1}
    own = LiveLook(text, options=options).look(trained).forward.labels.tolist()
    plant(trained, text, own[:3])
    for edit in (
        {"edit": "replace_token", "position": 5, "token": "7", "side": "output"},
        {"edit": "paint_row", "map": "decoder 1 cross", "row": 6, "keys": [0], "weights": [1.0]},
    ):
        wanted = regard.look(trained, text, edits=[edit], **options)
        assert LiveLook(text, (edit,), options=options).look(trained).output == wanted.output
    with pytest.raises(
        InvalidArgument, match=r"edit 1\.row: wanted a row of decoder 1 cross; got 99"
    ):
        LiveLook(text, ({**edit, "row": 99},), options=options).look(trained)


def test_after_a_change_the_compiled_decoder_makes_the_first_draft(monkeypatch):
    """Random weights, and a layer that is off: then one forward pass under other edits of the decoder is enough."""
    options, counts = {"beam_size": 1, "max_length": 16}, []
    for seed in range(1, 9):
        model = translator(seed=seed, encoder="transformer")
        plain = LiveLook("a dog and a cat", options=options).look(model)
        found = speculative_edits.verified_look(
            model, "a dog and a cat", STRONG["a layer is off"], options
        )
        if found is None or found.output.tokens == plain.output.tokens:
            continue
        passes = counted(monkeypatch, "look_at_output")
        edits = [
            *STRONG["a layer is off"],
            {"edit": "scale_head", "map": "decoder 1 self", "head": 0, "factor": 0.9},
        ]
        found = speculative_edits.verified_look(model, "a dog and a cat", edits, options)
        monkeypatch.undo()
        assert (
            found.output.tokens
            == regard.look(model, "a dog and a cat", edits=edits, **options).output.tokens
        )
        counts.append(len(passes))
    assert min(counts) == 1


@pytest.mark.parametrize("row", [1, 99])
def test_after_a_change_the_encoder_runs_before_the_first_draft(monkeypatch, row):
    """Under edits of the encoder, too; one of a row that it does not have is refused as a search refuses it."""
    options, counts, text = {"beam_size": 1, "max_length": 16}, [], "a dog and a cat"
    edits = [
        {"edit": "scale_head", "map": "encoder", "factor": -2.0},
        {"edit": "paint_row", "map": "encoder 1", "row": row, "keys": [0], "weights": [1.0]},
    ]
    for seed in range(1, 9):
        model, runs = translator(seed=seed, encoder="transformer"), []
        plain = LiveLook(text, options=options).look(model)
        drafts = speculative_edits._drafts.of(model)
        drafts.note_changes(text, drafts.get(text), changes=True)
        passes = counted(monkeypatch, "look_at_output")
        with model.model.encoder.register_forward_hook(lambda *call, runs=runs: runs.append(1)):
            found = speculative_edits.verified_look(model, text, edits, options)
        monkeypatch.undo()
        assert len(runs) == 1
        if row == 99:
            assert found is None
            with pytest.raises(
                InvalidArgument, match=r"edit 2\.row: wanted a row of encoder 1; got 99"
            ):
                regard.look(model, text, edits=edits, **options)
        elif found is not None:
            wanted = regard.look(model, text, edits=edits, **options)
            assert found.output.tokens == wanted.output.tokens
            assert json.loads(found.to_json())["maps"] == json.loads(wanted.to_json())["maps"]
            counts += [len(passes)] if wanted.output.tokens != plain.output.tokens else []
    assert row == 99 or min(counts) == 1


def test_a_draft_goes_on_with_the_known_output_after_replaced_and_inserted_tokens():
    draft = speculative_edits._Draft((1, 2, 3, 4, 5, 6, 7, 8), 9)
    assert draft.is_promising((1, 2, 90))
    draft.correct((1, 2, 90))  # in the place of 3
    assert (draft.tokens, draft.ahead) == ((1, 2, 90, 4, 5, 6, 7, 8), 0)
    assert not draft.is_promising((1, 2, 90, 91))
    assert not draft.is_promising((1, 2, 90, 4, 91))
    assert draft.is_promising((1, 2, 90, 4, 5, 91))
    assert draft.is_promising((1, 2, 90, 3))
    draft.correct((1, 2, 90, 3))  # before 3
    assert (draft.tokens, draft.ahead) == ((1, 2, 90, 3, 4, 5, 6, 7, 8), 1)
    draft.correct((1, 2, 90, 3, 4, 5, 91))  # in the place of 6
    assert (draft.tokens, draft.ahead) == ((1, 2, 90, 3, 4, 5, 91, 7, 8), 1)
    draft.correct((1, 2, 90, 3, 4, 5, 91, 6))
    assert (draft.tokens, draft.ahead) == (
        (1, 2, 90, 3, 4, 5, 91, 6, 7),
        2,
    )  # of nine tokens at most
    assert draft.corrected == [2, 3, 6, 7]
