"""Notebook-server side of Gipfel: telemetry, routes, panel and the ``gipfel`` command."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    # Imported here, so that a kernel that needs the telemetry alone does not load a web server.
    from .app import GipfelExtension  # noqa: PLC0415

    return [{"module": "gipfel_extension", "app": GipfelExtension}]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    return [{"src": "labextension", "dest": "@gipfel/extension"}]


def _load_jupyter_server_extension(server: "ServerApp") -> None:
    from .app import GipfelExtension  # noqa: PLC0415

    GipfelExtension._load_jupyter_server_extension(server)  # type: ignore[no-untyped-call]  # noqa: SLF001
