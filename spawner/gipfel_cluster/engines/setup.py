"""Set-up steps: shell lines of an EDF's companion files, run in the container before the command."""

from collections.abc import Sequence
from pathlib import Path

from ..edf.image import is_inside
from ..edf.model import Edf, Mount
from ..model import GipfelError
from .protocol import ContainerRequest
from .sandbox.rootfs import Layers

#: Where the files are in the container: the first of these that no mount of the EDF covers.
PLACES = ("/run/gipfel/setup", "/opt/gipfel/setup", "/mnt/gipfel/setup", "/gipfel/setup")
_SHELL = "/bin/sh"
_SAY = " ".join(
    (
        # A signal ends a shell with status 0 here, and so does a plain exit.
        'trap \'__gipfel_status=$?; [ "$__gipfel_status" = 0 ] && __gipfel_status=;',
        'printf "gipfel: %s%s: a set-up step ended%s, so the command was not started.\\n" "$__gipfel_name"',
        '"${__gipfel_line-}" "${__gipfel_status:+ with status $__gipfel_status}" >&2;',
        # A command that never ran has not succeeded.
        '[ "$__gipfel_status" ] || exit 1\' EXIT;',
    )
)
#: Takes FILE NAME … -- WORD …; a line of FILE that fails ends it, lines of what FILE sources don't.
#: The arguments are put aside, since a sourced file without arguments of its own sees its caller's.
_BASH = " ".join(
    (
        "__gipfel_steps=(); __gipfel_folder=$PWD; __gipfel_line=;",
        'while [ "$1" != -- ]; do __gipfel_steps+=("$1" "$2"); shift 2; done; shift;',
        '__gipfel_command=("$@"); set --;',
        '__gipfel_failed() { [ -z "$3" ] || [ "$3" = "$__gipfel_file" ] || return 0;',
        '[ -z "$3" ] || __gipfel_line=", line $2"; exit "$1"; };',
        'trap \'__gipfel_failed "$?" "$LINENO" "${BASH_SOURCE-}"\' ERR;',
        _SAY,
        'while [ "${#__gipfel_steps[@]}" -gt 0 ]; do',
        "__gipfel_file=${__gipfel_steps[0]}; __gipfel_name=${__gipfel_steps[1]};",
        '__gipfel_steps=("${__gipfel_steps[@]:2}");',
        # Its input and output are the command's alone.
        'builtin . "$__gipfel_file" </dev/null >&2; set +a;',
        '[ "$PWD" = "$__gipfel_folder" ] || builtin cd -- "$__gipfel_folder"; done;',
        'trap - ERR EXIT; exec "${__gipfel_command[@]}"',
    )
)
#: The same for shells without arrays and ERR: whatever fails, also in what FILE sources, ends it.
_SH = " ".join(
    (
        "__gipfel_folder=$PWD;",
        _SAY,
        "__gipfel_step() { __gipfel_file=$1; __gipfel_name=$2; shift 2;",
        '. "$__gipfel_file" </dev/null >&2; };',
        'set -e; while [ "$1" != -- ]; do __gipfel_step "$1" "$2"; set +a; shift 2;',
        '[ "$PWD" = "$__gipfel_folder" ] || command cd "$__gipfel_folder"; done;',
        'shift; trap - EXIT; exec "$@"',
    )
)
#: Takes the two programs above, and then what they take.
_CHOOSE = " ".join(
    (
        "__gipfel_bash=$(command -v bash) || __gipfel_bash=/bin/bash;",
        "__gipfel_program=$1; __gipfel_sh=$2; shift 2;",
        'if [ -x "$__gipfel_bash" ]; then exec "$__gipfel_bash" -c "$__gipfel_program" "$0" "$@"; fi;',
        'eval "$__gipfel_sh"',
    )
)


def with_setup(request: ContainerRequest) -> ContainerRequest:
    """Have the set-up steps of the request's EDF run before its command, in the same process.

    The command replaces the shell, so that its exit status, its signals and its standard input and output
    are as without steps; what steps write goes to stderr. Where a step fails, the container ends with the
    step's status and one line on stderr.

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
        place = _place((*edf.mounts, *request.mounts))
        mounts = tuple(
            Mount(source=path, destination=f"{place}/{number}-{Path(path).name}", flags=("ro",))
            for number, path in enumerate(edf.setup)
        )
    files = [mount.destination for mount in mounts] or edf.setup
    named = [word for pair in zip(files, edf.setup, strict=True) for word in pair]
    return request.model_copy(
        update={
            # Its steps are in the command now: twice would be once too often.
            "edf": edf.model_copy(update={"setup": (), "setup_digests": ()}),
            "command": (_SHELL, "-c", _CHOOSE, "gipfel-setup", _BASH, _SH, *named, "--", *request.command),
            "mounts": (*request.mounts, *mounts),
        }
    )


def _place(mounts: Sequence[Mount]) -> str:
    """Choose a directory that no mount covers: a file can't be made in a directory of the host."""
    covers = [f"{mount.destination.rstrip('/')}/" for mount in mounts]
    free = (place for place in PLACES if not any(f"{place}/".startswith(each) for each in covers))
    return next(free, PLACES[0])


def _check_shell(edf: Edf, mounts: Sequence[Mount]) -> None:
    """Refuse an image that is known to have no shell; one that can't be read may have one."""
    image = edf.image_path
    places = (_SHELL, f"/usr{_SHELL}")
    destinations = [f"{mount.destination.rstrip('/')}/" for mount in (*edf.mounts, *mounts)]
    covered = any(f"{place}/".startswith(each) for place in places for each in destinations)
    if image is None or covered:
        return
    if image.is_dir():
        found = Path(f"{image}{Layers(str(image), '').resolve(_SHELL)}").exists()
    else:
        # In many images /bin is a link, and where that leads is not followed here.
        found = any(is_inside(image, place.strip("/")) is not False for place in places)
    if not found:
        raise GipfelError(
            f"The image {image} has no {_SHELL}, which the set-up steps {edf.setup[-1]} need.",
            "Choose an image with a shell, or remove the steps.",
        )
