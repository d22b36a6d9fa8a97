"""Texts that give access: tokens, private keys, passwords in the files that programs keep them in."""

import re

#: Tokens of Hugging Face, GitHub, GitLab, AWS, Slack, OpenAI, W&B; private keys.
_TOKENS = (
    r"hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{15,}|AKIA[0-9A-Z]{16}"
    r"|xox[abpr]-[\w-]{10,}|sk-[A-Za-z0-9_-]{32,}|WANDB_API_KEY\W{1,6}[0-9a-f]{40}"
    r"|(?i:aws_secret_access_key)\W{1,6}[A-Za-z0-9/+=]{40}"
)
_KEY = r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----"
#: Words before which a key is protected by a passphrase.
_ENCRYPTED = re.compile(rb"-----BEGIN ENCRYPTED PRIVATE KEY|Proc-Type: 4,ENCRYPTED")
_ANY = re.compile(f"{_TOKENS}|{_KEY}")
_TOKEN_BYTES = re.compile(_TOKENS.encode())
_KEY_BYTES = re.compile(_KEY.encode() + rb"\s+[A-Za-z0-9+/=:,\- ]{16}")
#: Passwords of programs, by the ends of the files that hold them.
_BY_FILE = (
    (".netrc", re.compile(rb"\bpassword\s+\S+")),
    (".git-credentials", re.compile(rb"://[^/\s:@]+:[^/\s@]+@")),
    ("pip.conf", re.compile(rb"://[^/\s:@$]+:[^/\s@$]+@")),
    (".docker/config.json", re.compile(rb'"auth"\s*:\s*"[A-Za-z0-9+/=]{8,}"')),
    (".pgpass", re.compile(rb"^[^#\n]+(:[^:\n]*){3}:[^:\n]+$", re.MULTILINE)),
)
#: Values of documentation, such as AKIAIOSFODNN7EXAMPLE.
_EXAMPLE = re.compile(rb"EXAMPLE|xxxxxxxx|XXXXXXXX")


def holds_secret(text: str) -> bool:
    """Return whether a text holds a token or a private key."""
    return _ANY.search(text) is not None


def secret_kind(path: str, content: bytes) -> str:
    """Return what a file gives away: ``key``, ``protected key``, ``token``, ``password`` or nothing."""
    if _KEY_BYTES.search(content):
        return "protected key" if _ENCRYPTED.search(content) else "key"
    if any(not _EXAMPLE.search(each[0]) for each in _TOKEN_BYTES.finditer(content)):
        return "token"
    return (
        "password" if any(path.endswith(end) and pattern.search(content) for end, pattern in _BY_FILE) else ""
    )
