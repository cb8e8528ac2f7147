//! The sandbox of a process, and its mechanisms one after the other.

use std::path::PathBuf;

use rustix::process::DumpableBehavior;

use crate::limits::SandboxLimits;
use crate::report::{Mechanism, MechanismReport, MechanismState, SandboxReport};
use crate::{files, filter, limits, namespaces};

/// The permissions of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// Folders and files that it may read. It may map libraries from there, but not run them as programs.
    pub readable: Vec<PathBuf>,
    /// Folders in which it may also create, change, rename and remove files and folders.
    pub writable: Vec<PathBuf>,
    /// Set to let it read the system's libraries and facts about this machine, as runtimes do: [`crate::SYSTEM_FILES`].
    pub system_files: bool,
    pub limits: SandboxLimits,
}

impl Sandbox {
    /// Puts this process into the sandbox for the rest of its life. Call it while the process has one thread: some
    /// mechanisms apply only to the calling thread and those that it starts.
    ///
    /// A missing mechanism does not prevent the others. The caller decides by the report.
    pub fn apply(self) -> SandboxReport {
        let alone = limits::thread_count() == Some(1);
        // Inside the namespace no user has a name.
        let is_root = rustix::process::geteuid().is_root();

        // A new user namespace counts threads from one again, so it comes before the limit of threads. The other
        // namespaces need the capabilities of the first.
        let [user, network, ipc] = namespaces::unshare();
        let threads = limits::limit_threads(self.limits.threads, &user, is_root);
        let resources = limits::limit_resources(self.limits);
        let no_new_privileges =
            MechanismState::after(rustix::thread::set_no_new_privs(true), "a program that it started would gain none");

        let landlock = files::close(&self.readable, &self.writable, self.system_files).on_all_threads(alone);
        let memory = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
        let memory = MechanismState::after(memory, "no core file, closed to processes of the same user");
        let capabilities = namespaces::drop_capabilities();

        // Applied last, because it denies system calls that the others need.
        let opens_files = self.system_files || !self.readable.is_empty() || !self.writable.is_empty();
        let system_calls = filter::allow_listed(opens_files);

        let states = [
            (Mechanism::ResourceLimits, resources),
            (Mechanism::ThreadLimit, threads),
            (Mechanism::NoNewPrivileges, no_new_privileges),
            (Mechanism::UserNamespace, user),
            (Mechanism::NetworkNamespace, network),
            (Mechanism::IpcNamespace, ipc),
            (Mechanism::Files, landlock.files),
            (Mechanism::TcpPorts, landlock.tcp_ports),
            (Mechanism::DeviceCommands, landlock.device_commands),
            (Mechanism::SocketsAndSignals, landlock.sockets_and_signals),
            (Mechanism::PrivateMemory, memory),
            (Mechanism::Capabilities, capabilities),
            (Mechanism::SystemCalls, system_calls),
        ];
        SandboxReport {
            findings: states.into_iter().map(|(mechanism, state)| MechanismReport { mechanism, state }).collect(),
        }
    }
}
