"""Unix account of a hub user's server, and commands that run as this account.

The hub process never reads users' files. `UserCommands` lists, checks and saves environments and reads job
logs with commands that run as the user.
"""

import json
import os
import pwd
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import quote

from gipfel_cluster.edf.draft import Draft
from gipfel_cluster.edf.model import Diagnostic
from gipfel_cluster.image_verdict import (
    LATE,
    VERDICT_S,
    SecurityVerdict,
    is_configured,
    policy_of,
    read_verdict,
    unjudged,
    verdict_command,
)
from gipfel_cluster.job.service_orders import COMMANDS_MODULE
from gipfel_cluster.model import Frozen, GipfelError, ReportOSError, one_line
from gipfel_cluster.scheduler.machine import CommandResult, current_user_name, run_as_prefix, run_command

from ..form.options import OptionError

_Answer = TypeVar("_Answer", bound=Frozen)
_SHELL = "/bin/sh"
_NO_SHELLS = frozenset(("nologin", "false"))
_BUILD = (
    "Ask the hub's administrators to run `gipfel runtime build DIRECTORY`, to set c.EDFSpawner.runtime (or "
    "GIPFEL_RUNTIME) to that directory and to restart the hub."
)
_LOG_BYTES = 16_000
# Exit statuses of env: it could not change to the directory; it could not run the program.
_NO_DIRECTORY, _NO_PROGRAM = 125, (126, 127)


class Account(Frozen):
    """Unix account of a server.

    ``user`` is the unix user to run as, empty for the hub's own user; ``home`` is the home directory's
    absolute path.
    """

    user: str = ""
    home: str

    @property
    def log_directory(self) -> str:
        """Directory of the jobs' logs."""
        return f"{self.home}/.gipfel/logs"

    def expand(self, path: str) -> str:
        """Return a path in which the home directory replaces a leading ``~``."""
        return self.home + path[1:] if path.startswith("~/") else path


def account_of(name: str, *, state_folder: Path, needs_unix_user: bool) -> Account:
    """Return the account for a hub user.

    This is the unix user of the same name if the hub can run commands as that user. Otherwise, with the local
    scheduler, it is the hub's own user with a separate home directory for each hub user.

    Parameters
    ----------
    state_folder
        The directory in which these home directories are created.
    needs_unix_user
        Whether only a unix user of the same name is accepted, as on a Slurm cluster.

    Raises
    ------
    GipfelError
        The cluster needs a unix user and there is none, the name contains a control character, or the home
        directory can't be created.
    """
    if not name.isprintable():
        raise GipfelError(
            f"No server can start for {name!r}: the user name contains a control character.",
            "Ask the hub's administrators for another user name.",
        )
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, ValueError):
        entry = None
    if entry is not None and (needs_unix_user or os.getuid() in {0, entry.pw_uid}):
        return Account(user="" if name == current_user_name() else name, home=entry.pw_dir)
    if needs_unix_user:
        raise GipfelError(
            f"There is no unix user {name!r} on the hub's machine.",
            "Ask the cluster's administrators for an account.",
        )
    # Dots are escaped because the names "." and ".." are special.
    home = state_folder / "users" / quote(name, safe="").replace(".", "%2E")
    with ReportOSError(f"The directory {home} can't be created", "Check EDFSpawner.state_folder."):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Account(home=str(home))


def account_environment(account: Account, name: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with the account's ``HOME``, ``USER``, ``LOGNAME``, ``SHELL`` and run folders."""
    return {
        **environment,
        "HOME": account.home,
        "USER": account.user or name,
        "LOGNAME": account.user or name,
        "SHELL": _login_shell(account.user),
        "GIPFEL_RUNS": f"{account.home}/.gipfel/runs",
    }


def _login_shell(user: str) -> str:
    """Return the login shell of a user, empty for the hub's own; ``/bin/sh`` without one for logins."""
    try:
        shell = (pwd.getpwnam(user) if user else pwd.getpwuid(os.getuid())).pw_shell
    except KeyError:
        shell = ""
    return _SHELL if not shell or Path(shell).name in _NO_SHELLS else shell


class CommandTimeoutError(GipfelError):
    """A command that runs as a user did not end within its time limit."""


class UserCommands:
    """Short commands that run as a user.

    Parameters
    ----------
    account
        The account to run as.
    environment
        The environment of the user's jobs, without any token.
    python
        An interpreter with this package that the user can execute.
    exec_prefix
        The command prefix to run as the user; see `run_as_prefix`.
    has_runtime
        Whether the hub can mount a notebook server into images.
    limit
        Time limit of a command in seconds.
    """

    def __init__(
        self,
        account: Account,
        *,
        environment: Mapping[str, str],
        python: str,
        exec_prefix: str = "",
        has_runtime: bool = True,
        limit: float = 20.0,
    ) -> None:
        self._account = account
        self._environment = environment
        self._python = python
        self._exec_prefix = exec_prefix
        self._has_runtime = has_runtime
        self._limit = limit

    async def environments(self) -> tuple[str, ...]:
        """Return the names of the EDFs on the user's search path.

        Raises
        ------
        GipfelError
            They can't be listed.
        """
        listed = await self._run_json(self._edf_command("list"), "Your environments can't be listed")
        return tuple(str(name) for name in listed)

    async def check(self, edf: str) -> str:
        """Resolve and check an EDF, its image and its mounts; return its image, empty without one.

        Raises
        ------
        OptionError
            The first error of the EDF.
        """
        answer = await self.inspect(edf)
        try:
            if answer["valid"]:
                return str(answer["edf"]["image"] or "")
            error = next(each for each in answer["diagnostics"] if each["severity"] == "error")
            location = f" ({error['file']}{', line ' + str(error['line']) if error.get('line') else ''})"
            problem = f"{error['message'].rstrip('.')}{location if error.get('file') else ''}."
            fix = str(error["fix"])
        except (KeyError, TypeError, StopIteration):
            raise GipfelError(f"The environment {edf} can't be checked: the answer is not valid.") from None
        raise OptionError(problem, fix, field="edf")

    async def inspect(self, edf: str) -> dict[str, Any]:
        """Return the output of ``edf check --here --json``: ``file``, ``valid``, ``diagnostics``, ``edf``.

        Raises
        ------
        GipfelError
            The command failed, or the path is a directory.
        """
        problem = f"The environment {edf} can't be checked"
        check = self._edf_command("check", "--here", "--")
        answer = await self._run_json((*check, edf), problem)
        if isinstance(answer, list) and "/" not in edf:
            # There is a directory of this name in the home directory, but the job uses the environment.
            answer = await self._run_json(self._edf_command("show", "--", edf), problem)
            if isinstance(answer, dict) and answer.get("valid"):
                answer = await self._run_json((*check, str(answer.get("file"))), problem)
        if isinstance(answer, list):
            raise OptionError(
                f"{edf} is a directory.", "Give the path of one environment in it.", field="edf"
            )
        return self._with_runtime(answer, problem)

    @property
    def refuses_images(self) -> bool:
        """Return whether the site's policy refuses images with critical vulnerabilities."""
        return policy_of(self._environment) == "refuse"

    async def check_image(self, image: str) -> None:
        """Check that the site's policy does not refuse an image.

        Raises
        ------
        OptionError
            The site refuses the image.
        """
        verdict = await self.image_verdict(image)
        try:
            if verdict is not None:
                verdict.check()
        except GipfelError as error:
            raise OptionError(error.problem, error.fix, field="edf") from error

    async def image_verdict(self, image: str) -> SecurityVerdict | None:
        """Return the verdict on an image; None if the site has not configured verdicts.

        It never raises: if the check fails or takes longer than `VERDICT_S`, the verdict says so.
        """
        if not is_configured(self._environment):
            return None
        policy = policy_of(self._environment)
        try:
            result = await self._run(verdict_command(self._python, image), limit=VERDICT_S)
        except CommandTimeoutError:
            return unjudged(image, policy, LATE)
        except GipfelError as error:
            return unjudged(image, policy, str(error))
        return read_verdict(result.output, image, policy)

    async def draft(self, draft: Draft) -> dict[str, Any]:
        """Check an EDF that is not on disk yet, and save it if the draft requests that.

        Raises
        ------
        GipfelError
            The command failed.
        """
        argv = (self._python, "-I", "-m", "gipfel_cluster.edf.draft")
        problem = "The environment can't be checked"
        answer = await self._run_json(argv, problem, stdin=draft.model_dump_json())
        return self._with_runtime(answer, problem)

    def _with_runtime(self, answer: object, problem: str) -> dict[str, Any]:
        """Add an error if the environment has an image but the hub has no runtime to mount into it."""
        if not isinstance(answer, dict):
            raise GipfelError(f"{problem}: the answer is not valid.")
        edf = answer.get("edf")
        if self._has_runtime or not isinstance(edf, dict) or not edf.get("image"):
            return answer
        error = Diagnostic(
            severity="error",
            code="no-runtime",
            file=str(answer.get("file", "")),
            line=None,
            key="image",
            message="This hub has no runtime for images, so no server can start in this image.",
            fix=_BUILD,
        )
        diagnostics = [*answer.get("diagnostics", ()), error.model_dump(mode="json")]
        return answer | {"valid": False, "diagnostics": diagnostics}

    async def service(self, command: str, order: Frozen | None, answer: type[_Answer]) -> _Answer:
        """Return the answer of a command on the user's services.

        Raises
        ------
        GipfelError
            The command failed.
        """
        argv = (self._python, "-I", "-m", COMMANDS_MODULE, command)
        result = await self._run(argv, stdin=order.model_dump_json() if order else "")
        try:
            return answer.model_validate_json(result.output)
        except ValueError:
            raise GipfelError(f"Your services can't be read: {_last(result)}.") from None

    async def create_log_directory(self) -> None:
        """Create the directory of the jobs' logs, with mode 0700.

        Raises
        ------
        GipfelError
            It can't be created.
        """
        # The parent is named too, because --mode does not apply to parents that mkdir creates.
        directories = (str(PurePosixPath(self._account.log_directory).parent), self._account.log_directory)
        result = await self._run(("mkdir", "--parents", "--mode=700", "--", *directories))
        if result.code:
            raise GipfelError(
                f"The directory {self._account.log_directory} can't be created: {_last(result)}.",
                "Check your home directory and quota.",
            )

    async def log_tail(self, path: str, *, max_lines: int = 20) -> str:
        """Return the last lines of a log; empty if it can't be read."""
        try:
            # Limited in bytes, because a single line can be as long as the log.
            result = await self._run(("tail", f"--bytes={_LOG_BYTES}", "--", path))
        except GipfelError:
            return ""
        lines = result.output.splitlines(keepends=True)
        return "".join(lines[-max_lines:])[-8000:] if result.code == 0 else ""

    def _edf_command(self, command: str, *arguments: str) -> tuple[str, ...]:
        return (self._python, "-I", "-m", "gipfel_cluster.edf", command, "--json", *arguments)

    async def _run_json(self, argv: Sequence[str], problem: str, *, stdin: str = "") -> Any:
        """Return what a command prints as JSON; `problem` says what is not possible without it."""
        result = await self._run(argv, stdin=stdin)
        try:
            return json.loads(result.output)
        except ValueError:
            raise GipfelError(f"{problem}: {_last(result)}.") from None

    async def _run(self, argv: Sequence[str], *, stdin: str = "", limit: float = 0.0) -> CommandResult:
        """Run a command as the user, in the home directory if there is one, as the job does."""
        limit = limit or self._limit
        result = await self._run_as_user(("env", f"--chdir={self._account.home}", *argv), stdin, limit)
        if result.code == _NO_DIRECTORY:
            result = await self._run_as_user(("env", *argv), stdin, limit)
        if result.code in _NO_PROGRAM:
            raise GipfelError(f"{argv[0]} can't be run: {_last(result).rpartition(': ')[2]}.")
        return result

    async def _run_as_user(self, argv: Sequence[str], stdin: str, limit: float) -> CommandResult:
        prefix = run_as_prefix(self._account.user, self._exec_prefix)
        try:
            return await run_command(
                (*prefix, *argv), environment=self._environment, limit=limit, stdin=stdin
            )
        except TimeoutError as error:
            raise CommandTimeoutError(
                f"A command in your home directory did not end within {limit:g} s.",
                "Try again in a few minutes.",
            ) from error


class JobLog(Frozen):
    """Last lines of a job's log, and the line among them that most likely names the error."""

    text: str = ""

    @property
    def error_line(self) -> str:
        """Last line that begins with ``gipfel:``, else the server's last error, else the last line."""
        lines = [one_line(line) for line in self.text.splitlines() if line.strip()]
        own_lines = [line for line in lines if line.startswith("gipfel: ")]
        errors = [line for line in lines if line.startswith(("[C ", "[E "))]
        return (own_lines or errors or lines or [""])[-1].removeprefix("gipfel: ")[:500]


def _last(result: CommandResult) -> str:
    lines = [line for line in result.errors.splitlines() if line.strip()]
    return one_line(lines[-1]).rstrip(".")[:300] if lines else f"exit status {result.code}"
