"""Set-up steps: shell lines of ``NAME.setup``, beside an EDF, that the container runs before the command."""

from collections.abc import Sequence
from pathlib import Path

from ..edf.image import image_contains
from ..edf.model import Edf, Mount
from ..model import GipfelError
from .protocol import ContainerRequest
from .sandbox.rootfs import Layers

#: Directories for the files in the container; the first one that no mount of the EDF covers is used.
SETUP_DIRECTORIES = ("/run/gipfel/setup", "/opt/gipfel/setup", "/mnt/gipfel/setup", "/gipfel/setup")
_SHELL = "/bin/sh"
_REPORT_FAILURE = " ".join(
    (
        # The status is 0 here if a signal ends the shell, or if a step runs `exit 0`.
        'trap \'__gipfel_status=$?; [ "$__gipfel_status" = 0 ] && __gipfel_status=;',
        'printf "gipfel: %s%s: a set-up step ended%s, so the command was not started.\\n" "$__gipfel_name"',
        '"${__gipfel_line-}" "${__gipfel_status:+ with status $__gipfel_status}" >&2;',
        # The command never ran, so the status must not be 0.
        '[ "$__gipfel_status" ] || exit 1\' EXIT;',
    )
)
#: A bash program with the arguments FILE NAME FILE NAME … -- COMMAND ARGUMENT …: it sources each FILE, which
#: messages call NAME, then runs the command. A failing line of FILE ends it, failing lines of files that FILE
#: sources do not. It stores its arguments, since a sourced file would see them as `$1`, `$2`, … otherwise.
_BASH = " ".join(
    (
        "__gipfel_steps=(); __gipfel_folder=$PWD; __gipfel_line=;",
        'while [ "$1" != -- ]; do __gipfel_steps+=("$1" "$2"); shift 2; done; shift;',
        '__gipfel_command=("$@"); set --;',
        '__gipfel_failed() { [ -z "$3" ] || [ "$3" = "$__gipfel_file" ] || return 0;',
        '[ -z "$3" ] || __gipfel_line=", line $2"; exit "$1"; };',
        'trap \'__gipfel_failed "$?" "$LINENO" "${BASH_SOURCE-}"\' ERR;',
        _REPORT_FAILURE,
        'while [ "${#__gipfel_steps[@]}" -gt 0 ]; do',
        "__gipfel_file=${__gipfel_steps[0]}; __gipfel_name=${__gipfel_steps[1]};",
        '__gipfel_steps=("${__gipfel_steps[@]:2}");',
        # Standard input and output belong to the command.
        'builtin . "$__gipfel_file" </dev/null >&2; set +a;',
        '[ "$PWD" = "$__gipfel_folder" ] || builtin cd -- "$__gipfel_folder"; done;',
        'trap - ERR EXIT; exec "${__gipfel_command[@]}"',
    )
)
#: The same for shells without arrays and ERR: any failing line ends it, also in files that FILE sources.
_SH = " ".join(
    (
        "__gipfel_folder=$PWD;",
        _REPORT_FAILURE,
        "__gipfel_step() { __gipfel_file=$1; __gipfel_name=$2; shift 2;",
        '. "$__gipfel_file" </dev/null >&2; };',
        'set -e; while [ "$1" != -- ]; do __gipfel_step "$1" "$2"; set +a; shift 2;',
        '[ "$PWD" = "$__gipfel_folder" ] || command cd "$__gipfel_folder"; done;',
        'shift; trap - EXIT; exec "$@"',
    )
)
#: A program with the arguments _BASH, _SH and those of both: it runs _BASH if the image has bash, else _SH.
_CHOOSE = " ".join(
    (
        "__gipfel_bash=$(command -v bash) || __gipfel_bash=/bin/bash;",
        "__gipfel_program=$1; __gipfel_sh=$2; shift 2;",
        'if [ -x "$__gipfel_bash" ]; then exec "$__gipfel_bash" -c "$__gipfel_program" "$0" "$@"; fi;',
        'eval "$__gipfel_sh"',
    )
)


def with_setup(request: ContainerRequest) -> ContainerRequest:
    """Return the request with the EDF's set-up steps before its command, in the same process.

    The command replaces the shell, so that its exit status, signals, standard input and output are the same
    as without steps; output of steps goes to stderr. If a step fails, the container ends with the step's
    status and one line on stderr.

    Raises
    ------
    GipfelError
        The image has no shell.
    """
    edf = request.edf
    if not edf.setup or not request.command:
        return request
    mounts: tuple[Mount, ...] = ()
    if edf.image:
        _check_shell(edf, request.mounts)
        directory = _setup_directory((*edf.mounts, *request.mounts))
        mounts = tuple(
            Mount(source=path, destination=f"{directory}/{number}-{Path(path).name}", flags=("ro",))
            for number, path in enumerate(edf.setup)
        )
    files = [mount.destination for mount in mounts] or edf.setup
    named = [word for pair in zip(files, edf.setup, strict=True) for word in pair]
    return request.model_copy(
        update={
            # The steps are in the command now and must not run twice.
            "edf": edf.model_copy(update={"setup": (), "setup_digests": ()}),
            "command": (_SHELL, "-c", _CHOOSE, "gipfel-setup", _BASH, _SH, *named, "--", *request.command),
            "mounts": (*request.mounts, *mounts),
        }
    )


def _setup_directory(mounts: Sequence[Mount]) -> str:
    """Return a directory outside of all mounts: the steps can't be mounted in a directory of the host."""
    covers = [f"{mount.destination.rstrip('/')}/" for mount in mounts]
    free = (each for each in SETUP_DIRECTORIES if not any(f"{each}/".startswith(cover) for cover in covers))
    return next(free, SETUP_DIRECTORIES[0])


def _check_shell(edf: Edf, mounts: Sequence[Mount]) -> None:
    """Raise if the image is known to have no shell; an image that can't be read may have one."""
    image = edf.image_path
    paths = (_SHELL, f"/usr{_SHELL}")
    destinations = [f"{mount.destination.rstrip('/')}/" for mount in (*edf.mounts, *mounts)]
    covered = any(f"{path}/".startswith(each) for path in paths for each in destinations)
    if image is None or covered:
        return
    if image.is_dir():
        # Without an upper directory, only links in the image are resolved.
        found = Path(f"{image}{Layers(str(image), '').resolve(_SHELL)}").exists()
    else:
        # In many images /bin is a link to usr/bin, which unsquashfs does not resolve.
        found = any(image_contains(image, path.strip("/")) is not False for path in paths)
    if not found:
        raise GipfelError(
            f"The image {image} has no {_SHELL}, which the set-up steps {', '.join(edf.setup)} need.",
            "Choose an image with a shell, or remove the steps.",
        )
