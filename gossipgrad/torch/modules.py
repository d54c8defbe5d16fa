"""The core's view of a module: layers with parameters and statistics, in the order of their use."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch.overrides import TorchFunctionMode

_NORM_WITH_STATISTICS = torch.nn.modules.batchnorm._NormBase
_NORMS = (
    _NORM_WITH_STATISTICS,
    torch.nn.LayerNorm,
    torch.nn.GroupNorm,
    *([torch.nn.RMSNorm] if hasattr(torch.nn, "RMSNorm") else []),
)
_STATISTICS = ("running_mean", "running_var")
# Modules with an exchange of their own, by processes of torch.distributed or several devices.
_PARALLEL = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")
# The wrapped model of each hooked module.
_HOOKED: WeakKeyDictionary[Any, ref[Any]] = WeakKeyDictionary()
# Name, shape, role, family, and the factors of the learning rate, the weight decay and the momentum.
Parameter = tuple[str, Sequence[int], str, str, float, float, float]
_FACTORS = (1.0, 1.0, 1.0)
_MAX_AXES = 5  # max axes of the core's shapes


@dataclass
class Layer:
    """The tensors of one module itself, not those of modules inside: they become ready together.

    parameters  (name, tensor), trainable ones; statistics: (name, buffer), set by training without a gradient.
    factors     of parameters by name, if not 1: they multiply the optimiser's learning rate, weight decay and momentum.
    """

    name: str
    module: Any
    parameters: list[tuple[str, Any]] = field(default_factory=list)
    statistics: list[tuple[str, Any]] = field(default_factory=list)
    factors: dict[str, tuple[float, float, float]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A unique name: that of the first tensor, because a module's own path need not be unique."""
        return str((self.parameters + self.statistics)[0][0])

    def described(self) -> tuple[str, list[Parameter]]:
        """The layer's description for _core.Exchange."""
        family = _family(self.module)
        own: list[Parameter] = [
            (name, shape_of(tensor), _role(self.module, name), family, *self.factors.get(name, _FACTORS))
            for name, tensor in self.parameters
        ]
        own += [(name, shape_of(tensor), "statistic", family, *_FACTORS) for name, tensor in self.statistics]
        return self.name, own


def shape_of(tensor: Any) -> tuple[int, ...]:
    """A shape for the core: at least one axis, and not too many."""
    shape = tuple(int(size) for size in tensor.shape)
    return shape if 1 <= len(shape) <= _MAX_AXES else (tensor.numel(),)


def _family(module: Any) -> str:
    if isinstance(module, torch.nn.modules.conv._ConvNd):
        return "conv"
    if isinstance(module, torch.nn.Linear):
        return "linear"
    return "recurrent" if isinstance(module, torch.nn.RNNBase) else "other"


def _role(module: Any, name: str) -> str:
    bias = name.rpartition(".")[2].startswith("bias")
    if isinstance(module, _NORMS):
        return "shift" if bias else "scale"
    return "bias" if bias else "weight"


def original(module: Any) -> Any:
    """The module given to torch.compile; any other module itself."""
    return getattr(module, "_orig_mod", module)


def is_scripted(module: Any) -> bool:
    """True for torch.jit.script's, which has no hooks: all weights inside must be current before the forward pass."""
    return isinstance(module, torch.jit.RecursiveScriptModule)


def is_compiled(module: Any) -> bool:
    """True for torch.compile's. Hooks on modules inside of it may not be called."""
    return original(module) is not module


def tensors_of(module: Any) -> dict[str, Any]:
    """All tensors by name: those of state_dict, and the buffers outside of it (persistent=False)."""
    module = original(module)
    found = {name: one for name, one in module.state_dict(keep_vars=True).items() if isinstance(one, torch.Tensor)}
    return found | {name: one for name, one in module.named_buffers(remove_duplicate=False) if name not in found}


def forms_of(module: Any) -> dict[str, str]:
    """Dtype and shape of all tensors by name, equal for copies of a module."""
    return {name: f"{one.dtype} {tuple(one.shape)}{_layout(one)}" for name, one in tensors_of(module).items()}


def _layout(tensor: Any) -> str:
    """Layout of a tensor that is not dense; if values can be written only in place, with their number."""
    if tensor.layout == torch.strided:
        return ""
    return f" {tensor.layout}" + ("" if tensor.layout == torch.sparse_coo else f" of {tensor._nnz()} values")


def outside_of_state(module: Any) -> dict[str, Any]:
    """The buffers outside of state_dict."""
    inside = original(module).state_dict(keep_vars=True)
    return {name: one for name, one in tensors_of(module).items() if name not in inside}


def write(tensor: Any, values: Any) -> None:
    """Write values of the same shape to a tensor, also to an expanded one, whose elements share memory."""
    with torch.no_grad():
        if tensor.layout != torch.strided:  # detach() shares its values, but not its later layout
            tensor.copy_(values)
            return
        target = tensor.detach()
        for axis in range(target.dim()):
            if target.stride(axis) == 0 and target.size(axis) > 1:
                target, values = target.narrow(axis, 0, 1), values.narrow(axis, 0, 1)
        target.copy_(values)


def load_tensors(module: Any, values: Mapping[str, Any]) -> None:
    """Load a state_dict, and buffers outside of it. Also expanded tensors, which torch refuses."""
    module = original(module)
    inside = module.state_dict(keep_vars=True)
    tensors = tensors_of(module)
    alone = {name for name in values if name not in inside or _is_expanded(tensors.get(name))}
    for name in sorted(alone):
        write(tensors[name], values[name])
    given = {name: one for name, one in values.items() if name not in alone}
    module.load_state_dict(given, strict=not alone & set(inside))


def _is_expanded(tensor: Any) -> bool:
    if tensor is None or tensor.layout != torch.strided:
        return False
    return any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def layers_of(module: Any) -> list[Layer]:
    """The layers that train, in the order of their registration. ValueError, TypeError: unsupported."""
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module is a {type(module).__name__}; allowed: a torch.nn.Module")
    for path, part in original(module).named_modules():
        if type(part).__name__ in _PARALLEL:
            raise ValueError(
                f"{path or 'module'}: is a {type(part).__name__}, which exchanges gradients itself; allowed: the "
                "module inside, its .module"
            )
        if part in _HOOKED and _HOOKED[part]() is not None:
            raise ValueError(
                "module: is wrapped already; allowed: to wrap it after close() of what wrap gave, or a new module"
            )
    found: list[Layer] = []
    seen: set[int] = set()
    for path, part in original(module).named_modules():
        layer = Layer(path or "module", part)
        prefix = f"{path}." if path else ""
        for name, tensor in part._parameters.items():
            if tensor is None or not tensor.requires_grad or id(tensor) in seen:
                continue
            seen.add(id(tensor))
            _check(f"{prefix}{name}", tensor)
            layer.parameters.append((f"{prefix}{name}", tensor))
        if isinstance(part, _NORM_WITH_STATISTICS) and part.track_running_stats:
            for name in _STATISTICS:
                tensor = part._buffers.get(name)
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    _check(f"{prefix}{name}", tensor)
                    layer.statistics.append((f"{prefix}{name}", tensor))
        if layer.parameters or layer.statistics:
            found.append(layer)
    if not seen:
        raise ValueError("module: has no parameters that train (requires_grad)")
    device_of(found)
    return found


def device_of(layers: Sequence[Layer]) -> Any:
    """The device of all tensors; ValueError: there are several."""
    tensors = [pair for layer in layers for pair in layer.parameters + layer.statistics]
    (first, one), *_ = tensors
    for name, other in tensors:
        if other.device != one.device:
            raise ValueError(f"{name}: is on {other.device}, {first} on {one.device}; allowed: all on one device")
    return one.device


def _check(name: str, tensor: Any) -> None:
    if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        raise ValueError(f"{name}: has no shape yet; run a batch through the module before it is wrapped")
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name}: is on {tensor.device}; allowed: tensors on the CPU, or on a CUDA device")
    if tensor.dtype != torch.float32:
        raise TypeError(f"{name}: dtype {tensor.dtype}; allowed: torch.float32")
    if tensor.numel() == 0:
        raise ValueError(f"{name}: shape {tuple(tensor.shape)}; allowed: tensors with elements")


def check_optimizer(optimizer: Any, layers: Sequence[Layer]) -> None:
    """ValueError: an optimizer of torch's has none of these layers' parameters; TypeError: its step needs a closure."""
    if isinstance(optimizer, torch.optim.Optimizer):
        closure = inspect.signature(type(optimizer).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise TypeError(
                f"optimizer: {type(optimizer).__name__}, whose step computes the loss anew by a closure; allowed: one "
                "whose step wants none"
            )
        own = {id(tensor) for layer in layers for _, tensor in layer.parameters}
        if not any(id(tensor) in own for group in optimizer.param_groups for tensor in group["params"]):
            raise ValueError("optimizer: has none of the module's parameters that train; allowed: one of these")


def owners(module: Any, layers: Sequence[Layer]) -> dict[Any, list[int]]:
    """For each module with tensors of its own the layers of these tensors; a shared tensor has several owners."""
    layer_of = {id(tensor): i for i, one in enumerate(layers) for _, tensor in one.parameters + one.statistics}
    result: dict[Any, list[int]] = {}
    for part in original(module).modules():
        tensors = [*part._parameters.values(), *part._buffers.values()]
        mine = {layer_of[id(tensor)] for tensor in tensors if tensor is not None and id(tensor) in layer_of}
        if mine:
            result[part] = sorted(mine)
    return result


def hook(model: Any, parts: Sequence[Any]) -> None:
    """Mark these modules as part of a wrapped model: they cannot be wrapped again."""
    for part in parts:
        _HOOKED[part] = ref(model)


def unhook(parts: Sequence[Any]) -> None:
    """Remove the marks of hook."""
    for part in parts:
        _HOOKED.pop(part, None)


class Recorder(TorchFunctionMode):  # type: ignore[misc]
    """Records every use of a parameter by a function of torch: the order, and if its module had been entered.

    Some modules use the parameters of others, whose forward is then never called, as nn.MultiheadAttention does.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__()
        self._layer_of = {id(tensor): i for i, one in enumerate(layers) for _, tensor in one.parameters}
        self._entered: set[int] = set()
        self._count = len(layers)
        self.used: dict[int, bool] = {}  # layer: True if its module had been entered before its first use

    def enter(self, layers: Sequence[int]) -> None:
        """Note that a module with tensors of these layers begins its forward pass."""
        self._entered.update(layers)
        for layer in layers:
            self.used.setdefault(layer, True)

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") != "__get__":
            for tensor in _parameters([*args, *(kwargs or {}).values()]):
                layer = self._layer_of.get(id(tensor))
                if layer is not None:
                    self.used.setdefault(layer, layer in self._entered)
        return func(*args, **(kwargs or {}))

    def order(self) -> list[int]:
        """All layers: used ones in the order of their first use, then the others."""
        return [*self.used, *(layer for layer in range(self._count) if layer not in self.used)]

    def early(self) -> set[int]:
        """Layers whose weights must be current before the forward pass, because no hook precedes their first use."""
        return {layer for layer in range(self._count) if not self.used.get(layer, False)}


def _parameters(values: Sequence[Any], depth: int = 3) -> Iterator[Any]:
    for value in values:
        if isinstance(value, torch.nn.Parameter):
            yield value
        elif depth and isinstance(value, (list, tuple)):
            yield from _parameters(value, depth - 1)
