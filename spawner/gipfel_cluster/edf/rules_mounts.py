"""Lint rules about mounts."""

from collections.abc import Iterator

from .document import Entry
from .model import Mount
from .rule import LintContext, Mistake, Rule, each_mount, rule
from .rules_values import SQUASHFS_SUFFIXES

#: The usual parents of home directories.
_HOMES = ("/users", "/home")
#: ``sqsh`` of the Container Engine, and the flags of mount(8) for every file system and of Enroot.
_FLAGS = frozenset(
    {
        *("sqsh", "ro", "rw", "bind", "rbind", "defaults", "remount", "silent", "loud", "nofail"),
        *("suid", "nosuid", "dev", "nodev", "exec", "noexec", "sync", "async", "dirsync", "mand", "nomand"),
        *("atime", "noatime", "diratime", "nodiratime", "relatime", "norelatime", "strictatime"),
        *("nostrictatime", "lazytime", "nolazytime", "iversion", "noiversion"),
        *("private", "rprivate", "slave", "rslave", "shared", "rshared", "unbindable", "runbindable"),
        *("auto", "noauto", "user", "nouser", "users", "nousers", "owner", "noowner", "group", "nogroup"),
        *("x-create=auto", "x-create=dir", "x-create=file", "x-move", "x-detach"),
    }
)


@rule(
    "home-mount",
    reason="the whole home directory is mounted{more}",
    consequence=(
        "files in ~/.local, ~/.cache and virtual environments that were made for the host are used in the "
        "container too and fail there, and the ssh hook's keys are hidden"
    ),
    fix="Mount the directories that the work needs.",
)
def home_mount(context: LintContext) -> Iterator[Mistake]:
    """Find a mount of the user's whole home directory."""
    # A mount of all homes is harmful only if it hides the keys of the ssh hook.
    parent = context.home.rpartition("/")[0]
    above = {parent, *_HOMES} - {"", "/"} if context.hook_is_enabled("ssh") else set()
    for entry, mount in context.mounts:
        if context.home and mount.source == context.home:
            yield entry, {"more": ""}
        elif mount.source in above and mount.source == mount.destination:
            yield entry, {"more": " with those of all users"}


@rule(
    "same-destination",
    reason="{destination} is mounted from {first} and from {second}",
    consequence="the later one hides the earlier one",
    fix="Remove one of them.",
)
def same_destination(context: LintContext) -> Iterator[Mistake]:
    """Find two mounts at the same destination."""
    mounted: dict[str, tuple[Entry, Mount]] = {}
    for entry, mount in context.mounts:
        _, first = mounted.setdefault(mount.destination, (entry, mount))
        if first != mount:
            yield entry, {"destination": mount.destination, "first": first.source, "second": mount.source}


_SYSTEM_FOLDERS = frozenset(
    {"/", "/bin", "/lib", "/lib64", "/usr", "/etc", "/usr/lib", "/usr/lib64", "/usr/bin"}
)


@rule(
    "hidden-system",
    reason="a mount covers {destination} of the image",
    consequence="the image's own programs and libraries there are gone",
    fix="Choose another destination.",
)
@each_mount
def hidden_root(mount: Mount) -> bool:
    """Find a mount over a directory that programs need to start."""
    return mount.destination in _SYSTEM_FOLDERS


_KERNEL_FOLDERS = ("/proc/", "/sys/")


@rule(
    "hidden-kernel",
    reason="a mount covers {destination}, where the kernel shows processes and devices",
    consequence=(
        "no mount point can be created there, so the container does not start, or programs see no GPU and no "
        "core"
    ),
    fix="Choose another destination; the container has its own /proc, /sys and /dev.",
)
@each_mount
def hidden_kernel(mount: Mount) -> bool:
    """Find a mount over a file system of the kernel."""
    inside = f"{mount.destination}/".startswith(_KERNEL_FOLDERS)
    return (inside or mount.destination == "/dev") and mount.source != mount.destination


@rule(
    "covered-mount",
    reason="{destination} is mounted over {inner}, which is mounted before it",
    consequence="the content of {inner} is hidden",
    fix="Mount {destination} first.",
)
def covered_mount(context: LintContext) -> Iterator[Mistake]:
    """Find a mount that hides an earlier mount below its destination."""
    earlier: dict[str, None] = {}
    for entry, mount in context.mounts:
        below = f"{mount.destination.rstrip('/')}/"
        inner = next((each for each in earlier if each.startswith(below) and each != below), "")
        if inner and mount.destination not in earlier and mount.source != "umount":
            yield entry, {"destination": mount.destination, "inner": inner}
        earlier[mount.destination] = None


@rule(
    "squashfs-file",
    dialects=("ce",),
    reason="{destination} is the file itself, not its content",
    consequence="there is no directory with its content",
    fix="Add ':sqsh'.",
)
@each_mount
def squashfs_file(mount: Mount) -> bool:
    """Find a SquashFS file mounted without ``:sqsh``, so that its content is not visible."""
    is_file = mount.source.endswith(SQUASHFS_SUFFIXES) and "sqsh" not in mount.flags
    return is_file and not mount.destination.endswith(SQUASHFS_SUFFIXES)


_CONFLICTS = (("ro", "rw"), ("suid", "nosuid"), ("dev", "nodev"), ("exec", "noexec"), ("sync", "async"))


@rule(
    "conflicting-flags",
    reason="the flags {flags} contradict each other",
    consequence="it depends on the engine which of them takes effect",
    fix="Remove one of them.",
)
def conflicting_flags(context: LintContext) -> Iterator[Mistake]:
    """Find two flags that contradict each other."""
    for entry, mount in context.mounts:
        pair = next((each for each in _CONFLICTS if set(each) <= set(mount.flags)), ())
        if pair:
            yield entry, {"flags": " and ".join(pair)}


@rule(
    "mount-flag",
    dialects=("ce", "pyxis"),
    reason="{flag!r} is not a flag that Enroot knows",
    consequence="it is passed to the file system, which may refuse the mount",
    fix="Join flags with '+': ro+private.",
)
def unknown_flag(context: LintContext) -> Iterator[Mistake]:
    """Find a flag that neither Linux nor Enroot has."""
    for entry, mount in context.mounts:
        # A tmpfs accepts settings such as size=10G.
        flags = [each for each in mount.flags if not (mount.source == "tmpfs" and "=" in each)]
        if unknown := next((each for each in flags if each not in _FLAGS), ""):
            yield entry, {"flag": unknown}


MOUNT_RULES: tuple[Rule, ...] = (
    home_mount,
    same_destination,
    covered_mount,
    hidden_root,
    hidden_kernel,
    squashfs_file,
    conflicting_flags,
    unknown_flag,
)
