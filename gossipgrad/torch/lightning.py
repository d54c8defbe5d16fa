"""A strategy for Lightning's Trainer: its training loop, with the exchange of gossipgrad in place of DDP's.

    import gossipgrad as gg

    trainer = lightning.Trainer(accelerator="cpu", strategy=gg.torch.lightning.GossipStrategy(gg.GossipGraD()))
    trainer.fit(module, loader)

Started by mpiexec (gossipgrad run -n 4 train.py), every process a rank. Imported when it is asked for.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch.utils.data.distributed import DistributedSampler

from gossipgrad.cluster import Network, VirtualCluster
from gossipgrad.compression import AdaComp
from gossipgrad.errors import named_keywords, warn
from gossipgrad.launch import agreement, origin, stall
from gossipgrad.launch.origin import check as check_launcher
from gossipgrad.optim import Optimizer
from gossipgrad.strategies import Strategy
from gossipgrad.team import Operation, Team
from gossipgrad.torch.lightning_survival import Samples, check_trainer, divide_validation, training_loader
from gossipgrad.torch.modules import load_tensors
from gossipgrad.torch.samplers import follow
from gossipgrad.torch.synchronised import strategies_that_synchronise
from gossipgrad.torch.wrapped import Wrapped
from gossipgrad.torch.wrapping import wrap
from gossipgrad.training.chosen import checked_strategy

try:
    from lightning import __file__ as _lightning_file
    from lightning.pytorch.strategies import ParallelStrategy
    from lightning.pytorch.utilities import rank_zero_only
    from lightning.pytorch.utilities.model_helpers import is_overridden
except ImportError:
    try:
        from pytorch_lightning import __file__ as _lightning_file
        from pytorch_lightning.strategies import ParallelStrategy
        from pytorch_lightning.utilities import rank_zero_only
        from pytorch_lightning.utilities.model_helpers import is_overridden
    except ImportError as _missing:
        raise ImportError(
            "gossipgrad.torch.lightning wants Lightning, 2.1 or newer: pip install 'gossipgrad[lightning]'"
        ) from _missing

stall.leave_out(os.path.dirname(_lightning_file))

_STATE = "gossipgrad_state"  # the key of the training states within the optimizer's, in a checkpoint
T = TypeVar("T")
_LEAVING = 3.0  # seconds that the rest of a failed training waits for other ranks at its end
_OPERATIONS: dict[str, Operation] = {
    "none": "sum",
    "sum": "sum",
    "mean": "mean",
    "avg": "mean",
    "max": "max",
    "min": "min",
}


@named_keywords
class GossipStrategy(ParallelStrategy):  # type: ignore[misc]
    """For lightning.Trainer(strategy=...): the module trains as with gossipgrad.torch.wrap.

        trainer = lightning.Trainer(accelerator="cpu", strategy=gg.torch.lightning.GossipStrategy(gg.GossipGraD()))

    strategy   None: GossipGraD().
    optimizer  None: the one of the module's configure_optimizers, whose step is a pass of its own; its changes are
               exchanged. Learning rate schedulers work. Or gossipgrad's, as gg.SGD(lr=0.02), fused with the exchange
               and faster: it replaces the module's, and has the schedule.
    compression, comm, seed, timeout, network   as of gossipgrad.torch.wrap.

    Every process of mpiexec is a rank, whatever the value of devices=. Samplers become DistributedSamplers, as with
    DDP. accumulate_grad_batches, validation, callbacks and self.log(..., sync_dist=True) work; metrics of torchmetrics
    are each rank's own. gradient_clip_val clips the mean of the gradients with AllReduce and LayerwiseAllReduce, as
    with DDP; with other strategies each rank's own gradient.

    Checkpoints have the mean of the replicas, or the strategy's centre, and so has the module after fit, on all ranks.
    They also have the training state of each rank. So fit(ckpt_path=...) continues to the bit on as many ranks under
    the same strategy; otherwise all ranks continue from the mean of weights and moments. From a checkpoint of plain
    Lightning a gossipgrad optimizer continues at its step, with moments that begin at zero.

    sync_batchnorm=True works with strategies that average gradients: AllReduce, LayerwiseAllReduce and
    OverlappedAveraging.

    Where ranks may die (gossipgrad run --survive), the others go on. The training set is then dealt by
    gossipgrad.torch.BatchSampler, the last checkpoint is that of the ranks that live, and the first of them writes it.

    One optimizer; ValueError for several, for schedulers beside a gossipgrad optimizer, and for sync_batchnorm=True on
    several ranks under another strategy. RuntimeError under torchrun, where no MPI runs.
    """

    is_distributed = True  # Lightning then gives each rank its part of the samples
    strategy_name = "gossipgrad"

    def __init__(
        self,
        strategy: Strategy | None = None,
        *,
        optimizer: Optimizer | None = None,
        compression: AdaComp | None = None,
        comm: Any = None,
        seed: int = 0,
        timeout: float = 0.0,
        network: Network | None = None,
    ) -> None:
        check_launcher()
        if isinstance(comm, VirtualCluster):
            raise ValueError("comm is a VirtualCluster; allowed: gossipgrad.torch.replicas, in a loop of your own")
        if isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError("optimizer: one of torch's; allowed: None, for the module's own, or gossipgrad's")
        super().__init__()
        self._fused = optimizer
        self._options = {
            "strategy": strategy,
            "compression": compression,
            "comm": comm,
            "seed": seed,
            "timeout": timeout,
            "network": network,
        }
        self._ranks = Team(comm, timeout=timeout)._core
        self._survives = origin.survives()
        if self._survives and origin.may_grow():
            why = (
                "GossipStrategy: new ranks (run --respawn, gossipgrad join) cannot join Lightning's Trainer. Allowed: "
                "without --respawn; or loops of your own around gossipgrad.torch.wrap"
            )
            agreement.refuse(self._ranks, "GossipStrategy", ValueError(why))
        self._samples: Samples | None = None  # where ranks may die: the batches of an epoch
        self._part = self._ranks.rank, self._ranks.size  # of the validation sets, on all ranks of one view
        self.wrapped: Wrapped | None = None  # the module in training
        self._failed = self._clips = False
        self._left: list[Wrapped] = []  # of failed trainings: their end would wait for other ranks

    # ---- who and where

    @property
    def _team(self) -> Team:
        """The ranks, those that live."""
        return Team.around(self._ranks)

    @property
    def root_device(self) -> Any:
        devices = self.parallel_devices or [torch.device("cpu")]
        return devices[self.local_rank % len(devices)]

    @property
    def global_rank(self) -> int:
        return self._team.rank

    @property
    def local_rank(self) -> int:
        return int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK") or os.environ.get("MPI_LOCALRANKID") or 0)

    @property
    def node_rank(self) -> int:
        return 0

    @property
    def world_size(self) -> int:
        return self._team.size

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        rank, size = self._part
        return {"num_replicas": size, "rank": rank}

    def set_world_ranks(self) -> None:
        """Give Lightning's own messages and files to rank 0."""
        rank_zero_only.rank = self.global_rank

    # ---- training

    def setup(self, trainer: Any) -> None:
        self._failed = False
        if trainer.state.fn == "fit":
            self._synchronise()
        super().setup(trainer)
        if trainer.state.fn != "fit":
            return
        if len(self.optimizers) != 1:
            raise ValueError(f"configure_optimizers: {len(self.optimizers)} optimizers; allowed: one")
        if self._fused is not None and self.lr_scheduler_configs:
            raise ValueError(
                f"configure_optimizers: a scheduler beside optimizer={self._fused.name!r} of gossipgrad, which it "
                "would not change; allowed: schedule= of that optimizer"
            )
        # Between the backward pass and the step these change gradients.
        clips = bool(trainer.gradient_clip_val) or is_overridden("configure_gradient_clipping", self.lightning_module)
        given = self.optimizers[0] if self._fused is None else self._fused
        if self._survives:
            check_trainer(trainer)
            self._options["on_view"] = self._changed
        self.wrapped = wrap(self.model, given, overlap=not clips, **self._options)
        self.model: Any = self.wrapped
        self._clips = clips
        if self._survives:
            self._ranks = self.wrapped._group.team
            self._part = self.global_rank, self.world_size

    def _changed(self, _: Any, change: Any) -> None:
        """Ranks have died. The first living rank prints and writes; the epoch has more batches."""
        self.set_world_ranks()
        if self._samples is not None:
            self._samples.tell()

    def _again(self, call: Callable[[], T]) -> T:
        """The result of a collective call, which is made again if ranks have died before all had completed it."""
        wrapped = self.wrapped
        if self._survives and wrapped is not None and wrapped._step.open:
            raise RuntimeError(
                "a collective call between the forward pass and the step, where a death could not be answered (run "
                "--survive), as self.log(..., on_step=True, sync_dist=True) in training_step. Allowed: on_step=False, "
                "on_epoch=True; or sync_dist=False"
            )
        return agreement.surviving(self._ranks, call)

    def process_dataloader(self, dataloader: Any) -> Any:
        """Where ranks may die: a loader whose batches are dealt anew, or one that follows the group."""
        trainer = self.lightning_module.trainer
        if self.wrapped is None or not self._survives:
            return dataloader
        if trainer.training:
            made = training_loader(dataloader, trainer, self.wrapped)
            self._samples = made.batch_sampler
            return made
        if isinstance(getattr(dataloader, "sampler", None), DistributedSampler):
            follow(dataloader.sampler, *self._part)
        return dataloader

    def on_train_start(self) -> None:
        combined = self.lightning_module.trainer.fit_loop._combined_loader
        if self._samples is not None and len(combined.flattened) != 1:
            raise ValueError(
                f"train_dataloader: {len(combined.flattened)} loaders; allowed where ranks may die (run --survive): one"
            )

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self._samples is not None:
            self._samples.fetched()

    def _synchronise(self) -> None:
        """sync_batchnorm=True: BatchNorm becomes SyncBatchNorm, whose parameters are the same objects."""
        if self._layer_sync is None or self.world_size == 1:
            return
        strategy = checked_strategy(self._options["strategy"])
        if strategy.replicas_differ:
            raise ValueError(
                f"sync_batchnorm=True: statistics over all ranks, which strategy={strategy.name!r} lets differ. "
                f"Allowed: a strategy that averages gradients ({strategies_that_synchronise()}); or False: the "
                "running mean and variance of BatchNorm are exchanged as weights"
            )
        self.model = self._layer_sync.apply(self.model)

    def model_to_device(self) -> None:
        self.model.to(self.root_device)

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **_: Any) -> Any:
        """Run the closure, which makes the forward and the backward pass; then the step of the wrapped module."""
        wrapped = self.wrapped
        assert wrapped is not None

        def computed() -> Any:
            result = closure()
            if self._clips:
                wrapped._average_gradients()
            return result

        result = self.precision_plugin._wrap_closure(model or self.lightning_module, optimizer, computed)
        wrapped.step()
        if self._samples is not None and not self._samples.left:  # no rank has more batches of this epoch
            self._part = self.global_rank, self.world_size
            divide_validation(self.lightning_module.trainer, *self._part)
        return result

    @contextlib.contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        with self.wrapped.no_sync() if self.wrapped is not None else contextlib.nullcontext():
            yield

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The mean of all ranks' weights, or the strategy's centre. Collective, as Lightning calls it."""
        if self.wrapped is None:
            return dict(super().lightning_module_state_dict())
        return self.wrapped.consensus_state_dict()

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """The optimizer's own state, of all ranks, and the training states. Collective, as Lightning calls it."""
        wrapped = self.wrapped
        if wrapped is None:
            return dict(super().optimizer_state(optimizer))

        def states() -> dict[str, Any]:
            wrapped._settle("save_checkpoint")
            of_all = wrapped._state_of_all()
            own = of_all["optimizer"] if "optimizer" in of_all else ParallelStrategy.optimizer_state(self, optimizer)
            return {**own, _STATE: {"ranks": self._states_of_ranks(wrapped), "all": of_all}}

        return self._again(states)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Rank 0 writes the file; if it dies before the file is whole, the next one does."""
        if not self._survives:
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return

        def write() -> None:
            with agreement.agreed(self._ranks, "save_checkpoint"):
                if self.is_global_zero:
                    self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options=storage_options)

        self._again(write)

    def _states_of_ranks(self, wrapped: Wrapped) -> list[Any]:
        """On rank 0 the training state of each rank; none if one state for all ranks is as good."""
        group = wrapped._group
        if not (group.unfused or group.compression or group.strategy.replicas_differ) or self.world_size == 1:
            return []
        stream = io.BytesIO()
        torch.save(wrapped._own_state(), stream)
        if self._survives:  # any rank may become the first
            found = agreement.gather(group.team, stream.getvalue(), "save_checkpoint")
        else:
            found = group.team.gather(stream.getvalue()) or []
        return [torch.load(io.BytesIO(one), map_location="cpu", weights_only=True) for one in found]

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Continue from the result of optimizer_state, or from a checkpoint of plain Lightning. Collective."""
        wrapped, given = self.wrapped, checkpoint["optimizer_states"]
        if wrapped is None:
            super().load_optimizer_state_dict(checkpoint)
        elif given and _STATE in given[0]:
            state = given[0][_STATE]
            ranks, all_of_one = state["ranks"], state["all"]
            same = len(ranks) == self.world_size and all_of_one["settings"]["strategy"] == wrapped.strategy_name
            wrapped.load_training_state(ranks[self.global_rank] if same else all_of_one)
        else:
            if self.world_size > 1 and self.global_rank == 0:
                warn("checkpoint: has no gossipgrad training state; all ranks go on from its optimizer state, if any")
            wrapped._go_on_at(int(checkpoint["global_step"]))
            if self._fused is None:
                super().load_optimizer_state_dict(checkpoint)

    def on_exception(self, exception: BaseException) -> None:
        self._failed = True  # other ranks make no collective calls any more

    def teardown(self) -> None:
        """Give the module plain parameters again: the consensus, unless training was interrupted."""
        wrapped, self.wrapped = self.wrapped, None
        self._samples = None
        if wrapped is not None:
            if self._failed:
                wrapped._detach(_LEAVING)
                self._left.append(wrapped)
            else:
                state = wrapped.consensus_state_dict()
                wrapped.close()
                load_tensors(wrapped.module, state)
                self._part = self.global_rank, self.world_size  # ranks may have died since the last epoch's end
            self.model = self.lightning_module
            if self._layer_sync is not None and self.world_size > 1:
                self.model = self._layer_sync.revert(self.model)
        super().teardown()

    # ---- messages of Lightning's

    def barrier(self, name: str | None = None) -> None:
        self._again(lambda: self._team.barrier())

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        def sent() -> Any:
            data = pickle.dumps(obj) if self.global_rank == src else b""
            own = torch.frombuffer(bytearray(data), dtype=torch.uint8).numpy() if data else None
            return pickle.loads(self._team.broadcast(own, src).tobytes())

        return self._again(sent)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        name = str(reduce_op).rpartition(".")[2].lower()
        if name not in _OPERATIONS:
            raise ValueError(f"reduce_op={reduce_op!r}: allowed: {', '.join(list(_OPERATIONS)[1:])}")
        plain = tensor.detach().cpu()
        plain = plain.float() if plain.dtype in (torch.bfloat16, torch.bool) else plain
        made = torch.from_numpy(self._again(lambda: self._team.allreduce(plain.numpy(), _OPERATIONS[name])))
        made = made.to(tensor.dtype) if tensor.dtype.is_floating_point else made
        return made.to(tensor.device)

    def all_gather(self, tensor: Any, group: Any = None, sync_grads: bool = False) -> Any:
        if sync_grads:
            raise ValueError("sync_grads=True: allowed: False; what is gathered has no gradient here")
        plain = tensor.detach().cpu()
        plain = plain.float() if plain.dtype == torch.bfloat16 else plain
        found = self._again(lambda: self._team.allgather(plain.numpy()))
        return torch.from_numpy(found).to(tensor.dtype).to(tensor.device)
