"""The networks of step_vs_peers.py as a careful user of PyTorch writes them: what ours are compared with.

Activations in place, channels-last images, time-first LSTM, scaled_dot_product_attention, LRN by slices (faster than
nn.LocalResponseNorm), the fused optimiser, denormals flushed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Step = Callable[[], Any]


def conv_relu(channels: int, out: int, kernel: int, **options: Any) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, out, kernel, **options), nn.ReLU(inplace=True))


def conv_norm(channels: int, out: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(out))


def mlp() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs in (28, 300, 300):
        layers += [nn.Linear(inputs, 300), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(300, 1))


def lenet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(800, 500), nn.ReLU(inplace=True), nn.Linear(500, 10)),
    )


def cifar_quick() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 5, padding=2), nn.MaxPool2d(3, 2, ceil_mode=True), nn.ReLU(inplace=True)),
        *(conv_relu(32, 32, 5, padding=2), nn.AvgPool2d(3, 2, ceil_mode=True)),
        *(conv_relu(32, 64, 5, padding=2), nn.AvgPool2d(3, 2, ceil_mode=True)),
        *(nn.Flatten(), nn.Linear(1024, 64), nn.Linear(64, 10)),
    )


class Narrow(nn.Module):
    """A block of the residual networks for CIFAR-10; shortcuts without parameters."""

    def __init__(self, channels: int, out: int, stride: int):
        super().__init__()
        self.stride, self.new = stride, out - channels
        self.first, self.second = conv_norm(channels, out, 3, stride), conv_norm(out, out, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(functional.relu(self.first(x), inplace=True))
        if self.new:
            before = self.new // 2
            x = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.new - before))
        return functional.relu(y + x, inplace=True)


def resnet20() -> nn.Module:
    layers, channels = [conv_norm(3, 16, 3), nn.ReLU(inplace=True)], 16
    for out in (16, 32, 64):
        for i in range(3):
            layers.append(Narrow(channels, out, 2 if i == 0 and out != 16 else 1))
            channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Bottleneck(nn.Module):
    def __init__(self, channels: int, inner: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            *(conv_norm(channels, inner, 1), nn.ReLU(inplace=True), conv_norm(inner, inner, 3, stride)),
            *(nn.ReLU(inplace=True), conv_norm(inner, 4 * inner, 1)),
        )
        self.shortcut = nn.Identity() if channels == 4 * inner else conv_norm(channels, 4 * inner, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.shortcut(x), inplace=True)


def resnet50() -> nn.Module:
    layers, channels = [conv_norm(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)], 64
    for inner, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for i in range(blocks):
            layers.append(Bottleneck(channels, inner, 2 if i == 0 and inner != 64 else 1))
            channels = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def alexnet() -> nn.Module:
    return nn.Sequential(
        *(conv_relu(3, 64, 11, stride=4, padding=2), nn.MaxPool2d(3, 2)),
        *(conv_relu(64, 192, 5, padding=2), nn.MaxPool2d(3, 2)),
        *(conv_relu(192, 384, 3, padding=1), conv_relu(384, 256, 3, padding=1), conv_relu(256, 256, 3, padding=1)),
        *(nn.MaxPool2d(3, 2), nn.Flatten(), nn.Dropout(), nn.Linear(9216, 4096), nn.ReLU(inplace=True)),
        *(nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Linear(4096, 1000)),
    )


def vgg16() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for out, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        layers += [conv_relu(channels if i == 0 else out, out, 3, padding=1) for i in range(count)]
        layers.append(nn.MaxPool2d(2))
        channels = out
    layers += [nn.Flatten(), nn.Linear(25088, 4096), nn.ReLU(inplace=True), nn.Dropout()]
    layers += [nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 1000)]
    return nn.Sequential(*layers)


class LRN(nn.Module):
    """x * (1 + alpha/5 * sum over 5 channels of x^2)^-0.75"""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        channels, squares = x.shape[1], functional.pad(x * x, (0, 0, 0, 0, 2, 2))
        root = torch.rsqrt(sum(squares[:, i : i + channels] for i in range(5)) * (1e-4 / 5) + 1.0)
        return x * (root * torch.sqrt(root))


class Inception(nn.Module):
    def __init__(self, channels: int, one: int, three_in: int, three: int, five_in: int, five: int, pool: int):
        super().__init__()
        self.one = conv_relu(channels, one, 1)
        self.three = nn.Sequential(conv_relu(channels, three_in, 1), conv_relu(three_in, three, 3, padding=1))
        self.five = nn.Sequential(conv_relu(channels, five_in, 1), conv_relu(five_in, five, 5, padding=2))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_relu(channels, pool, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((self.one(x), self.three(x), self.five(x), self.pool(x)), 1)


class GoogLeNet(nn.Module):
    """As published; the auxiliary heads in training alone."""

    def __init__(self) -> None:
        super().__init__()
        pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.stem = nn.Sequential(
            *(conv_relu(3, 64, 7, stride=2, padding=3), pool, LRN(), conv_relu(64, 64, 1)),
            *(conv_relu(64, 192, 3, padding=1), LRN(), pool),
            *(Inception(192, 64, 96, 128, 16, 32, 32), Inception(256, 128, 128, 192, 32, 96, 64), pool),
            Inception(480, 192, 96, 208, 16, 48, 64),
        )
        self.middle = nn.Sequential(
            Inception(512, 160, 112, 224, 24, 64, 64),
            Inception(512, 128, 128, 256, 24, 64, 64),
            Inception(512, 112, 144, 288, 32, 64, 64),
        )
        self.top = nn.Sequential(
            *(Inception(528, 256, 160, 320, 32, 128, 128), pool, Inception(832, 256, 160, 320, 32, 128, 128)),
            *(Inception(832, 384, 192, 384, 48, 128, 128), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.4)),
            nn.Linear(1024, 1000),
        )
        self.heads = nn.ModuleList(
            nn.Sequential(
                *(nn.AvgPool2d(5, 3), conv_relu(channels, 128, 1), nn.Flatten(), nn.Linear(2048, 1024)),
                *(nn.ReLU(inplace=True), nn.Dropout(0.7), nn.Linear(1024, 1000)),
            )
            for channels in (512, 528)
        )

    def forward(self, x: torch.Tensor) -> Any:
        first = self.stem(x)
        second = self.middle(first)
        if not self.training:
            return self.top(second)
        return self.top(second), self.heads[0](first), self.heads[1](second)


class CharLSTM(nn.Module):
    def __init__(self, vocabulary: int = 65, embedding: int = 128, hidden: int = 512):
        super().__init__()
        self.encoder = nn.Embedding(vocabulary, embedding)
        self.rnn = nn.LSTM(embedding, hidden, 2)  # time first: faster
        self.decoder = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.rnn(self.encoder(tokens))[0]).flatten(0, 1)


class Block(nn.Module):
    def __init__(self, heads: int, width: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, c = x.shape
        q, k, v = (y.view(n, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(c, 2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, c))
        return x + self.mlp(self.norm2(x))


class CharGPT(nn.Module):
    def __init__(self, vocabulary: int = 65, context: int = 64, layers: int = 4, heads: int = 4, width: int = 128):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(heads, width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x))).flatten(0, 1)


MAKE = {
    "vgg16": vgg16,
    "googlenet": GoogLeNet,
    "resnet50": resnet50,
    "alexnet": alexnet,
    "resnet20": resnet20,
    "cifar_quick": cifar_quick,
    "lenet": lenet,
    "char_lstm": CharLSTM,
    "char_gpt": CharGPT,
    "mlp": mlp,
}


def torch_loss(name: str, output: Any, y: torch.Tensor) -> torch.Tensor:
    """In float32."""
    if name == "mlp":
        return functional.binary_cross_entropy_with_logits(output.float(), y)
    if name == "googlenet":
        main, *heads = (functional.cross_entropy(one.float(), y) for one in output)
        return main + 0.3 * sum(heads)
    return functional.cross_entropy(output.float(), y)


def finish() -> None:
    """Waits for the GPU."""
    torch.cuda.synchronize()


def captured(call: Step, warm: int = 3) -> Step:
    """What the call gives the GPU as one CUDA graph, after some calls on a stream of their own, as PyTorch wants it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def torch_step(
    name: str,
    x: Any,
    y: Any,
    *,
    threads: int,
    bfloat16: bool,
    compiled: bool,
    evaluate: bool,
    device: str = "cpu",
    fast: bool = False,
    graphs: bool = False,
) -> tuple[Step, int]:
    """A step, or the forward pass alone, on this batch of NumPy arrays; and how many parameters the network has.

    On a GPU a step returns before it is done. fast: TF32 in place of float32; graphs: as one CUDA graph.
    """
    where = torch.device(device)
    if where.type == "cuda" and where.index is not None:
        torch.cuda.set_device(where)  # streams, graphs and the wait for the GPU are of the current one
    torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = fast
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    module, samples, targets = MAKE[name](), torch.from_numpy(x), torch.from_numpy(y)
    if name == "char_lstm":
        samples, targets = samples.T.contiguous(), targets.T.contiguous()
    if samples.dim() == 4:
        module = module.to(memory_format=torch.channels_last)
        samples = samples.contiguous(memory_format=torch.channels_last)
    targets = targets if name == "mlp" else targets.long().flatten()
    module, samples, targets = module.to(where), samples.to(where), targets.to(where)
    parameters = sum(one.numel() for one in module.parameters())

    def forward(samples: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(where.type, torch.bfloat16, enabled=bfloat16):
            output = module(samples)
        return output if evaluate else torch_loss(name, output, targets)

    run = torch.compile(forward) if compiled else forward
    if evaluate:
        module.eval()

        def evaluation() -> None:
            with torch.inference_mode():
                run(samples, targets)

        return captured(evaluation) if graphs else evaluation, parameters
    optimizer = torch.optim.SGD(module.parameters(), 0.001, momentum=0.9, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        run(samples, targets).backward()
        optimizer.step()

    return captured(step) if graphs else step, parameters
