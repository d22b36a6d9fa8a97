"""A stand-in for a Kubernetes API server, as far as ``kubectl apply --dry-run=server`` needs one."""

import http.server
import json
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

VERSION = "1.37"
#: Kinds that the stand-in for an API server knows, by group and version.
_SERVED = {
    "v1": ("Namespace", "Service", "ConfigMap", "PersistentVolumeClaim", "ResourceQuota", "ServiceAccount"),
    "apps/v1": ("Deployment", "StatefulSet"),
    "networking.k8s.io/v1": ("Ingress", "NetworkPolicy"),
}


class ApiServer(http.server.BaseHTTPRequestHandler):
    """The part of an API server that ``kubectl apply --dry-run=server`` uses: it stores nothing."""

    checked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        path, versions = self.path.partition("?")[0], {f"/apis/{each}": each for each in _SERVED}
        if path == "/api":
            self._send(200, {"kind": "APIVersions", "versions": ["v1"]})
        elif path == "/apis":
            names = [(each.partition("/")[0], each) for each in _SERVED if "/" in each]
            groups = [
                {"name": name, "versions": [{"groupVersion": each, "version": "v1"}]} for name, each in names
            ]
            self._send(200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        elif found := {"/api/v1": "v1", **versions}.get(path):
            resources = [
                {
                    "name": _plural(kind),
                    "namespaced": kind != "Namespace",
                    "kind": kind,
                    "verbs": ["create", "get"],
                }
                for kind in _SERVED[found]
            ]
            self._send(200, {"kind": "APIResourceList", "groupVersion": found, "resources": resources})
        elif path == "/openapi/v3":
            names = {f"apis/{each}" if "/" in each else "api/v1": each for each in _SERVED}
            self._send(200, {"paths": {key: {"serverRelativeURL": f"/openapi/v3/{key}"} for key in names}})
        elif path.startswith("/openapi/v3/"):
            self._send(200, {"openapi": "3.0.0", "info": {}, "paths": dict(map(_documented, _kinds()))})
        else:
            self._refuse(404, "NotFound", "not found")

    def do_POST(self) -> None:
        found = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        query = parse_qs(urlsplit(self.path).query)
        if query.get("dryRun") != ["All"]:
            return self._refuse(403, "Forbidden", "only dry runs")
        try:
            kubernetes_validate.validate(found, VERSION, strict=query["fieldValidation"] == ["Strict"])
        except kubernetes_validate.ValidationError as error:
            return self._refuse(400, "BadRequest", error.message)
        self.checked.append(found["kind"])
        return self._send(201, found)

    def _refuse(self, status: int, reason: str, message: str) -> None:
        answer = {"status": "Failure", "reason": reason, "code": status, "message": message}
        self._send(status, {"kind": "Status", "apiVersion": "v1", **answer})

    def _send(self, status: int, document: dict[str, Any]) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_arguments: object) -> None:
        """Write no log."""


def _plural(kind: str) -> str:
    return f"{kind.lower()[:-1]}ies" if kind.endswith("y") else f"{kind.lower()}{'e' * kind.endswith('s')}s"


def _kinds() -> list[tuple[str, str]]:
    return [(version, kind) for version, kinds in _SERVED.items() for kind in kinds]


def _documented(each: tuple[str, str]) -> tuple[str, dict[str, Any]]:
    """Return a path of the OpenAPI document that says that a kind can be validated and tried."""
    version, kind = each
    name = {"group": version.rpartition("/")[0], "version": "v1", "kind": kind}
    parameters = [{"name": query, "in": "query"} for query in ("dryRun", "fieldValidation")]
    return f"/{version}/{kind}", {
        "patch": {"x-kubernetes-group-version-kind": name, "parameters": parameters}
    }
