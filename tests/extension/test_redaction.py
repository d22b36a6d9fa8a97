"""Values of variables with secret-like names are redacted in displayed command lines and records."""

import shlex
import time

import pytest

from gipfel_extension.saturation.report import record_lines
from gipfel_extension.telemetry.redaction import HIDDEN, is_secret, redact_command_line, redact_record
from gipfel_extension.training.record.spec import LaunchSpec

_S = "s3cr3t"


@pytest.mark.parametrize(
    "line",
    [
        f"train.py --api-key {_S} --lr 1e-4",
        f"train.py --api-key={_S}",
        f"train.py --hfToken {_S}",
        f"train.py --optim.db_password {_S}",
        f"WANDB_API_KEY={_S} OPENAI_KEY={_S} python train.py",
        f"env AWS_SECRET_ACCESS_KEY={_S} AWS_ACCESS_KEY_ID={_S} train.py",
        f"gipfel submit in.ipynb out.ipynb -p hf_token {_S} -p seconds 60",
        f"bash -c 'export HF_TOKEN={_S}; python train.py --password \"{_S} {_S}\" | tee log'",
        f"curl -H 'Authorization: Bearer {_S}' 'https://ada:{_S}@host/x?access_token={_S}&a=1'",
        f"train.py --token -{_S}",
    ],
)
def test_values_of_secrets_are_hidden(line: str) -> None:
    shown = redact_command_line(shlex.split(line))
    assert HIDDEN in shown
    assert _S not in shown


@pytest.mark.parametrize(
    "line",
    [
        "train.py --tokenizer llama --max-tokens 4096 --pad-token '<pad>' --num-key-value-heads 8 --lr 1e-4",
        "train.py --token-file token.txt --sort-key loss --keys a b --monkey 3 --author ada",
        "torchrun --rdzv-endpoint=localhost:29500 train.py data=/scratch/x optimizer.lr=0.1",
        "bash -c 'python train.py --lr 1 && echo \"done a=b\"'",
        "train.py --token",
    ],
)
def test_other_words_stay_as_they_were_typed(line: str) -> None:
    assert redact_command_line(shlex.split(line)) == shlex.join(shlex.split(line))


def test_names() -> None:
    assert all(map(is_secret, ("token", "API_KEY", "--api-key", "dbPassword", "GITHUB_PAT", "secrets")))
    assert not any(map(is_secret, ("", "-", "tokens", "key_file", "path", "eos_token", "passage")))


def test_a_record_is_shown_without_them() -> None:
    record = {
        "command": ["train.py", "--api-key", _S],
        "options": {"parameters": [["hf_token", _S], ["lr", "0.1"]], "password": _S, "token": ""},
        "edf": {"name": "torch", "env": {"HF_TOKEN": _S, "HF_HOME": "/x"}},
        "nodes": ["n1", "n2"],
        "exit_status": 0,
    }
    shown = redact_record(record)
    assert _S not in str(shown)
    assert shown["options"]["parameters"][1] == ["lr", "0.1"]
    assert (shown["edf"]["env"]["HF_HOME"], shown["nodes"], shown["exit_status"]) == ("/x", ["n1", "n2"], 0)
    lines = dict(record_lines(record))
    assert lines["command"] == f"train.py --api-key {HIDDEN}"
    assert _S not in str(lines)
    spec = LaunchSpec(kind="script", target="train.py", arguments=("--api-key", _S))
    assert spec.title == f"train.py --api-key {HIDDEN}"


def test_long_words_take_no_long_time() -> None:
    begun = time.process_time()
    for piece in ("a ", "-", "'", "https://", "authorization ", "a.b-", "a:", "?a", "&", "\"'", "x=", "  "):
        redact_command_line([piece * (100_000 // len(piece)) + " x"])
    assert time.process_time() - begun < 5
