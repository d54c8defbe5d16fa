"""The mlp of step_vs_peers.py in JAX: one jitted step with donated state. Its others are slower than PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import numpy as jnp


def jax_step(name: str, x: Any, y: Any, *, bfloat16: bool, evaluate: bool) -> tuple[Callable[[], Any], int]:
    """As torch_step. JAX has as many threads as the process has cores when it is imported."""
    if name != "mlp":
        raise ValueError(f"JAX's {name}: only its mlp is here; PyTorch is faster in the others")
    compute = jnp.bfloat16 if bfloat16 else jnp.float32
    widths = (28, 300, 300, 300, 1)
    keys = jax.random.split(jax.random.key(0), 4)
    weights = [jax.random.normal(k, (a, b)) / a**0.5 for k, a, b in zip(keys, widths, widths[1:], strict=False)]
    state = (weights, [jnp.zeros(n) for n in widths[1:]])
    momentum = jax.tree.map(jnp.zeros_like, state)
    samples, targets = jnp.asarray(x), jnp.asarray(y)

    def forward(state: Any, samples: Any) -> Any:
        x = samples.astype(compute)
        for i, (w, b) in enumerate(zip(*state, strict=True)):
            x = x @ w.astype(compute) + b.astype(compute)
            x = x if i == 3 else jax.nn.relu(x)
        return x.astype(jnp.float32)

    def loss(state: Any, samples: Any, targets: Any) -> Any:
        output = forward(state, samples)
        return jnp.mean(jax.nn.softplus(output) - output * targets)

    def update(state: Any, momentum: Any, samples: Any, targets: Any) -> Any:
        gradient = jax.grad(loss)(state, samples, targets)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
        return jax.tree.map(lambda p, m: p - 0.001 * m, state, momentum), momentum

    train, infer = jax.jit(update, donate_argnums=(0, 1)), jax.jit(forward)

    def step() -> None:
        nonlocal state, momentum
        if evaluate:
            jax.block_until_ready(infer(state, samples))
        else:
            state, momentum = jax.block_until_ready(train(state, momentum, samples, targets))

    return step, sum(one.size for one in jax.tree.leaves(state))
