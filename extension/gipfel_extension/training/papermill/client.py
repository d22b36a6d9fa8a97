"""Client that runs the cells, and keeps all output when a kernel dies, times out or is interrupted."""

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
from gipfel_cluster.runtime.kernel_launch import without_ports

from .manager import Manager
from .progress import first_code_line

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP"))
# Schedulers give ten seconds and more between the signal and the end of everything.
_LAST_WORDS_S = 5.0
# A scheduler's signal may reach the kernel before this process.
_SPREAD_S = 1.0


class Interrupted(BaseException):
    """Interruption of a run by a signal; everything until then is kept."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class PrivateKernels(AsyncKernelManager):
    """Starts ipykernel without a port of the node, which others may use as well."""

    def format_kernel_cmd(self, extra_arguments: list[str] | None = None) -> list[str]:
        """Return the argv of the kernel."""
        return without_ports(super().format_kernel_cmd(extra_arguments))


class Client(PapermillNotebookClient):  # type: ignore[misc]
    """Papermill's client of a kernel, which leaves out kept cells and ends in order."""

    nb_man: Manager

    def __init__(self, manager: Manager, **options: Any) -> None:
        super().__init__(manager, **options)
        self._signal = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def papermill_execute_cells(self) -> None:
        """Run each cell that is not kept, and note how each ends."""
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
                    manager.cell_broke(cell, index, "interrupted", None)
                    raise self._interrupted(index) from None
                manager.cell_exception(self.nb.cells[index], cell_index=index, exception=error)
                break
            except DeadKernelError as error:
                if self._was_asked_to_end():
                    manager.cell_broke(cell, index, "interrupted", None)
                    raise self._interrupted(index) from None
                self._died(cell, index, error)
                raise
            except CellTimeoutError as error:
                text = one_line(str(error))[:200]
                manager.problem = (
                    f"cell {manager.number_of(index)} took too long: {first_code_line(cell.source)}"
                )
                manager.cell_broke(cell, index, "failed", _error("CellTimeoutError", text))
                raise
            except Interrupted:
                manager.cell_broke(cell, index, "interrupted", None)
                raise self._interrupted(index) from None
            finally:
                manager.cell_complete(self.nb.cells[index], cell_index=index)
            if self._signal:
                raise self._interrupted(None)

    @contextlib.contextmanager
    def setup_kernel(self, **options: Any) -> Iterator[None]:
        """Start the kernel, and end it: at once where the run was broken off, after everything is saved."""
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
            self.nb_man.cell_touched(index)

    async def async_execute_cell(self, cell: Any, cell_index: int, **options: Any) -> Any:
        """Run one cell; nbclient's own, which a signal can break off."""
        self._loop = asyncio.get_running_loop()
        try:
            return await super().async_execute_cell(cell, cell_index, **options)
        finally:
            self._loop = None

    def execute_cell(self, cell: Any, index: int) -> Any:
        """Run `async_execute_cell` for callers without a loop."""
        from jupyter_core.utils import run_sync  # noqa: PLC0415

        return run_sync(self.async_execute_cell)(cell, index)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self._heard)
            for number in _SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        again, self._signal = self._signal, number
        if self._loop is None or (again and number == signal.SIGINT):
            # Between two cells, or after a second Ctrl-C.
            raise Interrupted(number)
        if not again:
            self._loop.call_soon_threadsafe(self._interrupt)

    def _interrupt(self) -> None:
        """Let the cell end by a KeyboardInterrupt of its own, which shows where it was; else cancel it."""
        loop = asyncio.get_running_loop()
        self._asked = loop.create_task(self._interrupt_kernel())
        loop.call_later(_LAST_WORDS_S, self._break_off)

    async def _interrupt_kernel(self) -> None:
        with contextlib.suppress(Exception):  # A kernel that is gone can't be interrupted.
            asked = self.km.interrupt_kernel()
            if asyncio.iscoroutine(asked):
                await asked

    def _break_off(self) -> None:
        task = getattr(self, "task_poll_for_reply", None)
        if task is not None and not task.done():
            task.cancel()

    def _was_asked_to_end(self) -> bool:
        if not self._signal and threading.current_thread() is threading.main_thread():
            with contextlib.suppress(Interrupted):
                threading.Event().wait(_SPREAD_S)
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
        text = f"The kernel died{how}; what it had printed is kept."
        manager.cell_broke(cell, index, "died", _error(type(error).__name__, text))


def _error(name: str, text: str) -> dict[str, Any]:
    return {"output_type": "error", "ename": name, "evalue": text, "traceback": [f"{name}: {text}"]}


def _how_it_ended(manager: Any) -> str:
    """Return how a local kernel's process ended, as far as its provisioner knows."""
    process = getattr(getattr(manager, "provisioner", None), "process", None)
    status = getattr(process, "returncode", None)
    if not isinstance(status, int):
        return ""
    if status == -signal.SIGKILL:
        return " (SIGKILL: often the memory was full)"
    if status < 0:
        with contextlib.suppress(ValueError):
            return f" ({signal.Signals(-status).name})"
    return f" (status {status})"
