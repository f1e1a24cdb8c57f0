"""Image encoders: CNNs, CNNs with self-attention, CNN + Transformer and vision Transformers."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn import functional as F

from regard.core.config import Count, doc
from regard.core.errors import InvalidArgument, Problem
from regard.core.sequence import FeatureGrids
from regard.core.shapes import Float, Tensor
from regard.model.backbones import Backbone, BackboneConfig, backbone
from regard.model.interfaces import Encoder, Source
from regard.model.memory import Memory
from regard.model.multihead import MultiHead
from regard.model.part_config import DecoderConfig, EncoderConfig, UnusedKeys
from regard.model.pooling import AttentionPool, AttentionPoolConfig
from regard.model.positions import POSITIONS, PositionEncoding, SinusoidalGrid
from regard.model.transformer_block import ClsToken, InputLayer, PaddedInputs, TransformerStack
from regard.model.transformer_config import TransformerConfig


class SelfAttention2d(nn.Module):
    """Self-attention over the positions of a feature map, as a residual block for any CNN.

    channels   of the feature map
    heads      number of heads; must divide `channels` unless `head_dim` is given
    head_dim   dim of one head

    The 1×1 convolutions of https://arxiv.org/abs/1805.08318 are linear maps at every position, so
    this is multi-head attention over the flattened grid. Its output is scaled by a gate that starts
    at zero: inserted into a trained network, the block is the identity at first.
    """

    def __init__(self, channels: int, *, heads: int = 1, head_dim: int | None = None) -> None:
        super().__init__()
        self.attn = MultiHead(channels, heads, head_dim=head_dim)
        self.attn.attention_kind = "grid"
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B C Y X"]:
        """The feature map x (B, channels, height, width) plus its gated self-attention."""
        positions = x.flatten(2).mT  # (B, Y·X, C)
        attended: Tensor = self.attn(positions)
        return x + self.gate * attended.mT.reshape(x.shape)


@dataclass(frozen=True)
class CnnConfig(EncoderConfig):
    dim: Count = doc(256, "dimension of the memory's states")
    channels: tuple[Count, ...] = doc(
        (32, 64, 128), "channels of each stage, which halves height and width"
    )
    attention: bool = doc(False, "a self-attention block after the last stage")
    backbone: BackboneConfig | None = doc(None, "a pretrained network instead of the stages")
    queries: Count | None = doc(
        None, "learned queries that attend to the regions for the summary; left out: their mean"
    )

    def conflicts(self) -> Iterator[Problem]:
        if self.queries is not None and self.dim % 4:
            wanted = "a multiple of 4 with queries, for the encoding of rows and columns"
            yield Problem("dim", wanted, str(self.dim), "Change it, or leave queries out.")

    @property
    def normalizes_colors(self) -> bool:
        return self.backbone is not None

    def unused_as_encoder(self, decoder: DecoderConfig | None) -> UnusedKeys:
        yield from _unused_stages(self.backbone)
        if decoder is None or not decoder.reads_summary:
            yield "queries", "nothing here reads the summary"


@dataclass(frozen=True)
class _GridTransformerConfig(EncoderConfig):
    """A Transformer over a grid of image regions."""

    @property
    def blocks(self) -> TransformerConfig:
        config: TransformerConfig = self.transformer  # type: ignore[attr-defined]
        return config

    @property
    def states_dim(self) -> int:
        return self.blocks.dim

    def block_dims(self) -> dict[str, int]:
        return {f"transformer.{key}": dim for key, dim in self.blocks.block_dims().items()}

    @property
    def cls_tokens(self) -> int:
        return self.blocks.cls_tokens

    @property
    def output_dropout(self) -> float:
        return self.blocks.dropout

    def conflicts(self) -> Iterator[Problem]:
        blocks = self.blocks
        if (
            not issubclass(POSITIONS[blocks.positions], PositionEncoding)
            and blocks.positions != "none"
        ):
            wanted = "'sinusoidal' (of row and column), 'learned' or 'none' over regions"
            got = repr(blocks.positions)
            yield Problem("transformer.positions", wanted, got, "Change it.")
        if blocks.position_mode != "add":
            got = repr(blocks.position_mode)
            yield Problem("transformer.position_mode", "'add' over regions", got, "Leave it out.")
        if blocks.causal:
            yield Problem(
                "transformer.causal", "false: regions have no order", "true", "Leave it out."
            )
        if blocks.sliding_window is not None:
            got = str(blocks.sliding_window)
            yield Problem(
                "transformer.sliding_window", "none: regions have no order", got, "Leave it out."
            )
        if blocks.token_types:
            yield Problem(
                "transformer.token_types",
                "0: regions have no segments",
                str(blocks.token_types),
                "Leave it out.",
            )
        if blocks.positions == "sinusoidal" and blocks.dim % 4:
            wanted = "a multiple of 4, for sinusoids of rows and columns"
            yield Problem(
                "transformer.dim", wanted, str(blocks.dim), "Change it, or use learned positions."
            )


@dataclass(frozen=True)
class CnnTransformerConfig(_GridTransformerConfig):
    channels: tuple[Count, ...] = doc(
        (32, 64, 128), "channels of each stage, which halves height and width"
    )
    attention: bool = doc(False, "a self-attention block after the last stage")
    backbone: BackboneConfig | None = doc(None, "a pretrained network instead of the stages")
    transformer: TransformerConfig = doc(TransformerConfig(), "the Transformer over the regions")

    @property
    def normalizes_colors(self) -> bool:
        return self.backbone is not None

    def unused_as_encoder(self, decoder: DecoderConfig | None) -> UnusedKeys:
        return _unused_stages(self.backbone)


@dataclass(frozen=True)
class VitConfig(_GridTransformerConfig):
    patch_size: Count = doc(16, "height and width of a patch in pixels", arxiv="2010.11929")
    transformer: TransformerConfig = doc(TransformerConfig(), "the Transformer over the patches")
    patch_ffn_dim: Count | None = doc(
        None, "hidden dimension of an MLP that embeds patches; left out: one linear map"
    )
    distillation_token: bool = doc(
        False, "a second learned state, after the cls_token", arxiv="2012.12877"
    )
    pooler_dim: Count | None = doc(
        None,
        "outputs of the pooler that an imported encoder came with: its weights are kept for "
        "exports, never trained, and no output depends on them",
    )

    @property
    def cls_tokens(self) -> int:
        return super().cls_tokens + self.distillation_token

    def conflicts(self) -> Iterator[Problem]:
        yield from super().conflicts()
        if self.distillation_token and not self.transformer.cls_token:
            wanted = "true with a distillation_token, which comes after it"
            yield Problem("transformer.cls_token", wanted, "false", "Set it.")

    def image_conflicts(self, size: int) -> Iterator[Problem]:
        if size % self.patch_size:
            wanted = f"a divisor of data.source.image_size = {size}"
            yield Problem("patch_size", wanted, str(self.patch_size), "Change one.")


def _unused_stages(backbone: BackboneConfig | None) -> UnusedKeys:
    keys = () if backbone is None else ("channels", "attention")
    return ((key, "the backbone has its own stages") for key in keys)


class Cnn(nn.Module):
    """A small CNN with group norm, which normalises every image by itself."""

    def __init__(self, channels: tuple[int, ...], *, attention: bool, colors: int = 3) -> None:
        super().__init__()
        self.dim = channels[-1]
        stages: list[nn.Module] = []
        for before, after in zip((colors, *channels), channels, strict=False):
            stages += [
                nn.Conv2d(before, after, 3, stride=2, padding=1),
                nn.GroupNorm(1, after),
                nn.ReLU(),
            ]
            stages += [nn.Conv2d(after, after, 3, padding=1), nn.GroupNorm(1, after), nn.ReLU()]
        if attention:
            stages.append(SelfAttention2d(self.dim))
        self.stages = nn.Sequential(*stages)

    def forward(self, images: Float[Tensor, "B colors Y X"]) -> Float[Tensor, "B C y x"]:
        grid: Tensor = self.stages(images)
        return grid


class LearnedQueries(nn.Module):
    """Attention pooling of an image by learned queries over regions with their positions,
    projected to one vector.
    """

    def __init__(self, count: int, dim: int) -> None:
        super().__init__()
        self.position_encoding = SinusoidalGrid(dim)
        self.pool = AttentionPool(AttentionPoolConfig(count), dim)
        # Near zero, all queries would start as the mean and diverge slowly.
        nn.init.normal_(self.pool.queries)
        self.out_proj = nn.Linear(self.pool.dim, dim)

    def forward(self, memory: Memory) -> Float[Tensor, "B W"]:
        states = _with_positions(memory, self.position_encoding)
        pooled = self.pool(replace(memory, states=states))  # (B, Q·W)
        summary: Tensor = self.out_proj(pooled)  # (B, W)
        return summary


class GridEncoder(Encoder):
    """A CNN's feature map, projected and normalised, as a memory of image regions."""

    reads = "image"
    has_input_module = False

    def __init__(
        self, backbone: nn.Module, channels: int, dim: int, queries: int | None = None
    ) -> None:
        super().__init__()
        self.dim = dim
        self.backbone = backbone
        self.proj = nn.Linear(channels, dim)
        self.norm = nn.LayerNorm(dim)
        self.learned_queries = None if queries is None else LearnedQueries(queries, dim)

    def features(self, images: Float[Tensor, "B colors Y X"]) -> FeatureGrids:
        """The backbone's feature map; computed once per image where the backbone is frozen."""
        return FeatureGrids(self.backbone(images).permute(0, 2, 3, 1))

    def forward(self, source: Source) -> Memory:
        if not isinstance(source, FeatureGrids | Tensor):
            raise InvalidArgument(
                "source",
                wanted="a tensor (B, 3, height, width) of pixels",
                got=type(source).__name__,
                remedy="Give pixels, or the features of a frozen backbone.",
            )
        grids = source if isinstance(source, FeatureGrids) else self.features(source)
        _, rows, columns, _ = grids.states.shape
        regions = grids.states.flatten(1, 2).to(self.proj.weight.dtype)  # (B, S, C)
        memory = _regions(self.norm(self.proj(regions)), (rows, columns))
        if self.learned_queries is None:
            return memory
        return replace(memory, summary=self.learned_queries(memory))


class KeptPooler(nn.Module):
    """The weights of a linear map of the cls_token that are part of a checkpoint and are not used.

    They are buffers: an optimizer changes parameters only, and would decay weights without
    gradients.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, dim: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(outputs, dim))
        self.register_buffer("bias", torch.zeros(outputs))


class GridTransformer(Encoder):
    """A Transformer encoder over image regions: those of a CNN's feature map, or patches."""

    reads = "image"
    has_input_module = False

    def __init__(
        self,
        config: TransformerConfig,
        regions: nn.Module,
        *,
        distillation_token: bool = False,
        pooler_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.dim = config.dim
        self.patch_embed = regions
        self.stack = TransformerStack(config)
        self.position_encoding: SinusoidalGrid | None = None
        if config.positions == "sinusoidal":
            self.position_encoding = SinusoidalGrid(config.dim)
            config = replace(config, positions="none")
        self.cls_token = ClsToken(config.dim) if config.cls_token else None
        self.distillation_token = ClsToken(config.dim) if distillation_token else None
        self.cls_tokens = config.cls_token + distillation_token
        self.input_layer = InputLayer(config, bidirectional=True)
        self.pooler = None if pooler_dim is None else KeptPooler(config.dim, pooler_dim)

    def forward(self, source: Source) -> Memory:
        memory: Memory = self.patch_embed(source)
        x = memory.states
        mask = memory.mask
        if self.position_encoding is not None:
            x = _with_positions(memory, self.position_encoding)
        for token in (self.distillation_token, self.cls_token):
            if token is not None:
                x, mask = token(x, mask)
        states = self.stack(self.input_layer(x), PaddedInputs())
        if self.cls_token is not None:
            return Memory(states, mask, states[:, 0], memory.grid, self.cls_tokens)
        return Memory(states, mask, states.mean(1), memory.grid)


class PatchTransformer(GridTransformer):
    """A Transformer encoder over patches of an image (https://arxiv.org/abs/2010.11929)."""

    shardable = True
    has_blocks = True


class PatchEmbedding(nn.Module):
    """A linear projection of square patches (https://arxiv.org/abs/2010.11929)."""

    def __init__(self, dim: int, patch: int, *, colors: int = 3) -> None:
        super().__init__()
        self.dim = dim
        self.proj = nn.Conv2d(colors, dim, patch, stride=patch)

    def forward(self, images: Float[Tensor, "B colors Y X"]) -> Memory:
        grid = self.proj(images)
        return _regions(grid.flatten(2).mT, tuple(grid.shape[2:]))


class MlpPatchEmbedding(nn.Module):
    """Square patches, each normalised and embedded by an MLP."""

    def __init__(self, dim: int, patch: int, hidden: int, *, colors: int = 3) -> None:
        super().__init__()
        self.dim = dim
        self.patch = patch
        pixels = colors * patch**2
        self.mlp = nn.Sequential(
            nn.LayerNorm(pixels),
            nn.Linear(pixels, hidden),
            nn.ReLU(),
            nn.Linear(hidden, dim),
            nn.LayerNorm(dim),
        )

    def forward(self, images: Float[Tensor, "B colors Y X"]) -> Memory:
        patches = F.unfold(
            images, self.patch, stride=self.patch
        ).mT  # (B, S, colors · patch · patch)
        return _regions(
            self.mlp(patches), (images.shape[2] // self.patch, images.shape[3] // self.patch)
        )


def cnn(config: CnnConfig) -> GridEncoder:
    """A CNN encoder, from scratch or with a pretrained backbone."""
    network: Cnn | Backbone
    if config.backbone is not None:
        network = backbone(config.backbone.kind, config.backbone.stride)
    else:
        network = Cnn(config.channels, attention=config.attention)
    return GridEncoder(network, network.dim, config.dim, config.queries)


def cnn_transformer(config: CnnTransformerConfig) -> GridTransformer:
    """A Transformer over the feature map of a CNN."""
    grid = CnnConfig(config.transformer.dim, config.channels, config.attention, config.backbone)
    return GridTransformer(config.transformer, cnn(grid))


def vit(config: VitConfig) -> PatchTransformer:
    """A vision Transformer."""
    dim = config.transformer.dim
    patch = config.patch_size
    hidden = config.patch_ffn_dim
    if hidden is None:
        regions: PatchEmbedding | MlpPatchEmbedding = PatchEmbedding(dim, patch)
    else:
        regions = MlpPatchEmbedding(dim, patch, hidden)
    return PatchTransformer(
        config.transformer,
        regions,
        distillation_token=config.distillation_token,
        pooler_dim=config.pooler_dim,
    )


def _regions(states: Float[Tensor, "B S W"], grid: tuple[int, int]) -> Memory:
    mask = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
    return Memory(states, mask, states.mean(1), grid)


def _with_positions(memory: Memory, encoding: SinusoidalGrid) -> Float[Tensor, "B S W"]:
    assert memory.grid is not None
    vectors: Tensor = encoding(*memory.grid, device=memory.states.device)
    return memory.states + vectors.to(memory.states.dtype)
