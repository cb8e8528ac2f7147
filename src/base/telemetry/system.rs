//! The facts of the machine: its CPU, the limits set on this process, memory, disk, and its names.

mod cgroup;
mod names;

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, System};

pub use cgroup::CgroupLimits;
pub use names::{machine_model, os_name};

/// The CPU, and how much of it this process may use.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cpu {
    /// The maker's name for it; empty if the system does not report it.
    pub model: String,
    /// The instruction set extensions that matter to a model, available or not.
    pub features: Vec<CpuFeature>,
    /// Physical cores; `None` if the system does not report them.
    pub physical_cores: Option<usize>,
    /// Logical cores: with hyper-threading two for each physical core.
    pub logical_cores: usize,
    /// The cores that this process may run on, as in `0-3,8`; `None` if the system does not report them.
    pub affinity: Option<String>,
    /// The number of cores that this process may use, by affinity and quota together.
    pub usable_cores: usize,
}

/// The kernel's id of this boot; `None` if it does not report one. `root` is the parent of `proc`.
pub fn boot_id(root: &Path) -> Option<String> {
    let text = std::fs::read_to_string(root.join("proc/sys/kernel/random/boot_id")).ok()?;
    Some(text.trim().to_owned()).filter(|id| !id.is_empty())
}

/// An instruction set extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CpuFeature {
    pub name: &'static str,
    /// True if CPU and system support it.
    pub present: bool,
}

/// The behaviour of the CPU's integer instructions on int8 models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Int8Arithmetic {
    /// Products are added in 32 bits: any weights give exact sums.
    Exact,
    /// Two products are added in 16 bits with saturation: weights of the full range give wrong sums.
    Saturates,
}

impl Int8Arithmetic {
    /// The behaviour of this CPU. On x86-64 it depends on VNNI, which every CPU with AMX has too; on ARM all
    /// instructions for int8 widen.
    pub fn here() -> Self {
        #[cfg(target_arch = "x86_64")]
        let exact = is_x86_feature_detected!("avx512vnni") || is_x86_feature_detected!("avxvnni");
        #[cfg(not(target_arch = "x86_64"))]
        let exact = true;
        if exact { Self::Exact } else { Self::Saturates }
    }
}

impl Cpu {
    /// Asks the CPU and the system. `root` is the parent of `proc`: `/`, except in tests.
    pub fn detect(root: &Path) -> Self {
        let mut system = System::new().ok();
        let cpus = system.as_mut().map_or(&[][..], |system| {
            system.refresh_cpu_list(CpuRefreshKind::nothing());
            system.cpus()
        });
        let usable_cores = super::process::usable_cores();
        Self {
            model: cpus.first().map(|cpu| cpu.brand().trim().to_owned()).unwrap_or_default(),
            features: features(root),
            physical_cores: System::physical_core_count().ok().filter(|count| *count > 0),
            logical_cores: cpus.len().max(1),
            affinity: affinity(root),
            usable_cores,
        }
    }

    /// True if the extension is available.
    pub fn has(&self, name: &str) -> bool {
        self.features.iter().any(|feature| feature.name == name && feature.present)
    }
}

#[cfg(target_arch = "x86_64")]
fn features(root: &Path) -> Vec<CpuFeature> {
    // The standard library does not detect AMX yet; the kernel lists it once it has enabled its registers.
    let info = std::fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags")).unwrap_or_default();
    let listed = |flag| flags.split_whitespace().any(|word| word == flag);
    [
        ("AVX2", is_x86_feature_detected!("avx2")),
        ("AVX-512", is_x86_feature_detected!("avx512f")),
        ("AVX512-VNNI", is_x86_feature_detected!("avx512vnni")),
        ("AVX-VNNI", is_x86_feature_detected!("avxvnni")),
        ("AMX-INT8", listed("amx_int8")),
        ("AMX-BF16", listed("amx_bf16")),
    ]
    .map(|(name, present)| CpuFeature { name, present })
    .into()
}

#[cfg(target_arch = "aarch64")]
fn features(_: &Path) -> Vec<CpuFeature> {
    use std::arch::is_aarch64_feature_detected;
    [
        ("NEON", is_aarch64_feature_detected!("neon")),
        ("DOTPROD", is_aarch64_feature_detected!("dotprod")),
        ("I8MM", is_aarch64_feature_detected!("i8mm")),
        ("FP16", is_aarch64_feature_detected!("fp16")),
        ("BF16", is_aarch64_feature_detected!("bf16")),
        ("SVE", is_aarch64_feature_detected!("sve")),
    ]
    .map(|(name, present)| CpuFeature { name, present })
    .into()
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn features(_: &Path) -> Vec<CpuFeature> {
    Vec::new()
}

fn affinity(root: &Path) -> Option<String> {
    let status = std::fs::read_to_string(root.join("proc/self/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(|list| list.trim().to_owned())
}

/// The memory of the machine, in bytes. A limit on this process may be lower: [`CgroupLimits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MachineMemory {
    pub total_bytes: u64,
    /// Memory that can be used without swapping.
    pub available_bytes: u64,
    /// Swap, used or not.
    #[serde(skip)]
    pub swap_bytes: u64,
}

impl MachineMemory {
    /// Asks the system; `None` if it does not report the memory.
    pub fn read() -> Option<Self> {
        let mut system = System::new().ok()?;
        system.refresh_memory_specifics(MemoryRefreshKind::everything());
        let memory = Self {
            total_bytes: system.total_memory(),
            available_bytes: system.available_memory(),
            swap_bytes: system.total_swap(),
        };
        (memory.total_bytes > 0).then_some(memory)
    }

    /// The processes that the kernel has ended since the boot because memory was short, on the whole machine; `None` if
    /// it does not report them. `root` is the parent of `proc`.
    pub fn processes_ended(root: &Path) -> Option<u64> {
        let text = std::fs::read_to_string(root.join("proc/vmstat")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
    }

    /// The most memory that this process can have within the limits of its control group; `None` where it is not known.
    pub fn limit_of_process() -> Option<u64> {
        Some(Self::read()?.most_within(&CgroupLimits::read(Path::new("/"))))
    }

    /// The most memory that a process within `limits` can have, swap included.
    pub fn most_within(self, limits: &CgroupLimits) -> u64 {
        let swap = limits.swap_bytes.map_or(self.swap_bytes, |most| most.min(self.swap_bytes));
        limits.memory_bytes.map_or(self.total_bytes, |most| most.min(self.total_bytes)).saturating_add(swap)
    }
}

/// The file system that a folder is on, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DiskSpace {
    pub total_bytes: u64,
    /// Bytes that users other than root may still use.
    pub available_bytes: u64,
}

impl DiskSpace {
    /// Asks the system about the file system that `folder` is on.
    pub fn of(folder: &Path) -> io::Result<Self> {
        let facts = rustix::fs::statvfs(folder)?;
        let bytes = |blocks: u64| blocks.saturating_mul(facts.f_frsize);
        Ok(Self { total_bytes: bytes(facts.f_blocks), available_bytes: bytes(facts.f_bavail) })
    }

    /// The same for a folder that need not exist yet: it will be on the disk of its nearest existing parent.
    pub fn under(folder: &Path) -> io::Result<Self> {
        Self::of(folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(folder))
    }
}

/// The folder of a store, and the space that must stay free on its disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreFolder {
    /// The name in metrics.
    pub store: &'static str,
    pub folder: PathBuf,
    pub reserve_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_cores_memory_and_disk() {
        let cpu = Cpu::detect(Path::new("/"));
        assert!(cpu.usable_cores >= 1 && cpu.logical_cores >= cpu.usable_cores);
        assert!(!cpu.has("no such extension"));
        let memory = MachineMemory::read().unwrap();
        assert!(memory.total_bytes >= memory.available_bytes);
        let disk = DiskSpace::of(&std::env::temp_dir()).unwrap();
        assert!(disk.total_bytes >= disk.available_bytes);
        assert!(DiskSpace::of(Path::new("/no/such/folder")).is_err());
    }

    #[test]
    fn a_system_that_says_nothing_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Cpu::detect(folder.path()).affinity, None);
    }
}
