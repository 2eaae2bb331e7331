"""The gateway: one OpenAI-compatible address a home, behind which models change without a failed request.

A request names a stage, or the served name of what the stage serves. It goes to the engine that the ledger names and to
nothing else: `web.gateway` reads the ledger again every 150 ms, so a `TrafficShifted` moves the next request, while those
in flight end where they began. An engine that is not alive is never spoken to: what listens on its old port after a reboot
must not learn a token or a prompt.

Run as `python -m executors.serving.gateway` by a launcher. `plan.json`: `{"home", "port"}`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

from executors.launchers import supervisor
from executors.serving.places import Places
from ledger.errors import InfrastructureError, MissingExtra, PosttrainError
from ledger.home import Ledger


def main() -> int:
    """Serve until SIGTERM. 0: asked to end; otherwise the last line of the log says why."""
    try:
        plan = json.loads(Path(os.environ["POSTTRAIN_PLAN"]).read_bytes())
        serve(Path(plan["home"]), int(plan["port"]), Path(os.environ["POSTTRAIN_OUT"]))
    except PosttrainError as error:
        sys.stderr.write(f"gateway: {' '.join(str(error).split())}\n")
        return error.exit_code
    return 0


def serve(home: Path, port: int, out: Path) -> None:
    try:
        listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    except OSError as error:
        raise InfrastructureError(
            f"port {port} cannot be used ({error.strerror}); name another with --port, or end what listens there"
        ) from None
    try:
        import uvicorn

        from executors.serving.web.gateway import build_app
    except ImportError as error:
        raise MissingExtra(f"the gateway ({error.name or error})", "serve") from error
    ledger = Ledger.open(home)
    config = uvicorn.Config(
        build_app(ledger.log, Places(ledger.home)),
        log_level="warning",
        access_log=False,
        lifespan="on",
        ws="none",
        server_header=False,
        timeout_keep_alive=120,
        timeout_graceful_shutdown=30,
    )
    supervisor.write_file(out / "listening.json", {"port": int(listener.getsockname()[1]), "pid": os.getpid()})
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    sys.exit(main())
