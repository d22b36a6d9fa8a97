"""Client that runs the cells, and saves all output when a kernel dies, times out or is interrupted."""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from papermill.clientwrap import PapermillNotebookClient

from gipfel_cluster.model import one_line
from gipfel_cluster.runtime.kernel_launch import with_private_sockets

from .manager import Manager
from .progress import first_code_line

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP"))
# Time for an interrupted cell to end; schedulers kill the job at least ten seconds after the signal.
_INTERRUPT_S = 5.0
# A scheduler's signal may reach the kernel before this process.
_SIGNAL_DELAY_S = 1.0


class Interrupted(BaseException):
    """Interruption of a run by a signal; all output until then is saved."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class PrivateKernels(AsyncKernelManager):
    """Kernel manager that starts ipykernel without TCP ports, because other users share the node."""

    def format_kernel_cmd(self, extra_arguments: list[str] | None = None) -> list[str]:
        """Return the argv of the kernel."""
        return with_private_sockets(super().format_kernel_cmd(extra_arguments))


class Client(PapermillNotebookClient):  # type: ignore[misc]
    """Papermill's client of a kernel, which skips kept cells and handles signals."""

    nb_man: Manager

    def __init__(self, manager: Manager, **options: Any) -> None:
        super().__init__(manager, **options)
        self._signal = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def papermill_execute_cells(self) -> None:
        """Run each cell that is not kept, and record how it ends."""
        manager = self.nb_man
        for index, cell in enumerate(self.nb.cells):
            if index in manager.plan.kept:
                if manager.pbar:
                    manager.pbar.update(1)
                continue
            try:
                manager.cell_start(cell, index)
                self.execute_cell(cell, index)
            except CellExecutionError as error:
                if self._signal:
                    manager.cell_aborted(cell, index, "interrupted", None)
                    raise self._interrupted(index) from None
                manager.cell_exception(self.nb.cells[index], cell_index=index, exception=error)
                break
            except DeadKernelError as error:
                if self._was_signalled():
                    manager.cell_aborted(cell, index, "interrupted", None)
                    raise self._interrupted(index) from None
                self._died(cell, index, error)
                raise
            except CellTimeoutError as error:
                text = one_line(str(error))[:200]
                manager.problem = (
                    f"cell {manager.number_of(index)} took too long: {first_code_line(cell.source)}"
                )
                manager.cell_aborted(cell, index, "failed", _error("CellTimeoutError", text))
                raise
            except Interrupted:
                manager.cell_aborted(cell, index, "interrupted", None)
                raise self._interrupted(index) from None
            finally:
                manager.cell_complete(self.nb.cells[index], cell_index=index)
            if self._signal:
                raise self._interrupted(None)

    @contextlib.contextmanager
    def setup_kernel(self, **options: Any) -> Iterator[None]:
        """Start the kernel and shut it down; after an error, save everything and shut it down immediately."""
        with self._signals(), super().setup_kernel(**options):
            try:
                yield
            except BaseException:
                self.shutdown_kernel = "immediate"
                self.nb_man.checkpoint()
                raise

    def _update_display_id(self, display_id: str, msg: Mapping[str, Any]) -> None:
        super()._update_display_id(display_id, msg)
        for index in self._display_id_map.get(display_id, ()):
            self.nb_man.cell_changed(index)

    async def async_execute_cell(self, cell: Any, cell_index: int, **options: Any) -> Any:
        """Run one cell with nbclient, so that a signal can interrupt it."""
        self._loop = asyncio.get_running_loop()
        try:
            return await super().async_execute_cell(cell, cell_index, **options)
        finally:
            self._loop = None

    def execute_cell(self, cell: Any, index: int) -> Any:
        """Run `async_execute_cell` for callers without an event loop."""
        from jupyter_core.utils import run_sync  # noqa: PLC0415

        return run_sync(self.async_execute_cell)(cell, index)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self._on_signal)
            for number in _SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        earlier, self._signal = self._signal, number
        if self._loop is None or (earlier and number == signal.SIGINT):
            # Between two cells, or after a second Ctrl-C.
            raise Interrupted(number)
        if not earlier:
            self._loop.call_soon_threadsafe(self._interrupt)

    def _interrupt(self) -> None:
        """Interrupt the kernel, so that the cell raises KeyboardInterrupt; else cancel the cell."""
        loop = asyncio.get_running_loop()
        self._interrupt_task = loop.create_task(self._interrupt_kernel())
        loop.call_later(_INTERRUPT_S, self._cancel_cell)

    async def _interrupt_kernel(self) -> None:
        with contextlib.suppress(Exception):  # The kernel may have ended.
            result = self.km.interrupt_kernel()
            if asyncio.iscoroutine(result):
                await result

    def _cancel_cell(self) -> None:
        task = getattr(self, "task_poll_for_reply", None)
        if task is not None and not task.done():
            task.cancel()

    def _was_signalled(self) -> bool:
        if not self._signal and threading.current_thread() is threading.main_thread():
            with contextlib.suppress(Interrupted):
                threading.Event().wait(_SIGNAL_DELAY_S)
        return self._signal != 0

    def _interrupted(self, index: int | None) -> Interrupted:
        manager = self.nb_man
        manager.state = "interrupted"
        name = signal.Signals(self._signal).name
        where = f" in cell {manager.number_of(index)}" if index is not None else ""
        manager.problem = f"interrupted by {name}{where}"
        return Interrupted(self._signal)

    def _died(self, cell: Any, index: int, error: DeadKernelError) -> None:
        manager = self.nb_man
        how = _how_it_ended(self.km)
        manager.problem = (
            f"the kernel died{how} in cell {manager.number_of(index)}: {first_code_line(cell.source)}"
        )
        text = f"The kernel died{how}; its output until then is saved."
        manager.cell_aborted(cell, index, "died", _error(type(error).__name__, text))


def _error(name: str, text: str) -> dict[str, Any]:
    return {"output_type": "error", "ename": name, "evalue": text, "traceback": [f"{name}: {text}"]}


def _how_it_ended(manager: Any) -> str:
    """Return how a local kernel's process ended, if its provisioner knows it."""
    process = getattr(getattr(manager, "provisioner", None), "process", None)
    status = getattr(process, "returncode", None)
    if not isinstance(status, int):
        return ""
    if status == -signal.SIGKILL:
        return " (SIGKILL: often because of too little memory)"
    if status < 0:
        with contextlib.suppress(ValueError):
            return f" ({signal.Signals(-status).name})"
    return f" (status {status})"
