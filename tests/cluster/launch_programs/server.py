"""Stands for a notebook server: starts a process as its kernel for each request that is put into a folder.

The kernel launches what the request says, writes down where, and lives on.
"""

import subprocess
import sys
import time
from pathlib import Path

_KERNEL = """
import json, os, sys, time
from pathlib import Path
from gipfel_cluster.model import GipfelError
from gipfel_extension.training.launch import launch
from gipfel_extension.training.spec import LaunchSpec
asked = Path(sys.argv[1])
try:
    made = launch(LaunchSpec.model_validate_json(asked.read_text()), directory=asked.parent.parent)
    answer = {"folder": str(made.folder)}
except GipfelError as error:
    answer = {"problem": str(error)}
beside = asked.with_suffix(".half")
beside.write_text(json.dumps(answer))
beside.rename(asked.with_suffix(".answer"))
time.sleep(10000)
"""

folder = Path(sys.argv[1])
seen = set()
while True:
    for path in sorted(folder.glob("*.request")):
        if path not in seen:
            seen.add(path)
            subprocess.Popen([sys.executable, "-I", "-c", _KERNEL, str(path)])
    time.sleep(0.2)
