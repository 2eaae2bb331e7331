"""Where serving keeps its files, and which of its processes live.

<home>/serving/
    gateway.json                  where the gateway listens: {"port", "directory"}
    gateways/<id>/                a gateway's launch (see `executors.launchers`)
    deployments/<deployment id>/  an engine's launch
        token                     its bearer token, readable by the owner only
        out/listening.json        {"port", "pid"} when it answers
    locks/                        one deployer a stage, one starter of the gateway
<home>/cache/models/<hex>/        models staged by digest
"""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executors.launchers import supervisor
from executors.launchers.local import LocalLauncher
from ledger.errors import InfrastructureError, InputError

DEPLOYMENT_ID = re.compile(r"d-[0-9a-f]{16}")
MAX_LOG_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Place:
    """The directory of one launched process. Whether it lives is the launcher's answer, which no reused pid fools."""

    directory: Path

    def alive(self) -> bool:
        return LocalLauncher().state(self.directory).kind == "running"

    def port(self) -> int | None:
        """Where the living process listens; `None` before it does, and after its end."""
        try:
            listening = supervisor.read_file(self.directory / "out" / "listening.json")
        except ValueError:
            return None
        if listening is None or not self.alive():
            return None
        port = listening.get("port")
        return port if isinstance(port, int) else None

    def token(self) -> str:
        """The engine's bearer token.

        Raises:
            InfrastructureError: there is none.
        """
        try:
            return (self.directory / "token").read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InfrastructureError(f"{self.directory / 'token'} cannot be read: {error}") from None

    def end(self, grace_s: float) -> None:
        """End the process, and make sure that none starts here later."""
        launcher = LocalLauncher()
        if launcher.state(self.directory).kind == "absent":
            # Whoever launched it may have been killed while the launch was on the way. A directory is launched once:
            # of that launch and this idle one, the second does nothing.
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            launcher.start(self.directory, (sys.executable, "-I", "-S", "-c", ""), {}, {})
        launcher.stop(self.directory, grace_s)
        (self.directory / "token").unlink(missing_ok=True)

    def make_token(self) -> Path:
        """The token's file, made if it is not there."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.directory / "token"
        if not path.exists():
            temporary = self.directory / f".token.{os.getpid()}"
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as stream:
                stream.write(secrets.token_hex(32))
            os.replace(temporary, path)
        return path

    def last_words(self) -> str:
        """The last line of the process's log."""
        try:
            with (self.directory / "log").open("rb") as stream:
                stream.seek(max(0, stream.seek(0, os.SEEK_END) - MAX_LOG_BYTES))
                lines = stream.read().decode("utf-8", "replace").strip().splitlines()
        except OSError:
            return "it left no log"
        return lines[-1].strip() if lines else "its log is empty"


@dataclass(frozen=True, slots=True)
class Places:
    home: Path

    @property
    def root(self) -> Path:
        return self.home / "serving"

    def make(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in ("locks", "deployments", "gateways"):
            (self.root / name).mkdir(exist_ok=True, mode=0o700)

    def engine(self, deployment_id: str) -> Place:
        if DEPLOYMENT_ID.fullmatch(deployment_id) is None:
            raise InputError(f"{deployment_id!r} is not a deployment id")
        return Place(self.root / "deployments" / deployment_id)

    def engines(self) -> dict[str, Place]:
        """Every engine that was ever launched from this home, by deployment id."""
        directory = self.root / "deployments"
        names = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
        return {name: self.engine(name) for name in names if DEPLOYMENT_ID.fullmatch(name)}

    def model(self, digest: str) -> Path:
        return self.home / "cache" / "models" / digest.removeprefix("sha256:")

    def stage_lock(self, stage: str) -> Path:
        """A stage may be called `gateway`; its lock is another file."""
        return self.lock(f"stage-{stage}")

    def lock(self, name: str) -> Path:
        return self.root / "locks" / f"{name}.lock"

    @property
    def gateway_record(self) -> Path:
        return self.root / "gateway.json"

    def recorded_gateway(self) -> dict[str, Any] | None:
        try:
            return supervisor.read_file(self.gateway_record)
        except ValueError as error:
            raise InfrastructureError(f"{self.gateway_record} is damaged: {error}; remove it and serve again") from None

    def gateway(self) -> tuple[Place, int] | None:
        """The living gateway and its port."""
        record = self.recorded_gateway()
        if record is None:
            return None
        place = self.gateway_place(record)
        port = place.port()
        return None if port is None else (place, port)

    def gateway_place(self, record: Mapping[str, Any]) -> Place:
        return Place(self.root / "gateways" / Path(str(record["directory"])).name)

    def record_gateway(self, port: int, place: Place) -> None:
        supervisor.write_file(self.gateway_record, {"port": port, "directory": place.directory.name})
