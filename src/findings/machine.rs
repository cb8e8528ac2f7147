//! The checks of the CPU, the limits on this process, memory and disk.

use std::fmt::Write as _;
use std::path::Path;

use ledge_base::telemetry::system::{CgroupLimits, Cpu, DiskSpace, Int8Arithmetic, MachineMemory};
use ledge_part::check::size;
use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::config::Config;
use ledge_part::check::{Finding, FindingMeasure};

/// The free memory below which even small models may fail to load, in bytes. Two runtimes and one model of 20 MB need
/// about half of it.
const LOW_MEMORY_BYTES: u64 = 512 << 20;

/// The free disk space below which there may be no room for a new version of a model next to the old one, in bytes.
const LOW_DISK_BYTES: u64 = 1 << 30;

/// The free disk space below which writing the state of the box may fail, in bytes.
pub const FULL_DISK_BYTES: u64 = 16 << 20;

/// Checks the machine. `root` is the folder that `proc` and `sys` are in.
pub fn checks(config: &Config, root: &Path) -> Vec<Finding> {
    let cpu = Cpu::detect(root);
    let limits = CgroupLimits::read(root);
    vec![
        instructions(&cpu, Int8Arithmetic::here()),
        cores(&cpu, &limits, config.runtimes.threads),
        memory(MachineMemory::read(), &limits),
        state(&config.state.path),
    ]
}

fn instructions(cpu: &Cpu, int8: Int8Arithmetic) -> Finding {
    let listed = |present| -> Vec<&str> {
        cpu.features.iter().filter(|feature| feature.present == present).map(|feature| feature.name).collect()
    };
    let model = if cpu.model.is_empty() { std::env::consts::ARCH } else { &cpu.model };
    let mut detail = format!("{model}: has {}", list(&listed(true)));
    if !listed(false).is_empty() {
        let _ = write!(detail, "; has no {}", list(&listed(false)));
    }

    let saturates = int8 == Int8Arithmetic::Saturates;
    detail.push_str(if saturates {
        "\nint8 models: exact if their weights were made for any CPU (models/quantize, and the models that come with \
         Ledge); with weights of the full range OpenVINO gives wrong sums, and ONNX Runtime is exact with slower \
         instructions"
    } else {
        "\nint8 models are computed exactly"
    });

    let x86 = std::env::consts::ARCH == "x86_64";
    if x86 && !cpu.has("AVX2") {
        return Finding::warn(
            "cpu",
            detail,
            "without AVX2 every model runs several times slower: use a CPU made since 2015, or give the virtual \
             machine the host's CPU model (host-passthrough)",
        );
    }
    if saturates {
        return Finding::warn(
            "cpu",
            detail,
            "without VNNI an int8 model may be no faster than its float32 original, and one made elsewhere may give \
             wrong answers: give it [[golden]] inputs with the answers of the float model, and measure both; give a \
             virtual machine the host's CPU model (host-passthrough)",
        );
    }
    if std::env::consts::ARCH == "aarch64" && !cpu.has("DOTPROD") {
        return Finding::warn(
            "cpu",
            detail,
            "without DOTPROD an int8 model may be no faster than its float32 original: measure both, and give a \
             virtual machine the host's CPU model (host-passthrough)",
        );
    }
    Finding::ok("cpu", detail)
}

fn cores(cpu: &Cpu, limits: &CgroupLimits, threads: usize) -> Finding {
    let mut detail = format!("{} logical", cpu.logical_cores);
    if let Some(physical) = cpu.physical_cores {
        let _ = write!(detail, ", {physical} physical");
    }
    if let Some(affinity) = &cpu.affinity {
        let _ = write!(detail, "; this process may run on {affinity}");
    }
    if let Some(cpus) = limits.cpus {
        let _ = write!(detail, "; its control group may use the time of {cpus:.2} cores");
    }
    let usable = cpu.usable_cores;
    if threads > usable {
        let advice = format!(
            "runtimes.threads is {threads}, more than the {usable} cores of this process, so threads wait for each \
             other: set it to {usable}, or 0"
        );
        return Finding::warn("cores", detail, advice);
    }
    if limits.cpus.is_some_and(|cpus| cpus < 1.0) {
        let advice = "with less than the time of one core, a call is paused in each scheduling period: raise CPUQuota= \
                      of the unit, or the container's CPU limit, to a whole number of cores";
        return Finding::warn("cores", detail, advice);
    }
    Finding::ok("cores", detail)
}

fn memory(memory: Option<MachineMemory>, limits: &CgroupLimits) -> Finding {
    let Some(memory) = memory else { return Finding::ok("memory", "the system does not report its memory") };
    let mut detail = format!("{} of {} free", size(memory.available_bytes), size(memory.total_bytes));
    let mut free = memory.available_bytes;
    if let Some(limit) = limits.memory_bytes.filter(|limit| *limit < memory.total_bytes) {
        let _ = write!(detail, "; the control group may use {}", size(limit));
        free = free.min(limit);
    }
    if free < LOW_MEMORY_BYTES {
        let advice = format!(
            "with less than {} some models may not load: stop other programs, or raise the limit (MemoryMax= of the \
             unit, or that of the container)",
            size(LOW_MEMORY_BYTES)
        );
        return Finding::warn("memory", detail, advice).measured(FindingMeasure::FreeBytes(free));
    }
    Finding::ok("memory", detail).measured(FindingMeasure::FreeBytes(free))
}

fn state(folder: &Path) -> Finding {
    let shown = folder.display();
    let Some(existing) = folder.ancestors().find(|folder| folder.is_dir()) else {
        return Finding::fail("state", format!("{shown}: no such folder"), "create it, or set state.path");
    };
    let disk = match DiskSpace::of(existing) {
        Ok(disk) => disk,
        Err(error) => {
            return Finding::fail("state", format!("{shown}: {error}"), "set state.path to a folder on a local disk");
        }
    };
    state_on(folder, existing, &disk).measured(FindingMeasure::FreeBytes(disk.available_bytes))
}

/// The finding about a folder on a disk; `existing` is the part of it that is there.
fn state_on(folder: &Path, existing: &Path, disk: &DiskSpace) -> Finding {
    let (free, total) = (size(disk.available_bytes), size(disk.total_bytes));
    let detail = format!("{}: {free} of {total} free", folder.display());
    if disk.available_bytes < FULL_DISK_BYTES {
        return Finding::fail("state", detail, "free disk space, or set state.path to a folder on another disk");
    }
    let may_write = access(existing, Access::WRITE_OK);
    if may_write == Err(Errno::ROFS) {
        let advice = "the file system is read-only, as after an error of the disk: models answer, and nothing else is \
                      kept. Look for the error in `dmesg`; when it can be written again (`mount -o remount,rw`), the \
                      daemon goes on by itself";
        return Finding::fail("state", detail, advice);
    }
    if may_write.is_err() {
        let advice = "this user may not write there; if the service runs as another user, run this command as that \
                      user: sudo -u ledge ledge doctor";
        return Finding::warn("state", detail, advice);
    }
    if disk.available_bytes < LOW_DISK_BYTES {
        return Finding::warn(
            "state",
            detail,
            "free disk space: a new version of a model is stored next to the old one",
        );
    }
    Finding::ok("state", detail)
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "none of the instruction sets that Ledge checks".into() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledge_base::telemetry::system::CpuFeature;
    use ledge_part::check::FindingStatus;

    fn cpu(usable_cores: usize, features: &[&'static str]) -> Cpu {
        Cpu {
            model: "Test".into(),
            features: features.iter().map(|name| CpuFeature { name, present: true }).collect(),
            physical_cores: Some(2),
            logical_cores: 4,
            affinity: Some("0-3".into()),
            usable_cores,
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_cpu_without_int8_instructions_is_a_warning() {
        let check = |features: &[&'static str], int8| instructions(&cpu(4, features), int8);
        let good = check(&["AVX2", "AVX-VNNI"], Int8Arithmetic::Exact);
        assert!(
            good.status == FindingStatus::Ok && good.detail.ends_with("int8 models are computed exactly"),
            "{good:?}"
        );
        for features in [&["AVX2"][..], &["AVX2", "AVX-512"]] {
            let warned = check(features, Int8Arithmetic::Saturates);
            assert_eq!(warned.status, FindingStatus::Warn, "{warned:?}");
        }
        assert_eq!(check(&[], Int8Arithmetic::Saturates).status, FindingStatus::Warn);
    }

    #[test]
    fn more_threads_than_cores_and_less_than_one_core_are_warnings() {
        let quota = |cpus| CgroupLimits { cpus, ..CgroupLimits::default() };
        let good = cores(&cpu(4, &[]), &quota(Some(1.5)), 4);
        let detail =
            "4 logical, 2 physical; this process may run on 0-3; its control group may use the time of 1.50 cores";
        assert_eq!(good, Finding::ok("cores", detail));
        assert_eq!(cores(&cpu(4, &[]), &quota(None), 5).status, FindingStatus::Warn);
        assert_eq!(cores(&cpu(1, &[]), &quota(Some(0.5)), 0).status, FindingStatus::Warn);
    }

    #[test]
    fn a_limit_below_the_memory_counts() {
        let machine = Some(MachineMemory { total_bytes: 8 << 30, available_bytes: 4 << 30, swap_bytes: 0 });
        let limited = |memory_bytes| memory(machine, &CgroupLimits { memory_bytes, ..CgroupLimits::default() });
        let good = Finding::ok("memory", "4.0 GiB of 8.0 GiB free").measured(FindingMeasure::FreeBytes(4 << 30));
        assert_eq!(limited(None), good);
        assert_eq!(limited(Some(1 << 40)), good);
        assert_eq!(limited(Some(256 << 20)).status, FindingStatus::Warn);
    }

    #[test]
    fn a_state_folder_that_will_be_made_is_judged_by_the_disk_it_will_be_on() {
        let folder = tempfile::tempdir().unwrap();
        let check = state(&folder.path().join("not/yet"));
        assert!(check.status != FindingStatus::Fail && check.detail.contains(" free"), "{check:?}");
        assert_eq!(state(Path::new("nowhere")).status, FindingStatus::Fail);
    }
}
