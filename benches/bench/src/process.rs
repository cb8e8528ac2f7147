//! The CPU time and memory of processes on this machine: `/proc/PID` (proc(5)).

use std::iter::Sum;
use std::time::Duration;

use ledge_base::sys;
use ledge_base::telemetry::process::bytes_of_line;

/// CPU time and memory of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// User and system time of every thread since the start.
    pub cpu: Duration,
    /// Resident memory in bytes.
    pub resident: u64,
}

impl Sum for Usage {
    fn sum<I: Iterator<Item = Self>>(usages: I) -> Self {
        usages
            .fold(Self::default(), |sum, next| Self { cpu: sum.cpu + next.cpu, resident: sum.resident + next.resident })
    }
}

/// The usage of a process and of all that it started, such as those that run models, up to now; `None` when it has
/// ended.
pub fn usage_with_children(pid: u32) -> Option<Usage> {
    let parents = parents();
    let mut family = vec![pid];
    let mut seen = 0;
    while let Some(&parent) = family.get(seen) {
        seen += 1;
        family.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(child, _)| *child));
    }
    usage(pid)?;
    Some(family.into_iter().filter_map(usage).sum())
}

/// Every process, with its parent.
fn parents() -> Vec<(u32, u32)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers
        .filter_map(|pid| Some((pid, parent(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?)))
        .collect()
}

fn parent(stat: &str) -> Option<u32> {
    // The name of the program is in brackets, and may have any character.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The usage of a process up to now; `None` when it has ended.
pub fn usage(pid: u32) -> Option<Usage> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(Usage { cpu: sys::process_cpu_time(pid)?, resident: bytes_of_line(&status, "VmRSS:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_in_bytes() {
        assert_eq!(bytes_of_line("Name:\tx\nVmHWM:\t   20 kB\nVmRSS:\t   12 kB\n", "VmRSS:"), Some(12_288));
    }

    #[test]
    fn this_process_is_there_and_a_process_that_cannot_be_is_not() {
        assert!(usage(std::process::id()).unwrap().resident > 1 << 20);
        assert_eq!(usage(u32::MAX), None);
        assert_eq!(usage_with_children(u32::MAX), None);
    }

    #[test]
    fn a_process_that_this_one_started_counts_with_it() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let (all, own) = (usage_with_children(std::process::id()).unwrap(), usage(child.id()).unwrap());
        assert!(all.resident >= own.resident + (1 << 20), "{all:?} {own:?}");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(parent("7 (a) b) S 3 7 7"), Some(3));
    }
}
