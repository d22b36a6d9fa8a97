"""Client of a kernel behind a Jupyter server, which uses the same websocket as the browser."""

import json
import time
import uuid
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import websocket


@dataclass
class Execution:
    """Output of a cell."""

    text: str = ""
    displays: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""


class Kernel:
    """Connection to one kernel."""

    def __init__(self, channels: websocket.WebSocket) -> None:
        self._channels = channels
        self._session = uuid.uuid4().hex

    def __enter__(self) -> "Kernel":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channels.close()

    def run(self, code: str, limit_s: float = 60) -> Execution:
        """Run a cell to its end.

        Raises
        ------
        TimeoutError
            The kernel was still busy after `limit_s` seconds.
        """
        message_id = uuid.uuid4().hex
        header = {"msg_id": message_id, "msg_type": "execute_request", "session": self._session}
        header |= {"username": "tests", "version": "5.3", "date": ""}
        content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}}
        content |= {"allow_stdin": False, "stop_on_error": True}
        message = {
            "header": header,
            "parent_header": {},
            "metadata": {},
            "content": content,
            "channel": "shell",
        }
        self._channels.send(json.dumps(message))
        done = Execution()
        end = time.monotonic() + limit_s
        while True:
            self._channels.settimeout(max(0.1, end - time.monotonic()))
            try:
                received = self._channels.recv()
            except websocket.WebSocketTimeoutException as error:
                raise TimeoutError(f"The kernel was busy for more than {limit_s:g} s: {code!r}") from error
            if self._record(json.loads(received), message_id, done):
                return done

    def value(self, expression: str, limit_s: float = 60) -> Any:
        """Return the value of an expression in the kernel, which must be serializable as JSON."""
        done = self.run(f"import json; print(json.dumps({expression}))", limit_s)
        assert not done.error, done.error
        return json.loads(done.text)

    def _record(self, message: dict[str, Any], message_id: str, done: Execution) -> bool:
        if message["parent_header"].get("msg_id") != message_id:
            return False
        content = message["content"]
        match message["msg_type"]:
            case "stream":
                done.text += content["text"]
            case "display_data" | "execute_result":
                done.displays.append(content["data"])
            case "error":
                done.error = "\n".join(content["traceback"])
            case "status":
                return bool(content["execution_state"] == "idle")
        return False
