"""CNN backbones with ImageNet weights: images to a feature map.

Batch norm always uses its stored statistics, in training as well, so that images of a batch do not
affect each other. It is then a scale and a shift per channel, folded into the convolution before
it; both can still be trained.

Names and shapes of weights are those of the published files, which `model/pretrained.py` reads.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from regard.core.config import Config, Count, doc
from regard.core.errors import Problem
from regard.core.shapes import Float, Tensor

BackboneKind = Literal["efficientnet-lite0", "resnet18", "resnet50"]


@dataclass(frozen=True)
class BackboneConfig(Config):
    kind: BackboneKind = doc("efficientnet-lite0", "pretrained network")
    stride: Count = doc(32, "pixels per region in each direction: 16 or 32")
    weights: str | None = doc(
        None, "file of the weights; left out: those of the package, for efficientnet-lite0"
    )

    def conflicts(self) -> Iterator[Problem]:
        if self.stride not in (16, 32):
            yield Problem("stride", "16 or 32", str(self.stride), "Change it.")
        if self.weights is None and self.kind != "efficientnet-lite0":
            yield Problem(
                "weights",
                f"torchvision's file of {self.kind}",
                "none",
                f"Add weights = '{self.kind}.pth'.",
            )


class FrozenBatchNorm(nn.Module):
    """Batch norm with stored statistics, folded into the convolution before it."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, *, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, conv: nn.Conv2d, x: Float[Tensor, "B c Y X"]) -> Float[Tensor, "B C y x"]:
        scale = self.weight * (self.running_var + self.epsilon).rsqrt()
        shift = self.bias - self.running_mean * scale
        weight = conv.weight * scale[:, None, None, None]
        return F.conv2d(x, weight, shift, conv.stride, conv.padding, groups=conv.groups)


class ColorTransform(nn.Module):
    """From pixels in [-1, 1] to the normalisation a network was trained with,
    in channels-last layout.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: tuple[float, ...], shift: tuple[float, ...]) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(scale)[:, None, None], persistent=False)
        self.register_buffer("shift", torch.tensor(shift)[:, None, None], persistent=False)

    def forward(self, images: Float[Tensor, "B 3 Y X"]) -> Float[Tensor, "B 3 Y X"]:
        return torch.addcmul(
            self.shift, images.contiguous(memory_format=torch.channels_last), self.scale
        )


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, projection,
    with a residual (https://arxiv.org/abs/1801.04381).
    """

    def __init__(
        self, inputs: int, outputs: int, *, kernel: int, stride: int, expansion: int
    ) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expands = expansion > 1
        self.skips = stride == 1 and inputs == outputs
        if self.expands:
            self.expand_conv = _conv(inputs, inner)
            self.bn0 = _norm(inner)
        self.depthwise_conv = _conv(inner, inner, kernel, stride, groups=inner)
        self.bn1 = _norm(inner)
        self.project_conv = _conv(inner, outputs)
        self.bn2 = _norm(outputs)

    def forward(self, x: Float[Tensor, "B c Y X"]) -> Float[Tensor, "B C y x"]:
        y: Tensor = x
        if self.expands:
            y = _relu6(self.bn0(self.expand_conv, x))
        y = _relu6(self.bn1(self.depthwise_conv, _same(self.depthwise_conv, y)))
        y = self.bn2(self.project_conv, y)
        return x + y if self.skips else y


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0: https://arxiv.org/abs/1905.11946 without squeeze-and-excitation."""

    # channels, blocks, kernel, stride of the first block; stride 16 uses the first five
    STAGES = (
        (16, 1, 3, 1),
        (24, 2, 3, 2),
        (40, 2, 5, 2),
        (80, 3, 3, 2),
        (112, 3, 5, 1),
        (192, 4, 5, 2),
        (320, 1, 3, 1),
    )

    def __init__(self, stride: int = 32) -> None:
        super().__init__()
        # (bytes - 127) / 128
        self.color_transform = ColorTransform((127.5 / 128,) * 3, (0.5 / 128,) * 3)
        self.conv_stem = _conv(3, 32, 3, 2)
        self.bn0 = _norm(32)
        self.dim = 32
        self.has_head = stride == 32
        blocks: list[nn.Module] = []
        stages = self.STAGES if self.has_head else self.STAGES[:5]
        for channels, count, kernel, first in stages:
            for number in range(count):
                step = 1 if number else first
                expansion = 6 if blocks else 1
                blocks.append(
                    InvertedResidual(
                        self.dim, channels, kernel=kernel, stride=step, expansion=expansion
                    )
                )
                self.dim = channels
        self.blocks = nn.ModuleList(blocks)
        if self.has_head:
            self.conv_head = _conv(self.dim, 1280)
            self.bn1 = _norm(1280)
            self.dim = 1280

    def forward(self, images: Float[Tensor, "B 3 Y X"]) -> Float[Tensor, "B C y x"]:
        x = _relu6(self.bn0(self.conv_stem, _same(self.conv_stem, self.color_transform(images))))
        for block in self.blocks:
            x = block(x)
        if not self.has_head:
            return x
        return _relu6(self.bn1(self.conv_head, x))


class ResidualBlock(nn.Module):
    """A basic or bottleneck block with a residual."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, bottleneck: bool) -> None:
        super().__init__()
        inner = outputs // 4 if bottleneck else outputs
        sizes = [(inputs, inner, 1, 1), (inner, inner, 3, stride), (inner, outputs, 1, 1)]
        if not bottleneck:
            sizes = [(inputs, outputs, 3, stride), (outputs, outputs, 3, 1)]
        self.conv1, self.bn1 = _conv_norm(*sizes[0])
        self.conv2, self.bn2 = _conv_norm(*sizes[1])
        self.bottleneck = bottleneck
        if bottleneck:
            self.conv3, self.bn3 = _conv_norm(*sizes[2])
        downsamples = stride > 1 or inputs != outputs
        self.downsample = None
        if downsamples:
            self.downsample = nn.ModuleList(_conv_norm(inputs, outputs, 1, stride))

    def forward(self, x: Float[Tensor, "B c Y X"]) -> Float[Tensor, "B C y x"]:
        y = self.bn2(self.conv2, F.relu_(self.bn1(self.conv1, x)))
        if self.bottleneck:
            y = self.bn3(self.conv3, F.relu_(y))
        if self.downsample is not None:
            conv, norm = self.downsample
            x = norm(conv, x)
        return F.relu_(x + y)


class ResNet(nn.Module):
    """ResNet (https://arxiv.org/abs/1512.03385),
    with the stride in the 3 × 3 convolution as in torchvision.
    """

    # The mean and the standard deviation of ImageNet's pixels in [0, 1].
    MEAN = (0.485, 0.456, 0.406)
    DEVIATION = (0.229, 0.224, 0.225)

    def __init__(self, blocks: tuple[int, ...], *, bottleneck: bool, stride: int = 32) -> None:
        super().__init__()
        both = list(zip(self.MEAN, self.DEVIATION, strict=True))
        self.color_transform = ColorTransform(
            tuple(0.5 / d for _, d in both), tuple((0.5 - m) / d for m, d in both)
        )
        self.conv1, self.bn1 = _conv_norm(3, 64, 7, 2)
        self.dim = 64
        self.layers = len(blocks) if stride == 32 else len(blocks) - 1
        for number, count in enumerate(blocks[: self.layers]):
            channels = 64 * 2**number
            if bottleneck:
                channels *= 4
            first = 1 if number == 0 else 2
            layer = [ResidualBlock(self.dim, channels, stride=first, bottleneck=bottleneck)]
            layer += [
                ResidualBlock(channels, channels, stride=1, bottleneck=bottleneck)
                for _ in range(count - 1)
            ]
            self.add_module(f"layer{number + 1}", nn.Sequential(*layer))
            self.dim = channels

    def forward(self, images: Float[Tensor, "B 3 Y X"]) -> Float[Tensor, "B C y x"]:
        x = F.max_pool2d(
            F.relu_(self.bn1(self.conv1, self.color_transform(images))), 3, stride=2, padding=1
        )
        for number in range(self.layers):
            x = self.get_submodule(f"layer{number + 1}")(x)
        return x


Backbone = EfficientNetLite0 | ResNet


def backbone(kind: BackboneKind, stride: int = 32) -> Backbone:
    """The network of this name with random weights; `dim` is the number of its channels."""
    if kind == "efficientnet-lite0":
        return EfficientNetLite0(stride)
    blocks = (2, 2, 2, 2) if kind == "resnet18" else (3, 4, 6, 3)
    return ResNet(blocks, bottleneck=kind == "resnet50", stride=stride)


def _conv(
    inputs: int, outputs: int, kernel: int = 1, stride: int = 1, *, groups: int = 1
) -> nn.Conv2d:
    """A convolution; where it strides, `_same` pads its input."""
    padding = kernel // 2 if stride == 1 else 0
    return nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)


def _conv_norm(
    inputs: int, outputs: int, kernel: int, stride: int
) -> tuple[nn.Conv2d, FrozenBatchNorm]:
    """A convolution of a ResNet, padded alike on both sides, and its norm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return conv, FrozenBatchNorm(outputs, epsilon=1e-5)


def _norm(channels: int) -> FrozenBatchNorm:
    return FrozenBatchNorm(channels, epsilon=1e-3)


def _relu6(x: Tensor) -> Tensor:
    # In place: the backward pass does not need the input.
    return F.hardtanh_(x, 0.0, 6.0)


def _same(conv: nn.Conv2d, x: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B C y x"]:
    """The input padded as by TensorFlow's SAME with a stride, the odd pixel at the end."""
    kernel = conv.kernel_size[0]
    stride = conv.stride[0]
    if stride == 1:
        return x
    rows, columns = (
        max(0, (-(-size // stride) - 1) * stride + kernel - size) for size in x.shape[2:]
    )
    return F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
