"""Public keys in well-formed and hostile files."""

import base64
import os
import subprocess
from pathlib import Path

import pytest

from gipfel_cluster.hooks.ssh import read_keys
from gipfel_cluster.model import GipfelError

_OPTIONS = "restrict,pty,port-forwarding "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


def make(folder: Path, name: str, *options: str) -> str:
    path = folder / name
    if not path.exists():
        command = ["ssh-keygen", "-q", *options, "-N", "", "-C", "ada@home", "-f", str(path)]
        subprocess.run(command, check=True, timeout=60)
    return path.with_suffix(".pub").read_text().strip()


@pytest.fixture
def ed25519(folder: Path) -> str:
    return make(folder, "ed25519", "-t", "ed25519")


def read(tmp_path: Path, content: str | bytes, mode: int = 0o644) -> tuple[tuple[str, ...], tuple[str, ...]]:
    path = tmp_path / "key.pub"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return read_keys(str(path))


@pytest.mark.parametrize(
    "options", [("-t", "ed25519"), ("-t", "ecdsa", "-b", "256"), ("-t", "ecdsa", "-b", "521"), ("-t", "rsa")]
)
def test_what_ssh_keygen_makes_is_a_key_without_its_comment(
    folder: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    line = make(folder, "-".join(options).strip("-"), *options)
    assert read(tmp_path, line + "\n") == ((_OPTIONS + " ".join(line.split()[:2]),), ())


def test_several_keys_blank_lines_comments_and_windows_line_ends(
    folder: Path, tmp_path: Path, ed25519: str
) -> None:
    other = make(folder, "other", "-t", "ed25519")
    keys, notes = read(tmp_path, f"# mine\r\n\r\n  {ed25519}\r\n{other}\r\n{ed25519}")
    assert [key.split()[2] for key in keys] == [ed25519.split()[1], other.split()[1]]
    assert notes == ()


@pytest.mark.parametrize(
    "wrap",
    [
        'command="touch /tmp/owned" {}',
        'from="10.0.0.1" {}',
        'environment="LD_PRELOAD=/tmp/x.so" {}',
        "cert-authority {}",
        "restrict {}",
        "\x0b{}",
        "\u2028{}",
    ],
)
def test_lines_with_options_are_skipped_with_a_note(
    folder: Path, tmp_path: Path, ed25519: str, wrap: str
) -> None:
    other = make(folder, "other", "-t", "ed25519")
    keys, (note,) = read(tmp_path, wrap.format(ed25519) + f"\n{other}\n")
    assert [key.split()[2] for key in keys] == [other.split()[1]]
    assert "line 1 of" in note
    assert "owned" not in note


@pytest.mark.parametrize("break_", ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\x00"])
def test_no_comment_becomes_a_line_of_its_own(tmp_path: Path, ed25519: str, break_: str) -> None:
    keys, _ = read(tmp_path, f'{ed25519} comment{break_}command="sh" {ed25519}\n')
    (key,) = keys
    assert key == _OPTIONS + " ".join(ed25519.split()[:2])


def _lying(kind: str, inside: str) -> str:
    body = len(inside).to_bytes(4, "big") + inside.encode() + b"\0\0\0\x20" + b"k" * 32
    return f"{kind} {base64.b64encode(body).decode()}"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\n\n# nothing\n",
        "ssh-ed25519",
        "ssh-ed25519 AAAA",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5=AAAA",
        "ssh-dss AAAAB3NzaC1kc3MAAACBA",
        _lying("ssh-ed25519", "ssh-rsa"),
        _lying("ssh-ed25519-cert-v01@openssh.com", "ssh-ed25519-cert-v01@openssh.com"),
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n-----END OPENSSH PRIVATE KEY-----\n",
        bytes(range(256)) * 20,
    ],
)
def test_invalid_public_keys_are_refused(tmp_path: Path, content: str | bytes) -> None:
    with pytest.raises(GipfelError, match="holds no public key") as caught:
        read(tmp_path, content)
    assert "b3BlbnNzaC1rZXk" not in str(caught.value)


def test_a_file_of_a_megabyte_is_refused_unread(tmp_path: Path, ed25519: str) -> None:
    with pytest.raises(GipfelError, match="more than 64 KiB"):
        read(tmp_path, f"{ed25519}\n" * 10000)


def test_keys_beyond_the_limit_are_ignored(tmp_path: Path) -> None:
    lines = []
    for number in range(200):
        body = b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + number.to_bytes(32, "big")
        lines.append("ssh-ed25519 " + base64.b64encode(body).decode())
    assert len(read(tmp_path, "\n".join(lines))[0]) == 64


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_key_file_that_others_may_write_is_refused(tmp_path: Path, ed25519: str, mode: int) -> None:
    with pytest.raises(GipfelError, match="other users may write"):
        read(tmp_path, ed25519, mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="Only root can give a file away.")
def test_a_key_file_of_another_user_is_refused(tmp_path: Path, ed25519: str) -> None:
    path = tmp_path / "theirs.pub"
    path.write_text(ed25519)
    os.chown(path, 12345, -1)
    with pytest.raises(GipfelError, match="other users may write"):
        read_keys(str(path))


def test_pipes_devices_folders_and_odd_paths_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, said in [
        (str(tmp_path / "pipe"), "not a regular file"),
        ("/dev/zero", "not a regular file"),
        (str(tmp_path), "Is a directory"),
        (str(tmp_path / "none"), "can't be read"),
        (f"{tmp_path}/a\0b", "can't be read"),
        ("key.pub", "not the absolute path"),
        ("", "not the absolute path"),
    ]:
        with pytest.raises(GipfelError, match=said):
            read_keys(path)
