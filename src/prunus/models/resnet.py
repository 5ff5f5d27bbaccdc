"""ResNet-18/34/50/101 and Wide-ResNet-50-2, for CIFAR (3x3 stem) and for ImageNet (7x7 stem and max-pool).

Layers as in ledger I-5. The width factor scales every stage but the first convolution of 64 channels (ledger I-1), so
with width != 1 the first block of the first stage has a projection too. Keys are those of torchvision's ResNets
(conv1, bn1, layer{1..4}.{i}.{conv1,bn1,...,downsample.0,downsample.1}, fc); the stride of a bottleneck sits on its 3x3
convolution, as there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from prunus.models.fc import scaled

_STEM = 64


class BasicBlock(nn.Module):
    """Two 3x3 convolutions; a 1x1 projection where the shape changes."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, inner: int, stride: int, affine: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, inner, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner, affine=affine)
        self.conv2 = nn.Conv2d(inner, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes, affine=affine)
        self.downsample = _projection(inputs, planes, stride, affine)

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return functional.relu(out + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1x1 to `inner` channels, 3x3, 1x1 to 4 x `planes`; a 1x1 projection where the shape changes."""

    expansion = 4

    def __init__(self, inputs: int, planes: int, inner: int, stride: int, affine: bool) -> None:
        super().__init__()
        outputs = planes * self.expansion
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner, affine=affine)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner, affine=affine)
        self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs, affine=affine)
        self.downsample = _projection(inputs, outputs, stride, affine)

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.bn1(self.conv1(x)))
        out = functional.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return functional.relu(out + (x if self.downsample is None else self.downsample(x)))


def _projection(inputs: int, outputs: int, stride: int, affine: bool) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    convolution = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs, affine=affine))


@dataclass(frozen=True)
class ResNetPlan:
    """Which ResNet: blocks per stage, kind of block, inner width of a bottleneck, and the stem."""

    blocks: tuple[int, int, int, int]
    block: type[BasicBlock] | type[Bottleneck]
    imagenet: bool
    inner: int = 1


class ResNet(nn.Module):
    """Stem of 64 channels, stages of 64, 128, 256, 512 (times the width factor), mean, linear."""

    def __init__(self, plan: ResNetPlan, width: float, channels: int, classes: int, affine: bool) -> None:
        super().__init__()
        if plan.imagenet:
            self.conv1 = nn.Conv2d(channels, _STEM, 7, stride=2, padding=3, bias=False)
        else:
            self.conv1 = nn.Conv2d(channels, _STEM, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(_STEM, affine=affine)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if plan.imagenet else nn.Identity()
        inputs = _STEM
        stages = []
        for number, blocks in enumerate(plan.blocks):
            planes = scaled(64 * 2**number, width)
            stage: list[nn.Module] = []
            for position in range(blocks):
                stride = 2 if number > 0 and position == 0 else 1
                stage.append(plan.block(inputs, planes, planes * plan.inner, stride, affine))
                inputs = planes * plan.block.expansion
            stages.append(nn.Sequential(*stage))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(functional.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = self.fc(x.mean((2, 3)))
        return x


_R18, _R34, _R101 = (2, 2, 2, 2), (3, 4, 6, 3), (3, 4, 23, 3)
PLANS = {
    "resnet18": ResNetPlan(_R18, BasicBlock, imagenet=False),
    "resnet34": ResNetPlan(_R34, BasicBlock, imagenet=False),
    "imagenet-resnet18": ResNetPlan(_R18, BasicBlock, imagenet=True),
    "imagenet-resnet34": ResNetPlan(_R34, BasicBlock, imagenet=True),
    "imagenet-resnet50": ResNetPlan(_R34, Bottleneck, imagenet=True),
    "imagenet-resnet101": ResNetPlan(_R101, Bottleneck, imagenet=True),
    "wide-resnet50-2": ResNetPlan(_R34, Bottleneck, imagenet=True, inner=2),
}


def of_plan(name: str) -> Callable[..., ResNet]:
    """The builder of one of `PLANS`."""
    plan = PLANS[name]
    outputs = 1000 if plan.imagenet else 10

    def build(width: float = 1.0, channels: int = 3, classes: int = outputs, affine: bool = True) -> ResNet:
        return ResNet(plan, width, channels, classes, affine)

    return build
