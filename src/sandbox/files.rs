//! Landlock: the files, ports, devices and sockets that a process can reach.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, PathFd, RestrictionStatus, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use crate::report::MechanismState;

/// The newest interface of Landlock. All of its rights that the kernel has are denied.
const NEWEST: ABI = ABI::V10;

/// The access that Landlock has no right for, in words for people.
const LEFT_OPEN: &str = "that a path exists, its size and its times are not hidden (stat)";

/// Files of the system that a runtime reads, measured with both: libraries, the time zone of its log, and the facts
/// about processors, caches, memory and limits by which it chooses kernels and threads. They are the same for every
/// program of this machine, except `/proc/self`, which is this process.
pub const SYSTEM_FILES: &[&str] = &[
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/share/zoneinfo",
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/sys/vm/nr_hugepages",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/cpu_atom",
    "/sys/devices/cpu_core",
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
    "/sys/fs/cgroup",
    "/sys/kernel/mm/hugepages",
    "/sys/kernel/mm/transparent_hugepage",
];

/// The files and folders of [`SYSTEM_FILES`] below `/proc`. Kept open, because a rule applies to the kernel's present
/// entry of a file, and when memory is short the kernel drops entries without an open handle: the new entry would have
/// no rule.
static KEPT_OPEN: OnceLock<Vec<PathFd>> = OnceLock::new();

/// The states of the mechanisms of Landlock.
pub(crate) struct Landlock {
    pub files: MechanismState,
    pub tcp_ports: MechanismState,
    pub device_commands: MechanismState,
    pub sockets_and_signals: MechanismState,
}

impl Landlock {
    fn absent(reason: &str) -> Self {
        let absent = || MechanismState::Absent(reason.to_owned());
        Self { files: absent(), tcp_ports: absent(), device_commands: absent(), sockets_and_signals: absent() }
    }

    /// The states, for a process that has other threads unless `alone`.
    pub(crate) fn on_all_threads(mut self, alone: bool) -> Self {
        if !alone && self.files.is_in_force() {
            self.files = MechanismState::Partial("threads from before the sandbox are not confined".to_owned());
        }
        self
    }
}

/// Closes everything to this process, except that it may read `readable` and write to `writable`.
pub(crate) fn close(readable: &[PathBuf], writable: &[PathBuf], system_files: bool) -> Landlock {
    let mut opened = OpenedPaths::default();
    for path in readable {
        opened.add(path, read_rights());
    }
    for path in writable {
        opened.add(path, write_rights());
    }
    if system_files {
        for path in SYSTEM_FILES.iter().map(Path::new).filter(|path| path.exists()) {
            opened.add(path, read_rights());
        }
        let forgotten = SYSTEM_FILES.iter().filter(|path| path.starts_with("/proc/"));
        let _ = KEPT_OPEN.set(forgotten.filter_map(|path| PathFd::new(path).ok()).collect());
    }

    match restrict(opened.rules) {
        Ok(status) => states(&status, &opened.failures),
        Err(error) => Landlock::absent(&error.to_string()),
    }
}

/// Paths with their rights.
#[derive(Default)]
struct OpenedPaths {
    rules: Vec<PathBeneath<PathFd>>,
    /// The paths that could not be opened, and why.
    failures: Vec<String>,
}

impl OpenedPaths {
    fn add(&mut self, path: &Path, rights: BitFlags<AccessFs>) {
        let rights = if path.is_dir() { rights } else { rights & AccessFs::from_file(NEWEST) };
        match PathFd::new(path) {
            Ok(opened) => self.rules.push(PathBeneath::new(opened, rights)),
            Err(error) => self.failures.push(error.to_string()),
        }
    }
}

fn read_rights() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::ReadDir
}

/// Everything that can be done with files and folders within one folder. No program, device, socket, pipe or link.
fn write_rights() -> BitFlags<AccessFs> {
    read_rights()
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
}

fn restrict(rules: Vec<PathBeneath<PathFd>>) -> Result<RestrictionStatus, RulesetError> {
    let ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?;
    ruleset.create()?.add_rules(rules.into_iter().map(Ok::<_, RulesetError>))?.restrict_self()
}

/// The states, from the answer of the kernel. Each interface of Landlock includes the former one.
fn states(status: &RestrictionStatus, failures: &[String]) -> Landlock {
    let LandlockStatus::Available { effective_abi: abi, .. } = status.landlock else {
        return Landlock::absent(match status.landlock {
            LandlockStatus::NotEnabled => {
                "Landlock is in this kernel, but not enabled: add landlock to the kernel's lsm="
            }
            _ => {
                "this kernel has no Landlock (Linux 5.13), or the service manager or a container denies its system calls \
                 (SystemCallFilter=)"
            }
        });
    };
    if status.ruleset == RulesetStatus::NotEnforced {
        return Landlock::absent("the kernel did not accept the rules");
    }

    let since = |first: ABI, linux: &str, extent: &str| {
        let reason = || format!("this kernel has Landlock {abi}; it needs {first} (Linux {linux})");
        if abi >= first { MechanismState::InForce(extent.to_owned()) } else { MechanismState::Absent(reason()) }
    };
    let mut files = format!("Landlock {abi}; {LEFT_OPEN}");
    if abi < ABI::V3 {
        // Linux 6.2.
        files.push_str("; the list of system calls denies the truncation of files that it may only read");
    }
    if !failures.is_empty() {
        files.push_str("; closed too, for they could not be opened: ");
        files.push_str(&failures.join(", "));
    }
    Landlock {
        files: MechanismState::InForce(files),
        tcp_ports: since(ABI::V4, "6.7", "none"),
        device_commands: since(ABI::V5, "6.10", "none"),
        sockets_and_signals: since(ABI::V6, "6.12", "none outside"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_to_write_has_no_right_to_make_or_run_anything_but_files() {
        let never = AccessFs::Execute
            | AccessFs::MakeSock
            | AccessFs::MakeFifo
            | AccessFs::MakeSym
            | AccessFs::MakeChar
            | AccessFs::MakeBlock
            | AccessFs::Refer
            | AccessFs::IoctlDev
            | AccessFs::ResolveUnix;
        assert!((write_rights() & never).is_empty());
        assert_eq!(write_rights() | never, AccessFs::from_all(NEWEST));
        assert!((read_rights() & AccessFs::from_write(NEWEST)).is_empty());
    }
}
