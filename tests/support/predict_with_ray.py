"""Runs `regard` with replicas that die, for tests: `python predict_with_ray.py FOLDER < COMMANDS`.

A line of the input is JSON: how often the replica of the third chunk kills itself, and the arguments of `regard`. The
first command starts a Ray cluster of its own, the others share one. Prints exit code and messages of each.
"""

import json
import os
import signal
import sys
import threading
import time
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import ray

from regard.api import predict
from regard.cli import main
from regard.inference import ray_data

CHUNK = 64


class Mortal(ray_data.Replica):
    """A replica that kills itself at a chunk, so many times."""

    times: int
    folder: Path

    def _check_attempts(self, chunk):
        super()._check_attempts(chunk)
        if chunk.first == 2 * CHUNK + 1 and len(list(self.folder.iterdir())) < self.times:
            (self.folder / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    predict.CHUNK, ray_data.ATTEMPTS, ray_data.Replica = CHUNK, 2, Mortal
    for number, line in enumerate(sys.stdin):
        if number == 1:
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        Mortal.times, arguments = json.loads(line)
        Mortal.folder = Path(sys.argv[1], f"deaths-{number}")
        Mortal.folder.mkdir()
        messages, given, code = StringIO(), sys.argv, 0
        sys.argv = ["regard", *arguments]
        try:
            with redirect_stderr(messages):
                main()
        except SystemExit as ended:
            code = ended.code
        sys.argv = given
        deaths = len(list(Mortal.folder.iterdir()))
        print(
            json.dumps({"code": code, "messages": messages.getvalue(), "deaths": deaths}),
            flush=True,
        )
    end = (
        time.monotonic() + 15
    )  # a thread of Ray Data that outlives a failed command would end the process with code 1
    while threading.active_count() > 1 and time.monotonic() < end:
        time.sleep(0.1)
    ray.shutdown()
