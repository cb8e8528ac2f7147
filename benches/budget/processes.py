"""The usage of a process tree: CPU time, memory, threads and the cores they may use.

CPU time is user and system time together, of every thread a process has or had. It is read from the processes' CPU
clocks, which count nanoseconds; utime and stime of /proc/PID/stat are the same time cut to ticks of 10 ms, too coarse for
a round of half a second.
"""
import os
import time
from pathlib import Path


def tree(root):
    """The ids of a process and all its descendants."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text()
            except OSError:
                continue  # it ended meanwhile
            # The name in parentheses may hold anything; what follows it is: state, parent, ...
            parents.setdefault(int(stat[stat.rindex(")") + 2:].split()[1]), []).append(int(entry))
    found = [root]
    for pid in found:
        found.extend(parents.get(pid, []))
    return found


def cpu_ns(pids):
    """CPU time of these processes so far, in nanoseconds."""
    # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of the kernel; clock_getcpuclockid(3) gives the same number.
    return sum(time.clock_gettime_ns((~pid << 3) | 2) for pid in pids)


def thread_cpu_ns(pids):
    """{thread id: (name, CPU time in nanoseconds)} of every thread there is now."""
    found = {}
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                spent = int((task / "schedstat").read_text().split()[0])
                found[int(task.name)] = ((task / "comm").read_text().strip(), spent)
            except OSError:
                continue  # it ended meanwhile
    return found


def cpu_ticks(pid):
    """utime + stime of /proc/PID/stat, in clock ticks (sysconf SC_CLK_TCK a second)."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    fields = stat[stat.rindex(")") + 2:].split()
    return int(fields[11]) + int(fields[12])


def pss_kib(pids):
    """Proportional set size in KiB: memory shared by n processes counts for 1/n in each."""
    return sum(_field(f"/proc/{pid}/smaps_rollup", "Pss:") for pid in pids)


def rss_kib(pids):
    """Resident set size in KiB; cheap, so it can be sampled under load."""
    return sum(_field(f"/proc/{pid}/status", "VmRSS:") for pid in pids)


def _field(path, name):
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise KeyError(f"{path} has no {name}")


def threads(pids):
    """[(name, cores that it may run on)] of every thread."""
    found = []
    for pid in pids:
        for task in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name)):
            status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
            found.append((status["Name"], status["Cpus_allowed_list"]))
    return found


def machine():
    """{what: value} of the machine and of how busy it is, printed above every table."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = next((line.split(": ", 1)[1] for line in cpuinfo.splitlines() if line.startswith("model name")), "unknown")
    flags = next((line.split() for line in cpuinfo.splitlines() if line.startswith("flags")), [])
    return {
        "cpu": model, "has_vnni": any(flag.endswith("_vnni") for flag in flags), "cores": len(os.sched_getaffinity(0)), "kernel": os.uname().release,
        "load_average": os.getloadavg()[0],
    }


class Contention:
    """The share of the machine that other processes or the hypervisor took during a measurement."""

    def __init__(self):
        self.before = self._read()

    @staticmethod
    def _read():
        first = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        return [int(value) for value in first]

    def steal_share(self):
        """The share of all cores' time that the hypervisor gave to other guests since this object was made."""
        spent = [now - before for now, before in zip(self._read(), self.before)]
        return spent[7] / max(1, sum(spent[:8]))
