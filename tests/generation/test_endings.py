"""When outputs end, as in transformers: early_stopping, several end tokens, end tokens in a prompt."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
import transformers

from regard.core.sequence import Tokens
from regard.data.special_tokens import DEFAULT_TOKENS, END, MASK, PAD, START
from regard.generation.config import DecodeConfig
from regard.generation.request import GenerationRequest, SearchTask
from regard.generation.search import search, stream
from support.hugging_face import twin
from support.search import model, sources

STOPS, OTHER, THIRD = (False, True, "never"), 7, 6
SEVERAL = replace(DEFAULT_TOKENS, other_ends=(OTHER, THIRD))
MARIAN = transformers.MarianConfig(
    vocab_size=40, d_model=16, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
    encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64, pad_token_id=PAD, bos_token_id=START,
    eos_token_id=END, decoder_start_token_id=START, forced_eos_token_id=None, scale_embedding=True,
)  # fmt: skip
GPT2 = transformers.GPT2Config(
    vocab_size=24, n_embd=16, n_layer=2, n_head=2, n_positions=64, pad_token_id=PAD, bos_token_id=START,
    eos_token_id=END,
)  # fmt: skip
ROWS = [[*range(5 + i, 5 + i + n), END] for i, n in enumerate((6, 3, 9, 2, 5))]


@pytest.fixture(scope="module")
def pairs():
    """A translator and a language model of transformers with random weights, each with its twin."""
    made = {}
    for name, kind, config in (
        ("marian", transformers.MarianMTModel, MARIAN),
        ("gpt2", transformers.GPT2LMHeadModel, GPT2),
    ):
        torch.manual_seed(5)
        theirs = kind(config)
        with torch.no_grad():
            for key, parameter in theirs.named_parameters():
                if parameter.dim() > 1 and "positions" not in key and "wpe" not in key:
                    parameter.normal_(std=0.35)
            if name == "marian":
                theirs.final_logits_bias[0, END] = 3.0
        made[name] = theirs.eval(), twin(name, theirs)
    return made


def both(pair, special, **options):
    """Outputs of transformers and ours for the same inputs: the tokens of the best hypothesis and its end token."""
    theirs, ours = pair
    config = DecodeConfig(max_length=14, **options)
    generation = transformers.GenerationConfig(
        max_new_tokens=14, do_sample=False, num_beams=config.beam_size, length_penalty=config.length_penalty,
        early_stopping=config.early_stopping, min_new_tokens=config.min_length or None, decoder_start_token_id=START,
        pad_token_id=PAD, eos_token_id=list(special.ends), suppress_tokens=[PAD, START, MASK],
    )  # fmt: skip
    if ours.encoder is not None:
        batch, requests = Tokens.of(ROWS), [GenerationRequest(row, len(row)) for row in ROWS]
        given = theirs.generate(
            batch.ids, attention_mask=batch.mask.long(), generation_config=generation
        ).tolist()
        given = [row[1:] for row in given]
    else:  # prompts that hold end tokens
        prompts = [[*row[:-1], END, 5 + i] for i, row in enumerate(ROWS[:3])]
        requests, given = (
            [GenerationRequest(None, 0, each, given=len(each)) for each in prompts],
            [],
        )
        for each in prompts:
            ids = torch.tensor([[START, *each]])
            found = theirs.generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=generation
            )
            given.append(found[0, ids.shape[1] :].tolist())
    task = SearchTask(ours, Tokens.of, config, special_tokens=special)
    found = dict(search(task, requests))
    mine = [(found[i][0].tokens[each.given :], found[i][0].end) for i, each in enumerate(requests)]
    wanted = []
    for row in given:
        at = next((i for i, token in enumerate(row) if token in special.ends), None)
        wanted.append((tuple(row[:at]), None if at is None else row[at]))
    return wanted, mine


@pytest.mark.parametrize(
    ("penalty", "special"), [(1.0, SEVERAL), (0.3, DEFAULT_TOKENS), (-0.5, DEFAULT_TOKENS)]
)
@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_each_value_of_early_stopping_is_that_of_transformers(name, penalty, special, pairs):
    for stop in STOPS:
        wanted, mine = both(
            pairs[name], special, beam_size=4, length_penalty=penalty, early_stopping=stop
        )
        assert mine == wanted
    assert len(set(wanted)) > 1


def test_the_values_of_early_stopping_differ(pairs):
    """As those of transformers do: the later it stops, the longer are the outputs of this model."""
    found = [
        both(pairs["marian"], DEFAULT_TOKENS, beam_size=4, early_stopping=stop) for stop in STOPS
    ]
    assert all(mine == wanted for wanted, mine in found)
    heuristic, early, never = (sum(len(tokens) for tokens, _ in mine) for _, mine in found)
    assert early < heuristic < never


@pytest.mark.parametrize(
    "options", [{}, {"min_length": 5}, {"beam_size": 3, "min_length": 5}], ids=str
)
@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_any_of_several_end_tokens_ends_an_output(name, options, pairs):
    before, _ = both(pairs[name], DEFAULT_TOKENS, **options)
    often = Counter(token for tokens, _ in before for token in {*tokens}).most_common(2)
    special = replace(DEFAULT_TOKENS, other_ends=tuple(token for token, _ in often))
    wanted, mine = both(pairs[name], special, **options)
    assert mine == wanted
    assert {*special.other_ends} & {end for _, end in mine}


WAYS = {
    "greedy": {},
    "beam": {"beam_size": 3, "num_hypotheses": 3},
    "groups": {"beam_size": 4, "beam_groups": 2, "num_hypotheses": 4},
    "samples": {"sample": True, "num_hypotheses": 3},
}


@pytest.mark.parametrize("required", [(), ((9, 10),)], ids=["free", "required phrases"])
@pytest.mark.parametrize("way", WAYS)
def test_no_output_goes_on_after_an_end_token(way, required):
    made = model("transformer")
    with torch.no_grad():
        made.decoder.project.bias[[END, OTHER, THIRD]] = 2.0
    task = SearchTask(
        made,
        Tokens.of,
        DecodeConfig(max_length=12, **WAYS[way]),
        special_tokens=SEVERAL,
        scored=True,
    )
    requests = [GenerationRequest(row, len(row), required=required) for row in sources()]
    hypotheses = [each for _, found in search(task, requests) for each in found]
    assert len(hypotheses) == len(requests) * task.config.num_hypotheses
    assert len({each.end for each in hypotheses} & {*SEVERAL.ends}) > 1
    for each in hypotheses:
        assert not {*SEVERAL.ends} & {*each.tokens}
        assert each.end is not None or len(each.tokens) == 12
        assert len(each.log_probabilities) == len(each.tokens) + each.ended
        assert all(any(each.tokens[i : i + 2] == run for i in range(12)) for run in required)


def test_a_stream_ends_with_any_of_them_but_not_in_the_prompt(pairs):
    _, ours = pairs["gpt2"]
    task = SearchTask(ours, Tokens.of, DecodeConfig(max_length=14), special_tokens=SEVERAL)
    for row in ROWS:
        request = GenerationRequest(None, 0, [*row, OTHER], given=len(row) + 1)
        ((_, (best, *_)),) = search(task, [request])
        assert tuple(stream(task, request)) == best.tokens
        assert best.tokens[: len(row) + 1] == (*row, OTHER)
