"""Watches `ledge top` on a pseudo-terminal: what it draws, that it outlives its daemon, that it changes no mode.

Arguments: the signal that ends it (INT as Ctrl-C, or TERM), and the command. Says `shown`, and then `gone` when the
daemon was killed; a line on standard input tells that it was started again.
"""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time

LIMIT = 60  # Seconds; a wait that is longer has found a hang.
COLUMNS, ROWS = 100, 24

ending, command = sys.argv[1], sys.argv[2:]
master, slave = pty.openpty()
fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
before = termios.tcgetattr(slave)
top = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                       preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
drawn = b""
seen = 0


def wait_for(text):
    """Reads until text is drawn behind what was waited for before."""
    global drawn, seen
    end = time.monotonic() + LIMIT
    while text not in drawn[seen:]:
        ready, _, _ = select.select([master], [], [], max(0, end - time.monotonic()))
        assert ready, f"no {text} in {drawn[seen:]}"
        drawn += os.read(master, 65536)
    seen = drawn.index(text, seen) + len(text)


# The first view is of no time, the second of an interval.
for _ in range(2):
    wait_for(b"MODEL")
    wait_for(b"add_sub 1")
    wait_for(b"\x1b[J")
print("shown", flush=True)
wait_for(b"Trying again")
print("gone", flush=True)
sys.stdin.readline()
wait_for(b"add_sub 1")
assert top.poll() is None
assert termios.tcgetattr(slave) == before, "the terminal has other modes"
if ending == "INT":
    os.write(master, b"\x03")
else:
    top.terminate()
status = top.wait(LIMIT)
assert status == 0, status
assert termios.tcgetattr(slave) == before, "the terminal's modes were not given back"
assert b"\x1b[?" not in drawn, "it switches a mode of the terminal"
rows = [row.split(b"\x1b[H")[-1] for frame in drawn.split(b"\x1b[J") for row in frame.split(b"\x1b[K\r\n")]
assert all(len(row.decode(errors="replace")) <= COLUMNS for row in rows), rows
print("ok")
