"""All strategies, as the families' modules list them. The package and `gossipgrad.strategies` have these names."""

from typing import TYPE_CHECKING

from gossipgrad.strategies import averaging, base, centre, gossip, outer_steps
from gossipgrad.strategies.averaging import *  # noqa: F403
from gossipgrad.strategies.base import *  # noqa: F403
from gossipgrad.strategies.centre import *  # noqa: F403
from gossipgrad.strategies.gossip import *  # noqa: F403
from gossipgrad.strategies.outer_steps import *  # noqa: F403

if not TYPE_CHECKING:  # a checker reads the modules' lists, but no sum of them
    __all__ = tuple(name for module in (base, averaging, centre, gossip, outer_steps) for name in module.__all__)
