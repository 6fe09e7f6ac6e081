"""An operator of a standing fleet: submits runs to its cloud, looks at them, stops them and fetches their results.

Use it as a context manager: ``with Operator(Bundle.read(Path("ca/alice")), "cloud@192.0.2.1:7700") as fleet:``, then
``name = fleet.submit(experiment)``, ``fleet.wait(name)`` and ``fleet.fetch(name, Path("results"))``.
"""

from __future__ import annotations

import contextlib
import json
import queue
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc

from espalier.core.errors import ConfigError, ProtocolError, RunError
from espalier.experiment import Experiment
from espalier.fleet.certs import Bundle
from espalier.fleet.links.admission import parse_parent
from espalier.fleet.links.protocol import espalier_pb2 as pb
from espalier.fleet.links.transport import METHOD, SERVICE, options

#: seconds between two looks at a run, and between two tries at a cloud that does not answer
LOOK_SECONDS, RETRY_SECONDS = 0.5, 1.0
#: how a run may have ended
ENDED = ("finished", "stopped", "failed")
#: the files of a run directory that a cloud may send
_FILES = re.compile(r"run\.toml|run\.sqlite|models/[A-Za-z0-9][\w.@ -]{0,120}\.safetensors")


class Unreachable(RunError):
    """The cloud does not answer; it may later."""


class Operator:
    """A link to a cloud; opened when it is needed, and again when it broke."""

    def __init__(self, bundle: Bundle, cloud: str) -> None:
        """Prepare to talk to a cloud, ``[name@]host:port``.

        Raises:
            ConfigError: The certificate is not an operator's, or that is no address.
        """
        if bundle.identity.role != "operator":
            raise ConfigError(
                f"--certs: the certificate of {bundle.identity.name} is a {bundle.identity.role}'s; an operator's is "
                "needed: espalier certs issue NAME --role operator."
            )
        self._bundle = bundle
        self._name, self._target = parse_parent(cloud)
        self._channel: grpc.Channel | None = None
        self._requests: queue.SimpleQueue[pb.Frame | None] = queue.SimpleQueue()
        self._answers: Iterator[pb.Frame] = iter(())

    def __enter__(self) -> Operator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the link."""
        self._requests.put(None)
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    # -- requests ----------------------------------------------------------------------------------------------

    def submit(self, experiment: Experiment, **options: Any) -> str:
        """Submit an experiment of one method and one seed; return the run's name.

        Args:
            experiment: What is to be run.
            options: What should not be as usual: name, start_with, patience, compress, round_deadline.

        Raises:
            ConfigError: The cloud cannot run it, and says why.
        """
        return str(self._ask("submit", experiment=experiment.to_plain(), **options)["run"])

    def runs(self) -> list[dict[str, Any]]:
        """Return every run of the fleet, the oldest first."""
        found: list[dict[str, Any]] = self._look("runs")["runs"]
        return found

    def status(self) -> dict[str, Any]:
        """Return how the fleet is, as `espalier.fleet.overview` tells it."""
        return self._look("status")

    def stop(self, run: str) -> None:
        """Stop a run: one that goes on ends in good order, one that waits is taken out of the queue."""
        self._ask("stop", run=run)

    def wait(
        self, run: str, seconds: float = float("inf"), look: Callable[[dict[str, Any]], None] | None = None
    ) -> str:
        """Wait until a run has ended, also while the cloud is started again; return how it ended.

        Raises:
            ConfigError: There is no such run.
            RunError: It goes on after so many seconds.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                rows = [row for row in self.runs() if row["run"] == run]
            except Unreachable:
                time.sleep(RETRY_SECONDS)
                continue
            if not rows:
                raise ConfigError(f"This fleet has no run {run!r}.")
            if look is not None:
                look(rows[0])
            if rows[0]["state"] in ENDED:
                return str(rows[0]["state"])
            time.sleep(LOOK_SECONDS)
        raise RunError(f"{run} is not over after {seconds:g} s.")

    def fetch(self, run: str, directory: Path) -> None:
        """Write a run's directory here: its description, its record and its models.

        Raises:
            ConfigError: There is no such run, it has no results yet, or the directory is not empty.
        """
        if directory.exists() and any(directory.iterdir()):
            raise ConfigError(f"{directory} is not empty; choose another directory.")
        directory.mkdir(parents=True, exist_ok=True)
        self._ask("fetch", directory, run=run)

    # -- the link ----------------------------------------------------------------------------------------------

    def _look(self, what: str) -> dict[str, Any]:
        """Ask for something that changes nothing: over another link, if the one there was has ended."""
        if self._channel is not None:
            with contextlib.suppress(Unreachable):
                return self._ask(what)
        return self._ask(what)

    def _ask(self, what: str, into: Path | None = None, **data: Any) -> dict[str, Any]:
        """Ask for something and return the answer; files that come before it are written into a directory."""
        if self._channel is None:
            self._open()
        self._requests.put(pb.Frame(request=pb.Request(what=what, data=json.dumps(data).encode())))
        try:
            for frame in self._answers:
                if frame.HasField("piece") and into is not None:
                    _write(into, frame.piece)
                elif frame.HasField("refusal"):
                    raise ConfigError(f"The cloud refuses {self._bundle.identity.name}: {frame.refusal.why}.")
                elif frame.HasField("answer"):
                    if frame.answer.refused:
                        raise ConfigError(frame.answer.refused)
                    found: dict[str, Any] = json.loads(frame.answer.data)
                    return found
        except grpc.RpcError as error:
            self.close()
            raise Unreachable(
                f"{self._target} does not answer: {error.details()}. Is it the cloud's address?"
            ) from error
        self.close()
        raise Unreachable(f"{self._target} ended the link before it answered.")

    def _open(self) -> None:
        bundle = self._bundle
        credentials = grpc.ssl_channel_credentials(bundle.ca, bundle.key, bundle.cert)
        settings: list[tuple[str, int | str]] = [*options()]
        if self._name is not None:
            settings.append(("grpc.ssl_target_name_override", self._name))
        self._channel = grpc.secure_channel(self._target, credentials, options=settings)
        self._requests = queue.SimpleQueue()
        method = self._channel.stream_stream(
            f"/{SERVICE}/{METHOD}",
            request_serializer=pb.Frame.SerializeToString,
            response_deserializer=pb.Frame.FromString,
        )
        self._answers = method(iter(self._requests.get, None))


def _write(directory: Path, piece: pb.Piece) -> None:
    """Add a piece to a file of a run directory; a name that is none of its files' is refused."""
    if _FILES.fullmatch(piece.path) is None:
        raise ProtocolError(f"The cloud sends a file {piece.path[:100]!r}, which no run directory has.")
    path = directory / piece.path
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        file.write(piece.data)
