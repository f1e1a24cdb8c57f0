"""A process for tests: killed at its first start, failing at the second, refusing the third, and well from then on.

It writes the frames of its connection itself: importing the package takes much longer than the rest.
"""

import os
import signal
import socket
import sys
import time
from pathlib import Path

READY = b"\x91\x81\xa4type\xa5Ready"
FAILED = b"\x91\x83\xa4type\xa6Failed\xa7message\xabmodel: gone\xa9exit_code\x04"

if __name__ == "__main__":
    starts = Path(os.environ["CRASHES"])
    number = len(list(starts.iterdir()))
    (starts / str(number)).touch()
    with socket.socket(fileno=int(sys.argv[1])) as supervisor:
        message = FAILED if number == 2 else READY
        supervisor.sendall(len(message).to_bytes(4, "big") + message)
        if number == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if number < 3:
            sys.exit(number + 2)
        time.sleep(600)
