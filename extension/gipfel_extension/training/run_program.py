"""Program that runs the user's code inside the container: a script, a module, or a notebook as a script.

Each rank runs the copy in the launch's directory with the image's Python, 3.9 or newer. It imports only the
standard library, because Gipfel is not installed in the image. `arm` loads step_hooks.py and
rank_requests.py, which are beside it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

_COMMUNICATION_END_S = 0.1
FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is slower to import
sys.path.insert(0, FOLDER)
files = importlib.import_module("gipfel_rank_files")
sys.path.remove(FOLDER)


def run_user() -> int:
    """Run the script, module, or notebook; write an exception for the launch and for torch."""
    plan = files.attempt()
    arm()
    profile = start_profiler(plan)
    try:
        _execute(plan)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        sys.stderr.write(f"{ended.code}\n")
        return 1
    except BaseException as error:  # noqa: BLE001 - every exception that ends a rank is written
        _write_exception(error)
        dump_flight_recorder()
        return 1
    finally:
        sys.stdout.flush()
        profile()
        _wait_for_communication_threads()
    return 0


def arm() -> None:
    """Arm the step hooks, the report of the rank's role, and the thread that answers requests."""
    hooks = files.load("step_hooks")
    if os.environ.get("GIPFEL_RUN"):
        hooks.after_import("torch.distributed.device_mesh", _watch_meshes)
        for module, wrapper in _WRAPPERS.items():
            hooks.after_import(module, partial(_watch_wrapper, *wrapper))
    armed = hooks.arm_step_hooks(os.environ)
    after_s = float(files.attempt().get("hang_after_s", 300.0))
    files.load("rank_requests").RankWatch(FOLDER, armed, dump_flight_recorder, after_s).start()


def _wait_for_communication_threads() -> None:
    """Let torch's communication threads drop their last tensors, for which they need the interpreter.

    One of gloo's threads that asks for it while Python ends aborts a rank that has done all its work
    (https://github.com/pytorch/pytorch/pull/179291).
    """
    if "torch.distributed" in sys.modules:
        time.sleep(_COMMUNICATION_END_S)


def dump_flight_recorder() -> None:
    """Dump torch's flight recorder, if torch is loaded and has one."""
    if "torch.distributed" not in sys.modules:
        return
    try:
        from torch._C import _distributed_c10d as c10d  # noqa: PLC0415

        names = ("_dump_nccl_trace", "_dump_fr_trace")
        options = {"includeCollectives": True, "includeStackTraces": True, "onlyActive": False}
        found = [getattr(c10d, name)(**options) for name in names if hasattr(c10d, name)]
        path = files.inside("flight_recorder", "rank_" + os.environ.get("RANK", "0"))
        with open(path, "wb", opener=files.private) as file:
            file.write(max(found, key=len, default=b""))
    except Exception as error:  # noqa: BLE001 - a missing dump must not fail the training
        sys.stderr.write(f"gipfel: the flight recorder could not be dumped: {error}\n")


def _execute(plan: dict[str, Any]) -> None:
    import linecache  # noqa: PLC0415
    import runpy  # noqa: PLC0415

    kind, target = plan["kind"], plan["target"]
    sys.argv = [target, *plan["arguments"]]
    sys.path[0] = os.path.dirname(os.path.abspath(target)) if kind == "script" else os.getcwd()  # noqa: PTH100, PTH109, PTH120
    if kind == "module":
        runpy.run_module(target, run_name="__main__", alter_sys=True)
        return
    if kind == "script":
        runpy.run_path(target, run_name="__main__")
        return
    module = sys.modules["__main__"]
    names: dict[str, Any] = module.__dict__
    for title, source in notebook_cells(target, plan["parameters"]):
        # Without a cache entry for the cell, tracebacks and `inspect.getsource`, which compilers use, would
        # read lines of this file, because the cells share the loader of __main__.
        linecache.cache[title] = (len(source), None, source.splitlines(keepends=True), title)
        # The names are those of __main__, so that objects that a cell defines can be pickled.
        exec(compile(source, title, "exec"), names)  # noqa: S102 - the user's own code


def notebook_cells(path: str, parameters: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the code cells of a notebook for ranks other than 0, with a cell that sets the parameters."""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        cells = json.load(file)["cells"]
    assignments = "".join(f"{name} = {value!r}\n" for name, value in parameters.items())
    found = [("parameters", assignments)] if assignments else []
    for number, cell in enumerate(cells):
        if cell.get("cell_type") != "code":
            continue
        source = cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
        if source.lstrip().startswith("%%"):
            continue
        tags = cell.get("metadata", {}).get("tags", ())
        lines = ["" if line.startswith(("%", "!")) else line for line in source.splitlines()]
        index = 0 if "parameters" in tags else len(found)
        title = f"{os.path.basename(path)}, cell {number + 1}"  # noqa: PTH119
        found.insert(index, (title, "\n".join(lines) + "\n"))
    return found


def _write_exception(error: BaseException) -> None:
    """Print the traceback without the frames of this file, and write it to the error files."""
    frames = error.__traceback__
    while frames is not None and _is_internal(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    found = traceback.TracebackException(type(error), error, frames)
    _leave_hooks_out(found)
    text = "".join(found.format())
    sys.stderr.write(text)
    last = found.stack[-1:]
    location = f"{last[0].filename}:{last[0].lineno}" if last else ""
    message = f"{type(error).__name__}: {error}"
    rank, node = int(os.environ.get("RANK") or 0), os.environ.get("GIPFEL_NODE") or os.uname().nodename
    path = os.environ.get("GIPFEL_RANK_ERROR")
    if path:
        content = {"rank": rank, "node": node, "time_ns": time.time_ns(), "message": message[:2000]}
        files.write_json(path, {**content, "location": location, "traceback": text[-8000:]})
    elastic = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if elastic:
        extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
        files.write_json(elastic, {"message": {"message": message, "extraInfo": extra}})


def _leave_hooks_out(found: traceback.TracebackException) -> None:
    """Remove the frames of step hooks, which wrap functions of torch, from an exception and its causes."""
    chain: list[traceback.TracebackException | None] = [found]
    for each in chain:
        if each is not None and len(chain) < 100:
            each.stack[:] = [
                frame
                for frame in each.stack
                if os.path.dirname(frame.filename) != FOLDER  # noqa: PTH120
            ]
            chain += [each.__cause__, each.__context__]


def _is_internal(name: str) -> bool:
    return name == __file__ or "runpy" in name


def _watch_meshes(module: Any) -> None:
    """Report this rank's role to the run when the program makes a named device mesh of all ranks."""
    original = module.DeviceMesh.__init__
    largest = [0]

    def initialize(self: Any, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        try:
            names, world = self.mesh_dim_names, int(os.environ.get("WORLD_SIZE") or 0)
            place = self.get_coordinate() if names and self.size() == world else None
            # Of several meshes, report the one with most axes: the others are submeshes or views of it.
            if place and len(names) > largest[0]:
                largest[0] = len(names)
                roles = dict(zip(map(str.lower, names), map(int, place)))  # noqa: B905 - Python 3.9
                _report_roles(roles, "mesh")
        except Exception as error:  # noqa: BLE001 - the training must not depend on it
            sys.stderr.write(f"gipfel: the device mesh could not be read: {error}\n")

    module.DeviceMesh.__init__ = initialize


def _watch_wrapper(class_name: str, method: str, size: Callable[[Any], int], module: Any) -> None:
    """Report that all ranks are data-parallel peers when the program wraps a model for all of them.

    Each of them then has the same model, or a shard of it, and the same work.
    """
    wrapper = getattr(module, class_name)
    original, reported = getattr(wrapper, method), [False]

    def initialize(self: Any, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        try:
            if not reported[0] and 1 < size(self) == int(os.environ.get("WORLD_SIZE") or 0):
                reported[0] = True
                _report_roles({"dp": int(os.environ["RANK"])}, "wrapper")
        except Exception as error:  # noqa: BLE001 - the training must not depend on it
            sys.stderr.write(f"gipfel: the group of {class_name} could not be read: {error}\n")

    setattr(wrapper, method, initialize)


#: DDP, FSDP and FSDP2, by module: the class, the method after which its process group is known, and a
#: function that returns the group's size.
_WRAPPERS: dict[str, tuple[str, str, Callable[[Any], int]]] = {
    "torch.nn.parallel.distributed": (
        "DistributedDataParallel", "__init__", lambda each: int(each.process_group.size()),
    ),
    "torch.distributed.fsdp.fully_sharded_data_parallel": (
        "FullyShardedDataParallel", "__init__", lambda each: int(each.process_group.size()),
    ),
    "torch.distributed.fsdp._fully_shard._fsdp_common": (
        "DataParallelMeshInfo", "__post_init__", lambda each: int(each.mesh.size()),
    ),
}  # fmt: skip


def _report_roles(roles: dict[str, int], source: str) -> None:
    parts = FOLDER.split("/")
    inside_run = os.path.realpath(FOLDER).startswith(os.path.realpath(os.environ["GIPFEL_RUN"]) + "/")
    content = {
        "time_ns": time.time_ns(),
        "rank": int(os.environ["RANK"]),
        "world_size": int(os.environ["WORLD_SIZE"]),
        "node": os.environ.get("GIPFEL_NODE") or os.uname().nodename,
        "pid": os.getpid(),
        "launch": f"{parts[-3]}/{parts[-1]}" if inside_run else parts[-1],
        "source": source,
        "roles": roles,
    }
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    file = os.open(os.path.join(os.environ["GIPFEL_RUN"], "roles.jsonl"), flags, 0o600)  # noqa: PTH118
    try:
        # One write, so that lines of several ranks don't mix.
        os.write(file, json.dumps(content).encode() + b"\n")
    finally:
        os.close(file)


def start_profiler(plan: dict[str, Any]) -> Any:
    """Start a trace of a few optimizer steps if the plan requests it; return the function that ends it."""
    if not plan.get("profile"):
        return lambda: None
    try:
        import torch  # noqa: PLC0415
        from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: PLC0415
    except ImportError:
        return lambda: None
    folder = files.inside("profile")
    os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103
    path = os.path.join(folder, f"rank-{os.environ.get('RANK', '0')}.json")  # noqa: PTH118

    def write_trace(done: Any) -> None:
        # Renamed when complete, because it may be read while the training runs.
        done.export_chrome_trace(path + ".part")
        os.replace(path + ".part", path)  # noqa: PTH105

    tracer = torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=5, repeat=1), on_trace_ready=write_trace
    )
    tracer.start()
    handle = register_optimizer_step_post_hook(lambda *_: tracer.step())

    def end() -> None:
        handle.remove()
        try:
            tracer.stop()
        except Exception as error:  # noqa: BLE001 - a missing trace must not fail the training
            sys.stderr.write(f"gipfel: the profiler failed: {error}\n")

    return end


if __name__ == "__main__":
    sys.exit(run_user())
