"""Images: self-attention inside a CNN, and encoders from pixels to a memory of regions."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from regard.core.config import Count
from regard.core.errors import Problem
from regard.core.sequence import FeatureGrids
from regard.core.shapes import Float, Tensor
from regard.model.backbones import BackboneConfig, backbone
from regard.model.interfaces import Encoder, Source
from regard.model.memory import Memory
from regard.model.multihead import MultiHead
from regard.model.part_config import DecoderConfig, EncoderConfig, UnusedKeys
from regard.model.pooling import AttentionPool, AttentionPoolConfig
from regard.model.positions import SinusoidalGrid
from regard.model.transformer_block import ClsToken, InputLayer, TransformerConfig, TransformerStack


class SelfAttention2d(nn.Module):
    """A residual block for any CNN: every place of a feature map asks every other.

    The 1×1 convolutions that make queries, keys, values and the output are one linear map at every place, which is
    multi-head attention over the flattened grid. What it adds is scaled by a gate that starts at zero, so that a
    block put into a trained network changes nothing until it has learned to (https://arxiv.org/abs/1805.08318).
    """

    def __init__(self, channels: int, *, heads: int = 1, head_dim: int | None = None) -> None:
        super().__init__()
        self.attend = MultiHead(channels, heads, head_dim=head_dim)
        self.attend.attention_kind = "grid"
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B C Y X"]:
        places = x.flatten(2).mT  # (B, Y·X, C)
        seen: Tensor = self.attend(places)
        return x + self.gate * seen.mT.reshape(x.shape)


@dataclass(frozen=True)
class CnnConfig(EncoderConfig):
    reads = "image"

    dim: Count = 256  # of a region's state
    channels: tuple[Count, ...] = (32, 64, 128)  # one stage each, which halves the picture
    attention: bool = False  # a self-attention block after the last stage
    backbone: BackboneConfig | None = None  # a network trained by others, instead of stages
    queries: Count | None = None  # learned questions whose answers are the summary; None: the mean of all regions

    def conflicts(self) -> Iterator[Problem]:
        if self.queries is not None and self.dim % 4:
            wanted = "a multiple of 4 with queries, which ask for rows and columns"
            yield Problem("dim", wanted, str(self.dim), "Change it, or leave queries out.")

    def unused_as_encoder(self, decoder: DecoderConfig | None) -> UnusedKeys:
        yield from _unused_stages(self.backbone)
        if decoder is None or not decoder.reads_summary:
            yield "queries", "nothing here begins from a summary"


@dataclass(frozen=True)
class _GridTransformerConfig(EncoderConfig):
    """A Transformer over a grid of image regions."""

    reads = "image"

    @property
    def blocks(self) -> TransformerConfig:
        config: TransformerConfig = self.transformer  # type: ignore[attr-defined]
        return config

    @property
    def states_dim(self) -> int:
        return self.blocks.dim

    @property
    def output_dropout(self) -> float:
        return self.blocks.dropout

    def conflicts(self) -> Iterator[Problem]:
        return _on_a_grid(self.blocks)


@dataclass(frozen=True)
class CnnTransformerConfig(_GridTransformerConfig):
    channels: tuple[Count, ...] = (32, 64, 128)
    attention: bool = False
    backbone: BackboneConfig | None = None
    transformer: TransformerConfig = field(default_factory=TransformerConfig)

    def unused_as_encoder(self, decoder: DecoderConfig | None) -> UnusedKeys:
        return _unused_stages(self.backbone)


@dataclass(frozen=True)
class VitConfig(_GridTransformerConfig):
    shardable = has_blocks = True

    patch_size: Count = 16
    transformer: TransformerConfig = field(default_factory=TransformerConfig)
    patch_ffn_dim: Count | None = None  # patches are embedded by an MLP of this hidden dim; None: one linear map

    def image_conflicts(self, size: int) -> Iterator[Problem]:
        if size % self.patch_size:
            wanted = f"a divisor of data.source.image_size = {size}"
            yield Problem("patch_size", wanted, str(self.patch_size), "Change one.")


def _unused_stages(backbone: BackboneConfig | None) -> UnusedKeys:
    keys = () if backbone is None else ("channels", "attention")
    return ((key, "the backbone has its own stages") for key in keys)


def _on_a_grid(config: TransformerConfig) -> Iterator[Problem]:
    if config.positions not in ("sinusoidal", "learned", "none"):
        wanted, got = "'sinusoidal' (of row and column), 'learned' or 'none' over regions", repr(config.positions)
        yield Problem("transformer.positions", wanted, got, "Change it.")
    if config.position_mode != "add":
        yield Problem("transformer.position_mode", "'add' over regions", repr(config.position_mode), "Leave it out.")
    if config.causal:
        yield Problem("transformer.causal", "false: regions have no order", "true", "Leave it out.")
    if config.dim % 4:
        yield Problem("transformer.dim", "a multiple of 4, for rows and columns", str(config.dim), "Change it.")


class Cnn(nn.Module):
    """A small network to train from scratch. It normalises each picture by itself, so no picture changes another's."""

    def __init__(self, channels: tuple[int, ...], *, attention: bool, colours: int = 3) -> None:
        super().__init__()
        self.dim = channels[-1]
        stages: list[nn.Module] = []
        for before, after in zip((colours, *channels), channels, strict=False):
            stages += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.GroupNorm(1, after), nn.ReLU()]
            stages += [nn.Conv2d(after, after, 3, padding=1), nn.GroupNorm(1, after), nn.ReLU()]
        if attention:
            stages.append(SelfAttention2d(self.dim))
        self.stages = nn.Sequential(*stages)

    def forward(self, images: Float[Tensor, "B colours Y X"]) -> Float[Tensor, "B C y x"]:
        grid: Tensor = self.stages(images)
        return grid


class LearnedQueries(nn.Module):
    """One vector of a whole picture: learned questions of what lies where, and their answers made one."""

    def __init__(self, count: int, dim: int) -> None:
        super().__init__()
        self.places = SinusoidalGrid(dim)
        self.pool = AttentionPool(AttentionPoolConfig(count), dim)
        nn.init.normal_(self.pool.query)  # where all begin near zero, all ask the same, and learn apart slowly
        self.join = nn.Linear(self.pool.dim, dim)

    def forward(self, memory: Memory) -> Float[Tensor, "B W"]:
        assert memory.grid is not None
        x = memory.states
        x = x + self.places(*memory.grid, device=x.device).to(x.dtype)
        summary: Tensor = self.join(self.pool(replace(memory, states=x)))  # (B, Q·W) to (B, W)
        return summary


class GridEncoder(Encoder):
    """A backbone's feature map as a memory of regions; normalised, as most of a picture looks much the same."""

    def __init__(self, backbone: nn.Module, channels: int, dim: int, queries: int | None = None) -> None:
        super().__init__()
        self.dim = dim
        self.backbone, self.project, self.norm = backbone, nn.Linear(channels, dim), nn.LayerNorm(dim)
        self.questions = None if queries is None else LearnedQueries(queries, dim)

    def features(self, images: Float[Tensor, "B colours Y X"]) -> FeatureGrids:
        """What the backbone alone makes of pictures; while it is frozen, once is enough."""
        return FeatureGrids(self.backbone(images).permute(0, 2, 3, 1))

    def forward(self, source: Source) -> Memory:
        assert isinstance(source, FeatureGrids | Tensor)
        grids = source if isinstance(source, FeatureGrids) else self.features(source)
        _, rows, columns, _ = grids.states.shape
        regions = grids.states.flatten(1, 2).to(self.project.weight.dtype)  # (B, S, C)
        memory = _regions(self.norm(self.project(regions)), (rows, columns))
        return memory if self.questions is None else replace(memory, summary=self.questions(memory))


class GridTransformer(Encoder):
    """A memory of regions whose regions have asked one another: over a CNN's grid, or over patches of pixels."""

    def __init__(self, config: TransformerConfig, regions: nn.Module) -> None:
        super().__init__()
        self.dim = config.dim
        self.regions, self.stack = regions, TransformerStack(config)
        self.places: SinusoidalGrid | None = None
        if config.positions == "sinusoidal":
            self.places, config = SinusoidalGrid(config.dim), replace(config, positions="none")
        self.cls_token = ClsToken(config.dim) if config.cls_token else None
        self.input_layer = InputLayer(config, ahead=True)

    def forward(self, source: Source) -> Memory:
        memory: Memory = self.regions(source)
        assert memory.grid is not None
        x, mask = memory.states, memory.mask
        if self.places is not None:
            x = x + self.places(*memory.grid, device=x.device).to(x.dtype)
        if self.cls_token is not None:
            x, mask = self.cls_token(x, mask)
        states = self.stack(self.input_layer(x))
        if self.cls_token is not None:
            return Memory(states, mask, states[:, 0], memory.grid, cls_tokens=1)
        return Memory(states, mask, states.mean(1), memory.grid)


class Patches(nn.Module):
    """Squares of pixels, each projected to a vector: what a vision Transformer reads."""

    def __init__(self, dim: int, patch: int, *, colours: int = 3) -> None:
        super().__init__()
        self.dim = dim
        self.project = nn.Conv2d(colours, dim, patch, stride=patch)

    def forward(self, images: Float[Tensor, "B colours Y X"]) -> Memory:
        grid = self.project(images)
        return _regions(grid.flatten(2).mT, tuple(grid.shape[2:]))


class Mlp(nn.Module):
    """The same squares, each normalised and read by a perceptron: what is in them need not wait for later blocks."""

    def __init__(self, dim: int, patch: int, hidden: int, *, colours: int = 3) -> None:
        super().__init__()
        self.dim, self.patch = dim, patch
        pixels = colours * patch**2
        self.read = nn.Sequential(
            nn.LayerNorm(pixels), nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, dim), nn.LayerNorm(dim)
        )

    def forward(self, images: Float[Tensor, "B colours Y X"]) -> Memory:
        patches = F.unfold(images, self.patch, stride=self.patch).mT  # (B, S, colours · patch · patch)
        return _regions(self.read(patches), (images.shape[2] // self.patch, images.shape[3] // self.patch))


def cnn(config: CnnConfig) -> GridEncoder:
    """The grid of a CNN, trained from scratch or by others."""
    if config.backbone is not None:
        network: Any = backbone(config.backbone.kind, config.backbone.stride)
    else:
        network = Cnn(config.channels, attention=config.attention)
    return GridEncoder(network, network.dim, config.dim, config.queries)


def cnn_transformer(config: CnnTransformerConfig) -> GridTransformer:
    """The same grid, its regions seen by Transformer blocks."""
    grid = CnnConfig(config.transformer.dim, config.channels, config.attention, config.backbone)
    return GridTransformer(config.transformer, cnn(grid))


def vit(config: VitConfig) -> GridTransformer:
    """Pixels to a memory through patches and Transformer blocks alone (https://arxiv.org/abs/2010.11929)."""
    dim, patch, hidden = config.transformer.dim, config.patch_size, config.patch_ffn_dim
    regions = Patches(dim, patch) if hidden is None else Mlp(dim, patch, hidden)
    return GridTransformer(config.transformer, regions)


def _regions(states: Float[Tensor, "B S W"], grid: tuple[int, int]) -> Memory:
    everywhere = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
    return Memory(states, everywhere, states.mean(1), grid)
