"""A pytest plugin: JupyterHub's own tests, with `EDFSpawner` as the class that its hub uses."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jupyterhub.tests import mocking
from traitlets import default

from gipfel_spawner import EDFSpawner

_SERVER = Path(__file__).with_name("own_tests_server.py")


class TestedSpawner(EDFSpawner):
    """`EDFSpawner` with what JupyterHub's tests ask of their `MockSpawner`: a token that was used before."""

    use_this_api_token: str | None = None

    # Each start and stop of their tests would wait for a poll of the scheduler.
    @default("watch_interval")
    def _default_watch_interval(self) -> float:
        return 0.1

    @default("state_folder")
    def _default_state_folder(self) -> str:
        # One for all: a spawner that the hub makes again for a server must find the job of the one before.
        folder = Path(os.environ["GIPFEL_OWN_TESTS"]) / "state"
        folder.mkdir(mode=0o700, exist_ok=True)
        return str(folder)

    @default("python")
    def _default_python(self) -> str:
        return os.environ["GIPFEL_OWN_TESTS"] + "/python"

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        env = super().user_env(env)
        if self.handler:
            env["HANDLER_ARGS"] = self.handler.request.query
        return env

    async def start(self) -> tuple[str, int]:
        if self.use_this_api_token:
            self.api_token = self.use_this_api_token
        elif self.will_resume:
            self.use_this_api_token = self.api_token
        return await super().start()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Return where their local process spawner's state is compared, ours stands for it."""
    for module in {item.module for item in items if isinstance(item, pytest.Function)}:
        if hasattr(module, "normalize_user"):
            module.normalize_user = _with_their_state(module.normalize_user)


def _with_their_state(normalize: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    def normalized(user: dict[str, Any]) -> dict[str, Any]:
        for server in (user.get("servers") or {}).values():
            assert server["state"]["job_id"]
            server["state"] = {"pid": 0}
        return normalize(user)

    return normalized


def pytest_configure(config: pytest.Config) -> None:
    folder = Path(os.environ["GIPFEL_OWN_TESTS"])
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$3" = gipfel_cluster.job ] && exec {sys.executable} {_SERVER}\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)

    def tested(_hub: Any) -> type[EDFSpawner]:
        return TestedSpawner

    # Their mock hub has no other way to be given a class: its tests make the hub themselves.
    mocking.MockHub._spawner_class_default = default("spawner_class")(tested)
    mocking.MockHub._spawner_class_default.class_init(mocking.MockHub, "_spawner_class_default")
