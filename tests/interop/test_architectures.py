"""Models of transformers as ours: the same logits, every weight used once, and the same bits back."""

import pytest
import torch

from regard.core.sequence import Tokens
from regard.data.special_tokens import SpecialTokens
from regard.decoding.config import DecodeConfig
from regard.decoding.request import Request, SearchTask
from regard.decoding.search import search
from regard.interop.generation import read_generation
from regard.model.weights import weights_of
from support.pretrained import CASES, IMAGES, SOURCE, TARGETS, logits, ours_of, random_theirs

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Their model of each case, and the folder in which transformers saved it."""
    made = {}

    def of(name):
        if name not in made:
            theirs, folder = random_theirs(name), tmp_path_factory.mktemp(name)
            theirs.save_pretrained(folder)
            made[name] = theirs, folder
        return made[name]

    return of


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_the_logits_are_theirs(name, saved):
    theirs, folder = saved(name)
    ours, _ = ours_of(folder)
    wanted, got = logits(name, theirs, ours)
    assert wanted.std() > 0.1
    torch.testing.assert_close(got, wanted, atol=1e-5 * float(wanted.abs().max().clamp(min=1)), rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_weights_become_theirs_again_bit_for_bit(name, saved):
    _, folder = saved(name)
    ours, pretrained = ours_of(folder)
    back = {step.theirs: step.to_theirs(weights_of(ours)) for step in pretrained.steps}
    names = [each for each in pretrained.tensors if not pretrained.architecture.is_ignored(each) or each in back]
    assert sorted(back) == sorted(names)
    assert all(torch.equal(tensor, pretrained.tensors[each]) for each, tensor in back.items())


GENERATES = [name for name in CASES if not name.startswith(("bert", "roberta", "distilbert", "vit", "deit"))]
PAD, START, END, FORCED = 7, 9, 5, 6


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", GENERATES)
@torch.no_grad()
def test_the_outputs_are_theirs_token_for_token(name, beams, saved, tmp_path):
    import transformers

    theirs, folder = saved(name)
    ours, pretrained = ours_of(folder)
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": END, "pad_token_id": PAD,
               "suppress_tokens": [3], "decoder_start_token_id": START}  # fmt: skip
    if beams > 1:
        options |= {"num_beams": beams, "length_penalty": 0.6, "early_stopping": False}
    has_source = ours.encoder is not None
    if has_source:
        options |= {"forced_bos_token_id": FORCED, "no_repeat_ngram_size": 2}  # the latter sees no prompt here
    generation = transformers.GenerationConfig(**options)
    generation.save_pretrained(tmp_path)
    read = read_generation(tmp_path, pretrained.config, has_source=has_source)
    if name == "captioner":
        given = theirs.generate(pixel_values=IMAGES, generation_config=generation)
        requests, collate = [Request(i, 9) for i in range(len(IMAGES))], lambda rows: IMAGES[rows]
        skip = 1
    elif has_source:
        given = theirs.generate(SOURCE.ids, attention_mask=SOURCE.mask.long(), generation_config=generation)
        rows = [ids[mask].tolist() for ids, mask in zip(SOURCE.ids, SOURCE.mask, strict=True)]
        requests, collate, skip = [Request(row, len(row)) for row in rows], Tokens.of, 1
    else:
        prompts = TARGETS[:, :5].clamp(min=10)  # without the end token
        given = theirs.generate(prompts, generation_config=generation, attention_mask=torch.ones(3, 5))
        requests = [Request(None, 0, row[1:], given=4, first=row[0]) for row in prompts.tolist()]
        collate, skip = list, 5
    special = SpecialTokens(PAD, read.start if has_source else None, END, None, None, read.suppressed,
                            target_prefix=read.target_prefix)  # fmt: skip
    task = SearchTask(ours, collate, DecodeConfig(**read.decode), special_tokens=special)
    found = dict(search(task, requests))
    for i, row in enumerate(given.tolist()):
        wanted = row[skip:]
        wanted = wanted[: wanted.index(END)] if END in wanted else wanted
        assert list(found[i][0].tokens[requests[i].given :]) == wanted
    assert len({tuple(row) for row in given.tolist()}) > 1
