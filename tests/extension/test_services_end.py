"""Services of a hub end with it, even if it is killed."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Starts what its arguments name, and waits: a hub that is killed before it can end anything.
_HUB = """
import os, subprocess, sys
service = subprocess.Popen([*sys.argv[1:], f"--with-parent={os.getpid()}"])
print(service.pid, flush=True)
service.wait()
"""


@pytest.mark.parametrize("module", ["gipfel_extension.registry", "gipfel_spawner.culling"])
def test_a_service_ends_with_a_hub_that_is_killed(tmp_path: Path, module: str) -> None:
    environment = os.environ | {
        "JUPYTERHUB_API_URL": "http://127.0.0.1:9/hub/api",
        "JUPYTERHUB_API_TOKEN": "a-token-of-no-hub",
        "JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:0",
        "JUPYTERHUB_SERVICE_PREFIX": "/services/x/",
    }
    hub = subprocess.Popen(
        [sys.executable, "-c", _HUB, sys.executable, "-m", module],
        env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert hub.stdout
    service = os.pidfd_open(int(hub.stdout.readline()))
    try:
        hub.kill()
        hub.wait(10)
        assert select.select([service], [], [], 20)[0], "the service outlived its hub"
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(service, signal.SIGKILL)
        os.close(service)
