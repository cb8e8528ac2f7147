//! What a process on this machine has used: `/proc/PID` (proc(5)).

use std::time::Duration;

/// CPU time and memory of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// User and system time of every thread since the start, to 10 ms.
    pub cpu: Duration,
    /// Resident memory in bytes.
    pub resident: u64,
}

/// What a process uses now; `None` when it is gone.
pub fn usage(pid: u32) -> Option<Usage> {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
    let ticks = cpu_ticks(&read("stat")?)?;
    let nanos = u128::from(ticks) * 1_000_000_000 / u128::from(rustix::param::clock_ticks_per_second().max(1));
    Some(Usage { cpu: Duration::from_nanos(u64::try_from(nanos).ok()?), resident: resident_bytes(&read("status")?)? })
}

/// Fields 14 and 15 of `stat`. The command, field 2, is in parentheses and may hold any character.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let stat = "7 (a) b 1 (c) R 1 7 7 0 -1 4194304 100 0 0 0 31 11 0 0 20 0 3 0 100 1000 10 0";
        assert_eq!(cpu_ticks(stat), Some(42));
        assert_eq!(cpu_ticks("7 (cut"), None);
    }

    #[test]
    fn resident_memory_is_in_bytes() {
        assert_eq!(resident_bytes("Name:\tx\nVmHWM:\t   20 kB\nVmRSS:\t   12 kB\n"), Some(12_288));
    }

    #[test]
    fn this_process_is_there_and_a_process_that_cannot_be_is_not() {
        assert!(usage(std::process::id()).unwrap().resident > 1 << 20);
        assert_eq!(usage(u32::MAX), None);
    }
}
