//! The CPU time, memory and disk usage of this process.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Memory and disk, in MB of a million bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_field_names, reason = "the unit belongs to the name")]
pub struct Sizes {
    pub rss_mb: f64,
    pub peak_mb: f64,
    pub disk_mb: f64,
}

/// CPU time of all threads so far.
pub fn cpu_us() -> f64 {
    ledge::sys::process_cpu_time(std::process::id()).unwrap().as_secs_f64() * 1e6
}

/// CPU time of this thread so far.
pub fn thread_cpu_us() -> f64 {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    std::time::Duration::try_from(spent).unwrap().as_secs_f64() * 1e6
}

/// The memory of this process, and the disk space of `folder`.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub fn sizes(folder: &Path) -> Sizes {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0 / 1e6
    };
    Sizes { rss_mb: field("VmRSS:"), peak_mb: field("VmHWM:"), disk_mb: disk(folder) as f64 / 1e6 }
}

fn disk(path: &Path) -> u64 {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return 0 };
    if metadata.is_dir() {
        std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| disk(&entry.path())).sum()
    } else {
        metadata.blocks() * 512
    }
}

/// Another seed in each round.
pub fn seed() -> u64 {
    ledge::clock::unix_millis()
}

/// The name of the processor and the number of cores.
pub fn machine() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name =
        cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map_or("?", |(_, name)| name);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!("{name}, {cores} cores, load average {}", load.split(' ').next().unwrap_or("?"))
}
