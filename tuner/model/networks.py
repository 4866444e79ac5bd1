"""Gradients of well-known networks, for predictions before there is a job: float32, in the order of backward."""

from __future__ import annotations

from ringtune.tuner.model.workload import Workload, evenly

STEP_MS = {"ResNet-50": 128.1, "VGG-16": 194.5, "GPT-2 small": 290.0}
"""Computing of a step: of the first two as measured on a V100 with batch 32 (`netx-repo/training-bottleneck`); of the
last six operations for each of 124 million weights and of 8 x 1024 tokens, at 21 T/s as such a GPU attains."""


def known(step_ns: float | None = None) -> list[Workload]:
    """The networks, with steps as in `STEP_MS` or all as long as said."""
    sizes = {"ResNet-50": resnet50(), "VGG-16": vgg16(), "GPT-2 small": gpt2()}
    return [
        evenly(list(reversed(of_network)), step_ns or STEP_MS[name] * 1e6, name) for name, of_network in sizes.items()
    ]


def resnet50() -> list[int]:
    """Bytes of its 161 tensors, first layer first.

    Source: K. He et al., Deep Residual Learning for Image Recognition (2016), table 1.
    """
    counts = [64 * 3 * 7 * 7, 64, 64]
    inputs = 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            shortcut = [inputs * 4 * width, 4 * width, 4 * width] if block == 0 else []
            counts += [inputs * width, width, width, width * width * 9, width, width]
            counts += [width * 4 * width, 4 * width, 4 * width, *shortcut]
            inputs = 4 * width
    return [4 * count for count in [*counts, inputs * 1000, 1000]]


def vgg16() -> list[int]:
    """Bytes of its 32 tensors, first layer first.

    Source: K. Simonyan and A. Zisserman, Very Deep Convolutional Networks (2015), table 1, column D.
    """
    counts, inputs = [], 3
    for width in (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512):
        counts += [inputs * width * 9, width]
        inputs = width
    for inputs, width in ((512 * 7 * 7, 4096), (4096, 4096), (4096, 1000)):
        counts += [inputs * width, width]
    return [4 * count for count in counts]


def gpt2() -> list[int]:
    """Bytes of its 148 tensors, first layer first.

    Source: A. Radford et al., Language Models are Unsupervised Multitask Learners (2019), table 2, smallest model.
    """
    words, positions, width, layers = 50257, 1024, 768, 12
    norm = [width, width]
    attention = [width * 3 * width, 3 * width, width * width, width]
    perceptron = [width * 4 * width, 4 * width, 4 * width * width, width]
    block = [*norm, *attention, *norm, *perceptron]
    return [4 * count for count in [words * width, positions * width, *block * layers, *norm]]
