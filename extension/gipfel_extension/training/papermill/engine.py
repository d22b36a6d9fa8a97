"""The papermill engine ``gipfel``: ``papermill --engine gipfel``, and `run_notebook` for this process."""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import click
import nbformat
import papermill
from papermill.engines import NBClientEngine, papermill_engines
from papermill.exceptions import PapermillException
from papermill.iorw import papermill_io
from papermill.log import logger
from papermill.utils import merge_kwargs, remove_args
from traitlets.config import Config

from gipfel_cluster.model import GipfelError, one_line
from gipfel_cluster.runtime.distributions import installed_version

from ...telemetry.files import read_object
from .client import Client, Interrupted, PrivateKernels
from .manager import Manager
from .notebook_file import escape_braces, find_kernel, kernel_of
from .output import claim_output, local_path, writer
from .parameters import check_names, check_types, known_parameters
from .progress import Outcome, ResumePlan, plan_resume

_MAX_BYTES = 256 << 10
_MAX_READ_BYTES = 64 << 20
_RECORD = (
    "kind", "cluster", "job_id", "started", "node", "nodes", "edf_digest", "image", "engine", "runtime",
    "options", "versions", "notes",
)  # fmt: skip
NAME = "gipfel"
#: Variable that is set to ``1`` to resume from the output; papermill's command line has no option for it.
RESUME_VARIABLE = "GIPFEL_RESUME"


def run_metadata(folder: Path) -> dict[str, Any]:
    """Return record, vetting and score of a run, for a notebook's metadata; omit parts that are unreadable.

    Parameters
    ----------
    folder
        The run folder. Without a ``score.json`` its telemetry until now is scored.
    """
    record = read_object(folder / "record.json", _MAX_READ_BYTES)
    edf = record.get("edf")
    found: dict[str, Any] = {"run": folder.name}
    if record:
        found["record"] = {name: record[name] for name in _RECORD if record.get(name) is not None}
        if isinstance(edf, dict):
            found["record"]["edf"] = edf.get("name")
    if vetting := read_object(folder / "vetting.json", _MAX_READ_BYTES):
        found["vetting"] = _shorten(vetting)
    if score := read_object(folder / "score.json", _MAX_READ_BYTES) or _score(folder):
        found["saturation"] = _shorten(score)
    return found


def _shorten(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document, without nested lists and objects if it is too long."""
    if len(json.dumps(document)) <= _MAX_BYTES:
        return document
    plain = {name: value for name, value in document.items() if not isinstance(value, list | dict)}
    return {**plain, "shortened": True}


def _score(folder: Path) -> dict[str, Any]:
    """Return the score of the samples until now; empty without samples of a GPU."""
    if not (folder / "telemetry").is_dir():
        return {}
    try:
        from ...saturation import advise, document_of, score_table  # noqa: PLC0415 - half a second
        from ...telemetry.imports import open_recording  # noqa: PLC0415

        found = open_recording(folder)
        job = score_table(found.table, ranks=found.ranks)
        document: dict[str, Any] = json.loads(json.dumps(document_of(job, advise(found.table, job))))
    except Exception:  # noqa: BLE001 - a failed score must not fail the notebook
        return {}
    return document


class RefusedError(GipfelError, click.ClickException):
    """A notebook can't be run; papermill's command prints the error as one line."""


class GipfelEngine(NBClientEngine):  # type: ignore[misc]
    """Papermill's engine with saving in the background, progress, resuming and signal handling.

    Messages to the kernel use sockets that only the user can access (``ipc``) instead of TCP ports.
    """

    @classmethod
    def execute_notebook(
        cls,
        nb: Any,
        kernel_name: str,
        output_path: str | None = None,
        *,
        resume: bool | None = None,
        strict: bool = False,
        on_start: Callable[[Manager], None] | None = None,
        progress_bar: Any = True,
        log_output: bool = False,
        autosave_cell_every: int = 30,
        **options: Any,
    ) -> Any:
        """Execute a notebook that papermill has prepared; nothing has been written before.

        Raises
        ------
        GipfelError
            A parameter, or the output to resume from, can't be used; the output is unchanged.
        """
        with contextlib.ExitStack() as stack:
            with _as_refused_error(output_path):
                _check_parameters(nb, kernel_name, strict=strict)
                find_kernel(kernel_name)
                local = local_path(output_path)
                if local is not None:
                    stack.enter_context(claim_output(local))
                if resume is None:
                    resume = os.environ.get(RESUME_VARIABLE, "") not in {"", "0"}
                plan, earlier = _plan(nb, output_path, kernel_name) if resume else (ResumePlan(), None)
            manager = Manager(
                nb,
                write=writer(output_path, local) if output_path else None,
                local=local,
                plan=plan,
                earlier=earlier,
                output_path=output_path,
                progress_bar=progress_bar,
                log_output=log_output,
                autosave_cell_every=autosave_cell_every,
            )
            return cls._execute(manager, kernel_name, on_start, log_output=log_output, **options)

    @classmethod
    def _execute(
        cls,
        manager: Manager,
        kernel_name: str,
        on_start: Callable[[Manager], None] | None,
        **options: Any,
    ) -> Any:
        plan = manager.plan
        for note in plan.notes:
            sys.stderr.write(f"gipfel: {note}\n")
        if plan.kept:
            sys.stderr.write(f"gipfel: {len(plan.kept)} finished cells are kept and not executed again\n")
        manager.nb.metadata["gipfel"] = {
            "engine": installed_version("gipfel") or "0",
            "kernel": kernel_name,
            "run": Path(os.environ.get("GIPFEL_RUN", "")).name,
            "kept": len(plan.kept),
        }
        with _as_refused_error(manager.output_path):
            manager.notebook_start()
        if on_start is not None:
            on_start(manager)
        try:
            if not plan.complete:
                cls.execute_managed_notebook(manager, kernel_name, **options)
        except Interrupted as interrupted:
            raise SystemExit(128 + interrupted.number) from None
        except Exception as error:
            manager.abort(error)
            raise
        finally:
            manager.cleanup_pbar()
            _finish(manager)
        return manager.nb

    @classmethod
    def execute_managed_notebook(cls, nb_man: Manager, kernel_name: str, **options: Any) -> None:
        """Execute the notebook that `nb_man` holds."""
        others = remove_args(["input_path", "timeout", "startup_timeout"], **options)
        limit = options.get("execution_timeout") or options.get("timeout")
        chosen = merge_kwargs(
            remove_args(["start_timeout", "execution_timeout"], **others),
            timeout=limit,
            startup_timeout=options.get("start_timeout", 60),
            kernel_name=kernel_name,
            log=logger,
        )
        with tempfile.TemporaryDirectory(prefix="gipfel-k-") as folder:
            # By default the sockets are in the kernel's directory, where two concurrent runs would collide.
            private = Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/k"}})
            Client(nb_man, config=private, kernel_manager_class=PrivateKernels, **chosen).execute()


@contextlib.contextmanager
def _as_refused_error(output: str | None) -> Iterator[None]:
    """Raise errors as `RefusedError`, which papermill's command prints as one line."""
    try:
        yield
    except GipfelError as error:
        raise RefusedError(error.problem, error.fix) from None
    except OSError as error:
        why = error.strerror or one_line(str(error))[:160]
        raise RefusedError(
            f"The output {output} can't be written: {why}.", "Give another path, or free disk space."
        ) from None


def _check_parameters(notebook: Any, kernel: str, *, strict: bool) -> None:
    given = notebook.metadata.papermill.get("parameters")
    # Papermill writes the given parameters as a mapping; another type comes from the notebook itself.
    values = dict(given) if isinstance(given, Mapping) else {}
    if not values:
        return
    known = known_parameters(notebook, kernel=kernel)
    # Returned warnings are ignored, because papermill has already logged them.
    check_names(known, values, what="The notebook", strict=strict)
    check_types(known, values, what="The notebook")


def _plan(notebook: Any, output: str | None, kernel: str) -> tuple[ResumePlan, Any]:
    """Read the output before papermill clears it, and return which of its cells are kept."""
    if output is None:
        return ResumePlan(notes=("there is no output file to resume from: every cell runs",)), None
    try:
        earlier = nbformat.reads(papermill_io.read(output), as_version=4)  # type: ignore[no-untyped-call]
        return plan_resume(notebook, earlier, kernel=kernel), earlier
    except FileNotFoundError:
        return ResumePlan(notes=("there is no output yet: every cell runs",)), None
    except GipfelError:
        raise
    except Exception as error:
        # The structure of an edited file may be wrong in any way.
        why = one_line(f"{type(error).__name__}: {error}")[:160]
        raise GipfelError(
            f"The output {output} can't be resumed: {why}.", "Run it without resuming."
        ) from error


def _finish(manager: Manager) -> None:
    manager.notebook_complete()
    about = manager.nb.metadata["gipfel"]
    about["state"] = manager.state
    if manager.problem:
        about["problem"] = manager.problem
    if folder := os.environ.get("GIPFEL_RUN"):
        manager.checkpoint()
        about.update(nbformat.from_dict(run_metadata(Path(folder))))  # type: ignore[no-untyped-call]
    manager.close()


def run_notebook(
    notebook: Path,
    output: Path,
    parameters: Mapping[str, Any] | None = None,
    *,
    resume: bool = False,
    strict: bool = False,
    kernel: str = "",
    directory: Path | None = None,
    log_output: bool = False,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    start_timeout_s: int = 60,
    cell_timeout_s: int | None = None,
    autosave_s: int = 5,
) -> Outcome:
    """Run a notebook with papermill in this process, and write the executed notebook to `output`.

    Every finished cell is saved, and the progress is written to a file (`progress.read_progress`). In the
    main thread SIGTERM, SIGHUP and Ctrl-C interrupt the kernel, save everything and end the run.

    Parameters
    ----------
    parameters
        Names and values for the cell tagged ``parameters``.
    resume
        Start at the first cell that `output` has not finished; see `plan_resume` for the rules.
    strict
        Allow only parameters that the notebook's ``parameters`` cell sets.
    kernel
        Name of a kernel; by default that of the notebook. It gets the environment of this process.
    directory
        Working directory of the kernel; by default the current directory.
    log_output
        Whether the output of cells is also written to the logger ``papermill``.
    stdout, stderr
        Streams to which the output of cells is also written.
    start_timeout_s, cell_timeout_s, autosave_s
        Time limits in seconds for the start of the kernel and for each cell (None: no limit), and seconds
        between two saves while a cell is running (0: never).

    Raises
    ------
    GipfelError
        No cell was run: the notebook, a parameter, the kernel or `output` can't be used, or `output` can't be
        resumed.
    """
    papermill_engines.register(NAME, GipfelEngine)
    name = kernel or kernel_of(notebook)
    find_kernel(name)
    started: list[Manager] = []
    signal = 0
    try:
        papermill.execute_notebook(
            escape_braces(notebook),
            escape_braces(output),
            dict(parameters or {}),
            engine_name=NAME,
            kernel_name=kernel or None,
            cwd=str(directory) if directory else None,
            progress_bar=False,
            log_output=log_output,
            stdout_file=stdout,
            stderr_file=stderr,
            start_timeout=start_timeout_s,
            execution_timeout=cell_timeout_s,
            autosave_cell_every=autosave_s,
            resume=resume,
            strict=strict,
            on_start=started.append,
        )
    except SystemExit as ended:
        if not started:
            raise
        signal = int(ended.code or 0) - 128
    except GipfelError:
        raise
    except PapermillException as error:
        if not started:
            raise GipfelError(f"The notebook can't be run: {one_line(str(error))[:300]}.") from error
    except Exception as error:
        if not started or started[0].state == "running":
            why = one_line(f"{type(error).__name__}: {error}")[:300]
            raise GipfelError(f"The notebook can't be run: {why}.") from error
    return Outcome(**started[0].progress().model_dump(), signal=max(0, signal))
