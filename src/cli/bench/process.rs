//! The CPU time and memory of a process on this machine: `/proc/PID` (proc(5)).

use std::time::Duration;

use ledge_base::sys;

/// CPU time and memory of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// User and system time of every thread since the start.
    pub cpu: Duration,
    /// Resident memory in bytes.
    pub resident: u64,
}

/// The usage of a process up to now; `None` when it has ended.
pub fn usage(pid: u32) -> Option<Usage> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(Usage { cpu: sys::process_cpu_time(pid)?, resident: resident_bytes(&status)? })
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

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
