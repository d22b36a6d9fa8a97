"""An MLflow server in memory, for httpx or on a port: requests, limits and errors that tracking meets.

Modelled on MLflow 3.17: limits of ``mlflow/utils/validation.py``, parameters that never change, metrics that
are stored once per name, time, step and value.
"""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import httpx

_ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts/"
_NAME = re.compile(r"[A-Za-z0-9_\-. :/]+")


@dataclass
class MlflowStandIn:
    """The state of the server; ``fail_next`` requests are answered with status 503."""

    token: str = ""
    fail_next: int = 0
    fail_after: int | None = None
    serves_artifacts: bool = True
    experiments: dict[str, str] = field(default_factory=dict)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    artifacts: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def transport(self) -> httpx.MockTransport:
        """Return the transport for a client."""
        return httpx.MockTransport(self.answer)

    @contextmanager
    def listening(self) -> Iterator[str]:
        """Answer on a port of this machine; yields the address."""
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                url = f"http://{self.headers['Host']}{self.path}"
                answer = stand_in.answer(
                    httpx.Request(self.command, url, headers=dict(self.headers.items()), content=content)
                )
                self.send_response(answer.status_code)
                self.send_header("Content-Length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

            do_GET = do_POST = do_PUT = _answer  # noqa: N815 - the names are those of http.server

            def log_message(self, *_: object) -> None:
                """Nothing to log."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()

    def answer(self, request: httpx.Request) -> httpx.Response:
        """Return the answer to a request."""
        path = request.url.path
        self.requests.append(path)
        if self.fail_after is not None and len(self.requests) > self.fail_after:
            raise httpx.ConnectError("refused")
        if self.fail_next:
            self.fail_next -= 1
            return httpx.Response(503)
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return httpx.Response(401, text="<html>log in</html>")
        if path.startswith("/api/2.0/mlflow-artifacts/artifacts/"):
            self.artifacts[unquote(path.removeprefix("/api/2.0/mlflow-artifacts/artifacts/"))] = (
                request.content
            )
            return httpx.Response(200, json={})
        name = path.removeprefix("/api/2.0/mlflow/").replace("/", "_").replace("-", "_")
        body = json.loads(request.content) if request.content else dict(request.url.params)
        answer = getattr(self, f"_{name}", None)
        return httpx.Response(404, text="not found") if answer is None else answer(body)

    def _experiments_create(self, body: dict[str, Any]) -> httpx.Response:
        if body["name"] in self.experiments:
            return _error("RESOURCE_ALREADY_EXISTS", f"Experiment {body['name']} exists")
        self.experiments[body["name"]] = str(len(self.experiments) + 1)
        return httpx.Response(200, json={"experiment_id": self.experiments[body["name"]]})

    def _experiments_get_by_name(self, body: dict[str, Any]) -> httpx.Response:
        found = {"experiment_id": self.experiments[body["experiment_name"]], "lifecycle_stage": "active"}
        return httpx.Response(200, json={"experiment": found})

    def _runs_search(self, body: dict[str, Any]) -> httpx.Response:
        wanted = re.fullmatch(r"tags\.`gipfel\.key` = '([^']*)'", body["filter"])
        assert wanted is not None
        found = [each for each in self.runs.values() if each["tags"].get("gipfel.key") == wanted[1]]
        return httpx.Response(200, json={"runs": [_content(each) for each in found]} if found else {})

    def _runs_create(self, body: dict[str, Any]) -> httpx.Response:
        run_id = f"run{len(self.runs)}"
        scheme = "mlflow-artifacts:/" if self.serves_artifacts else "/srv/artifacts/"
        run = {
            "id": run_id, "experiment": body["experiment_id"], "status": "RUNNING", "name": body["run_name"],
            "uri": f"{scheme}{body['experiment_id']}/{run_id}/artifacts", "params": {}, "metrics": set(),
            "tags": {each["key"]: each["value"] for each in body["tags"]}, "ended": None,
        }  # fmt: skip
        self.runs[run_id] = run
        return httpx.Response(200, json={"run": _content(run)})

    def _runs_log_batch(self, body: dict[str, Any]) -> httpx.Response:
        run = self.runs[body["run_id"]]
        metrics, params = body.get("metrics", []), body.get("params", [])
        if len(metrics) > 1000 or len(params) > 100:
            return _error("INVALID_PARAMETER_VALUE", "too many in a request")
        for each in (*metrics, *params):
            name = each["key"]
            if not _NAME.fullmatch(name) or len(name) > 250 or "//" in name or name.startswith("/"):
                return _error("INVALID_PARAMETER_VALUE", f"Invalid name: {name!r}")
        for each in params:
            if run["params"].setdefault(each["key"], each["value"]) != each["value"]:
                return _error("INVALID_PARAMETER_VALUE", "Changing param values is not allowed")
        run["metrics"] |= {(m["key"], m["timestamp"], m["step"], str(m["value"])) for m in metrics}
        run["tags"] |= {each["key"]: each["value"] for each in body.get("tags", [])}
        return httpx.Response(200, json={})

    def _runs_update(self, body: dict[str, Any]) -> httpx.Response:
        run = self.runs[body["run_id"]]
        # MLflow's own client sends no name at the end of a run.
        name = body.get("run_name") or run["name"]
        run |= {"status": body["status"], "name": name, "ended": body.get("end_time")}
        return httpx.Response(200, json={})


def _content(run: dict[str, Any]) -> dict[str, Any]:
    info = {"run_id": run["id"], "experiment_id": run["experiment"], "status": run["status"]}
    info["artifact_uri"] = run["uri"]
    return {"info": info, "data": {"tags": [{"key": k, "value": v} for k, v in run["tags"].items()]}}


def _error(code: str, message: str) -> httpx.Response:
    return httpx.Response(400, json={"error_code": code, "message": message})
