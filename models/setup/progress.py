"""The output: one line for each step, rewritten with the percentage while the step runs on a terminal."""
import shutil
import sys
import time


class Failure(Exception):
    """An error that the user can fix; its text says how."""


def size(count):
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


class Progress:
    """`with Progress("build model") as progress: ... progress.done("5.0 MB")`: the line is finished when the block is."""

    def __init__(self, title):
        self.title, self.note, self.live, self.started = title, "", sys.stdout.isatty(), time.monotonic()

    def __enter__(self):
        self.show("...")
        return self

    def __exit__(self, kind, _error, _trace):
        if kind:
            self.show("not finished\n", always=True)
        else:
            seconds = time.monotonic() - self.started
            self.show(", ".join(filter(None, [self.note, f"{seconds:.1f} s\n"])), always=True)

    def bytes(self, done, total):
        self.show(f"{100 * done // max(total, 1)} % of {size(total)}")

    def done(self, note):
        self.note = note

    def show(self, text, always=False):
        if not (self.live or always):
            return
        line = f"  {self.title:<50} {text}"
        if self.live:
            # Cut to the terminal's width: a line that wraps cannot be rewritten. "\x1b[K" clears the old text.
            width = shutil.get_terminal_size().columns - 1
            end = "\n" if line.endswith("\n") else ""
            line = f"\r\x1b[K{line.rstrip()[:width]}{end}"
        sys.stdout.write(line)
        sys.stdout.flush()
