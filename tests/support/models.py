"""The encoders and decoders that the contract tests run over: a new one is tested by being listed here."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import regard
from regard.core.sequence import Tokens, Vectors
from regard.model.backbones import BackboneConfig
from regard.model.convolution import ConvConfig, ConvDecoder, ConvEncoder
from regard.model.embedding import Embedding, Projection
from regard.model.inputs import InputModule, VectorInput, VectorInputConfig
from regard.model.memory import Memory
from regard.model.mlp import MlpConfig, MlpEncoder
from regard.model.perceiver import PerceiverConfig, PerceiverEncoder
from regard.model.rnn_decoder import RnnDecoder
from regard.model.rnn_decoder_config import RnnDecoderConfig
from regard.model.rnn_encoder import RnnConfig, RnnEncoder
from regard.model.simple_encoders import BagConfig, BagEncoder, LabelConfig, LabelEncoder
from regard.model.transformer import TransformerDecoder, TransformerEncoder
from regard.model.transformer_config import TransformerConfig
from regard.model.vector_embedding import (
    TargetEmbedding,
    TargetProjection,
    VectorEmbedding,
    VectorProjection,
    shifted_inputs,
)
from regard.model.vision import (
    CnnConfig,
    CnnTransformerConfig,
    VitConfig,
    cnn,
    cnn_transformer,
    vit,
)

WIDTH, VOCABULARY, LABELS = 16, 11, 4
DIMENSION = 3  # numbers of a vector that an encoder of vectors reads
SMALL = TransformerConfig(
    dim=WIDTH, layers=2, heads=2, ffn_dim=24, attention_dropout=0.1, ffn_dropout=0.1
)
PERCEIVER = PerceiverConfig(queries=4, dim=WIDTH, layers=2, heads=2, ffn_dim=24)
CONV = ConvConfig(dim=WIDTH, dilations=(1, 2))
NO_BIAS = {"attention_bias": "none", "ffn_bias": False}
T5 = {"norm": "rms", "activation": "geglu", "score": "dot", "head_dim": 6, **NO_BIAS}
BART = {
    "positions": "learned",
    "position_offset": 2,
    "norm_input": True,
    "norm_first": False,
    "activation": "gelu",
}
LLAMA = {
    "norm": "rms",
    "activation": "swiglu",
    "positions": "rotary",
    "kv_heads": 1,
    "head_dim": 10,
    **NO_BIAS,
}
POSITIONS = ("sinusoidal", "learned", "rotary", "alibi", "relative", "none")


def words() -> Embedding:
    return Embedding(VOCABULARY, WIDTH)


def vectors(**options: Any) -> VectorInput:
    return VectorInput(VectorInputConfig(**options), DIMENSION, WIDTH)


SEQUENCE_ENCODERS: dict[str, Callable[[InputModule], nn.Module]] = {
    "bag": lambda given: BagEncoder(BagConfig(WIDTH), given),
    "elman": lambda given: RnnEncoder(RnnConfig("elman", WIDTH), given),
    "gru": lambda given: RnnEncoder(RnnConfig("gru", WIDTH, layers=2), given),
    "lstm": lambda given: RnnEncoder(RnnConfig("lstm", WIDTH), given),
    "gru unidirectional": lambda given: RnnEncoder(
        RnnConfig("gru", WIDTH, bidirectional=False), given
    ),
    "mlp": lambda given: MlpEncoder(MlpConfig(WIDTH, ffn_dim=24), given),
    "mlp deep residual": lambda given: MlpEncoder(
        MlpConfig(WIDTH, layers=2, ffn_dim=24, activation="gelu", residual=True), given
    ),
    "conv": lambda given: ConvEncoder(CONV, given),
    "conv causal": lambda given: ConvEncoder(replace(CONV, causal=True), given),
    "transformer": lambda given: TransformerEncoder(SMALL, given),
    "transformer causal": lambda given: TransformerEncoder(replace(SMALL, causal=True), given),
    "transformer post-norm rms swiglu": lambda given: TransformerEncoder(
        replace(SMALL, norm="rms", norm_first=False, activation="swiglu"), given
    ),
    "transformer like T5": lambda given: TransformerEncoder(
        replace(SMALL, **T5, positions="relative", relative_buckets=8, relative_max_distance=6),
        given,
    ),
    "transformer causal window": lambda given: TransformerEncoder(
        replace(SMALL, causal=True, sliding_window=2), given
    ),
    "transformer like BERT": lambda given: TransformerEncoder(
        replace(SMALL, **BART, token_types=2), given
    ),
    "transformer cls_token": lambda given: TransformerEncoder(
        replace(SMALL, cls_token=True), given
    ),
    "transformer wide values": lambda given: TransformerEncoder(
        replace(SMALL, value_dim=11), given
    ),
    "transformer concatenated, normed": lambda given: TransformerEncoder(
        replace(SMALL, position_mode="concatenate", norm_input=True, activation="gelu_tanh"),
        given,
    ),
    **{
        f"transformer {position}": lambda given, position=position: TransformerEncoder(
            replace(SMALL, positions=position), given
        )
        for position in POSITIONS
    },
}
# Those whose states are those of learned queries.
QUERY_ENCODERS: dict[str, Callable[[InputModule], nn.Module]] = {
    "perceiver": lambda given: PerceiverEncoder(PERCEIVER, given),
    "perceiver repeated post-norm rms": lambda given: PerceiverEncoder(
        replace(
            PERCEIVER,
            queries=3,
            repeat_cross_attention=True,
            norm_first=False,
            norm="rms",
            positions="learned",
            value_dim=5,
        ),
        given,
    ),
}
SEQUENCE_ENCODERS |= QUERY_ENCODERS
TEXT_ENCODERS: dict[str, Callable[[], nn.Module]] = {
    name: lambda make=make: make(words()) for name, make in SEQUENCE_ENCODERS.items()
}
# The same encoders read sequences of vectors, through a linear layer or a convolution.
OF_VECTORS = " of vectors"
VECTOR_ENCODERS: dict[str, Callable[[], nn.Module]] = {
    name + OF_VECTORS: lambda make=make: make(vectors()) for name, make in SEQUENCE_ENCODERS.items()
}
VECTOR_ENCODERS |= {
    f"transformer, {score}{OF_VECTORS}": lambda score=score: TransformerEncoder(
        replace(SMALL, score=score), vectors()
    )
    for score in regard.SCORES
}
VECTOR_ENCODERS |= {
    f"gru, convolution{OF_VECTORS}": lambda: SEQUENCE_ENCODERS["gru"](vectors(kernel=4)),
    f"transformer, stride 2{OF_VECTORS}": lambda: SEQUENCE_ENCODERS["transformer"](
        vectors(kernel=3, stride=2)
    ),
    f"gru, patches{OF_VECTORS}": lambda: SEQUENCE_ENCODERS["gru"](
        vectors(kernel=3, stride=2, padding="end")
    ),
    f"conv, stride 2{OF_VECTORS}": lambda: SEQUENCE_ENCODERS["conv"](vectors(kernel=2, stride=2)),
    f"elman, stride 3{OF_VECTORS}": lambda: SEQUENCE_ENCODERS["elman"](vectors(kernel=3, stride=3)),
}
OTHER_ENCODERS: dict[str, Callable[[], nn.Module]] = {
    "label": lambda: LabelEncoder(LabelConfig(WIDTH), Embedding(LABELS, WIDTH)),
    "cnn": lambda: cnn(CnnConfig(WIDTH, (4, 8), attention=True)),
    "cnn learned queries": lambda: cnn(CnnConfig(WIDTH, (4, 8), queries=3)),
    "cnn+transformer": lambda: cnn_transformer(CnnTransformerConfig((4, 8), transformer=SMALL)),
    "efficientnet": lambda: cnn(CnnConfig(WIDTH, backbone=BackboneConfig("efficientnet-lite0"))),
    "resnet+transformer": lambda: cnn_transformer(
        CnnTransformerConfig(
            backbone=BackboneConfig("resnet18", 16, "resnet18.pth"), transformer=SMALL
        )
    ),
    "vit": lambda: vit(VitConfig(4, SMALL)),
    "vit mlp": lambda: vit(VitConfig(4, SMALL, patch_ffn_dim=24)),
    "vit distillation_token": lambda: vit(
        VitConfig(4, replace(SMALL, positions="learned", cls_token=True), distillation_token=True)
    ),
    "vit cls_token": lambda: vit(VitConfig(4, replace(SMALL, positions="learned", cls_token=True))),
}
ENCODERS = TEXT_ENCODERS | VECTOR_ENCODERS | OTHER_ENCODERS
# Those that ONNX files and exported pages have.
EXPORTED_ENCODERS = TEXT_ENCODERS | OTHER_ENCODERS

Make = Callable[[TargetEmbedding, TargetProjection, int | None], nn.Module]


def rnn(**options: Any) -> Make:
    return lambda embedding, project, memory: RnnDecoder(
        RnnDecoderConfig(dim=WIDTH, **options), embedding, project, memory
    )


def transformer(**options: Any) -> Make:
    return lambda embedding, project, memory: TransformerDecoder(
        replace(SMALL, **options), embedding, project, memory
    )


DECODERS: dict[str, Make] = {
    "rnn": rnn(attention="none"),
    "elman zero state": rnn(cell="elman", attention="none", initial_state="zero"),
    "lstm mlp state as context": rnn(
        cell="lstm", layers=2, attention="none", initial_state="mlp", context="initial_state"
    ),
    "gru initial state alone": rnn(attention="none", context="none"),
    "gru bahdanau mlp state": rnn(attention="bahdanau", initial_state="mlp"),
    "lstm bahdanau": rnn(cell="lstm", layers=2, attention="bahdanau"),
    "lstm bahdanau gated": rnn(cell="lstm", attention="bahdanau", context_gate=True),
    "lstm luong variational": rnn(
        cell="lstm", layers=2, attention="luong", variational_dropout=True, recurrent_dropout=0.5, layer_dropout=0.2
    ),
    "gru luong": rnn(attention="luong"),
    "gru luong input-feeding": rnn(attention="luong", input_feeding=True),
    **{f"gru bahdanau {score}": rnn(attention="bahdanau", score=score) for score in regard.SCORES},
    "lstm luong dot": rnn(cell="lstm", attention="luong", score="dot"),
    "conv": lambda embedding, project, memory: ConvDecoder(CONV, embedding, project, memory),
    "transformer": transformer(),
    "transformer post-norm": transformer(norm_first=False, activation="gelu"),
    "transformer rms swiglu grouped": transformer(norm="rms", activation="swiglu", kv_heads=1, qk_norm=True),
    "transformer like T5": transformer(**T5, positions="relative", relative_buckets=8, relative_max_distance=6),
    "transformer like Qwen": transformer(**LLAMA | {"attention_bias": "qkv"}, rotary_base=50.0, qk_norm=True),
    "transformer like Mistral": transformer(**LLAMA, sliding_window=3),
    "transformer like BART": transformer(**BART),
    "transformer rms_offset, no biases": transformer(
        norm="rms_offset", **NO_BIAS, positions="learned", position_offset=2
    ),
    "transformer narrow values": transformer(value_dim=3),
    "transformer wide values grouped": transformer(value_dim=11, kv_heads=1, positions="rotary"),
    "transformer additive": transformer(score="additive"),
    "transformer additive rotary": transformer(score="additive", positions="rotary"),
    "transformer concatenated, normed": transformer(position_mode="concatenate", norm_input=True, activation="silu"),
    "transformer learned concatenated": transformer(positions="learned", position_mode="concatenate"),
    "transformer checkpointed": transformer(activation_checkpointing=True),
    **{f"transformer {position}": transformer(positions=position) for position in POSITIONS},
}  # fmt: skip


# The same decoders over vectors: those that differ in how they read their inputs.
VECTOR_DECODERS = [
    name + OF_VECTORS
    for name in (
        "rnn",
        "elman zero state",
        "gru bahdanau mlp state",
        "lstm bahdanau",
        "lstm luong variational",
        "gru luong",
        "gru luong input-feeding",
        "conv",
        "transformer",
        "transformer post-norm",
        "transformer like T5",
        "transformer like Qwen",
        "transformer like Mistral",
        "transformer additive",
        "transformer learned",
        "transformer alibi",
    )
]
WITHOUT_ATTENTION = (
    "rnn",
    "elman zero state",
    "lstm mlp state as context",
    "gru initial state alone",
)


def decoder(name: str, memory_dim: int | None = WIDTH) -> nn.Module:
    torch.manual_seed(5)
    if name.endswith(OF_VECTORS):
        ends = VectorEmbedding(DIMENSION, WIDTH), VectorProjection(WIDTH, DIMENSION)
        made = DECODERS[name.removesuffix(OF_VECTORS)](*ends, memory_dim)
        return without_zeros(made).eval()
    embedding = words()
    plain = not any(word in name for word in ("no biases", "T5", "Qwen"))
    project = Projection(WIDTH, VOCABULARY, tied=embedding, bias=plain, scaled=not plain)
    made = DECODERS[name](embedding, project, memory_dim)
    return without_zeros(made).eval()


def targets(name: str, lengths: tuple[int, int] = (3, 5)) -> torch.Tensor:
    """What this decoder reads: token ids (B, T), or vectors (B, T, E) after the start."""
    generator = torch.Generator().manual_seed(1)
    if name.endswith(OF_VECTORS):
        return shifted_inputs(torch.randn(*lengths, DIMENSION, generator=generator))
    return torch.randint(VOCABULARY, lengths, generator=generator)


def other_targets(given: torch.Tensor) -> torch.Tensor:
    """Other tokens or vectors, none of which equals that in its place."""
    if given.is_floating_point():
        return given + 1.0
    return (given + 1) % VOCABULARY


def encoder(name: str) -> nn.Module:
    torch.manual_seed(6)
    return without_zeros(ENCODERS[name]()).eval()


def without_zeros(module: nn.Module) -> nn.Module:
    """Random values in parameters that are initialized to zero, which would hide that they are unused."""
    for parameter in module.parameters():
        if not parameter.data.any():
            parameter.data = 0.3 * torch.randn_like(parameter)
    return module


def source(name: str, lengths: tuple[int, ...] = (6, 3, 5)) -> Any:
    """A batch of sources for this encoder, one for each length."""
    generator = torch.Generator().manual_seed(7)
    if name == "label":
        return torch.arange(len(lengths)) % LABELS
    if name in OTHER_ENCODERS:
        size = (40, 56) if "net" in name else (8, 12)
        return torch.rand(len(lengths), 3, *size, generator=generator)
    if name in VECTOR_ENCODERS:
        return Vectors.of(
            [torch.randn(length, DIMENSION, generator=generator) for length in lengths]
        )
    rows = [
        torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in lengths
    ]
    return Tokens.of(rows)


def one(batch: Any, i: int) -> Any:
    """Source i of a batch as a batch of one, without padding."""
    if isinstance(batch, Tokens):
        length = int(batch.lengths[i])
        return Tokens(batch.ids[i : i + 1, :length], batch.lengths[i : i + 1])
    if isinstance(batch, Vectors):
        length = int(batch.lengths[i])
        return Vectors(batch.values[i : i + 1, :length], batch.lengths[i : i + 1])
    return batch[i : i + 1]


def memory(batch: int = 3) -> Memory:
    """A random memory whose padding holds large values."""
    generator = torch.Generator().manual_seed(8)
    states = torch.randn(batch, 6, WIDTH, generator=generator)
    mask = torch.arange(6) < torch.tensor([6, 2, 4])[:batch, None]
    return Memory(
        states.masked_fill(~mask[..., None], 30.0),
        mask,
        torch.randn(batch, WIDTH, generator=generator),
    )


def with_garbage(batch: Any, more: int = 0) -> Any:
    """The batch with other values in its padding, which is `more` positions longer."""
    if isinstance(batch, Vectors):
        wider = Vectors(F.pad(batch.values, (0, 0, 0, more)), batch.lengths)
        is_padding = torch.arange(wider.values.shape[1]) >= batch.lengths[:, None]
        return Vectors(wider.values.masked_fill(is_padding[..., None], 30.0), batch.lengths)
    ids = torch.where(batch.mask, batch.ids, VOCABULARY - 1)
    return Tokens(F.pad(ids, (0, more), value=3), batch.lengths)


def with_another_future(batch: Any, position: int) -> Any:
    """The batch with other tokens or vectors from this position on."""
    if isinstance(batch, Vectors):
        values = batch.values.clone()
        values[:, position:] += 1.0
        return Vectors(values, batch.lengths)
    ids = batch.ids.clone()
    ids[:, position:] = (ids[:, position:] + 1) % VOCABULARY
    return Tokens(ids, batch.lengths)
