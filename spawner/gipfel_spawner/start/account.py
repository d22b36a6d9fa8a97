"""Unix account of a hub user's server, and commands in it.

The hub itself reads no user's files: `UserCommands` lists, checks and saves environments and reads logs as
the user.
"""

import json
import os
import pwd
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from gipfel_cluster.edf.draft import Draft
from gipfel_cluster.edf.model import Diagnostic
from gipfel_cluster.model import Frozen, GipfelError, one_line
from gipfel_cluster.scheduler.command import CommandResult, acting_as, own_name, run_command

from ..form.options import OptionError

_SHELL = "/bin/sh"
_NO_SHELLS = frozenset(("nologin", "false"))
_BUILD = (
    "Its administrators run `gipfel runtime build FOLDER`, set c.EDFSpawner.runtime (or GIPFEL_RUNTIME) to "
    "that folder and restart it."
)
_LOG_BYTES = 16_000
# Of env, where it can't go to the folder; of env, where it can't run the program.
_NO_FOLDER, _NO_PROGRAM = 125, (126, 127)


class Account(Frozen):
    """``user`` is the unix user to act as, empty for the hub's own; ``home`` is an absolute path."""

    user: str = ""
    home: str

    @property
    def log_folder(self) -> str:
        """Folder of the jobs' logs."""
        return f"{self.home}/.gipfel/logs"


def account_of(name: str, *, state_folder: Path, needs_unix_user: bool) -> Account:
    """Return the account for a hub user.

    A unix user of that name where the hub can act as it. Else, on a machine of its own, the hub's own user
    with a home folder for each hub user in the hub's state.

    Raises
    ------
    GipfelError
        The cluster needs a unix user and there is none, the name holds a control character, or the home
        folder can't be made.
    """
    if not name.isprintable():
        raise GipfelError(
            f"No server can run for {name!r}: the name holds a control character.",
            "Ask the hub's administrators for another one.",
        )
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, ValueError):
        entry = None
    if entry is not None and (needs_unix_user or os.getuid() in {0, entry.pw_uid}):
        return Account(user="" if name == own_name() else name, home=entry.pw_dir)
    if needs_unix_user:
        raise GipfelError(
            f"There is no unix user {name!r} on the hub's machine.",
            "Ask the cluster's administrators for an account.",
        )
    # A leading dot would make "." and ".." special.
    home = state_folder / "users" / quote(name, safe="").replace(".", "%2E")
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise GipfelError(
            f"The folder {home} can't be made: {error.strerror}.", "Check EDFSpawner.state_folder."
        ) from error
    return Account(home=str(home))


def account_environment(account: Account, name: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with the account's ``HOME``, ``USER``, ``LOGNAME``, ``SHELL`` and run folders."""
    shell = _shell_of(pwd.getpwnam(account.user) if account.user else _own_entry())
    return {
        **environment,
        "HOME": account.home,
        "USER": account.user or name,
        "LOGNAME": account.user or name,
        "SHELL": shell,
        "GIPFEL_RUNS": f"{account.home}/.gipfel/runs",
    }


def _own_entry() -> pwd.struct_passwd | None:
    """Return the hub's own user, who runs the servers of this machine; None where it has no entry."""
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError:
        return None


def _shell_of(entry: pwd.struct_passwd | None) -> str:
    """Return the shell of an account; the system's for one without login."""
    shell = entry.pw_shell if entry else ""
    return _SHELL if not shell or Path(shell).name in _NO_SHELLS else shell


class UserCommands:
    """Short commands in a user's account.

    Parameters
    ----------
    account
        Whose files are read.
    environment
        What the user's job gets, without any token.
    python
        An interpreter with this package that the user can execute.
    exec_prefix
        How to act as the user; see `acting_as`.
    has_runtime
        Whether the hub mounts a server into images.
    limit
        Seconds that a command may take.
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
        result = await self._ask("list")
        try:
            return tuple(str(name) for name in json.loads(result.output))
        except ValueError:
            raise GipfelError(f"Your environments can't be listed: {_last(result)}.") from None

    async def check(self, edf: str) -> bool:
        """Resolve and check an EDF, its image and its mounts; return whether it has an image.

        Raises
        ------
        OptionError
            The first thing that is wrong with it.
        """
        answer = await self.inspect(edf)
        try:
            if answer["valid"]:
                return bool(answer["edf"]["image"])
            error = next(each for each in answer["diagnostics"] if each["severity"] == "error")
            where = f" ({error['file']}{', line ' + str(error['line']) if error.get('line') else ''})"
            problem = f"{error['message'].rstrip('.')}{where if error.get('file') else ''}."
            fix = str(error["fix"])
        except (KeyError, TypeError, StopIteration):
            raise GipfelError(f"The environment {edf} can't be checked: its answer is broken.") from None
        raise OptionError(problem, fix, field="edf")

    async def inspect(self, edf: str) -> dict[str, Any]:
        """Return the answer of ``edf check --here --json``: ``file``, ``valid``, ``diagnostics``, ``edf``.

        Raises
        ------
        GipfelError
            It can't be asked, or the name is a folder's.
        """
        result = await self._ask("check", "--here", "--", edf)
        try:
            answer = json.loads(result.output)
            if isinstance(answer, list) and "/" not in edf:
                # A folder of this name in the home folder: the job takes the environment nevertheless.
                result = await self._ask("show", "--", edf)
                answer = json.loads(result.output)
                if answer["valid"]:
                    result = await self._ask("check", "--here", "--", str(answer["file"]))
                    answer = json.loads(result.output)
            if isinstance(answer, list):
                raise OptionError(f"{edf} is a folder.", "Name one environment in it.", field="edf")
        except (ValueError, KeyError, TypeError):
            raise GipfelError(f"The environment {edf} can't be checked: {_last(result)}.") from None
        if not isinstance(answer, dict):
            raise GipfelError(f"The environment {edf} can't be checked: its answer is broken.")
        return self._with_runtime(answer)

    async def draft(self, draft: Draft) -> dict[str, Any]:
        """Check an EDF that is not on disk yet, and save it where the draft requests that.

        Raises
        ------
        GipfelError
            It can't be checked.
        """
        argv = (self._python, "-I", "-m", "gipfel_cluster.edf.draft")
        result = await self._run(argv, given=draft.model_dump_json())
        try:
            answer = json.loads(result.output)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise GipfelError(f"The environment can't be checked: {_last(result)}.")
        return self._with_runtime(answer)

    def _with_runtime(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Add an error where the environment has an image, and nothing could serve notebooks in it."""
        edf = answer.get("edf")
        if self._has_runtime or not isinstance(edf, dict) or not edf.get("image"):
            return answer
        error = Diagnostic(
            severity="error",
            code="no-runtime",
            file=str(answer.get("file", "")),
            line=None,
            key="image",
            message="This hub has no runtime for images: no server can be started in one.",
            fix=_BUILD,
        )
        found = [*answer.get("diagnostics", ()), error.model_dump(mode="json")]
        return answer | {"valid": False, "diagnostics": found}

    async def make_log_folder(self) -> None:
        """Make the folder of the jobs' logs, the user's alone.

        Raises
        ------
        GipfelError
            It can't be made.
        """
        # Each is named: the mode is not that of a parent that is made on the way.
        folders = (str(PurePosixPath(self._account.log_folder).parent), self._account.log_folder)
        result = await self._run(("mkdir", "--parents", "--mode=700", "--", *folders))
        if result.code:
            raise GipfelError(
                f"The folder {self._account.log_folder} can't be made: {_last(result)}.",
                "Check your home folder and quota.",
            )

    async def last_lines(self, path: str, *, most: int = 20) -> str:
        """Return the end of a log; empty where it can't be read."""
        try:
            # By bytes: a line may be as long as the log.
            result = await self._run(("tail", f"--bytes={_LOG_BYTES}", "--", path))
        except GipfelError:
            return ""
        lines = result.output.splitlines(keepends=True)
        return "".join(lines[-most:])[-8000:] if result.code == 0 else ""

    async def _ask(self, command: str, *arguments: str) -> CommandResult:
        return await self._run(
            (self._python, "-I", "-m", "gipfel_cluster.edf", command, "--json", *arguments)
        )

    async def _run(self, argv: Sequence[str], *, given: str = "") -> CommandResult:
        """Run a command as the user, in the home folder where there is one, as the job will."""
        result = await self._run_below(("env", f"--chdir={self._account.home}", *argv), given)
        if result.code == _NO_FOLDER:
            result = await self._run_below(("env", *argv), given)
        if result.code in _NO_PROGRAM:
            raise GipfelError(f"{argv[0]} can't be run: {_last(result).rpartition(': ')[2]}.")
        return result

    async def _run_below(self, argv: Sequence[str], given: str = "") -> CommandResult:
        prefix = acting_as(self._account.user, self._exec_prefix)
        try:
            return await run_command(
                (*prefix, *argv), environment=self._environment, limit=self._limit, given=given
            )
        except TimeoutError as error:
            raise GipfelError(
                f"Your home folder did not answer within {self._limit:g} s.", "Try again in a few minutes."
            ) from error


class LogTail(Frozen):
    """End of a job's log, and the one line of it that tells what went wrong."""

    text: str = ""

    @property
    def verdict(self) -> str:
        """Last line of ours, else the server's last error, else the last line."""
        lines = [one_line(line) for line in self.text.splitlines() if line.strip()]
        ours = [line for line in lines if line.startswith("gipfel: ")]
        errors = [line for line in lines if line.startswith(("[C ", "[E "))]
        return (ours or errors or lines or [""])[-1].removeprefix("gipfel: ")[:500]


def _last(result: CommandResult) -> str:
    lines = [line for line in result.errors.splitlines() if line.strip()]
    return one_line(lines[-1]).rstrip(".")[:300] if lines else f"exit status {result.code}"
