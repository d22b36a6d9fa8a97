"""Images: not there, not readable, not what they should be, not to be had from their registry."""

from .cause import Cause

_IMPORT = "Import it first (enroot import -x mount -o image.sqsh docker://…), or pick another environment."

IMAGES = (
    Cause(
        name="registry-denied",
        reason="The registry does not give this image without a login: {url}",
        fix="Put the registry's credentials where enroot looks (~/.config/enroot/.credentials), and check "
        "the image's name: a registry's name ends with '#' there.",
        patterns=(
            r"URL (?P<url>\S+) returned error code: 40[13]",
            r"(?P<url>\S*)\s*unauthorized: authentication required",
            r"denied: requested access to the resource is denied(?P<url>)",
        ),
    ),
    Cause(
        name="registry-missing",
        reason="The registry has no such image: {url}",
        fix="Check the image's name and tag; a registry's name ends with '#', as in nvcr.io#nvidia/cuda.",
        patterns=(
            r"URL (?P<url>\S+) returned error code: 404",
            r"(?:manifest|name) unknown(?P<url>[^\n]{0,100})",
            r"URL (?P<url>\S+) returned error code: 400",
        ),
    ),
    Cause(
        name="registry-limit",
        reason="The registry refuses more downloads for now.",
        fix="Wait, log in to the registry, or import the image once and name the file in the environment.",
        patterns=(r"toomanyrequests", r"returned error code: 429"),
    ),
    Cause(
        name="image-architecture",
        reason="The image was built for another kind of processor.",
        fix="Take the image for this machine's architecture (aarch64 on Grace, x86_64 elsewhere).",
        patterns=(r"exec format error", r"image is for (?P<what>\S+), this machine is"),
    ),
    Cause(
        name="image-no-squashfs",
        reason="The image is no SquashFS file, or was not written to its end: {path}",
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
        fix="Take a newer image; hooks that bring the host's libraries need at least the host's glibc.",
        patterns=(r"version `?(?P<what>GLIBC(?:XX)?_[0-9.]+)'? not found",),
    ),
    Cause(
        name="library-missing",
        reason="A library is missing in the image: {what}",
        fix="Take an image that has it, or switch off the hook that needs it.",
        patterns=(r"error while loading shared libraries: (?P<what>\S+?):",),
    ),
    Cause(
        name="shell-missing",
        reason="The image has no {what}, which the engine needs to start it.",
        fix="Take an image that has it; distroless images don't.",
        patterns=(r"enroot-switchroot: failed to execute: (?P<what>\S+): no such file",),
    ),
)
