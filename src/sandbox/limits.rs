//! Limits of resources.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};

use crate::report::{MechanismState, refusal};

/// The resources that it may take. Nothing raises them again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SandboxLimits {
    /// Memory that it may reserve, in bytes. Files and shared memory that it maps do not count.
    pub data_bytes: u64,
    pub open_files: u64,
    /// Size of the largest file that it may write, in bytes. SIGXFSZ ends a process that writes beyond it, unless the
    /// process ignores that signal.
    pub file_bytes: u64,
    /// Threads, including the first.
    pub threads: u64,
}

/// The number of threads of this process, if the system reports it.
pub(crate) fn thread_count() -> Option<usize> {
    std::fs::read_dir("/proc/self/task").ok().map(Iterator::count)
}

/// Sets the limits except that of threads, soft and hard.
pub(crate) fn limit_resources(limits: SandboxLimits) -> MechanismState {
    let SandboxLimits { data_bytes, open_files, file_bytes, threads: _ } = limits;
    let wanted = [
        (Resource::Data, data_bytes),
        (Resource::Nofile, open_files),
        (Resource::Fsize, file_bytes),
        // A core file would contain data that callers sent.
        (Resource::Core, 0),
        // Memory of the kernel that counts against no other limit.
        (Resource::Msgqueue, 0),
    ];
    let set = wanted.into_iter().try_for_each(|(resource, most)| limit(resource, most));
    MechanismState::after(
        set,
        format!("{data_bytes} bytes of memory, {open_files} open files, files of {file_bytes} bytes"),
    )
}

/// Limits the threads. The kernel counts the threads of a user in a namespace, and does not limit those of root.
/// Without a separate namespace the count includes Ledge's threads, so the process gets three quarters of its user's
/// limit: the daemon, which may use all of it, continues however many threads this process starts.
pub(crate) fn limit_threads(most: u64, user_namespace: &MechanismState, is_root: bool) -> MechanismState {
    if is_root {
        return MechanismState::Absent("Ledge runs as root, and the kernel does not limit root's threads".to_owned());
    }
    if user_namespace.is_in_force() {
        return MechanismState::after(limit(Resource::Nproc, most), format!("{most} threads"));
    }
    let Some(all) = rustix::process::getrlimit(Resource::Nproc).maximum else {
        return MechanismState::Absent(
            "there is no user namespace, so the threads of Ledge itself count, and it may have any number (LimitNPROC=)"
                .to_owned(),
        );
    };
    let most = all / 4 * 3;
    match limit(Resource::Nproc, most) {
        Ok(()) => MechanismState::Partial(format!(
            "there is no user namespace, so the threads of Ledge itself count: {most} together, of {all} that its user may have"
        )),
        Err(error) => MechanismState::Absent(refusal(error)),
    }
}

fn limit(resource: Resource, most: u64) -> Result<(), Errno> {
    let most = rustix::process::getrlimit(resource).maximum.map_or(most, |hard| most.min(hard));
    rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })
}
