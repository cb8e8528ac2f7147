//! The mechanisms of the sandbox, each in force or not, in words for people.

use std::fmt;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// One mechanism of the kernel that confines a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mechanism {
    /// Limits of memory, open files, file size and message queues.
    ResourceLimits,
    /// A limit of the number of threads.
    ThreadLimit,
    /// No program that it starts could gain privileges.
    NoNewPrivileges,
    /// Its user has no rights over anything outside.
    UserNamespace,
    /// A network without interfaces, and without the abstract sockets of others.
    NetworkNamespace,
    /// Separate shared memory and message queues.
    IpcNamespace,
    /// Landlock: files and folders.
    Files,
    /// Landlock: TCP ports.
    TcpPorts,
    /// Landlock: commands to devices.
    DeviceCommands,
    /// Landlock: abstract sockets of processes outside, and signals to them.
    SocketsAndSignals,
    /// Its memory is in no core file, and closed to processes of the same user.
    PrivateMemory,
    /// No capability of root.
    Capabilities,
    /// seccomp: a list of allowed system calls.
    SystemCalls,
}

impl Mechanism {
    /// All of them, in the order in which they are reported.
    pub const ALL: [Self; 13] = [
        Self::ResourceLimits,
        Self::ThreadLimit,
        Self::NoNewPrivileges,
        Self::UserNamespace,
        Self::NetworkNamespace,
        Self::IpcNamespace,
        Self::Files,
        Self::TcpPorts,
        Self::DeviceCommands,
        Self::SocketsAndSignals,
        Self::PrivateMemory,
        Self::Capabilities,
        Self::SystemCalls,
    ];

    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::ResourceLimits => "resource limits",
            Self::ThreadLimit => "limit of threads",
            Self::NoNewPrivileges => "no new privileges",
            Self::UserNamespace => "user namespace",
            Self::NetworkNamespace => "network namespace",
            Self::IpcNamespace => "IPC namespace",
            Self::Files => "files (Landlock)",
            Self::TcpPorts => "TCP (Landlock)",
            Self::DeviceCommands => "device commands (Landlock)",
            Self::SocketsAndSignals => "abstract sockets and signals (Landlock)",
            Self::PrivateMemory => "private memory",
            Self::Capabilities => "no capabilities",
            Self::SystemCalls => "system calls (seccomp)",
        }
    }

    /// Returns true if the sandbox has a gap without it that no other mechanism closes.
    pub fn is_essential(self) -> bool {
        match self {
            Self::ResourceLimits | Self::NoNewPrivileges | Self::Files | Self::Capabilities | Self::SystemCalls => true,
            // System calls that would need these are denied already.
            Self::ThreadLimit
            | Self::UserNamespace
            | Self::NetworkNamespace
            | Self::IpcNamespace
            | Self::TcpPorts
            | Self::DeviceCommands
            | Self::SocketsAndSignals
            | Self::PrivateMemory => false,
        }
    }

    /// The thing that only the list of system calls keeps from the process without this mechanism; `None` where that
    /// list does not take its place.
    pub fn covered_by_system_calls(self) -> Option<&'static str> {
        match self {
            Self::UserNamespace => Some("the rights of its user"),
            Self::NetworkNamespace => Some("the network"),
            Self::IpcNamespace => Some("the shared memory of other processes"),
            Self::TcpPorts => Some("TCP"),
            Self::DeviceCommands => Some("commands to devices"),
            Self::SocketsAndSignals => Some("abstract sockets of other processes and signals to them"),
            Self::ResourceLimits
            | Self::ThreadLimit
            | Self::NoNewPrivileges
            | Self::Files
            | Self::PrivateMemory
            | Self::Capabilities
            | Self::SystemCalls => None,
        }
    }
}

/// The state of a mechanism.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MechanismState {
    /// With the extent of it, for people.
    InForce(String),
    /// With the part that is not in force, and why.
    Partial(String),
    /// With the reason.
    Absent(String),
}

impl MechanismState {
    /// The state after a call of the kernel.
    pub(crate) fn after<E: Into<Errno>>(result: Result<(), E>, in_force: impl Into<String>) -> Self {
        match result {
            Ok(()) => Self::InForce(in_force.into()),
            Err(error) => Self::Absent(refusal(error.into())),
        }
    }

    pub fn is_in_force(&self) -> bool {
        matches!(self, Self::InForce(_))
    }
}

impl fmt::Display for MechanismState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InForce(extent) if extent.is_empty() => f.write_str("in force"),
            Self::InForce(extent) => write!(f, "in force: {extent}"),
            Self::Partial(missing) => write!(f, "partly in force: {missing}"),
            Self::Absent(reason) => write!(f, "not in force: {reason}"),
        }
    }
}

/// The reason why the kernel did not do it.
pub(crate) fn refusal(error: Errno) -> String {
    match error {
        Errno::PERM | Errno::ACCESS => format!(
            "forbidden by a setting of this system, its service manager (RestrictNamespaces=, SystemCallFilter=) or its \
             container ({error})"
        ),
        Errno::NOSYS | Errno::INVAL | Errno::OPNOTSUPP => format!("not available in this kernel ({error})"),
        Errno::NOSPC | Errno::USERS => {
            format!("this system allows no more of them (user.max_user_namespaces and the like: {error})")
        }
        error => error.to_string(),
    }
}

/// A mechanism with its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MechanismReport {
    pub mechanism: Mechanism,
    pub state: MechanismState,
}

impl MechanismReport {
    /// The consequence, where the mechanism is not wholly in force.
    pub fn leaves_open(&self) -> String {
        if let Some(what) = self.mechanism.covered_by_system_calls() {
            return format!("only the list of system calls keeps {what} from the process");
        }
        let words = match (self.mechanism, &self.state) {
            (Mechanism::ThreadLimit, MechanismState::Partial(_)) => {
                "the process can keep other processes of models from starting threads, and the daemon goes on"
            }
            (Mechanism::ThreadLimit, _) => {
                "the process can start threads until memory or the limits of its service (TasksMax=) end that"
            }
            (Mechanism::ResourceLimits, _) => "the process can take all memory, or fill the disk",
            (Mechanism::NoNewPrivileges, _) => "a program that the process started could gain privileges",
            (Mechanism::Files, _) => "the process can open every file that Ledge's user can open",
            (Mechanism::PrivateMemory, _) => "a core file could hold what callers sent",
            (Mechanism::Capabilities, _) => "the process has the rights of root that Ledge has",
            (Mechanism::SystemCalls, _) => {
                "the process can start programs, open connections and signal other processes"
            }
            // Those that the list of system calls covers.
            _ => "",
        };
        words.to_owned()
    }
}

impl fmt::Display for MechanismReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.mechanism.name(), self.state)
    }
}

/// The mechanisms of a sandbox, in the order of [`Mechanism::ALL`], each once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SandboxReport {
    pub findings: Vec<MechanismReport>,
}

impl SandboxReport {
    pub fn state(&self, mechanism: Mechanism) -> Option<&MechanismState> {
        self.findings.iter().find(|finding| finding.mechanism == mechanism).map(|finding| &finding.state)
    }

    /// The mechanisms that are not wholly in force.
    pub fn lacking(&self) -> impl Iterator<Item = &MechanismReport> {
        self.findings.iter().filter(|finding| !finding.state.is_in_force())
    }

    /// The report of several processes: of each mechanism the state in the first one where it is not wholly in force.
    /// `None` without a process.
    pub fn weakest(reports: impl IntoIterator<Item = Self>) -> Option<Self> {
        let weaker = |one: Self, other: Self| {
            let weaker_of =
                |(one, other): (MechanismReport, MechanismReport)| if one.state.is_in_force() { other } else { one };
            Self { findings: one.findings.into_iter().zip(other.findings).map(weaker_of).collect() }
        };
        reports.into_iter().reduce(weaker)
    }

    /// Returns true if no essential mechanism is absent.
    pub fn is_tight(&self) -> bool {
        let absent =
            |mechanism| !matches!(self.state(mechanism), Some(MechanismState::InForce(_) | MechanismState::Partial(_)));
        !Mechanism::ALL.into_iter().filter(|mechanism| mechanism.is_essential()).any(absent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(state: impl Fn(Mechanism) -> MechanismState) -> SandboxReport {
        let finding = |mechanism| MechanismReport { mechanism, state: state(mechanism) };
        SandboxReport { findings: Mechanism::ALL.map(finding).into() }
    }

    #[test]
    fn a_sandbox_without_an_essential_mechanism_is_not_tight() {
        let without = |missing: Mechanism| {
            report(|mechanism| match mechanism {
                mechanism if mechanism == missing => MechanismState::Absent("no".to_owned()),
                _ => MechanismState::InForce(String::new()),
            })
        };
        for mechanism in Mechanism::ALL {
            assert_eq!(without(mechanism).is_tight(), !mechanism.is_essential(), "{mechanism:?}");
            assert_eq!(without(mechanism).lacking().count(), 1);
        }
        assert!(!SandboxReport { findings: Vec::new() }.is_tight());
    }

    #[test]
    fn the_report_of_several_processes_has_what_any_of_them_lacks() {
        let lacks = |missing: Mechanism| {
            report(|mechanism| match mechanism {
                mechanism if mechanism == missing => MechanismState::Absent(format!("no {}", missing.name())),
                _ => MechanismState::InForce(String::new()),
            })
        };
        let all =
            SandboxReport::weakest([lacks(Mechanism::Files), lacks(Mechanism::IpcNamespace), lacks(Mechanism::Files)]);
        let all = all.unwrap();
        let lacking: Vec<_> = all.lacking().map(|finding| finding.mechanism).collect();
        assert_eq!(lacking, [Mechanism::IpcNamespace, Mechanism::Files]);
        assert_eq!(SandboxReport::weakest([]), None);
    }

    #[test]
    fn each_mechanism_that_is_missing_leaves_something_open_in_words() {
        for mechanism in Mechanism::ALL {
            let finding = MechanismReport { mechanism, state: MechanismState::Absent(String::new()) };
            assert!(!finding.leaves_open().is_empty(), "{mechanism:?}");
            assert!(!mechanism.is_essential() || mechanism.covered_by_system_calls().is_none(), "{mechanism:?}");
        }
    }

    #[test]
    fn a_report_comes_back_from_its_json() {
        let report = report(|mechanism| match mechanism {
            Mechanism::Files => MechanismState::Partial("truncation".to_owned()),
            Mechanism::UserNamespace => MechanismState::Absent(refusal(Errno::PERM)),
            _ => MechanismState::InForce("all".to_owned()),
        });
        let json = serde_json::to_string(&report).unwrap();
        assert!(json.contains(r#"{"mechanism":"files","state":{"partial":"truncation"}}"#), "{json}");
        assert_eq!(serde_json::from_str::<SandboxReport>(&json).unwrap(), report);
    }
}
