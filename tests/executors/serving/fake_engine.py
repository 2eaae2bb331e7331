"""An engine without a model: the protocol of `executors.serving.engine` in the standard library, up in a moment.

It reads the weights' digest from disk when it starts and answers with the first digits of it. Options, as arguments:
`wrong-weights`, `empty` (every completion), `crash` (while starting), `slow` (a stream that takes a second), `drifts` (other
weights from the second read-back on).
"""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from executors.launchers import supervisor
from executors.serving.weights import directory_digest

OPTIONS = sys.argv[1:]
STREAM_S = 1.0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    plan: dict[str, str] = {}
    token = ""
    weights = ""

    def do_GET(self) -> None:
        if self.path == "/posttrain/weights":
            self.answer({"weights": self.weights})
            if "drifts" in OPTIONS:
                Handler.weights = "sha256:" + "0" * 64
        else:
            self.answer({"status": "ok", "chat": True})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.headers["authorization"] != f"Bearer {self.token}" or body["model"] != self.plan["served_name"]:
            self.answer({"error": {"message": "not for this engine"}}, 401)
        elif body.get("stream"):
            self.stream()
        else:
            text = "" if "empty" in OPTIONS else self.weights[7:15]
            self.answer({"choices": [{"message": {"content": text}}], "headers": sorted(self.headers.keys())})

    def stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for _ in range(5):
            self.wfile.write(f"data: {self.weights[7:15]}\n\n".encode())
            self.wfile.flush()
            time.sleep(STREAM_S / 5 if "slow" in OPTIONS else 0)
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def answer(self, content: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.send_header("keep-alive", "timeout=5")
        self.send_header("x-engine-secret", "not for clients")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_arguments: object) -> None:
        pass


def main() -> None:
    Handler.plan = json.loads(Path(os.environ["POSTTRAIN_PLAN"]).read_bytes())
    Handler.token = Path(Handler.plan["token_file"]).read_text().strip()
    Handler.weights = directory_digest(Path(Handler.plan["model_dir"]))
    if "wrong-weights" in OPTIONS:
        Handler.weights = "sha256:" + "0" * 64
    if "crash" in OPTIONS:
        sys.exit("engine: the model is too large for this machine")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    supervisor.write_file(
        Path(os.environ["POSTTRAIN_OUT"]) / "listening.json", {"port": server.server_port, "pid": os.getpid()}
    )
    server.serve_forever()


if __name__ == "__main__":
    main()
