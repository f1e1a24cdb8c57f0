"""Measured properties of heads: against loops over all weights, and of heads whose properties are known."""

import json
from itertools import pairwise
from math import log2, sqrt

import pytest
import torch
from torch.nn import functional as F

import regard
from measure import peak_bytes
from regard.core.sequence import Tokens
from regard.interpret import head_properties
from regard.interpret.head_properties import COLUMNS, HeadMeter, HeadReport
from regard.interpret.head_similarity import grouped
from regard.interpret.look import Look
from regard.interpret.maps import AttentionMap
from regard.model.seq2seq import Seq2Seq
from support.models import decoder, encoder
from support.predictors import translator

SIZE = 16  # tokens, and positions: one-hot in the first and in the last half of the states
PREVIOUS, OWN, UNIFORM, COPY = range(4)
IDS = [5, 6, 7, 5, 6, 9, 5]


def known_heads() -> Seq2Seq:
    """A language model of one layer whose heads attend to the previous token, to their own, and to all alike."""
    table = {
        "kind": "transformer",
        "dim": 2 * SIZE,
        "layers": 1,
        "heads": 4,
        "head_dim": SIZE,
        "ffn_dim": 4,
    }
    table |= {"positions": "learned", "max_positions": SIZE}
    model = regard.build({"decoder": table, "vocab_size": SIZE, "tie_embeddings": "none"}).eval()
    one, zero = torch.eye(SIZE), torch.zeros(SIZE, SIZE)
    token, place = torch.cat((one, zero), 1), torch.cat((zero, one), 1)
    attention = model.decoder.stack.layers[0].self_attn
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.zero_()
        model.decoder.embed_tokens.weight.copy_(token / model.decoder.embed_tokens.scale)
        next(model.decoder.input_layer.position_encoding.parameters()).copy_(place)
        model.decoder.project.weight.copy_(token)
        query, key, value = (
            each.weight.view(4, SIZE, 2 * SIZE)
            for each in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        query[PREVIOUS] = 200 * torch.cat((zero, one.roll(1, 1)), 1)
        query[OWN] = query[COPY] = 200 * place
        key[PREVIOUS] = key[OWN] = key[COPY] = place
        value[OWN], value[UNIFORM], value[COPY] = token.roll(1, 0), -token, token
        attention.out_proj.weight[:SIZE] = one.repeat(1, 4)
    return model


def measured(*looks: Look, **options: bool) -> HeadReport:
    meter = HeadMeter(**options)
    for each in looks:
        meter.add(each)
    return meter.report()


def test_heads_that_were_built_have_the_properties_they_were_built_with():
    report = measured(regard.look(known_heads(), None, output=IDS))
    previous, own, uniform, copy = report.heads
    count = len(IDS)
    assert previous.means.previous == pytest.approx(
        (count - 1) / count
    )  # the first row has none before it
    assert (previous.offset, own.offset) == (-1, 0)
    assert previous.positional == pytest.approx(
        _explained(regard.look(known_heads(), None, output=IDS).maps, 0)
    )
    assert own.positional == pytest.approx(1.0)
    assert own.means.own == pytest.approx(1.0)
    assert own.means.distance == pytest.approx(0.0)
    assert uniform.means.evenness == pytest.approx(
        (count - 1) / count
    )  # the entropy of one key is 0 of 0
    assert uniform.means.entropy == pytest.approx(
        sum(torch.arange(1.0, count + 1).log().tolist()) / count
    )
    assert [each.copying for each in (copy, uniform, previous)] == pytest.approx([1.0, -1.0, 0.0])
    assert own.copying == pytest.approx(
        -1 / (SIZE - 1)
    )  # another token is raised, all others alike
    assert own.group == copy.group
    assert len({own.group, previous.group, uniform.group}) == 3
    assert report.distances[OWN][COPY] == pytest.approx(0.0, abs=1e-6)
    # The first rows are equal, all others have no key in common.
    assert report.distances[PREVIOUS][OWN] == pytest.approx((count - 1) / count)


def _explained(maps: tuple[AttentionMap, ...], head: int) -> float:
    """The share of the variance of weights that offsets explain, by loops, over several maps of the same module."""
    pairs: dict[int, list[float]] = {}
    for each in maps:
        n, m = each.size
        for i, row in enumerate(each.weights()[head].double().tolist()):
            for j, weight in enumerate(row):
                if not each.causal or j <= i + m - n:
                    pairs.setdefault(j - i - (m - n), []).append(weight)
    every = [weight for group in pairs.values() for weight in group]
    mean = sum(every) / len(every)
    between = sum(len(group) * (sum(group) / len(group) - mean) ** 2 for group in pairs.values())
    return between / sum((weight - mean) ** 2 for weight in every)


def _induction(looks: list[Look], name: str, head: int) -> float | None:
    rows: list[float] = []
    for look in looks:
        weights, tokens = look[name].weights()[head], look.names(look[name])[0]
        for i, token in enumerate(tokens):
            after = [j for j in range(1, i + 1) if tokens[j - 1] == token]
            if after:
                rows.append(sum(float(weights[i, j]) for j in after))
    return sum(rows) / len(rows) if rows else None


def _distance(p: list[float], q: list[float]) -> float:
    def divergence(a: list[float], b: list[float]) -> float:
        return sum(x * log2(x / y) for x, y in zip(a, b, strict=True) if x > 0)

    mean = [(x + y) / 2 for x, y in zip(p, q, strict=True)]
    return sqrt(max(0.0, divergence(p, mean) / 2 + divergence(q, mean) / 2))


@pytest.fixture(scope="module")
def looks() -> list[Look]:
    """Two inputs of different lengths of an encoder-decoder."""
    model = Seq2Seq(encoder("transformer"), decoder("transformer")).eval()
    sources = [Tokens.of([[4, 5, 4, 5, 6, 7, 4]]), Tokens.of([[8, 8, 9, 8]])]
    return [
        regard.look(model, source, output=ids)
        for source, ids in zip(sources, (IDS, IDS[:4]), strict=True)
    ]


def test_properties_equal_loops_over_all_weights(looks):
    report = measured(*looks)
    assert report.inputs == 2
    assert len(report.heads) == len({each.name for each in report.heads}) == 2 * 2 * 3
    for each in report.heads:
        name, head = each.name
        assert each.positional == pytest.approx(
            _explained(tuple(look[name] for look in looks), head), abs=1e-6
        )
        if name.endswith("cross"):
            assert each.induction is None
        else:
            assert each.induction == pytest.approx(_induction(looks, name, head), abs=1e-6)
        own = [look[name].summary(0).heads()[head].entropy for look in looks]
        assert each.means.entropy == pytest.approx(sum(own) / 2)


def test_distances_equal_loops_over_all_rows(looks):
    report = measured(*looks)
    for a, first in enumerate(report.heads):
        for b, second in enumerate(report.heads):
            found = report.distances[a][b]
            alike = first.site.kind == second.site.kind and first.site.part == second.site.part
            assert (found is not None) == alike
            if found is not None:
                rows = [
                    _distance(p, q)
                    for look in looks
                    for p, q in zip(
                        look[first.name[0]].weights()[first.name[1]].double().tolist(),
                        look[second.name[0]].weights()[second.name[1]].double().tolist(),
                        strict=True,
                    )
                ]
                assert found == pytest.approx(sum(rows) / len(rows), abs=2e-3)


def test_copying_from_a_source_is_measured_where_its_tokens_are_those_of_the_output(looks):
    cross = [each for each in measured(*looks).heads if each.site.kind == "cross"]
    assert all(each.copying is None for each in cross)
    shared = [
        each for each in measured(*looks, shared_vocabulary=True).heads if each.site.kind == "cross"
    ]
    call, model = looks[0]["decoder 1 cross"].call, looks[0].forward.model
    ids = torch.tensor([4, 5, 4, 5, 6, 7, 4])
    out = call.source.output_weight.unflatten(1, (2, -1))[:, 0]
    other = looks[1]["decoder 1 cross"].call
    ranks = []
    for value, tokens in ((call.value, ids), (other.value, torch.tensor([8, 8, 9, 8]))):
        logits = value[0, 0] @ out.mT @ model.decoder.project.weight.mT
        for row, token in zip(logits, tokens, strict=True):
            ranks.append(
                float((row < row[token]).sum() - (row > row[token]).sum()) / (len(row) - 1)
            )
    assert shared[0].copying == pytest.approx(sum(ranks) / len(ranks), abs=1e-5)


@pytest.mark.parametrize(
    ("in_all", "of_one", "wanted"),
    [
        (512, 128, [4] * 5),
        (512, 1, [1] * 5),
        (512, 3, [3] * 5),
        (6, 4, [4, 2, 0, 0, 0]),
        (9, 4, [4, 4, 1, 0, 0]),
    ],
)
def test_copying_is_measured_of_so_many_tokens_at_most(monkeypatch, in_all, of_one, wanted):
    monkeypatch.setattr(head_properties, "COPIED", in_all)
    monkeypatch.setattr(head_properties, "COPIED_OF_ONE", of_one)
    model, meter, counts = known_heads(), HeadMeter(), [0]
    for _ in wanted:
        meter.add(regard.look(model, None, output=IDS[:4]))
        counts.append(next(iter(meter._maps.values())).copied)
    assert [after - before for before, after in pairwise(counts)] == wanted


def test_heads_are_grouped_by_mean_distance():
    near, far = 0.1, 0.9
    chain = [[0.0, near, 0.4], [near, 0.0, near], [0.4, near, 0.0]]
    assert grouped(chain, most=0.2) == [0, 0, 1]  # the third is 0.25 from the mean of the first two
    assert grouped(chain, most=0.3) == [0, 0, 0]
    assert grouped([[0.0, far], [far, 0.0]]) == [0, 1]
    assert grouped([[0.0, None, near], [None, 0.0, None], [near, None, 0.0]]) == [0, 1, 0]
    assert grouped([]) == []
    # The last two of three groups are nearer to each other than to the first.
    apart = [[0.0, far, 0.5], [far, 0.0, 0.95], [0.5, 0.95, 0.0]]
    assert grouped(apart, most=0.4) == [0, 2, 1]


def test_a_report_is_sorted_with_its_distances(looks):
    report = measured(*looks)
    by = report.sorted("induction")
    values = [each.induction for each in by.heads]
    known = [value for value in values if value is not None]
    assert known == sorted(known, reverse=True)
    assert values[len(known) :] == [None] * (len(values) - len(known))
    places = [[each.name for each in report.heads].index(each.name) for each in by.heads]
    assert by.distances[0][3] == report.distances[places[0]][places[3]]
    assert list(json.loads(json.dumps(by.as_dict()))["heads"][0]) == ["map", "head", *COLUMNS]
    with pytest.raises(regard.InvalidArgument, match="Did you mean 'induction'"):
        report.sorted("inducton")


@torch.no_grad()
def test_memory_grows_with_the_length_not_with_its_square():
    table = {
        "kind": "transformer",
        "dim": 16,
        "layers": 1,
        "heads": 2,
        "ffn_dim": 16,
        "positions": "none",
    }
    model = regard.build({"decoder": table, "vocab_size": 9}).eval()
    ids = torch.randint(4, 9, (4096,)).tolist()
    look = regard.look(model, None, output=ids)
    whole = 2 * 4096 * 4096 * 4  # bytes of all weights
    assert peak_bytes(lambda: measured(look)) < whole / 2


def test_heads_of_a_predictor(tmp_path):
    model = translator()
    pairs = [("the cat sat", "the cat"), ("a dog", "the dog ran")]
    report = regard.heads(model, inputs=pairs)
    assert report == measured(
        *(regard.look(model, a, output=b) for a, b in pairs), shared_vocabulary=True
    )
    assert report.heads[-1].copying is not None  # cross-attention: one vocabulary
    assert regard.heads(model, inputs=pairs, limit=1).inputs == 1
    own = regard.heads(model, inputs=["the cat"], max_length=4)
    assert own == measured(regard.look(model, "the cat", max_length=4), shared_vocabulary=True)
    for name, text in (
        ("a.src", "the cat sat"),
        ("a.trg", "a cat sat"),
        ("a.links", "0-0 1-1 2-2"),
    ):
        (tmp_path / name).write_text(text + "\n")
    files = [tmp_path / name for name in ("a.src", "a.trg", "a.links")]
    aligned = [
        each
        for each in regard.heads(model, inputs=pairs, alignment=files).heads
        if each.alignment is not None
    ]
    assert [each.name for each in aligned] == [
        (f"decoder {layer} cross", head) for layer in (1, 2) for head in (0, 1)
    ]
    for each in aligned:
        found = []
        for step in ("output", "input"):
            chosen = regard.AlignmentHeads(each.site.layer, each.means.head, step)
            (links,) = regard.align(model, ["the cat sat"], ["a cat sat"], heads=chosen)
            found.append(
                len({*links.links} & {(0, 0), (1, 1), (2, 2)}) * 2 / (len(links.links) + 3)
            )
        assert each.alignment == pytest.approx(max(found))
    for given, message in (
        ({}, "data or inputs"),
        ({"inputs": []}, "at least one input"),
        ({"inputs": ["a"], "ablate": True}, "loss"),
    ):
        with pytest.raises(regard.InvalidArgument, match=message):
            regard.heads(model, **given)


@pytest.mark.slow
def test_previous_token_and_induction_heads_are_found_in_a_trained_attention_only_model():
    """Two layers without feed-forward networks learn repeated sequences (https://arxiv.org/abs/2209.11895).

    A head of the first layer attends to the previous token, and one of the second, by what it wrote, to the token that
    followed an earlier occurrence of the current one, which it copies.
    """
    model = _trained_on_repeats()
    generator = torch.Generator().manual_seed(1)
    meter = HeadMeter()
    for _ in range(4):
        ids = torch.randint(4, 32, (18,), generator=generator).tolist() * 2
        meter.add(regard.look(model, None, output=ids))
    heads = meter.report().heads
    previous = max(heads, key=lambda each: each.means.previous)
    assert previous.site.layer == 1
    assert previous.means.previous > 0.6
    assert previous.offset == -1
    assert previous.positional > 0.8
    assert all(each.means.previous < 0.4 for each in heads if each is not previous)
    induction = max(heads, key=lambda each: each.induction)
    assert induction.site.layer == 2
    assert induction.induction > 0.6
    assert induction.copying > 0.8
    assert induction.positional < 0.7
    assert all(each.induction < 0.4 for each in heads if each.site.layer == 1)


def _trained_on_repeats() -> Seq2Seq:
    torch.manual_seed(0)
    table = {
        "kind": "transformer",
        "dim": 64,
        "layers": 2,
        "heads": 4,
        "ffn_dim": 1,
        "dropout": 0.0,
    }
    model = regard.build(
        {
            "decoder": {**table, "positions": "relative"},
            "vocab_size": 32,
            "tie_embeddings": "target",
        }
    )
    frozen = [each for block in model.decoder.stack.layers for each in block.ffn.parameters()]
    for each in frozen:
        torch.nn.init.zeros_(each).requires_grad_(False)
    biases = [each for name, each in model.named_parameters() if "relative_bias" in name]
    others = [
        each
        for name, each in model.named_parameters()
        if each.requires_grad and "relative_bias" not in name
    ]
    groups = [
        {"params": others},
        {"params": biases, "lr": 0.06},
    ]  # biases of positions are not scaled by a width
    optimizer = torch.optim.AdamW(groups, lr=0.006, betas=(0.9, 0.98), weight_decay=0.01)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    places = torch.arange(36)[None]
    for _ in range(2000):
        period = torch.randint(6, 18, (16, 1))
        ids = torch.randint(4, 32, (16, 36)).gather(1, places % period)
        losses = F.cross_entropy(
            model(None, ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none"
        )
        loss = losses[(places >= period)[:, 1:]].mean()  # of what can be known
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warmup.step()
        if loss.item() < 0.4:
            break
    return model.eval()
