"""One search for every decoder: its results do not depend on batching, engine or order."""

from itertools import pairwise, product

import pytest
import torch
import transformers
from torch import nn

from regard.core.errors import InvalidArgument
from regard.core.sequence import Tokens
from regard.data.special_tokens import END, MASK, PAD, START, UNKNOWN, SpecialTokens
from regard.generation import batch_plan, search as searching, search_batch
from regard.generation.batch_plan import BatchPlan
from regard.generation.choose.interfaces import LogitsProcessor
from regard.generation.choose.sampling import _mixed, filtered, sample, seed_offset, uniform
from regard.generation.choose.topk import topk, topk_sums
from regard.generation.config import DecodeConfig
from regard.generation.engines import selection, torch as torch_engine
from regard.generation.engines.torch import PyTorchEngine
from regard.generation.request import GenerationRequest, SearchTask
from regard.generation.search import search
from regard.generation.search_batch import SearchBatch
from regard.model.interfaces import Decoder, DecoderState
from regard.model.seq2seq import Seq2Seq
from support.hugging_face import twin
from support.models import DECODERS, VOCABULARY
from support.search import LONGEST, STRATEGIES, decode, model, sources, token_ids


class AllowedTokens(LogitsProcessor):
    """Excludes all tokens but these and the end token."""

    recordable = masks_only = True

    def __init__(self, *tokens: int) -> None:
        self.excluded = [token for token in range(VOCABULARY) if token not in (*tokens, END)]

    def __call__(self, scores, generated) -> None:
        scores[..., self.excluded] = -torch.inf


@torch.no_grad()
def written_out(
    made: Seq2Seq, row: list[int], width: int, penalty: float
) -> list[tuple[float, tuple[int, ...]]]:
    """Beam search in plain Python, every prefix computed from scratch."""
    memory = made.encode(Tokens.of([row]))
    going, ended = [((), 0.0)], []
    for length in range(1, LONGEST + 1):
        candidates = []
        for tokens, total in going:
            log_p = (
                made.decoder(torch.tensor([[START, *tokens]]), memory)[0, -1]
                .log_softmax(-1)
                .tolist()
            )
            allowed = [token for token in range(VOCABULARY) if token not in (PAD, START, MASK)]
            candidates += [(total + log_p[token], (*tokens, token)) for token in allowed]
        candidates = sorted(candidates, reverse=True)[: 2 * width]
        ends = [tokens[-1] == END or length == LONGEST for _, tokens in candidates]
        best = list(zip(candidates, ends, strict=True))
        ended += [
            (total / length**penalty, tokens) for (total, tokens), over in best[:width] if over
        ]
        ended = sorted(ended, reverse=True)[:width]
        going = [(tokens, total) for (total, tokens), over in best if not over][:width]
        if not going or (len(ended) == width and going[0][1] / length**penalty <= ended[-1][0]):
            break
    return ended


@pytest.mark.parametrize("name", DECODERS)
def test_beam_search_equals_a_plain_implementation(name):
    made, rows = model(name), sources()[:3]
    for width, penalty in ((2, 0.0), (4, 1.0)):
        hits = decode(made, rows, beam_size=width, num_hypotheses=width, length_penalty=penalty)
        for row, hypotheses in zip(rows, hits, strict=True):
            wanted = written_out(made, row, width, penalty)
            assert [(*each.tokens, END) if each.ended else each.tokens for each in hypotheses] == [
                t for _, t in wanted
            ]
            assert [each.score for each in hypotheses] == pytest.approx(
                [score for score, _ in wanted], abs=1e-4
            )


KINDS = [
    "rnn",
    "lstm bahdanau",
    "gru luong input-feeding",
    "conv",
    "transformer",
]  # one of each kind of state
KINDS += [
    f"transformer {position}" for position in ("rotary", "additive rotary", "alibi", "relative")
]
KINDS += [f"transformer like {model}" for model in ("BART", "Mistral")]


@pytest.mark.parametrize(("name", "options"), list(product(KINDS, STRATEGIES)))
def test_outputs_do_not_depend_on_batching(name, options):
    """The outputs of a request do not depend on batch size, order, or when others are admitted and released."""
    made, rows = model(name), sources()
    together = token_ids(decode(made, rows, **options))
    few_slots = token_ids(decode(made, rows, **options, batch_tokens=13))
    assert few_slots == together
    if "sample" not in options:  # whose draws depend on the position
        alone = [token_ids(decode(made, [row], **options))[0] for row in rows]
        assert alone == together
        assert token_ids(decode(made, rows[::-1], **options))[::-1] == together


@pytest.mark.parametrize("options", STRATEGIES[1:], ids=["beam", "sample"])
@pytest.mark.parametrize(
    "name", ["transformer learned", "transformer learned concatenated"]
)  # compiled, and not
def test_outputs_end_at_the_last_learned_position(name, options):
    """Others are admitted meanwhile, so that a slot may take more steps than any output has tokens."""
    made, rows = model(name), [row for row in sources() for _ in range(12)]
    positions = made.decoder.input_layer.position_encoding.positions
    positions.limit, positions.table = LONGEST, nn.Parameter(positions.table[:LONGEST])
    wanted = token_ids(decode(made, rows, **options))
    lengths = {len(tokens) for one in wanted for tokens in one}
    assert max(lengths) == LONGEST
    assert min(lengths) < LONGEST
    assert token_ids(decode(made, rows, max_length=50, batch_tokens=60, **options)) == wanted
    assert (
        decode(made, rows[:1], prefixes=[[9] * 6], max_length=50, **options)[0][0].tokens[:6]
        == (9,) * 6
    )
    with pytest.raises(
        InvalidArgument,
        match="prefix: wanted at most 6 tokens: the decoder has learned 7 positions",
    ):
        decode(made, rows[:1], prefixes=[[9] * 7], **options)


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_scores_equal_teacher_forced_log_probabilities(name):
    made, rows = model(name), sources()[:5]
    for options in (
        {},
        {"beam_size": 3, "num_hypotheses": 3},
        {"sample": True, "num_hypotheses": 2, "temperature": 1.7},
    ):
        for row, hypotheses in zip(rows, decode(made, rows, **options), strict=True):
            assert hypotheses
            for each in hypotheses:
                whole = torch.tensor([[START, *each.tokens, *[END] * each.ended]])
                wanted = made.log_probabilities(Tokens.of([row]), whole)[0]
                assert each.log_probabilities == pytest.approx(wanted.tolist(), abs=1e-4)
                assert sum(each.log_probabilities) == pytest.approx(float(wanted.sum()), abs=1e-4)


@pytest.mark.parametrize("name", ["transformer", "gru luong input-feeding", "conv"])
def test_a_beam_wide_enough_finds_the_best_of_all(name):
    made, row = model(name), [5, 6, 7]
    best = (-torch.inf, ())
    words = [token for token in range(VOCABULARY) if token not in (PAD, START, MASK, END)]
    with torch.no_grad():
        for length in range(4):
            all_tokens = list(product(words, repeat=length))
            end = [END] * (length < 3)  # three tokens at most, with the end
            whole = torch.tensor([[START, *tokens, *end] for tokens in all_tokens])
            memory = made.encode(Tokens.of([row] * len(whole)))
            log_p = (
                made.decoder(whole[:, :-1], memory)
                .log_softmax(-1)
                .gather(-1, whole[:, 1:, None])
                .sum((1, 2))
            )
            best = max(best, *zip(log_p.tolist(), all_tokens, strict=True))
    hit = decode(
        made, [row], beam_size=len(words) ** 3, length_penalty=0.0, max_length=3, batch_tokens=64
    )[0][0]
    assert (hit.score, hit.tokens) == (pytest.approx(best[0], abs=1e-4), best[1])


def test_beam_size_one_is_greedy_search():
    made, rows = model("transformer"), sources()
    memory = made.encode(Tokens.of(rows))
    state, tokens = (
        made.decoder.start(memory, batch=len(rows), capacity=LONGEST),
        torch.full((len(rows),), START),
    )
    outputs: list[list[int]] = [[] for _ in rows]
    with torch.no_grad():
        for _ in range(LONGEST):
            logits, state = made.decoder.step(tokens, state)
            logits[:, [PAD, START, MASK]] = -torch.inf
            tokens = logits.argmax(-1)
            for output, token in zip(outputs, tokens.tolist(), strict=True):
                if END not in output:
                    output.append(token)
    wanted = [tuple(output[: output.index(END)] if END in output else output) for output in outputs]
    assert [one[0] for one in token_ids(decode(made, rows))] == wanted
    assert any(END in output for output in outputs)
    assert any(END not in output for output in outputs)


@pytest.mark.parametrize(
    "options", [{}, {"beam_size": 3}, {"beam_size": 4, "beam_groups": 2}, {"sample": True}], ids=str
)
def test_logits_processors_always_hold(options):
    made, rows = model("transformer"), sources()
    plain = [one[0] for one in token_ids(decode(made, rows, max_length=12, **options))]
    assert any(len(tokens) < 4 for tokens in plain)
    for tokens in (
        one[0] for one in token_ids(decode(made, rows, max_length=12, min_length=4, **options))
    ):
        assert len(tokens) >= 4
    for row, tokens in zip(
        rows,
        (one[0] for one in token_ids(decode(made, rows, max_length_ratio=1.0, **options))),
        strict=True,
    ):
        assert len(tokens) <= len(row)
    for tokens in (
        one[0]
        for one in token_ids(
            decode(made, rows, max_length=12, no_repeat_ngram_size=2, min_length=9, **options)
        )
    ):
        pairs = list(pairwise(tokens))
        assert len(set(pairs)) == len(pairs)
    for one in decode(made, rows, max_length=12, no_repeat_ngram_size=1, min_length=12, **options):
        assert one[0].ended  # when no other token was left
        assert sorted(one[0].tokens) == [UNKNOWN, *range(MASK + 1, VOCABULARY)]
    prefixes = [(5, 9), (), (8,), *[(7, 7, 7)] * (len(rows) - 3)]
    for prefix, one in zip(prefixes, decode(made, rows, prefixes=prefixes, **options), strict=True):
        assert one[0].tokens[: len(prefix)] == prefix
    given = [GenerationRequest(row, len(row), (5, 9, 8), given=3) for row in rows]
    config = DecodeConfig(max_length=12, min_length=4, **options)
    for _, one in search(SearchTask(made, Tokens.of, config), given):
        assert len(one[0].tokens) >= 3 + 4
    used = {pair for tokens in plain for pair in pairwise(tokens)}
    one_word, pair = next(tokens[0] for tokens in plain if tokens), sorted(used)[0]
    for tokens in (
        one[0]
        for one in token_ids(
            decode(made, rows, max_length=12, banned=[[one_word], pair], **options)
        )
    ):
        assert one_word not in tokens
        assert pair not in pairwise(tokens)
    for tokens in (
        one[0] for one in token_ids(decode(made, rows, processors=[AllowedTokens(6, 8)], **options))
    ):
        assert set(tokens) <= {6, 8}


def test_a_repetition_penalty_reduces_repetition():
    made, rows = model("transformer"), sources()

    def repeats(**options) -> int:
        outputs = token_ids(decode(made, rows, max_length=12, min_length=12, **options))
        return sum(len(tokens) - len(set(tokens)) for (tokens,) in outputs)

    assert repeats(beam_size=3, repetition_penalty=3.0) < repeats(beam_size=3)


def test_beam_groups_increase_diversity():
    made, rows = model("transformer"), sources()

    def different(**options) -> int:
        return sum(
            len({tokens[:1] for tokens in one})
            for one in token_ids(decode(made, rows, beam_size=4, num_hypotheses=4, **options))
        )

    assert different(beam_groups=4, diversity_penalty=5.0) > different()


class NoState(DecoderState):
    def reorder(self, index):
        return self

    def follow(self, parents):
        return self

    def admit(self, slots, fresh):
        return self


class Memoryless(Decoder[NoState]):
    """The same log-probabilities at every step, whatever was generated."""

    cross_attentions = ()

    def __init__(self, log_p: torch.Tensor) -> None:
        super().__init__()
        self.log_p = nn.Parameter(log_p)

    def hidden(self, targets, memory=None, packing=None):
        raise NotImplementedError

    def start(self, memory, *, batch, capacity, beams=1):
        return NoState()

    def step(self, tokens, state):
        return self.log_p.expand(len(tokens), -1), state


@pytest.mark.parametrize(("diversity", "others"), [(0.0, [5, 5]), (0.5, [5, 6]), (1.0, [6, 7])])
def test_groups_are_penalized_for_tokens_of_earlier_groups(diversity, others):
    """By hand: of .4, .35 and .2, the second group takes the second where log .4 less the penalty is below log .35."""
    p = torch.full((VOCABULARY,), 1e-9)
    p[[5, 6, 7, END]] = torch.tensor([0.4, 0.35, 0.2, 0.05])
    config = DecodeConfig(
        beam_size=3,
        beam_groups=3,
        num_hypotheses=3,
        diversity_penalty=diversity,
        max_length=4,
        length_penalty=0.0,
    )
    ((_, hypotheses),) = search(
        SearchTask(Seq2Seq(None, Memoryless(p.log())), Tokens.of, config),
        [GenerationRequest(None, 0)],
    )
    assert [each.tokens for each in hypotheses] == [(token,) * 4 for token in (5, *others)]


def test_samples_follow_the_distribution():
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    rows, steps = torch.arange(20_000), torch.zeros(20_000, dtype=torch.int64)
    chance = uniform(seed_offset(1), rows, steps)[None]
    assert abs(float(chance.mean()) - 0.5) < 0.01
    drawn = sample(p.log().expand(1, 20_000, 4), chance)
    assert torch.bincount(drawn[0]) / 20_000 == pytest.approx(p, abs=0.02)
    assert not torch.equal(chance, uniform(seed_offset(2), rows, steps)[None])
    for seed in (10, 2**31, 2**63 - 1, 2**70):  # whatever its size
        assert 0.49 < float(uniform(seed_offset(seed), rows, steps).mean()) < 0.51


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, {0, 1, 2, 3}),
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.6}, {0, 1}),
        ({"top_p": 0.4}, {0}),
        ({"top_p": 0.0}, {0}),
        ({"min_p": 0.2}, {0, 1, 2}),
        ({"typical_p": 0.3}, {1}),
        ({"typical_p": 0.0}, {1}),
        ({"typical_p": 0.7}, {0, 1}),
        ({"top_k": 3, "top_p": 0.7}, {0, 1}),
    ],
)
def test_sampling_filters(options, left):
    log_p = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()[None, None]
    kept = (
        filtered(log_p, DecodeConfig(sample=True, **options))[0, 0]
        .isfinite()
        .nonzero()[:, 0]
        .tolist()
    )
    assert set(kept) == left


@pytest.mark.parametrize("shape", [(1, 7), (3, 640), (2, 8000), (4, 8011)])
def test_topk(shape):
    scores = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    for count in (1, 6):
        values, where = topk(scores, count)
        assert torch.equal(values, scores.topk(count)[0])
        assert torch.equal(scores.gather(1, where), values)


@pytest.mark.parametrize("shape", [(1, 5, 7), (3, 2, 640), (2, 5, 8011)])
def test_topk_sums(shape):
    random = torch.Generator().manual_seed(1)
    scores, more = (
        torch.randn(shape, generator=random),
        3 * torch.randn(shape[:2], generator=random),
    )
    more[:, 1] = -torch.inf  # an empty hypothesis
    whole = (scores + more[..., None]).flatten(1)
    values, where = topk_sums(scores, more, 6)
    assert torch.equal(values, whole.topk(6)[0])
    assert torch.equal(whole.gather(1, where), values)


@pytest.mark.parametrize(
    "options",
    [
        {"num_hypotheses": 2},
        {"sample": True, "beam_size": 2},
        {"beam_size": 3, "beam_groups": 2},
        {"top_k": 2},
    ],
)
def test_conflicting_options_are_refused(options):
    with pytest.raises(ValueError, match=r"wanted"):
        DecodeConfig(**options)


MARIAN = transformers.MarianConfig(
    vocab_size=40, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
    encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64, pad_token_id=PAD, bos_token_id=START,
    eos_token_id=END, decoder_start_token_id=START, forced_eos_token_id=None, scale_embedding=True,
)  # fmt: skip
OPTIONS = [
    ({}, {}),
    ({"beam_size": 4}, {"num_beams": 4}),
    ({"beam_size": 4, "length_penalty": 0.3}, {"num_beams": 4, "length_penalty": 0.3}),
    (
        {"beam_size": 3, "no_repeat_ngram_size": 2, "min_length": 5},
        {"num_beams": 3, "no_repeat_ngram_size": 2, "min_new_tokens": 5},
    ),
    ({"beam_size": 3, "repetition_penalty": 1.4}, {"num_beams": 3, "repetition_penalty": 1.4}),
]


@pytest.mark.parametrize(("options", "theirs"), OPTIONS, ids=[str(mine) for mine, _ in OPTIONS])
def test_same_as_hugging_face(options, theirs):
    torch.manual_seed(0)
    peer = transformers.MarianMTModel(MARIAN).eval()
    with torch.no_grad():
        for name, parameter in peer.named_parameters():
            if parameter.dim() > 1 and "positions" not in name:
                parameter.normal_(std=0.3)
        peer.final_logits_bias[0, END] = 2.0
    mine = twin("marian", peer)
    rows = [[*torch.randint(5, 40, (n,)).tolist(), END] for n in (6, 3, 9, 2, 5)]
    batch = Tokens.of(rows)
    given = peer.generate(
        batch.ids,
        attention_mask=batch.mask.long(),
        generation_config=transformers.GenerationConfig(
            max_new_tokens=14, do_sample=False, decoder_start_token_id=START, pad_token_id=PAD, eos_token_id=END,
            suppress_tokens=[PAD, START, MASK], early_stopping=False, **theirs,
        ),
    )  # fmt: skip
    outputs = decode(mine, rows, max_length=14, **options)
    for row, one in zip(given.tolist(), outputs, strict=True):
        wanted = row[1:]
        assert list(one[0].tokens) == (wanted[: wanted.index(END)] if END in wanted else wanted)
    assert any(one[0].ended for one in outputs)


GPT2 = transformers.GPT2Config(
    vocab_size=14, n_embd=16, n_layer=2, n_head=2, n_positions=64,
    pad_token_id=PAD, bos_token_id=START, eos_token_id=END,
)  # fmt: skip


class _InPython(LogitsProcessor):
    """Changes nothing, and keeps a search out of the compiled loop, which does not know it."""

    def __call__(self, scores, generated) -> None:
        pass


REPETITIONS = [
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3},
    {"num_beams": 3, "no_repeat_ngram_size": 1},
    {"num_beams": 3, "no_repeat_ngram_size": 2},
    {"num_beams": 3, "repetition_penalty": 1.3},
]


@pytest.mark.parametrize("processors", [(), (_InPython(),)], ids=["any engine", "Python"])
@pytest.mark.parametrize("start", [END, 7])
@pytest.mark.parametrize("options", REPETITIONS, ids=str)
def test_repetitions_count_the_token_before_the_output_as_in_transformers(
    options, start, processors
):
    """As in BART, whose start token also ends outputs, and in models that generate their start token again."""
    torch.manual_seed(4)
    config = transformers.MarianConfig(
        **(MARIAN.to_dict() | {"vocab_size": 13, "decoder_vocab_size": 13})
    )
    peer = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in peer.named_parameters():
            if parameter.dim() > 1 and "positions" not in name:
                parameter.normal_(std=0.3)
        peer.final_logits_bias[0, [END, 7]] = 1.5
    rows = [[*torch.randint(5, 13, (n,)).tolist(), END] for n in (6, 3, 9, 2, 5, 4)]
    batch = Tokens.of(rows)
    given = peer.generate(
        batch.ids,
        attention_mask=batch.mask.long(),
        generation_config=transformers.GenerationConfig(
            max_new_tokens=7, do_sample=False, decoder_start_token_id=start, pad_token_id=PAD,
            eos_token_id=END, suppress_tokens=[PAD, START, MASK], early_stopping=False, **options,
        ),
    )  # fmt: skip
    ours = {**options, "beam_size": options.get("num_beams", 1), "max_length": 7}
    ours.pop("num_beams", None)
    special = SpecialTokens(PAD, start, END, None, None, (PAD, START, MASK))
    task = SearchTask(
        twin("marian", peer), Tokens.of, DecodeConfig(**ours), processors, special_tokens=special
    )
    found = dict(search(task, [GenerationRequest(row, len(row)) for row in rows]))
    for i, row in enumerate(given.tolist()):
        wanted = row[1:]
        wanted = wanted[: wanted.index(END)] if END in wanted else wanted
        assert list(found[i][0].tokens) == wanted


@pytest.mark.parametrize("options", REPETITIONS, ids=str)
def test_repetitions_of_a_language_model_count_the_prompt_as_in_transformers(options):
    torch.manual_seed(1)
    peer = transformers.GPT2LMHeadModel(GPT2).eval()
    with torch.no_grad():
        for name, parameter in peer.named_parameters():
            if parameter.dim() > 1 and "wpe" not in name:
                parameter.normal_(std=0.5)
    generation = transformers.GenerationConfig(
        max_new_tokens=5, early_stopping=False, suppress_tokens=[PAD, START, MASK],
        pad_token_id=PAD, eos_token_id=END, **options,
    )  # fmt: skip
    ours = {**options, "beam_size": options.get("num_beams", 1), "max_length": 5}
    ours.pop("num_beams", None)
    task = SearchTask(twin("gpt2", peer), list, DecodeConfig(**ours))
    for prompt in ([9, 5, 7], [8], [6, 12, 9, 6], [13, 13]):
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        theirs = peer.generate(ids, attention_mask=mask, generation_config=generation)[0].tolist()
        wanted = theirs[len(prompt) :]
        wanted = wanted[: wanted.index(END)] if END in wanted else wanted
        # As a model without a start token begins: with the prompt's own first token.
        request = GenerationRequest(None, 0, prompt[1:], given=len(prompt) - 1, first=prompt[0])
        ((_, hypotheses),) = search(task, [request])
        assert list(hypotheses[0].tokens[len(prompt) - 1 :]) == wanted


@pytest.mark.parametrize("penalty", [1.0, 0.4])
def test_beams_of_a_language_model_equal_hugging_face(penalty):
    """The prompt counts neither in the score nor in the length by which hypotheses are ranked."""
    torch.manual_seed(1)
    peer = transformers.GPT2LMHeadModel(GPT2).eval()
    with torch.no_grad():
        for name, parameter in peer.named_parameters():
            if parameter.dim() > 1 and "wpe" not in name:
                parameter.normal_(std=0.5)
    mine = twin("gpt2", peer)
    generation = transformers.GenerationConfig(
        max_new_tokens=10, num_beams=4, num_return_sequences=4, length_penalty=penalty, early_stopping=False,
        suppress_tokens=[PAD, START, MASK], pad_token_id=PAD, eos_token_id=END, return_dict_in_generate=True,
        output_scores=True,
    )  # fmt: skip
    prompts = [torch.randint(5, 14, (n,)).tolist() for n in (1, 2, 3, 5, 8, 13, 21, 4, 6, 7)]
    ended = 0
    for prompt in prompts:
        ids = torch.tensor([[START, *prompt]])
        theirs = peer.generate(
            ids, attention_mask=torch.ones_like(ids), generation_config=generation
        )
        config = DecodeConfig(beam_size=4, num_hypotheses=4, max_length=10, length_penalty=penalty)
        task = SearchTask(mine, lambda sources: None, config)
        ((_, ours),) = search(task, [GenerationRequest(None, 0, prompt, given=len(prompt))])
        for row, score, one in zip(
            theirs.sequences.tolist(), theirs.sequences_scores.tolist(), ours, strict=True
        ):
            wanted = row[1 + len(prompt) :]
            assert list(one.tokens[len(prompt) :]) == (
                wanted[: wanted.index(END)] if END in wanted else wanted
            )
            assert one.score == pytest.approx(score, abs=1e-4)
            ended += one.ended
    assert ended < 40
    assert ended or penalty == 1.0  # a mean favors long outputs


@pytest.mark.parametrize("beam", [1, 3])
def test_steps_in_half_precision_are_under_autocast(beam, monkeypatch):
    """As on a GPU, where PyTorch executes the decoder: keys and values are in bfloat16, and so must queries be."""

    def autocast(half):
        assert half
        return torch.autocast("cpu", torch.bfloat16, cache_enabled=False)

    class HalfPlan(BatchPlan):
        def __init__(self, *given):
            super().__init__(*given)
            self.half = True

    for module in (searching, search_batch, batch_plan, torch_engine):
        monkeypatch.setattr(module, "autocast", autocast)
    monkeypatch.setattr(searching, "BatchPlan", HalfPlan)
    monkeypatch.setattr(selection, "ENGINES", (PyTorchEngine(),))
    made, dtypes = model("transformer"), set()
    made.decoder.project.register_forward_hook(lambda module, given, out: dtypes.add(out.dtype))
    found = decode(made, sources(), beam_size=beam, max_length=5)
    assert dtypes == {torch.bfloat16}
    assert all(hypotheses for hypotheses in found)


def test_a_batch_shrinks_to_the_requests_that_are_running(monkeypatch):
    """A step computes nothing for requests that have ended, once they are half of the batch."""
    kept, keep = [], SearchBatch._keep

    def watched(self, slots):
        keep(self, slots)
        kept.append((len(self.occupants), sum(each is not None for each in self.occupants)))

    monkeypatch.setattr(SearchBatch, "_keep", watched)
    assert len(decode(model("transformer"), sources(), sample=True, seed=3)) == 11
    assert kept
    assert [running for _, running in kept] == [slots for slots, _ in kept]


def test_random_numbers_are_those_of_splitmix():
    """Outputs depend on them: those of a seed stay the same. The numbers of SplitMix64 for seed 0 are its authors'."""
    gamma, wrap = 0x9E3779B97F4A7C15, lambda number: (number + 2**63) % 2**64 - 2**63
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    states = torch.tensor([wrap(gamma * (i + 1)) for i in range(4)])
    assert _mixed(states).tolist() == [wrap(number) for number in published]

    def mixed(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    streams, steps, offset = [0, 1, 7, 2**40], [0, 3, 1, 12345], seed_offset(-5)
    wanted = [
        (mixed((stream * gamma + mixed((step + offset) % 2**64)) % 2**64) >> 11) / 2**53
        for stream, step in zip(streams, steps, strict=True)
    ]
    assert uniform(offset, torch.tensor(streams), torch.tensor(steps)).tolist() == wanted
    assert [seed_offset(seed) for seed in (0, 1, 2, -1)] == [
        0, 2862933555777941757, 5725867111555883514, -2862933555777941757
    ]  # fmt: skip
