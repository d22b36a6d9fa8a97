"""Checks of a launch's scheduler, limits, EDF, image, script, kernel, checkpoint directory and vetting.

The security check at the end judges the image and model files according to the site's policy.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gipfel_cluster.egress.start import gate_problem
from gipfel_cluster.image_verdict import Level, keep_verdict, policy_of
from gipfel_cluster.model import GipfelError
from gipfel_cluster.scheduler.machine import run_sync
from gipfel_cluster.steps.container import step_job_from_environment
from gipfel_cluster.workloads.quota import check_limits

from ..launches.launchers import LAUNCHERS
from ..papermill.notebook_file import find_kernel, is_native, requested_kernel
from .context import CheckOutcome, Context


def check_scheduler(context: Context) -> CheckOutcome | None:
    """Check that Slurm is configured if its commands are installed.

    Return a warning about the scheduler; a launch in the current job needs none.
    """
    if context.plan.request is None:
        return None
    note = context.submission.scheduler_note(context.plan.spec.scheduler)
    return CheckOutcome(check="scheduler", verdict="warn", message=note) if note else None


def check_job_limits(context: Context) -> CheckOutcome | None:
    """Check that no limit of account, QoS or partition would keep the job waiting for ever.

    Return a failure that names the limit, or what the job starts with; see `check_limits`.
    """
    request = context.plan.request
    if request is None:
        return None
    try:
        scheduler = context.submission.scheduler(context.plan.scheduler)
        standing = run_sync(check_limits(scheduler, request, context.environment))
    except GipfelError as error:
        return CheckOutcome(check="limits", verdict="fail", message=error.problem, fix=error.fix)
    return CheckOutcome(check="limits", verdict="pass", message=standing) if standing else None


def check_edf(context: Context) -> CheckOutcome | None:
    """Check of the EDF: warnings such as a hook that is ignored.

    Lint the EDF on the host, if necessary through the job's broker.
    """
    edf = context.plan.edf
    if not edf:
        return None
    try:
        found = context.submission.lint(edf, Path(context.plan.directory))
    except GipfelError as error:
        return CheckOutcome(
            check="edf",
            verdict="unknown",
            message=f"{edf} was found on the host, but could not be checked there: {error.problem}",
            fix=error.fix,
        )
    serious = (each for each in found if each.severity != "note")
    found = tuple(sorted(serious, key=lambda each: each.severity != "error"))
    if not found:
        return CheckOutcome(check="edf", verdict="pass", message=f"{edf} is valid.")
    more = f" ({len(found) - 1} more)" if len(found) > 1 else ""
    return CheckOutcome(
        check="edf",
        verdict="fail" if found[0].severity == "error" else "warn",
        message=f"{found[0].location}: {found[0].message}{more}",
        fix=found[0].fix,
    )


def check_image(context: Context) -> CheckOutcome | None:
    """Check that the image, or without a container the node, has Python and torch.

    Check the result of the probe.
    """
    contained = context.contained
    if context.probe is None:
        target = "The container" if contained else "Python"
        return CheckOutcome(
            check="image",
            verdict="fail" if _is_python_missing(context.probe_problem) else "unknown",
            message=f"{target} could not be probed: {context.probe_problem}",
            fix="Choose an EDF whose image has Python and torch, and see `gipfel edf check`."
            if contained
            else "Activate an environment whose Python starts.",
        )
    packages = context.probe.packages
    needed = LAUNCHERS[context.plan.spec.launcher].needs
    absent = [name for name in needed if not packages.get(name)]
    whose = "The image's Python" if contained else "Python"
    if absent:
        return CheckOutcome(
            check="image",
            verdict="fail",
            message=f"{whose} {context.probe.python} ({context.probe.executable}) has no "
            f"{' and no '.join(absent)}, which the launcher {context.plan.spec.launcher} needs.",
            fix="Choose another EDF, or activate an environment in the EDF's set-up steps."
            if contained or context.plan.edf
            else "Activate an environment that has it, or choose an EDF with --edf.",
        )
    torch = packages.get("torch")
    message = f"Python {context.probe.python}" + (f", torch {torch}" if torch else ", no torch")
    subject = "The image has" if contained else f"{context.probe.executable} is"
    return CheckOutcome(check="image", verdict="pass", message=f"{subject} {message}.")


def check_network(context: Context) -> CheckOutcome | None:
    """Check that the launch can run behind its gate, if site, EDF or launch declare one.

    Return what the gate allows; in the mode ``warn`` which ranks run outside of it.
    """
    plan, gates = context.plan, context.plan.gates
    if gates is None:
        return None
    spec = plan.spec
    engine = "host"
    if context.contained:
        engine = (context.probe.engine if context.probe else "") or plan.engine or "bubblewrap"
    tasks = spec.gpus_per_node if LAUNCHERS[spec.launcher].per == "rank" else 1
    problem = gate_problem(engine, nodes=spec.nodes, tasks=tasks)
    if not problem:
        return CheckOutcome(
            check="network",
            verdict="pass",
            message=f"The ranks reach {gates}, and nothing else. RDMA and Unix sockets pass a gate.",
        )
    if gates.mode == "warn":
        return CheckOutcome(
            check="network",
            verdict="warn",
            message=f"{problem} Ranks 0 to {spec.ranks - 1} run outside of the gate.",
        )
    return CheckOutcome(
        check="network",
        verdict="fail",
        message=problem,
        fix="Use one node and torchrun, or set the gate's mode to warn: the ranks then run outside of it.",
    )


def check_script(context: Context) -> CheckOutcome | None:
    """Check that the script, module or notebook exists inside the container.

    Check the result of the probe; without one, check the file on this node.
    """
    plan = context.plan
    exists = context.probe.target if context.probe else Path(plan.target).is_file()
    if context.probe is None and plan.spec.kind == "module":
        return None
    if context.probe is None and exists and plan.edf:
        return CheckOutcome(
            check="script",
            verdict="unknown",
            message=f"{plan.target} exists, but it is unknown whether it exists in the container.",
        )
    if exists:
        return CheckOutcome(check="script", verdict="pass", message=f"{plan.target} exists.")
    location, mounted = "", ""
    if context.contained:
        location = " inside the container"
        mounted = ", and move it into a mounted directory, such as the current directory"
    return CheckOutcome(
        check="script",
        verdict="fail",
        message=f"{plan.target} does not exist{location}.",
        fix=f"Check the name{mounted}.",
    )


def check_notebook_kernel(context: Context) -> CheckOutcome | None:
    """Check that the kernel of the notebook or ``--kernel`` is installed and runs the ranks' Python.

    Check the kernel on this node if ranks run without a container.
    """
    plan = context.plan
    if plan.spec.kind not in {"notebook", "cell"}:
        return None
    try:
        name = plan.spec.kernel or requested_kernel(Path(plan.target))
    except GipfelError:
        return None  # the file is in the image, where `check_script` checks it
    found = None if is_native(name) else _check_other_kernel(name, context)
    runs_native = found is None or found.verdict == "warn"
    return (_check_rank_kernel(context) if runs_native else None) or found


def _check_other_kernel(name: str, context: Context) -> CheckOutcome:
    """Return the outcome for a kernel other than python3; a warning if python3 replaces it."""
    requested = bool(context.plan.spec.kernel)
    if context.contained:
        fallback = "" if requested else " If it is missing, python3 runs the notebook."
        return CheckOutcome(
            check="kernel",
            verdict="unknown",
            message=f"It is unknown whether the container has the kernel {name!r}.{fallback}",
        )
    try:
        argv = find_kernel(name)
    except GipfelError as error:
        if requested:
            return CheckOutcome(check="kernel", verdict="fail", message=error.problem, fix=error.fix)
        return CheckOutcome(
            check="kernel",
            verdict="warn",
            message=f"The notebook's kernel {name!r} is not installed: python3 runs the notebook.",
        )
    if not requested and (differs := _different_pythons(argv, context)):
        return CheckOutcome(
            check="kernel",
            verdict="fail",
            message=f"The notebook's kernel {name!r} would run rank 0 in {differs}.",
            fix="Give --kernel python3 for the other ranks' Python, or activate the kernel's environment.",
        )
    return CheckOutcome(check="kernel", verdict="pass", message=f"The kernel {name} is installed.")


def _check_rank_kernel(context: Context) -> CheckOutcome | None:
    """Return a failure if ranks run without a container and their Python can't be a kernel."""
    from ...kernels import INSTALL_IPYKERNEL, rank_kernel  # noqa: PLC0415 - a higher layer

    python, probe = context.plan.python, context.probe
    if context.plan.edf or context.environment.get("GIPFEL_EDF"):
        if (
            context.contained
            or context.submission.in_container
            or probe is None
            or probe.packages.get("ipykernel")
        ):
            return None
        # Setup steps of the EDF determine the Python, and only the probe ran after them.
        python = probe.executable
    if not python:
        return None
    runtime = step_job_from_environment(context.environment).runtime
    prefix = Path(runtime.prefix if runtime.host_python else sys.prefix)
    _, problem = rank_kernel(python, prefix)
    if not problem:
        return None
    return CheckOutcome(check="kernel", verdict="fail", message=problem, fix=INSTALL_IPYKERNEL)


def check_checkpoint(context: Context) -> CheckOutcome | None:
    """Check that the checkpoint directory, if there is one, is writable and has enough free space.

    Check the result of the probe.
    """
    plan = context.plan
    if not plan.checkpoint or context.probe is None or context.probe.checkpoint is None:
        return None
    space = context.probe.checkpoint
    if space.problem:
        return CheckOutcome(
            check="checkpoint",
            verdict="fail",
            message=f"The checkpoint directory {plan.checkpoint} can't be written to: {space.problem}.",
            fix="Choose a directory that you can write to and that is mounted into the container.",
        )
    gib = space.free / (1 << 30)
    if gib < plan.spec.min_free_gib:
        return CheckOutcome(
            check="checkpoint",
            verdict="fail",
            message=f"{plan.checkpoint} has {gib:.1f} GiB free, but {plan.spec.min_free_gib:g} are needed.",
            fix="Delete files, or choose a directory on another file system.",
        )
    return CheckOutcome(
        check="checkpoint",
        verdict="pass",
        message=f"{plan.checkpoint} can be written to; {gib:.0f} GiB are free.",
    )


def check_vetting(context: Context) -> CheckOutcome | None:
    """Report the vetting protocol of the launch, if it has one.

    Return a pass that names the protocol; None if the launch has no vetting.
    """
    protocol = context.plan.spec.vetting
    if not protocol:
        return None
    request = context.plan.request
    without = f", without {request.exclude}" if request and request.exclude else ""
    return CheckOutcome(
        check="vetting",
        verdict="pass",
        message=f"The nodes are vetted by {protocol} before ranks start{without}.",
    )


def _is_python_missing(problem: str) -> bool:
    message = ("No such file", "not found", "could not be started")
    return "python3" in problem and any(each in problem for each in message)


def _different_pythons(argv: Sequence[str], context: Context) -> str:
    """Return the Pythons of rank 0 and of the other ranks; empty if they are the same or unknown."""
    spec, probe = context.plan.spec, context.probe
    if spec.nodes * spec.gpus_per_node < 2 or probe is None or not probe.executable:
        return ""
    # Jupyter replaces these names by its own interpreter.
    kernel = Path(sys.executable if argv[0] in {"python", "python3"} else argv[0])
    known = kernel.is_absolute() and kernel.name.startswith("python")
    if not known or kernel.parent == Path(probe.executable).parent:
        return ""
    return f"{kernel}, and the other ranks run in {probe.executable}"


_ORDER = ("pass", "unknown", "warn", "fail")


def check_security(context: Context) -> CheckOutcome | None:
    """Check the vulnerabilities of the image, model files among the arguments, and a notebook that runs.

    Return the worst outcome; None where verdicts are not configured, and no file is suspect.
    """
    found = [each for each in (_files(context), _verdict(context)) if each is not None]
    if not found:
        return None
    found.sort(key=lambda each: _ORDER.index(each.verdict))
    first = found[-1]
    return first.model_copy(update={"message": " ".join(each.message for each in reversed(found))})


def _verdict(context: Context) -> CheckOutcome | None:
    """Judge the image, and keep the verdict in the launch's directory."""
    image = _image(context)
    if not image:
        return None
    try:
        verdict = context.submission.image_verdict(image)
    except GipfelError as error:
        level: Level = "fail" if policy_of(context.environment) == "refuse" else "unknown"
        return CheckOutcome(check="security", verdict=level, message=error.problem, fix=error.fix)
    if verdict is None:
        return None
    with suppress(OSError):
        keep_verdict(context.folder, verdict)
    return CheckOutcome(check="security", verdict=verdict.level, message=verdict.line, fix=verdict.fix)


def _image(context: Context) -> str:
    """Return the image of the launch's EDF; empty without one."""
    if not context.plan.edf:
        return ""
    engine = context.plan.engine or "bubblewrap"
    try:
        return context.submission.edf(context.plan.edf, engine, Path(context.plan.directory)).image
    except GipfelError:
        # `check_edf` says why.
        return ""


def _files(context: Context) -> CheckOutcome | None:
    """Judge models among the arguments, and a notebook that runs; None where none is suspect."""
    from ...gate.scan.verdict import judge_files, model_paths  # noqa: PLC0415 - slow to import

    plan = context.plan
    files = model_paths(plan.spec.arguments, Path(plan.directory))
    if plan.spec.kind == "notebook" and Path(plan.target).is_file():
        files.append(Path(plan.target))
    found = judge_files(files, context.environment) if files else None
    if found is None:
        return None
    return CheckOutcome(check="security", verdict=found.level, message=found.line, fix=found.fix)
