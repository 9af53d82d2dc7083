"""The server process: a socket, the models, the event loop, and an orderly end.

SIGTERM or Ctrl-C: no new connections, waiting requests are refused, replies under way get a few
seconds and then end with an error event, then everything is freed.  A second one ends at once.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

import uvicorn

from dyspec_edge.engine import SamplingParams
from dyspec_edge.errors import DyspecError, OptionError
from dyspec_edge.load.loading import Loaded
from dyspec_edge.load.machine import available_memory
from dyspec_edge.server.app import create_app
from dyspec_edge.server.connection import Connection
from dyspec_edge.server.guard import Rules
from dyspec_edge.server.scheduler import Scheduler
from dyspec_edge.server.service import Limits, Service
from dyspec_edge.server.slots import Slots

GRACE_SECONDS = 5.0
"""What replies under way get to end by themselves."""

QUEUE_FACTOR = 16
"""Requests that may wait, for each that can be answered at the same time."""

CACHE_RAM_SHARE, MOST_CACHE_RAM = 0.25, 8192 << 20
"""For kept conversations: of the memory that is free after loading, and llama-server's default."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How requests are answered.

    Attributes:
        model: the name that clients see.
        sampling: what holds where a request says nothing.
        timeout: seconds that a request may take, the wait included.
        cache_ram: bytes for conversations that have lost their slot; None for what fits.
        port: 0 for any free one.
        log_content: the log shows what was asked.
    """

    model: str
    rules: Rules = field(default_factory=Rules)
    limits: Limits = field(default_factory=Limits)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    timeout: float = 3600.0
    cache_ram: int | None = None
    port: int = 8080
    log_content: bool = False


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound, before anything slow begins.

    Raises:
        OptionError: there is no such address.
        DyspecError: it is taken, or not allowed.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise OptionError(f"--host {host}: there is no such address on this machine") from None
    try:
        return socket.create_server(address[:2], family=family, backlog=256)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DyspecError(
            f"cannot listen on {host} port {port}: {reason}; try another --port"
        ) from None


def address_of(bound: socket.socket) -> str:
    """Where browsers find a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def opened(loaded: Loaded, config: ServerConfig) -> Iterator[Service]:
    """A service over what is loaded, which is freed at the end."""
    cache_ram = config.cache_ram
    if cache_ram is None:
        free = available_memory(loaded.models.config.memory_limit)
        cache_ram = int(min(MOST_CACHE_RAM, CACHE_RAM_SHARE * free))
    slots = Slots(loaded, cache_ram)
    scheduler = Scheduler(slots, max_waiting=QUEUE_FACTOR * len(slots.all), timeout=config.timeout)
    try:
        yield Service(
            slots, scheduler, name=config.model, sampling=config.sampling, limits=config.limits
        )
    finally:
        scheduler.close()
        scheduler.join()


def serve(
    service: Service,
    config: ServerConfig,
    bound: socket.socket,
    on_start: Callable[[uvicorn.Server], None] = lambda _server: None,
) -> None:
    """Answer requests until a signal, or whoever got the server from `on_start`, says to end."""
    settings = uvicorn.Config(
        create_app(service, config.rules, log_content=config.log_content),
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(2 * GRACE_SECONDS),
    )
    server = _Server(settings, lambda: service.scheduler.close(GRACE_SECONDS))
    on_start(server)
    server.run(sockets=[bound])


class _Server(uvicorn.Server):
    """uvicorn, which tells the scheduler of its end and returns instead of ending the process."""

    def __init__(self, config: uvicorn.Config, on_end: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_end = on_end

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_end()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        kinds = (signal.SIGINT, signal.SIGTERM)
        before = {kind: signal.signal(kind, self.handle_exit) for kind in kinds}
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)
