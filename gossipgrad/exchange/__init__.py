"""gossipgrad.Exchange: gossip for gradients that the caller computes."""

from __future__ import annotations

from gossipgrad.exchange.exchange import Exchange as Exchange
from gossipgrad.exchange.exchange import Gradients as Gradients
from gossipgrad.exchange.exchange import Replica as Replica
from gossipgrad.exchange.survivor import View as View
