"""The modules of an exported page, in Node.js: operators, programs, tokenizers and images give what Python gives."""

import json

import numpy as np
import pytest
import torch

from regard.core.errors import InvalidArgument
from regard.data.images import load_image
from regard.data.tokenizer import Tokenizer
from regard.data.train_tokenizer import train_tokenizer
from regard.evaluation.output_difference import token_differences
from regard.generation.choose.sampling import seed_offset, uniform
from regard.interop.page.program import OPERATORS, quantized_rows
from regard.interop.page.tokenizer_tables import tokenizer_table
from regard.interpret.editing import token_id
from regard.interpret.edits import ReplaceToken
from support import models, predictors
from support.node import SHARED, STANDALONE, node
from support.page_members import DATES

INPUTS = [each.source for each in DATES]


def test_the_interpreter_runs_every_operator_that_is_exported():
    found = node(
        "import { OPERATORS } from './program.js'; console.log(JSON.stringify(Object.keys(OPERATORS)));"
    )
    assert {*found, "Scan"} == OPERATORS


LINES = [
    "", " ", "\n", "a\nb\n\nc ", "The cats' catalogue isn't   concatenated; we'll see.\tOK?", "12,345.67€ — ½ ² Ⅳ ٣",
    "ΑΣ ΌΣΟΣ İstanbul ẞ Ǆ ﬁ", "Äpfel, naïve café e\u0301", "漢字かな交じり文、한국어 텍스트", "العربية עברית हिन्दी ไทย",
    "😀👩‍👩‍👧 🇩🇪 \u200d\ufeff\u00a0\u0085\u2028\u3000x", "</s> <s><unk> <0x41> <pad>", "\x00\x01\x7f\x80",
    "’s ’t 'S 'LL don't",
    "x" * 300, "ab" * 200, "\u0378\uffff", "don’t—stop", "  leading and trailing  ", "\r\n\r",
]  # fmt: skip


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters", "words", "bytes"])
def test_tokenizers_encode_and_decode_as_in_python(kind, lowercase):
    lines = [*LINES, *predictors.TEXT[:3], *INPUTS]
    tokenizer = train_tokenizer(kind, [*predictors.TEXT, *INPUTS, *LINES[:8]], 420, lower=lowercase)
    running = tokenizer.for_running_text()
    generator = torch.Generator().manual_seed(1)
    random_ids = [
        torch.randint(tokenizer.size, (12,), generator=generator).tolist() for _ in range(60)
    ]
    program = """import { Tokenizer } from './tokenizer.js';
        const [plain, running] = given.tables.map((table) => new Tokenizer(table));
        console.log(JSON.stringify({
            ids: given.lines.map((line) => plain.encode(line)),
            running: given.lines.map((line) => running.encode(line)),
            texts: given.ids.map((ids) => plain.decode(ids)),
            runningTexts: given.ids.map((ids) => running.decode(ids)),
            pieces: plain.tokens.map((_, id) => plain.piece(id)),
            found: given.words.map((word) => plain.find(word)),
        }));"""
    tables = [tokenizer_table(each, running=each is running) for each in (tokenizer, running)]
    words = sorted(
        {part for line in predictors.TEXT for part in (*line.split(), f" {line.split()[0]}", line)}
        | {"▁", "e"}
    )
    found = node(program, {"tables": tables, "lines": lines, "ids": random_ids, "words": words})
    assert found["found"] == [named_token(word, tokenizer) for word in words]
    assert found["ids"] == tokenizer.encode_batch(lines)
    assert found["running"] == running.encode_batch(lines)
    assert found["texts"] == [tokenizer.decode(ids) for ids in random_ids]
    assert found["runningTexts"] == [running.decode(ids) for ids in random_ids]
    assert found["pieces"] == tokenizer.pieces(range(tokenizer.size))


def named_token(name: str, tokenizer: Tokenizer) -> int | None:
    try:
        return token_id(ReplaceToken(position=0, token=name), 1, tokenizer)
    except InvalidArgument:
        return None


def test_transparent_pixels_are_drawn_over_white():
    alphas = range(256)
    colors = [[0, 0, 0], [255, 255, 255], [10, 128, 250]]
    rgba = np.array([[*color, alpha] for color in colors for alpha in alphas], dtype=np.uint8)
    program = """import { overWhite } from './images.js';
        console.log(JSON.stringify([...overWhite(Uint8Array.from(given.rgba))]));"""
    found = np.array(node(program, {"rgba": rgba.ravel().tolist()})).reshape(3, 256, 3)
    alpha = np.arange(256)[:, None] / 255
    for pixels, color in zip(found, colors, strict=True):
        exact = np.array(color) * alpha + 255 * (1 - alpha)
        assert np.abs(pixels - exact).max() <= 0.5 + 1e-9


def test_a_text_has_as_many_tokens_as_the_model_reads_and_no_more():
    words = train_tokenizer("words", ["a b c d"], 50)
    program = """import { Model } from './model.js';
        const source = { kind: 'text', tokenizer: 0, limit: 3, prefix: [], suffix: [], units: 0 };
        const target = { kind: 'label', labels: [] };
        const model = new Model({ programs: {}, tokenizers: given.tables, sources: [source], target }, null);
        const read = (text) => {
          try {
            return model.read([text], []).size;
          } catch (error) {
            return error.message;
          }
        };
        console.log(JSON.stringify(given.texts.map(read)));"""
    texts = ["a", "a b c", "a b c d"]
    found = node(program, {"tables": [tokenizer_table(words, running=False)], "texts": texts})
    assert found == [1, 3, "The text has 4 tokens; the model reads 3 at most."]


@pytest.mark.parametrize("resize", ["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"])
def test_images_are_resized_as_by_pillow(resize):
    rng = np.random.default_rng(1)
    sizes = [
        (37, 53),
        (16, 16),
        (9, 40),
        (200, 64),
        (1, 1),
        (46, 35),
        (47, 35),
        (112, 64),
    ]  # tall ones, and not quite
    pictures = [rng.integers(0, 256, (height, width, 3), dtype=np.uint8) for height, width in sizes]
    program = """import { squared } from './images.js';
        const square = ([{ pixels, width, height }, to]) => [...squared(Uint8Array.from(pixels), width, height, to)];
        console.log(JSON.stringify(given.map(square)));"""
    cases = [
        (picture, size, crop)
        for picture in pictures
        for size, crop in ((16, None), (64, None), (24, 30))
    ]
    given = [
        [
            {
                "pixels": picture.flatten().tolist(),
                "width": picture.shape[1],
                "height": picture.shape[0],
            },
            {"size": size, "resize": resize, "crop_from": crop},
        ]
        for picture, size, crop in cases
    ]
    for found, (picture, size, crop) in zip(node(program, given), cases, strict=True):
        wanted = load_image(picture, size, resize, crop)
        assert np.array_equal(np.array(found, np.uint8).reshape(wanted.shape), wanted)


def test_int8_rows_are_within_half_a_step():
    weight = torch.randn(5, 7).numpy() * [[1.0], [100.0], [1e-6], [0.0], [3.0]]
    values, scales = quantized_rows(weight)
    assert np.abs(values).max(1).tolist() == [127, 127, 127, 0, 127]
    assert (np.abs(values * scales[:, None] - weight) <= scales[:, None] * 0.5001).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("encoder", name) for name in models.EXPORTED_ENCODERS),
        *(("decoder", name) for name in models.DECODERS),
    ],
)
def test_programs_of_the_family(exports, kind, name):
    path = exports.program(kind, name)
    program = """import { Kernels } from './kernels.js';
        import { Program } from './program.js';
        import { tensor } from './tensor.js';
        const kernels = await Kernels.load(fs.readFileSync(given.code), fs.readFileSync(given.weights));
        const arrays = { f: Float32Array, i: Int32Array };
        const read = ({ type, shape, values }) => tensor(type, shape, arrays[type].from(values));
        const feeds = Object.fromEntries(Object.entries(given.feeds).map(([name, each]) => [name, read(each)]));
        const found = Object.entries(new Program(given.program, kernels).run(feeds));
        const written = ([name, { shape, data }]) => [name, { shape, values: [...data] }];
        console.log(JSON.stringify(Object.fromEntries(found.map(written))));"""
    given = json.loads(path.read_text())
    files = {"code": str(STANDALONE / "kernels.wasm"), "weights": str(path.with_suffix(".weights"))}
    found = node(program, {**given, **files})
    for output, wanted in given["wanted"].items():
        assert found[output]["shape"] == wanted["shape"]
        np.testing.assert_allclose(found[output]["values"], wanted["values"], rtol=1e-4, atol=1e-5)


def test_random_numbers_are_those_of_python():
    seeds, streams, steps = [0, 1, 7, 2**31 - 1, 2**40], [0, 3, 1000], [0, 1, 99]
    cases = [(seed, stream, step) for seed in seeds for stream in streams for step in steps]
    program = "import { uniform } from './sampling.js'; console.log(JSON.stringify(given.map((c) => uniform(...c))));"
    wanted = [
        float(uniform(seed_offset(a), torch.tensor([b]), torch.tensor([c]))) for a, b, c in cases
    ]
    assert node(program, cases) == wanted


def test_outputs_are_aligned_as_in_python():
    generator = np.random.default_rng(5)
    texts = [
        [[*map(str, generator.integers(0, k, n))] for n in generator.integers(0, 14, 2)]
        for k in (2, 3, 6, 20) * 60
    ]
    program = """import { tokenDifferences } from './token_difference.js';
        console.log(JSON.stringify(given.map(([a, b]) => tokenDifferences(a, b, a.map(Number), b.map(Number)))));"""
    found = node(program, texts, folder=SHARED)
    wanted = [
        [vars(each) for each in token_differences(a, b, [*map(float, a)], [*map(float, b)])]
        for a, b in texts
    ]
    assert found == wanted


def test_colors_are_about_uniform_to_the_eye_and_safe_for_the_color_blind():
    """Steps of equal size in CIELAB, falling or rising brightness, also as protanopes and deuteranopes see them."""
    program = """import { ramp } from './colours.js';
        const kinds = [[false, false], [true, false], [false, true], [true, true]]; // dark, signed
        console.log(JSON.stringify(kinds.map((each) => ramp(...each))));"""
    tables = [np.array(table, float) for table in node(program, folder=SHARED)]
    for number, table in enumerate(tables):
        parts = [table] if number < 2 else [table[:128], table[128:]]
        for part in parts:
            coarse = part[:: len(part) // 16]  # steps of several levels: single ones are rounded
            steps = np.linalg.norm(np.diff(cielab(coarse), axis=0), axis=1)
            assert steps.max() / steps.min() < 1.7
            for seen in (np.eye(3), *COLOR_BLIND):
                brightness = cielab(np.clip(linear(coarse) @ seen.T, 0, 1), given_linear=True)[:, 0]
                assert (np.diff(brightness) > 0).all() or (np.diff(brightness) < 0).all()


COLOR_BLIND = np.array([  # https://doi.org/10.1109/TVCG.2009.113: protanopia, deuteranopia
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
])  # fmt: skip


def linear(colors: np.ndarray) -> np.ndarray:
    shares = colors / 255
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def cielab(colors: np.ndarray, *, given_linear: bool = False) -> np.ndarray:
    """Colors of sRGB in CIELAB (D65)."""
    to_xyz = np.array(
        [
            [0.4124564, 0.3575761, 0.1804375],
            [0.2126729, 0.7151522, 0.0721750],
            [0.0193339, 0.1191920, 0.9503041],
        ]
    )
    xyz = (colors if given_linear else linear(colors)) @ to_xyz.T / [0.95047, 1.0, 1.08883]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], 1)


@pytest.mark.parametrize(
    ("axis", "start", "end", "step"),
    [(1, 1, 3, 1), (2, 0, 4, 2), (2, -3, -1, 1), (2, 9, 0, -1), (2, 9, 1, -2), (1, -1, 0, -1)],
)
def test_slices_are_those_of_numpy(axis, start, end, step):
    array = np.arange(24).reshape(2, 3, 4)
    program = """import { OPERATORS } from './program.js';
        import { integers, tensor } from './tensor.js';
        const a = tensor('i', [2, 3, 4], Int32Array.from({ length: 24 }, (_, i) => i));
        const [found] = OPERATORS.Slice([a, ...given.map((each) => integers([each]))], {});
        console.log(JSON.stringify([found.shape, [...found.data]]));"""
    index = [slice(None)] * 3
    index[axis] = slice(start, end, step)
    wanted = array[tuple(index)]
    assert node(program, [start, end, axis, step]) == [[*wanted.shape], wanted.ravel().tolist()]


def test_sums_are_those_of_numpy():
    array = np.arange(24).reshape(2, 3, 4)
    axes = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]
    program = """import { OPERATORS } from './program.js';
        import { integers, tensor } from './tensor.js';
        const a = tensor('f', [2, 3, 4], Float32Array.from({ length: 24 }, (_, i) => i));
        const sums = given.map((axes) => OPERATORS.ReduceSum([a, integers(axes)], { keepdims: 0 })[0]);
        console.log(JSON.stringify(sums.map((each) => [each.shape, [...each.data]])));"""
    wanted = [array.sum(each) for each in axes]
    assert node(program, axes) == [[[*each.shape], each.ravel().tolist()] for each in wanted]


SITE = {
    "name": "encoder layer 1",
    "part": "encoder",
    "kind": "self",
    "key_side": "source",
    "source": 0,
    "heads": 2,
}


@pytest.mark.parametrize(("head", "off"), [(None, [0, 1]), (0, [0]), (1, [1])])
def test_an_edit_without_a_head_is_of_all_heads(head, off):
    program = """import { AttentionRecorder } from './edits.js';
        import { tensor } from './tensor.js';
        const edit = { edit: 'switch_head_off', map: given.site.name, head: given.head };
        const recorder = new AttentionRecorder([given.site], [edit]);
        const scores = tensor('f', [1, 2, 1, 4], new Float32Array(8));
        console.log(JSON.stringify([...recorder.weights(given.site.name, scores).data]));"""
    wanted = [[0.0 if each in off else 0.25] * 4 for each in range(2)]
    assert node(program, {"site": SITE, "head": head}) == [*wanted[0], *wanted[1]]


def test_measures_of_heads_follow_from_their_weights():
    weights = np.random.default_rng(3).dirichlet(np.ones(5), (2, 3))  # heads, rows, keys
    rows = [{"weights": each.tolist(), "visible": [5, 5]} for each in weights.transpose(1, 0, 2)]
    program = """import { measureHeads } from './measures.js';
        console.log(JSON.stringify(measureHeads(given, 2, 5, [true, false, false, false, true])));"""
    found = node(program, rows)
    keys = np.arange(5)
    own = np.arange(3) + 2  # the keys of the last rows
    entropy = -(weights * np.log(weights)).sum(-1).mean(-1)
    wanted = {
        "entropy": entropy,
        "evenness": entropy / np.log(5),
        "distance": (weights * np.abs(keys - own[:, None])).sum(-1).mean(-1),
        "confidence": weights.max(-1).mean(-1),
        "first": weights[..., 0].mean(-1),
        "last": weights[..., -1].mean(-1),
        "own": weights[:, np.arange(3), own].mean(-1),
        "previous": weights[:, np.arange(3), own - 1].mean(-1),
        "punctuation": weights[..., [0, 4]].sum(-1).mean(-1),
    }
    for name, values in wanted.items():
        assert [each[name] for each in found] == pytest.approx(values.tolist()), name


def test_an_edit_of_a_source_that_is_not_there_is_named_by_its_number():
    program = """import { Model } from './model.js';
        try { Model.prototype.read.call({ settings: { sources: [] } }, [], given); }
        catch (error) { console.log(JSON.stringify(error.message)); }"""
    edits = [{"edit": "switch_head_off"}, {"edit": "replace_token", "source": 3}]
    assert node(program, edits) == "edit 2: there is no source 3"
