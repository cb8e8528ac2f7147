"""Runs a command on a pseudo-terminal until it says that it is ready, ends it, and prints all that was on the terminal.

Arguments: the command.
"""

import os
import pty
import select
import signal
import subprocess
import sys
import time

LIMIT = 60  # Seconds; a wait that is longer has found a hang.

master, slave = pty.openpty()
daemon = subprocess.Popen(sys.argv[1:], stdin=slave, stdout=slave, stderr=slave)
os.close(slave)
told, asked = b"", False
end = time.monotonic() + LIMIT
while True:
    ready, _, _ = select.select([master], [], [], max(0, end - time.monotonic()))
    assert ready, f"it is not ready after {LIMIT} s: {told}"
    try:
        piece = os.read(master, 65536)
    except OSError:  # the other side is closed
        break
    told += piece
    if b"model repository read" in told and not asked:
        asked = True
        daemon.send_signal(signal.SIGTERM)
daemon.wait(LIMIT)
sys.stdout.buffer.write(told)
