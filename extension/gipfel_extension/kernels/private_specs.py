"""Kernelspecs as a server on a shared node offers them: without ports that other users could reach."""

import os
from typing import Any

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from traitlets import Bool, default

from gipfel_cluster.runtime.kernel_launch import without_ports

DEBUGGER_VARIABLE = "GIPFEL_DEBUGGER"


class PrivateSpecs(KernelSpecManager):
    """Mixin that `private` adds to a class of kernelspec managers."""

    debugger = Bool(
        help="Whether the debugger is offered. It listens on a port of the node, and every user of the node "
        "who connects to it runs code as the kernel's user: set it only where the node is yours alone. "
        "Default: whether $GIPFEL_DEBUGGER is 1.",
    ).tag(config=True)

    @default("debugger")
    def _debugger_of_the_site(self) -> bool:
        return os.environ.get(DEBUGGER_VARIABLE) == "1"

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """Return a kernelspec whose kernel opens no port."""
        spec: KernelSpec = super().get_kernel_spec(kernel_name)
        spec.argv = without_ports(spec.argv)
        if not self.debugger:
            spec.metadata = {**spec.metadata, "debugger": False}
        return spec

    def get_all_specs(self) -> dict[str, Any]:
        """Return all kernelspecs by name, as JupyterLab gets them."""
        found: dict[str, Any] = super().get_all_specs()
        if not self.debugger:
            for each in found.values():
                each["spec"]["metadata"] = {**each["spec"].get("metadata", {}), "debugger": False}
        return found


def private(manager: type[KernelSpecManager]) -> type[KernelSpecManager]:
    """Return the class of kernelspec managers that a site or user chose, with `PrivateSpecs` before it."""
    return type(manager.__name__, (PrivateSpecs, manager), {})
