"""Watches `ledge top` on a pseudo-terminal: what it draws, that it stays when the daemon goes, that it cleans up.

Arguments: how it is ended (q, ctrl-c or term), the daemon's process (0 leaves it alone), and the command.
"""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

LIMIT = 60  # Seconds; a wait that is longer has found a hang.
LEAVE = b"\x1b[?7h\x1b[?25h\x1b[?1049l"

ending, daemon, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
master, slave = pty.openpty()
fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
before = termios.tcgetattr(slave)
top = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                       preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
drawn = b""


def wait_for(text):
    """Reads until text is drawn, and forgets what came before it."""
    global drawn
    end = time.monotonic() + LIMIT
    while text not in drawn:
        ready, _, _ = select.select([master], [], [], max(0, end - time.monotonic()))
        assert ready, f"no {text} in {drawn}"
        drawn += os.read(master, 65536)
    drawn = drawn[drawn.index(text) + len(text):]


wait_for(b"\x1b[?1049h")
# The first view is of no time, the second of an interval.
for _ in range(2):
    wait_for(b"MODEL")
    wait_for(b"add_sub 1")
assert not termios.tcgetattr(slave)[3] & (termios.ECHO | termios.ICANON), "keys are shown"
if daemon:
    os.kill(daemon, signal.SIGKILL)
    wait_for(b"Trying again")
    assert top.poll() is None
if ending == "q":
    os.write(master, b"q")
elif ending == "ctrl-c":
    os.write(master, b"\x03")
else:
    top.terminate()
wait_for(LEAVE)
status = top.wait(LIMIT)
assert status == 0, status
assert termios.tcgetattr(slave) == before, "the terminal's modes were not given back"
print("ok")
