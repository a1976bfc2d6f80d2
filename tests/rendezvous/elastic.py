# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One interface over two rendezvous: torch's DynamicRendezvousHandler (c10d), and ours.

A scenario that is written against `Side` is run on both, and must end alike. Everything is in this
process, over loopback; node ``n`` is 127.0.0.(n+1), so that names and addresses sort alike.
"""

import threading
import time
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousParameters,
    dynamic_rendezvous,
)
from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousInfo
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from securetrain.drills.stock_rendezvous import stock_handler, uncached
from securetrain.rendezvous.member import handler as handler_module
from tests.waiting import in_time

PATIENCE = 60.0
_POLL = 0.01


class Side(Protocol):
    """A rendezvous of one job, with its nodes."""

    backend: str

    def start(self, low: int, high: int, **times: float) -> None:
        """Open it for `low` to `high` nodes.

        Args:
            low: a round needs at least so many.
            high: and at most so many.
            times: in seconds, `last_call`, `join`, `heartbeat`; and `dead_after`, for tests that
                kill a node: torch has nothing but heart-beats to see that by, ours sees it at once.
        """

    def node(self, number: int) -> RendezvousHandler:
        """A new handler for one node."""

    def is_in(self, handler: RendezvousHandler) -> bool:
        """Whether the node has a place in the current round, complete or not."""

    def is_spare(self, handler: RendezvousHandler) -> bool:
        """Whether the node stands by without a place."""

    def be_patient(self, handler: RendezvousHandler) -> None:
        """From now on the node waits long for a round."""

    def kill(self, handler: RendezvousHandler) -> None:
        """The node's process ends without a word."""

    def hang(self, handler: RendezvousHandler) -> None:
        """The node is there and gives no sign of life."""

    def break_down(self) -> None:
        """What holds the rendezvous together dies."""

    def end(self) -> None:
        """Whoever still waits, ends."""


class Scene:
    """Threads for the nodes of a side, and patience."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.backend = side.backend
        self.start, self.node = side.start, side.node
        self.is_in, self.is_spare, self.be_patient = side.is_in, side.is_spare, side.be_patient
        self.kill, self.hang, self.break_down = side.kill, side.hang, side.break_down
        self._pool = ThreadPoolExecutor(16)

    def nodes(self, number: int) -> list[RendezvousHandler]:
        """The first so many nodes."""
        return [self.node(n) for n in range(number)]

    def come(self, *handlers: RendezvousHandler) -> list[Future[RendezvousInfo]]:
        """Each asks for the next round, in a thread of its own."""
        return [self._pool.submit(handler.next_rendezvous) for handler in handlers]

    def meet(self, *handlers: RendezvousHandler) -> list[RendezvousInfo]:
        """All ask for the next round, and it comes."""
        return self.results(self.come(*handlers))

    def results(self, futures: list[Future[RendezvousInfo]]) -> list[RendezvousInfo]:
        """What came of `come`."""
        return [future.result(PATIENCE) for future in futures]

    def until(self, condition: Any, what: str) -> None:
        """Poll; fails after a long time rather than at a tight one."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            in_time(deadline, f"never happened: {what}")
            time.sleep(_POLL)

    def waiting(self, handler: RendezvousHandler, number: int) -> None:
        """Until a member sees so many nodes waiting."""
        self.until(lambda: handler.num_nodes_waiting() == number, f"{number} nodes are waiting")

    def end(self) -> None:
        """Whatever still waits must have ended with its side."""
        self._pool.shutdown()


class Fresh(DynamicRendezvousHandler):
    """torch's own, without what it remembers of the first round's workers' store.

    torch 2.13 keeps that for all rounds; see `test_elastic_departures` for what it leads to.
    """

    def next_rendezvous(self) -> RendezvousInfo:
        self._bootstrap_store_info = None
        return super().next_rendezvous()


class Stock:
    """torch's own, over a TCPStore that this process hosts."""

    backend = "c10d"

    def __init__(self, monkeypatch: Any, kind: type[DynamicRendezvousHandler] = Fresh) -> None:
        self.kind = kind
        self.server: TCPStore | None = None
        # It polls once a second, and skews the first attempts; nothing depends on how long.
        monkeypatch.setattr(dynamic_rendezvous, "_delay", lambda seconds: time.sleep(_POLL))
        self.made: weakref.WeakSet[DynamicRendezvousHandler] = weakref.WeakSet()

    def start(self, low: int, high: int, **times: float) -> None:
        self.low, self.high, self.times = low, high, times
        self.server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.port = self.server.port
        self.reader = self.node(98)

    def node(self, number: int) -> Any:
        heartbeat = self.times.get("heartbeat", self.times.get("dead_after", 15.0) / 3)
        handler = uncached(
            stock_handler(
                self.port,
                (self.low, self.high),
                f"127.0.0.{number + 1}",
                {**self.times, "heartbeat": heartbeat},
                kind=self.kind,
            )
        )
        self.made.add(handler)
        return handler

    def is_in(self, handler: Any) -> bool:
        self.reader._state_holder.sync()
        return handler._this_node in self.reader._state_holder.state.participants

    def be_patient(self, handler: Any) -> None:
        handler._settings.timeout._set_timeouts(join=timedelta(seconds=PATIENCE))

    def is_spare(self, handler: Any) -> bool:
        return handler._this_node in handler._state_holder.state.redundancy_list

    def kill(self, handler: Any) -> None:
        handler._stop_heartbeats()

        def gone() -> None:
            raise RendezvousConnectionError("killed")

        handler._state_holder.sync = gone

    def hang(self, handler: Any) -> None:
        handler._stop_heartbeats()

    def break_down(self) -> None:
        self.server = None

    def end(self) -> None:
        for handler in self.made:
            handler._stop_heartbeats()
        if self.server is not None:
            with suppress(RendezvousError):
                self.reader.set_closed()  # whoever still waits, ends


class Ours:
    """A coordinator in this process, and handlers as torchrun makes them."""

    backend = "securetrain"

    def __init__(self, job: Any, tools: Any, monkeypatch: Any) -> None:
        self.job, self.tools = job, tools
        self.over = threading.Event()
        self.hanging: list[Any] = []
        self.names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        monkeypatch.setattr(handler_module, "LINGER_SECONDS", 0.05)

    def start(self, low: int, high: int, **times: float) -> None:
        self.range = low, high
        self.join = times.pop("join", PATIENCE)
        times.pop("dead_after", None)
        times.setdefault("last_call", 600.0)
        self.job.start(low, high, **times)

    def node(self, number: int) -> Any:
        node = f"node-{number}"
        folder = self.job.folder(node)
        if not folder.exists():
            self.job.identity(node)
        handler: Any = get_rendezvous_handler(
            RendezvousParameters(
                "securetrain",
                f"{self.job.host}:{self.job.port}",
                self.job.name,
                *self.range,
                local_addr=f"127.0.0.{number + 1}",
                identity=str(folder),
            )
        )
        handler._join_timeout = self.join  # the setting takes whole seconds
        self.names[handler] = node
        return handler

    def is_in(self, handler: Any) -> bool:
        return self.names[handler] in self.job.coordinator._rounds.participants

    def be_patient(self, handler: Any) -> None:
        handler._join_timeout = PATIENCE

    def is_spare(self, handler: Any) -> bool:
        return handler.member is not None and handler.member._status.spare

    def kill(self, handler: Any) -> None:
        handler.member._link._reconnect.allowed = False
        handler.member._link._channel.abort()

    def hang(self, handler: Any) -> None:
        def hangs(_channel: Any) -> None:
            self.over.wait()

        handler.member._link._send_posted = hangs
        self.hanging.append(handler)  # dropping it would wait for its thread

    def break_down(self) -> None:
        self.job.coordinator.stop()

    def end(self) -> None:
        self.over.set()
        for coordinator in self.job.started:
            coordinator.stop()
        for handler in list(self.names):
            if handler.member is not None:
                handler.member.leave()
