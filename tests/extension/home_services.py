"""Services in a test's home directory: which there are, what they answer, and one that fails."""

import urllib.error
import urllib.request
from pathlib import Path

from gipfel_cluster.workloads.kinds import Workload
from gipfel_extension.services.start import ServiceKind


def services_of(home: Path) -> list[Workload]:
    return list(ServiceKind().list({"HOME": str(home)}))


def fetch(url: str, token: str = "") -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


FAILING = "name: bad\ntitle: Bad\nparts:\n  a:\n    command: {}\n    ready: {{timeout_s: {}}}\n"
