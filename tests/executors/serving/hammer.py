"""Clients that do not stop asking."""

from __future__ import annotations

import threading

import httpx

from executors.serving.client import MODEL_HEADER
from executors.serving.probe import wait_until


class Hammer:
    """Clients that ask without a pause. `failures` should stay empty; `models` are those that answered, each change once."""

    def __init__(self, endpoint: str, stage: str, clients: int = 3) -> None:
        self.url = f"{endpoint}/v1/chat/completions"
        self.body = {"model": stage, "messages": [{"role": "user", "content": "1+1="}], "max_tokens": 4}
        self.failures: list[str] = []
        self.models: list[str] = []
        self.answers = 0
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]

    def __enter__(self) -> Hammer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, model: str) -> None:
        """Until the newest answers came from `model`, and some more."""
        assert wait_until(lambda: self.models[-1:] == [model], 30)
        enough = self.answers + 20
        assert wait_until(lambda: self.answers >= enough, 30)

    def _run(self) -> None:
        with httpx.Client(timeout=30) as client:
            while not self._over.is_set():
                try:
                    response = client.post(self.url, json=self.body)
                    problem = None if response.status_code == 200 else f"{response.status_code} {response.text}"
                except httpx.HTTPError as error:
                    response, problem = None, repr(error)
                with self._lock:
                    self.answers += 1
                    if problem is not None or response is None:
                        self.failures.append(str(problem))
                    elif response.json()["choices"] and self.models[-1:] != [response.headers[MODEL_HEADER]]:
                        self.models.append(response.headers[MODEL_HEADER])
