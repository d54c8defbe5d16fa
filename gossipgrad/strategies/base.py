"""The base of strategies, and all strategies by name."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from gossipgrad.compression import AdaComp, Mode

__all__ = ["Strategy"]


@dataclass(frozen=True)
class Strategy:
    """The base. `name` is the strategy's on the command line and in reports."""

    name: ClassVar[str] = ""
    replicas_differ: ClassVar[bool] = True  # between exchanges; False: every step gives all ranks the gradients' mean
    not_compressed: ClassVar[str] = ""  # why compression is refused; "": it is allowed
    residue: ClassVar[str] = ""  # the quantity that compression's residue is made of, if there is one
    compression_mode: ClassVar[Mode] = "strict"  # if the compression has none

    def workers(self, ranks: int) -> int:
        """The number of ranks that train, the first ones; the others only serve."""
        return ranks

    def rate_share(self, ranks: int) -> float:
        """The share of one rank's learning rate that suits `ranks`: below 1 if their updates are added up."""
        return 1.0

    def compressed(self, compression: AdaComp) -> AdaComp:
        """The compression as this strategy applies it; ValueError if the strategy's messages cannot be compressed
        so."""
        made = compression.of_mode(self.compression_mode)
        self.check_compression(made)
        return made

    def check_compression(self, compression: AdaComp) -> None:
        """ValueError if this strategy's messages cannot be compressed so."""
        name = compression.name
        if self.not_compressed:
            allowed = ", ".join(one for one, c in BY_NAME.items() if not c.not_compressed)
            raise ValueError(
                f"compression={name!r} with strategy={self.name!r}: {self.not_compressed}; allowed with it: {allowed}"
            )
        for key, value, why in self._uncompressed():
            if getattr(self, key, value) != value:
                raise ValueError(f"{key}={getattr(self, key)!r} with compression={name!r}: {why}; allowed: {value!r}")
        if compression.local_momentum and self.residue != "gradients":
            allowed = ", ".join(repr(one) for one, c in BY_NAME.items() if c.residue == "gradients")
            raise ValueError(
                f"local_momentum=True with strategy={self.name!r}: it does not send gradients; allowed with: {allowed}"
            )
        if compression.selection != "local" and not self._sums_over_ranks():
            raise ValueError(
                f"selection={compression.selection!r} with strategy={self.name!r}: its messages go from rank to rank, "
                "and no sum over all ranks is made of them; allowed: 'local'"
            )

    def _sums_over_ranks(self) -> bool:
        """True if compressed values are added over all ranks at once."""
        return False

    def _uncompressed(self) -> list[tuple[str, Any, str]]:
        """(keyword, the only value allowed with compression, reason)."""
        return [
            ("collectives", "own", "MPI adds no packed messages"),
            ("wire_dtype", "float32", "the compression says how values travel"),
        ]

    def settings(self) -> dict[str, Any]:
        """The keywords, with the name as "strategy", in terms of JSON."""
        return {"strategy": self.name, **asdict(self)}

    @property
    def changes_after(self) -> int:
        """Steps of a training after which options_at gives another strategy of the core; 0: never."""
        return 0

    def options_at(self, step: int) -> dict[str, Any]:
        """The options of the core for this step of a training."""
        return self.options()

    def options(self) -> dict[str, Any]:
        """The options of the core."""
        return {"name": self.name, **{key: value for key, value in asdict(self).items() if value is not None}}


BY_NAME: dict[str, type[Strategy]] = {}  # filled by the package, in the order in which they are offered
