"""Causes of failed starts: the model of a cause, and the causes that come from engines and images.

`CONTAINERS` are failed mounts, namespaces, hooks and engines; `IMAGES` are missing or invalid images, as
reported by enroot, pyxis, podman, Apptainer and bubblewrap.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from gipfel_cluster.model import Frozen, OneLine, one_line

_MAX_CHARACTERS = 300


class Evidence(Frozen):
    """Facts about a job that failed.

    ``state`` is Slurm's job state, or ``SILENT`` (the server reported no port), ``BLOCKED`` (the hub can't
    connect to the server) or ``REFUSED`` (Slurm rejected the job); ``reason`` is the scheduler's message,
    ``exit_code`` None if unknown, and ``log`` the end of the job's log.
    """

    state: str = ""
    reason: str = ""
    exit_code: int | None = None
    log: str = ""

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """Lines of the log without control characters, followed by the scheduler's reason."""
        return tuple(one_line(line)[:2000] for line in (*self.log.splitlines(), self.reason) if line.strip())


class Explanation(Frozen):
    """Reason and fix to show to the user; ``cause`` is the cause's name in the catalogue."""

    cause: str
    reason: str
    fix: str


class Cause(Frozen):
    """Entry of the catalogue.

    A cause applies if the job is in one of ``states`` (empty: any state) and a line of the evidence matches
    one of the regular expressions ``patterns`` (empty: no match needed). ``{name}`` in ``reason`` and ``fix``
    is replaced by the text of the group with that name; ``{detail}`` is the scheduler's reason by default.
    """

    name: OneLine
    reason: OneLine
    fix: OneLine
    patterns: tuple[str, ...] = ()
    states: frozenset[str] = frozenset()

    @cached_property
    def _expressions(self) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(pattern, re.IGNORECASE) for pattern in self.patterns)

    def explain(self, evidence: Evidence) -> Explanation | None:
        """Return the explanation of this evidence; None if this cause does not apply."""
        if self.states and evidence.state not in self.states:
            return None
        if not self.patterns:
            return self._explanation({"detail": evidence.reason})
        # The last matching line is used, because the program may have recovered from earlier errors.
        groups = next(self._matches(evidence), None)
        return None if groups is None else self._explanation({"detail": evidence.reason} | groups)

    def _matches(self, evidence: Evidence) -> Iterator[dict[str, str]]:
        for line in reversed(evidence.lines):
            for expression in self._expressions:
                if match := expression.search(line):
                    yield {name: text or "" for name, text in match.groupdict().items()}

    def _explanation(self, groups: dict[str, str]) -> Explanation:
        # The patterns of a cause may have different groups; a missing one is empty.
        values = defaultdict(str, {name: text.strip()[:_MAX_CHARACTERS] for name, text in groups.items()})
        reason, fix = (text.format_map(values).rstrip(": ") for text in (self.reason, self.fix))
        return Explanation(cause=self.name, reason=reason, fix=fix)


CONTAINERS = (
    Cause(
        name="mount-source-missing",
        reason="A directory that the environment mounts does not exist: {path}",
        fix="Create it, or correct mounts in the environment.",
        patterns=(
            r"the mount's source (?P<path>\S+) (?:is not there|does not exist)",
            r"the mount's source (?P<path>\S+) can't be mounted: no such file",
            r"can't find source path (?P<path>\S+?):",
            r"enroot-mount: failed to mount: (?P<path>\S+) at \S+: no such file",
            r"mount source (?P<path>\S+) doesn't exist",
            r"statfs (?P<path>\S+): no such file or directory",
            r"(?P<path>/\S+) is not there.{0,40}mount",
        ),
    ),
    Cause(
        name="mount-target",
        reason="A file can't be mounted over a directory, nor a directory over a file: {path}",
        fix="Mount the directory that contains it, or correct mounts in the environment.",
        patterns=(
            r"enroot-mount: failed to mount: (?P<path>\S+) at \S+: (?:not a directory|is a directory)",
        ),
    ),
    Cause(
        name="mount-denied",
        reason="A directory can't be mounted with your permissions: {path}",
        fix="Check that you can read it on the node. On NFS, root may be denied.",
        patterns=(r"enroot-mount: failed to mount: (?P<path>\S+) at \S+: permission denied",),
    ),
    Cause(
        name="user-namespaces-refused",
        reason="The node does not let users create containers: user namespaces are disabled or exhausted.",
        fix="Ask the administrators to check user.max_user_namespaces, kernel.unprivileged_userns_clone and "
        "kernel.apparmor_restrict_unprivileged_userns. The host engine works without user namespaces.",
        patterns=(
            r"no permissions to (?:create|creating) (?:a )?new namespace",
            r"(?:creating new|create) namespaces?(?: failed)?: (?:operation not permitted|permission denied)",
            r"enroot-nsenter: failed to create user namespace",
            r"setting up uid map: permission denied",
            r"failed to create user namespace",
            r"unshare(?:\(| failed|: ).{0,40}(?:operation not permitted|no space left on device)",
            r"user namespaces?,? (?:are|is|which this machine) (?:not|off|disabled|refuse)",
            r"this machine refuses user namespaces",
        ),
    ),
    Cause(
        name="fuse-denied",
        reason="The node does not let you mount images (/dev/fuse).",
        fix="Ask the administrators to make /dev/fuse readable and writable for users. An unpacked image "
        "(a directory) works without it.",
        patterns=(
            r"/dev/fuse.{0,80}(?:permission denied|not permitted|may not use|no such (?:file|device))",
            r"(?:fusermount3?|squashfuse\w*|fuse): .{0,80}(?:permission denied|not permitted|not found)",
        ),
    ),
    Cause(
        name="setup-step",
        reason="A set-up step of the environment failed ({what}): {path}",
        fix="Correct that file (the job's log has its output), or pick another environment.",
        patterns=(r"(?P<path>/\S.*\.setup(?:, line \d+)?): a set-up step ended with (?P<what>status \d+)",),
    ),
    Cause(
        name="entrypoint-hook",
        reason="A hook of the container engine failed: {path}",
        fix="Disable the hook in the environment's annotations, or tell the administrators.",
        patterns=(r"\[ERROR\] (?P<path>/\S+/hooks\.d/\S+) exited with return code",),
    ),
    Cause(
        name="runtime-folder",
        reason="The container engine can't create its directory: {path}",
        fix="Ask the administrators to check ENROOT_RUNTIME_PATH, ENROOT_CACHE_PATH and ENROOT_DATA_PATH.",
        patterns=(
            r"mkdir: cannot create directory '?(?P<path>[^':]*enroot[^':]*)'?: (?:permission denied|no such)",
            r"pyxis: couldn't mkdir (?P<path>\S+):",
        ),
    ),
    Cause(
        name="noexec",
        reason="The container's files are on a file system from which nothing can be executed.",
        fix="Tell the administrators that the engine's data path is mounted with noexec.",
        patterns=(r"enroot-switchroot: failed to execute: \S+: permission denied",),
    ),
    Cause(
        name="workdir-missing",
        reason="The working directory does not exist in the container: {path}",
        fix="Check workdir in the environment.",
        patterns=(
            r"the working (?:folder|directory) (?P<path>\S+) (?:is not|does not exist)",
            r"can't chdir to (?P<path>\S+):",
            r"chdir to cwd \(?\"?(?P<path>[^\")]+)\"?\)? set in config",
        ),
    ),
    Cause(
        name="engine-missing",
        reason="The container engine is not installed on the node: {what}",
        fix="Tell the administrators, or pick an environment without an image.",
        patterns=(r"(?:exec(?:vp)?|sh): (?P<what>bwrap|enroot|podman|apptainer)\S*: not found",),
    ),
    Cause(
        name="unknown-user",
        reason="The node does not know your user.",
        fix="Start again: Slurm takes another node. Tell the administrators this node's name.",
        patterns=(r"cannot find name for user id", r"getpwuid failed", r"unable to resolve.{0,20}uid"),
    ),
    Cause(
        name="container-start",
        reason="The container engine could not start the container: {detail}",
        fix="The last lines of the log have details. Send this report to the administrators.",
        patterns=(
            r"pyxis: +\[ERROR\] (?P<detail>.+)",
            r"pyxis: container start failed with error code: (?P<detail>\d+)",
            r"pyxis: (?P<detail>couldn't start container)",
        ),
    ),
)


_IMPORT = "Import it first (enroot import -x mount -o image.sqsh docker://…), or pick another environment."

IMAGES = (
    Cause(
        name="registry-denied",
        reason="The registry requires a login for this image: {url}",
        fix="Put the registry's credentials into enroot's file ~/.config/enroot/.credentials, and check the "
        "image's name: enroot separates registry and image with '#', as in nvcr.io#nvidia/cuda.",
        patterns=(
            r"URL (?P<url>\S+) returned error code: 40[13]",
            r"(?P<url>\S*)\s*unauthorized: authentication required",
            r"denied: requested access to the resource is denied(?P<url>)",
        ),
    ),
    Cause(
        name="registry-missing",
        reason="The registry has no such image: {url}",
        fix="Check the image's name and tag. Enroot separates registry and image with '#', as in "
        "nvcr.io#nvidia/cuda.",
        patterns=(
            r"URL (?P<url>\S+) returned error code: 404",
            r"(?:manifest|name) unknown(?P<url>[^\n]{0,100})",
            r"URL (?P<url>\S+) returned error code: 400",
        ),
    ),
    Cause(
        name="registry-limit",
        reason="The registry refuses more downloads for now.",
        fix="Wait, log in to the registry, or import the image and use the file as the environment's image.",
        patterns=(r"toomanyrequests", r"returned error code: 429"),
    ),
    Cause(
        name="image-architecture",
        reason="The image was built for another processor architecture.",
        fix="Use the image for the node's architecture (aarch64 on Grace, otherwise usually x86_64).",
        patterns=(r"exec format error", r"image is for (?P<what>\S+), this machine is"),
    ),
    Cause(
        name="image-no-squashfs",
        reason="The image is not a SquashFS file, or is incomplete: {path}",
        fix="Import or copy it again. " + _IMPORT,
        patterns=(
            r"(?P<path>/\S+?):? (?:is no|is not a) squashfs",
            r"can't find a (?:valid )?squashfs superblock on (?P<path>\S+)",
            r"this doesn't look like a squashfs image(?P<path>)",
            r"failed to (?:read|open) squashfs(?: image)?:? ?(?P<path>\S*)",
            r"invalid squashfs (?:image|magic)(?P<path>)",
            r"the image (?P<path>/\S+) is (?:neither|no|cut off)\b",
            r"invalid image format: (?P<path>\S+)",
        ),
    ),
    Cause(
        name="image-not-found",
        reason="The image was not found: {path}",
        fix=_IMPORT,
        patterns=(
            r"the image (?P<path>\S+) (?:is not there|does not exist)",
            r"no such file or directory: (?P<path>\S+\.sqsh)",
            r"(?P<path>/\S+\.sqsh): no such file or directory",
            r"image \"?(?P<path>\S+?)\"? (?:was not found|does not exist)",
            r"squashfs image '?(?P<path>\S+?)'? not found",
        ),
    ),
    Cause(
        name="glibc-too-old",
        reason="The image's C library is too old: {what} is needed.",
        fix="Use a newer image. Hooks that mount the host's libraries need at least the host's glibc.",
        patterns=(r"version `?(?P<what>GLIBC(?:XX)?_[0-9.]+)'? not found",),
    ),
    Cause(
        name="library-missing",
        reason="A library is missing in the image: {what}",
        fix="Use an image that has it, or disable the hook that needs it.",
        patterns=(r"error while loading shared libraries: (?P<what>\S+?):",),
    ),
    Cause(
        name="shell-missing",
        reason="The image has no {what}, which the engine needs to start it.",
        fix="Use an image that has it. Distroless images do not.",
        patterns=(r"enroot-switchroot: failed to execute: (?P<what>\S+): no such file",),
    ),
)
