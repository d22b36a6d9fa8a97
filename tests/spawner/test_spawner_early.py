"""A server that is faster than the command that submits it."""

import time
from pathlib import Path
from typing import Any


def test_a_port_that_comes_before_the_jobs_number_is_taken(new_hub: Any, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import asyncio\n"
        "from gipfel_cluster.scheduler.local import LocalScheduler\n"
        "from gipfel_spawner import EDFSpawner\n"
        "from gipfel_spawner.cluster import Cluster\n"
        "from gipfel_spawner.cluster.watcher import JobWatcher\n"
        "class SlowScheduler(LocalScheduler):\n"
        "    async def submit(self, request):\n"
        "        job_id = await super().submit(request)\n"
        "        await asyncio.sleep(2)\n"
        "        return job_id\n"
        "class SlowSpawner(EDFSpawner):\n"
        "    async def start(self):\n"
        "        import os, pathlib\n"
        "        slow = SlowScheduler(pathlib.Path(self.state_folder) / 'jobs', environment=os.environ)\n"
        "        self.user.settings['gipfel_local'] = Cluster(slow, JobWatcher(slow, log=self.log))\n"
        "        return await super().start()\n"
    )
    hub = new_hub(
        "import sys",
        f"sys.path.insert(0, {str(tmp_path)!r})",
        "from slow import SlowSpawner",
        "c.JupyterHub.spawner_class = SlowSpawner",
    )
    hub.call("POST", "/users/ada")
    hub.call("POST", "/users/ada/server", {})
    end = time.monotonic() + 20
    while not hub.ready("ada"):
        assert time.monotonic() < end, hub.log()
        time.sleep(0.1)
    hub.call("DELETE", "/users/ada/server")
