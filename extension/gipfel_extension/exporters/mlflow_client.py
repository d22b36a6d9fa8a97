"""Client of MLflow's REST API: only the requests that tracking a run needs, within the server's limits.

Limits and paths are those of MLflow 2 and 3 (``mlflow/protos/service.proto``,
``mlflow/utils/validation.py``): 1 000 metrics and 100 parameters per request, at most 6 000 characters in the
value of a parameter and 8 000 in that of a tag.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx

from gipfel_cluster.model import GipfelError, one_line

MAX_METRICS, MAX_PARAMETERS, MAX_TAGS = 1000, 100, 100
_MAX_PARAMETER, _MAX_TAG, _MAX_TAG_NAME = 6000, 8000, 250
_MAX_ANSWER_BYTES = 16 << 20
#: Limit in seconds for the body of an answer; a byte now and then keeps the timeout of a read from passing.
_MAX_ANSWER_S = 60.0
#: HTTP status codes of temporary errors, after which a request is repeated.
_PASSING = frozenset((429, 502, 503, 504))
_PAUSES_S = (0.5, 1.0, 2.0, 4.0)
_EXISTS = "RESOURCE_ALREADY_EXISTS"

_Item = TypeVar("_Item")
#: A metric's value: name, value, UTC in milliseconds, step.
Point = tuple[str, float, int, int]


@dataclass(frozen=True)
class MlflowRun:
    """A run on the server."""

    run_id: str
    experiment_id: str
    artifact_uri: str
    status: str
    tags: Mapping[str, str]


class RequestRefusedError(Exception):
    """The server refused a request; ``code`` is MLflow's error code, or the HTTP status as text."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def check_address(uri: str) -> None:
    """Check the address of a server.

    Raises
    ------
    GipfelError
        The address is not a valid server address, or contains a password.
    """
    try:
        parts = urlsplit(uri)
        # urlsplit removes line breaks; the codec refuses labels of more than 63 characters.
        is_server = parts.scheme in {"http", "https"} and uri.isprintable()
        is_server &= bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:
        is_server = False
    if not is_server:
        raise GipfelError(
            f"{one_line(uri)[:120]!r} is not the address of an MLflow server.",
            "Give one that begins with http:// or https://, such as http://127.0.0.1:5000.",
        )
    if parts.username or parts.password or parts.query:
        raise GipfelError(
            "An address must not contain a user, a password or a query.",
            "Put a token into $MLFLOW_TRACKING_TOKEN, or give --token-file.",
        )


@dataclass
class MlflowClient:
    """Connection to a tracking server.

    Requests that fail because the server is busy or can't be reached are repeated up to four times. Redirects
    are not followed, because they would send the token to another server.

    Parameters
    ----------
    uri
        ``http://`` or ``https://``, with a path if the server has one.
    token
        Token that is sent as ``Authorization: Bearer``; empty for none.
    sleep
        Function that waits for a number of seconds before a request is repeated.
    clock
        Function that returns seconds, for the time limit of an answer.
    """

    uri: str
    token: str = ""
    timeout_s: float = 30.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    transport: httpx.BaseTransport | None = None
    _http: httpx.Client = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the address and open the connection pool.

        Raises
        ------
        GipfelError
            The address is not a valid server address, or contains a password.
        """
        check_address(self.uri)
        if any(not "!" <= each <= "~" for each in self.token):
            # Without the token itself, which httpx would write into its error.
            raise GipfelError(
                "The token has a space, a line break or another character that tokens don't have.",
                "Correct $MLFLOW_TRACKING_TOKEN, or the file of --token-file.",
            )
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        self._http = httpx.Client(
            base_url=self.uri.rstrip("/"), headers=headers, timeout=self.timeout_s, transport=self.transport
        )

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def experiment(self, name: str) -> str:
        """Return the ID of the experiment with this name; create it if there is none.

        Raises
        ------
        GipfelError
            The experiment was deleted on the server, or can't be created.
        """
        try:
            return self._create_experiment(name)
        except RequestRefusedError as error:
            if error.code != _EXISTS:
                raise self._failure(error) from error
        answer = self._call("GET", "experiments/get-by-name", params={"experiment_name": name})
        with self._expecting():
            found = answer["experiment"]
            stage, experiment_id = found.get("lifecycle_stage"), str(found["experiment_id"])
        if stage == "deleted":
            raise GipfelError(
                f"The experiment {name!r} was deleted on {self.uri}.",
                "Restore it there, or give another one with --experiment.",
            )
        return experiment_id

    def _create_experiment(self, name: str) -> str:
        answer = self._request("POST", "experiments/create", body={"name": name})
        with self._expecting():
            return str(answer["experiment_id"])

    def find_run(self, experiment_id: str, key: str) -> MlflowRun | None:
        """Return the oldest active run of an experiment with this ``gipfel.key``; None without one."""
        escaped = key.replace("'", "_")
        body = {
            "experiment_ids": [experiment_id],
            "filter": f"tags.`gipfel.key` = '{escaped}'",
            "max_results": 10,
            "order_by": ["attributes.start_time ASC"],
        }
        runs = self._call("POST", "runs/search", body=body).get("runs") or []
        with self._expecting():
            return _run(runs[0]) if runs else None

    def create_run(
        self, experiment_id: str, name: str, *, started_ms: int, tags: Mapping[str, str]
    ) -> MlflowRun:
        """Create a run; its status is RUNNING."""
        body = {
            "experiment_id": experiment_id,
            "run_name": name,
            "start_time": started_ms,
            "tags": _pairs(tags, _MAX_TAG),
        }
        answer = self._call("POST", "runs/create", body=body)
        with self._expecting():
            return _run(answer["run"])

    def log_parameters(self, run_id: str, parameters: Mapping[str, str]) -> None:
        """Log parameters; a value that is too long is cut.

        Raises
        ------
        GipfelError
            A parameter already has another value: MLflow never changes a parameter.
        """
        for some in _batches(_pairs(parameters, _MAX_PARAMETER), MAX_PARAMETERS):
            self._call("POST", "runs/log-batch", body={"run_id": run_id, "params": some})

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags, which replace those of the same name."""
        for some in _batches(_pairs(tags, _MAX_TAG), MAX_TAGS):
            self._call("POST", "runs/log-batch", body={"run_id": run_id, "tags": some})

    def log_metrics(self, run_id: str, points: Iterable[Point]) -> Iterator[int]:
        """Log metrics, and yield the number of points after each request."""
        for some in _batches(points, MAX_METRICS):
            metrics = [
                {"key": name, "value": _number(value), "timestamp": when, "step": step}
                for name, value, when, step in some
            ]
            self._call("POST", "runs/log-batch", body={"run_id": run_id, "metrics": metrics})
            yield len(metrics)

    def upload(self, run: MlflowRun, path: str, content: bytes) -> None:
        """Upload an artifact through the server.

        Raises
        ------
        GipfelError
            The server doesn't store artifacts itself, or refuses the file.
        """
        root = urlsplit(run.artifact_uri)
        if root.scheme != "mlflow-artifacts":
            raise GipfelError(
                f"{self.uri} does not accept files: it stores them at {one_line(run.artifact_uri)[:80]}.",
                "Start it with --serve-artifacts, or give --no-files.",
            )
        target = quote(f"{root.path.strip('/')}/{path}")
        self._send("PUT", f"/api/2.0/mlflow-artifacts/artifacts/{target}", content=content)

    def finish(self, run_id: str, status: str, ended_ms: int | None, name: str) -> None:
        """Set the status of a run, its end and its name."""
        body: dict[str, Any] = {"run_id": run_id, "status": status, "run_name": name}
        if ended_ms is not None:
            body["end_time"] = ended_ms
        self._call("POST", "runs/update", body=body)

    def _call(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        try:
            return self._request(method, path, **arguments)
        except RequestRefusedError as error:
            raise self._failure(error) from error

    @contextmanager
    def _expecting(self) -> Iterator[None]:
        """Raise `GipfelError` where a block does not find in an answer what MLflow documents."""
        try:
            yield
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise GipfelError(
                f"{self.uri} does not answer as MLflow 3.17 does: {one_line(repr(error))[:100]}.",
                "Give the address of an MLflow server; if it is one, use another version of it.",
            ) from error

    def _failure(self, error: RequestRefusedError) -> GipfelError:
        if error.code in {"401", "403", "PERMISSION_DENIED", "UNAUTHENTICATED"}:
            return GipfelError(
                f"{self.uri} refuses access: {error}.",
                "Put its token into $MLFLOW_TRACKING_TOKEN, or give --token-file.",
            )
        if error.code in {"404", "ENDPOINT_NOT_FOUND"}:
            return GipfelError(
                f"There is no MLflow server at {self.uri}: {error}.",
                "Give the address of its start page with --to; it may have a path.",
            )
        return GipfelError(f"{self.uri} refuses a request: {error}.", "See the server's log.")

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        text = self._send(method, f"/api/2.0/mlflow/{path}", content=content, params=params)
        try:
            answer = json.loads(text or b"{}")
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise RequestRefusedError("404", "the answer is not JSON")
        return answer

    def _send(
        self, method: str, path: str, *, content: bytes | None, params: Mapping[str, str] | None = None
    ) -> bytes:
        """Send a request, up to five times, and return the body of the answer."""
        problem = ""
        for pause in (*_PAUSES_S, None):
            try:
                with self._http.stream(
                    method, path, content=content, params=params, headers=_headers(method)
                ) as answer:
                    text = _read(answer, self.clock)
                    if answer.is_success:
                        return text
                    problem = f"status {answer.status_code}"
                    if answer.status_code not in _PASSING:
                        raise _refused(answer.status_code, text)
            except httpx.HTTPError as error:
                problem = one_line(str(error) or type(error).__name__)[:200]
            if pause is not None:
                self.sleep(pause)
        raise GipfelError(
            f"The MLflow server {self.uri} can't be reached: {problem}.",
            "Nothing is lost: the run folder has everything. Run the same command again later.",
        )


def _headers(method: str) -> dict[str, str]:
    return {"Content-Type": "application/octet-stream" if method == "PUT" else "application/json"}


def _read(answer: httpx.Response, clock: Callable[[], float]) -> bytes:
    content, deadline = bytearray(), clock() + _MAX_ANSWER_S
    for piece in answer.iter_bytes():
        content += piece
        if len(content) > _MAX_ANSWER_BYTES:
            raise RequestRefusedError("404", "the answer is larger than 16 MiB")
        if clock() > deadline:
            raise RequestRefusedError("504", f"the answer is not complete after {_MAX_ANSWER_S:g} s")
    return bytes(content)


def _refused(status: int, text: bytes) -> RequestRefusedError:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    content = content if isinstance(content, dict) else {}
    code = str(content.get("error_code") or status)
    message = one_line(str(content.get("message") or f"status {status}"))[:300].rstrip(".")
    return RequestRefusedError(code, message)


def _batches(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


def _pairs(values: Mapping[str, str], longest: int) -> list[dict[str, str]]:
    return [{"key": name[:_MAX_TAG_NAME], "value": value[:longest]} for name, value in values.items()]


def _number(value: float) -> float | str:
    """Return a value for MLflow's JSON, in which NaN and infinities are strings."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _run(content: Mapping[str, Any]) -> MlflowRun:
    info, data = content["info"], content.get("data") or {}
    tags = {str(each["key"]): str(each.get("value", "")) for each in data.get("tags") or []}
    return MlflowRun(
        run_id=str(info["run_id"]),
        experiment_id=str(info["experiment_id"]),
        artifact_uri=str(info.get("artifact_uri", "")),
        status=str(info.get("status", "")),
        tags=tags,
    )
