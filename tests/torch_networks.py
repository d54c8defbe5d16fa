"""The networks in PyTorch, with the names of torchvision, nanoGPT and PyTorch's examples, written from the papers."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional


def named(**layers):
    return nn.Sequential(OrderedDict(layers))


class Chain(nn.Module):
    """Parts by name, one after another."""

    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x):
        for part in self.children():
            x = part(x)
        return x


def perceptron(widths, act):
    parts = []
    for i, (a, b) in enumerate(zip(widths, widths[1:], strict=False), 1):
        parts += [(f"fc{i}", nn.Linear(a, b)), (f"act{i}", act())]
    return nn.Sequential(OrderedDict(parts[:-1]))


def alexnet(classes, hidden, width):
    features = [nn.Conv2d(3, width, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2)]
    features += [nn.Conv2d(width, 3 * width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)]
    for a, b in ((3, 6), (6, 4), (4, 4)):
        features += [nn.Conv2d(a * width, b * width, 3, padding=1), nn.ReLU()]
    features.append(nn.MaxPool2d(3, 2))
    tail = [nn.Dropout(0.0), nn.Linear(4 * width * 36, hidden), nn.ReLU(), nn.Dropout(0.0), nn.Linear(hidden, hidden)]
    tail += [nn.ReLU(), nn.Linear(hidden, classes)]
    pool = nn.AdaptiveAvgPool2d(6)
    return Chain(features=nn.Sequential(*features), avgpool=pool, flatten=nn.Flatten(), classifier=nn.Sequential(*tail))


VGG = {
    11: "64 M 128 M 256 256 M 512 512 M 512 512 M",
    13: "64 64 M 128 128 M 256 256 M 512 512 M 512 512 M",
    16: "64 64 M 128 128 M 256 256 256 M 512 512 512 M 512 512 512 M",
    19: "64 64 M 128 128 M 256 256 256 256 M 512 512 512 512 M 512 512 512 512 M",
}


def vgg(depth, classes, hidden, width, norm):
    features, channels = [], 3
    for word in VGG[depth].split():
        if word == "M":
            features.append(nn.MaxPool2d(2))
            continue
        out = int(word) * width // 64
        features += [nn.Conv2d(channels, out, 3, padding=1), *([nn.BatchNorm2d(out)] if norm else []), nn.ReLU()]
        channels = out
    tail = [nn.Linear(49 * channels, hidden), nn.ReLU(), nn.Dropout(0.0), nn.Linear(hidden, hidden), nn.ReLU()]
    tail += [nn.Dropout(0.0), nn.Linear(hidden, classes)]
    pool = nn.AdaptiveAvgPool2d(7)
    return Chain(features=nn.Sequential(*features), avgpool=pool, flatten=nn.Flatten(), classifier=nn.Sequential(*tail))


# ---- residual networks


class Basic(nn.Module):
    expansion = 1

    def __init__(self, channels, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut(channels, width, stride)

    def forward(self, x):
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, channels, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = shortcut(channels, 4 * width, stride)

    def forward(self, x):
        y = functional.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(functional.relu(self.bn2(self.conv2(y)))))
        return functional.relu(y + (x if self.downsample is None else self.downsample(x)))


def shortcut(channels, out, stride):
    if stride == 1 and channels == out:
        return None
    return nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))


def resnet(block, blocks, classes, width):
    parts = {
        "conv1": nn.Conv2d(3, width, 7, 2, 3, bias=False),
        "bn1": nn.BatchNorm2d(width),
        "relu": nn.ReLU(),
        "maxpool": nn.MaxPool2d(3, 2, 1),
    }
    channels = width
    for stage, count in enumerate(blocks):
        inner, layers = width << stage, []
        for i in range(count):
            layers.append(block(channels, inner, 2 if stage and not i else 1))
            channels = block.expansion * inner
        parts[f"layer{stage + 1}"] = nn.Sequential(*layers)
    return Chain(**parts, avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(channels, classes))


class Narrow(nn.Module):
    """A block of the networks for CIFAR-10: shortcuts without parameters."""

    def __init__(self, channels, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.new = width - channels

    def forward(self, x):
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        if self.new:
            before = (x.shape[1] + self.new) // 4
            x = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, before, self.new - before))
        return functional.relu(y + x)


def cifar_resnet(depth, classes, width):
    parts = {"conv1": nn.Conv2d(3, width, 3, 1, 1, bias=False), "bn1": nn.BatchNorm2d(width), "relu": nn.ReLU()}
    channels = width
    for stage in range(3):
        layers = []
        for i in range((depth - 2) // 6):
            layers.append(Narrow(channels, width << stage, 2 if stage and not i else 1))
            channels = width << stage
        parts[f"layer{stage + 1}"] = nn.Sequential(*layers)
    return Chain(**parts, avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), linear=nn.Linear(channels, classes))


# ---- GoogLeNet


class Conv(nn.Module):
    """A convolution with BatchNorm and ReLU."""

    def __init__(self, channels, out, kernel, stride=1, padding=0):
        super().__init__()
        self.conv = nn.Conv2d(channels, out, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(out, eps=0.001)

    def forward(self, x):
        return functional.relu(self.bn(self.conv(x)))


class Plain(nn.Conv2d):
    """A convolution with ReLU."""

    def forward(self, x):
        return functional.relu(super().forward(x))


class Inception(nn.Module):
    def __init__(self, conv, last, channels, one, three_in, three, five_in, five, pool):
        super().__init__()
        self.branch1 = conv(channels, one, 1)
        self.branch2 = nn.Sequential(conv(channels, three_in, 1), conv(three_in, three, 3, 1, 1))
        self.branch3 = nn.Sequential(conv(channels, five_in, 1), conv(five_in, five, last, 1, last // 2))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(channels, pool, 1))

    def forward(self, x):
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class Auxiliary(nn.Module):
    def __init__(self, conv, pool, places, channels, classes, width):
        super().__init__()
        self.pool = pool
        self.conv = conv(channels, 2 * width, 1)
        self.fc1 = nn.Linear(2 * width * places, 16 * width)
        self.fc2 = nn.Linear(16 * width, classes)

    def forward(self, x):
        x = torch.flatten(self.conv(self.pool(x)), 1)
        return self.fc2(functional.relu(self.fc1(x)))


INCEPTIONS = {
    "3a": (192, 64, 96, 128, 16, 32, 32),
    "3b": (256, 128, 128, 192, 32, 96, 64),
    "4a": (480, 192, 96, 208, 16, 48, 64),
    "4b": (512, 160, 112, 224, 24, 64, 64),
    "4c": (512, 128, 128, 256, 24, 64, 64),
    "4d": (512, 112, 144, 288, 32, 64, 64),
    "4e": (528, 256, 160, 320, 32, 128, 128),
    "5a": (832, 256, 160, 320, 32, 128, 128),
    "5b": (832, 384, 192, 384, 48, 128, 128),
}


class GoogLeNet(nn.Module):
    """published: with LocalResponseNorm in place of BatchNorm and 5 x 5 windows; else torchvision's form.

    places: to which the auxiliary heads shrink their images.
    """

    def __init__(self, classes, published=False, places=16, width=64):
        super().__init__()
        conv, last = (Plain, 5) if published else (Conv, 3)
        self.conv1 = conv(3, width, 7, 2, 3)
        self.conv2 = conv(width, width, 1)
        self.conv3 = conv(width, 3 * width, 3, 1, 1)
        for name, sizes in INCEPTIONS.items():
            self.add_module(f"inception{name}", Inception(conv, last, *(size * width // 64 for size in sizes)))
        pool = nn.AvgPool2d(5, 3) if published else nn.AdaptiveAvgPool2d(4)
        self.aux1 = Auxiliary(conv, pool, places, 8 * width, classes, width)
        self.aux2 = Auxiliary(conv, pool, places, 528 * width // 64, classes, width)
        self.fc = nn.Linear(16 * width, classes)
        self.norm = nn.LocalResponseNorm(5, 1e-4, 0.75, 1.0) if published else nn.Identity()

    def forward(self, x):
        def pool(x, size=3):
            return functional.max_pool2d(x, size, 2, ceil_mode=True)

        x = self.norm(pool(self.conv1(x)))
        x = pool(self.norm(self.conv3(self.conv2(x))))
        x = pool(self.inception3b(self.inception3a(x)))
        x = self.inception4a(x)
        aux1 = self.aux1(x)
        x = self.inception4d(self.inception4c(self.inception4b(x)))
        aux2 = self.aux2(x)
        published = isinstance(self.norm, nn.LocalResponseNorm)
        x = pool(self.inception4e(x), 3 if published else 2)
        x = self.inception5b(self.inception5a(x))
        return self.fc(x.mean((2, 3))), aux1, aux2


# ---- sequences


class CharLSTM(nn.Module):
    """The names of PyTorch's example word_language_model."""

    def __init__(self, vocabulary, embedding, hidden, layers):
        super().__init__()
        self.encoder = nn.Embedding(vocabulary, embedding)
        self.rnn = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.decoder = nn.Linear(hidden, vocabulary)

    def forward(self, tokens):
        return self.decoder(self.rnn(self.encoder(tokens))[0])


class Attention(nn.Module):
    def __init__(self, heads, width, bias):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.c_proj = nn.Linear(width, width, bias=bias)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (one.view(n, t, self.heads, -1).transpose(1, 2) for one in self.c_attn(x).split(c, 2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(n, t, c))


class Block(nn.Module):
    def __init__(self, heads, width, bias):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, bias=bias)
        self.attn = Attention(heads, width, bias)
        self.ln_2 = nn.LayerNorm(width, bias=bias)
        self.mlp = named(
            c_fc=nn.Linear(width, 4 * width, bias=bias), gelu=nn.GELU(), c_proj=nn.Linear(4 * width, width, bias=bias)
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class CharGPT(nn.Module):
    """nanoGPT's names; the table of tokens and the last layer are two tensors here."""

    def __init__(self, vocabulary, context, layers, heads, width, bias):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocabulary, width),
                "wpe": nn.Embedding(context, width),
                "h": nn.ModuleList([Block(heads, width, bias) for _ in range(layers)]),
                "ln_f": nn.LayerNorm(width, bias=bias),
            }
        )
        self.lm_head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        parts = self.transformer
        x = parts["wte"](tokens) + parts["wpe"].weight[: tokens.shape[1]]
        for block in parts["h"]:
            x = block(x)
        return self.lm_head(parts["ln_f"](x))
