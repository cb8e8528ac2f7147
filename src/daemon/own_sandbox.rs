//! The sandbox of the daemon itself: none of its memory is both writable and executable. Child processes inherit that,
//! so the spawner, which was started before, starts the processes that load runtimes.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use ledge_isolation::{ChildStarter, ForkServer, SpawnerProcess};
use ledge_part::check::Finding;
use ledge_sandbox::{MechanismState, deny_writable_code};
use ledge_service::shutdown::Shutdown;
use tokio::sync::oneshot;

/// The name of the finding.
pub const FINDING: &str = "seal of the daemon";

/// The advice where there is no spawner.
const NO_SPAWNER_ADVICE: &str = "let the service manager or container allow new processes, and memory for them; then start \
                                 the service again";

/// The state of the sandbox, and the starter of other processes.
#[derive(Debug, Clone)]
pub struct DaemonSandbox(DaemonSandboxState);

#[derive(Debug, Clone)]
enum DaemonSandboxState {
    Sandboxed {
        spawner: ForkServer,
        code: MechanismState,
    },
    /// No spawner could be started, for this reason. Then the daemon has no sandbox, because its next program may get a
    /// spawner, which would inherit the sandbox.
    WithoutSpawner(Arc<str>),
}

impl DaemonSandbox {
    /// Puts this process into its sandbox. Call it before any store or key is opened. If the spawner could not be
    /// started, the daemon does everything except running models.
    pub fn apply(spawner: std::io::Result<SpawnerProcess>) -> anyhow::Result<Self> {
        let is_denied_already = spawner.as_ref().is_ok_and(SpawnerProcess::is_code_denied);
        let spawner = match spawner.and_then(SpawnerProcess::connect) {
            Ok(spawner) => spawner,
            Err(error) if is_denied_already => {
                return Err(error).context(
                    "the process that starts the processes of models is gone after the restart in place, and only a new start \
                     of the service gets another: the service manager starts it again, or start it yourself",
                );
            }
            Err(error) => {
                let reason = format!("the process that starts the processes of models cannot be started: {error}");
                tracing::error!(
                    name: "spawner.failed",
                    %reason,
                    advice = NO_SPAWNER_ADVICE,
                    "no model runs; everything else does"
                );
                return Ok(Self(DaemonSandboxState::WithoutSpawner(reason.into())));
            }
        };
        let code = if is_denied_already {
            MechanismState::InForce("since before a restart in place".to_owned())
        } else {
            deny()
        };
        if code.is_in_force() {
            tracing::info!(
                spawner = spawner.pid(),
                "the daemon is in its sandbox: no memory of it is both writable and executable"
            );
        } else {
            tracing::warn!(reason = %code, "the daemon is not in its sandbox: its memory may be written and executed");
        }
        Ok(Self(DaemonSandboxState::Sandboxed { spawner, code }))
    }

    /// Starts other processes of this program.
    pub fn starter(&self) -> ChildStarter {
        match &self.0 {
            DaemonSandboxState::Sandboxed { spawner, .. } => ChildStarter::Spawner(spawner.clone()),
            DaemonSandboxState::WithoutSpawner(reason) => ChildStarter::Unavailable(reason.clone()),
        }
    }

    /// Shuts the daemon down when the spawner ends. A new spawner would inherit the restrictions of this process, so
    /// neither this process nor its next program can start one.
    pub fn watch(&self, shutdown: &Shutdown) {
        let DaemonSandboxState::Sandboxed { spawner, .. } = &self.0 else { return };
        let (sender, ended) = oneshot::channel();
        // The receiver is dropped at the shutdown.
        spawner.on_end(move |end| drop(sender.send(end)));
        let stop = shutdown.clone();
        shutdown.spawn_essential("spawner", async move {
            tokio::select! {
                end = ended => Err(format!(
                    "the process that starts the processes of models {}, and only a new start of the service gets another: \
                     the service manager starts it again, or start it yourself",
                    end.unwrap_or_else(|_| "ended".to_owned())
                )),
                () = stop.requested() => Ok(()),
            }
        });
    }

    /// Leaves the spawner to the next program of this process, and returns the value of
    /// [`ledge_isolation::SPAWNER_VARIABLE`] for it.
    pub fn leave(&self) -> std::io::Result<Option<String>> {
        match &self.0 {
            DaemonSandboxState::Sandboxed { spawner, code } => spawner.leave(code.is_in_force()).map(Some),
            DaemonSandboxState::WithoutSpawner(_) => Ok(None),
        }
    }

    /// The finding about it.
    pub fn finding(&self) -> Finding {
        match &self.0 {
            DaemonSandboxState::Sandboxed { code, .. } if code.is_in_force() => {
                Finding::ok(FINDING, "in force: no memory of the daemon is both written and executed")
            }
            DaemonSandboxState::Sandboxed { code, .. } => absent(&code.to_string()),
            DaemonSandboxState::WithoutSpawner(reason) => {
                Finding::fail(FINDING, format!("no model runs, because {reason}"), NO_SPAWNER_ADVICE)
            }
        }
    }
}

fn deny() -> MechanismState {
    #[cfg(feature = "in-process")]
    if ledge_models::scheduling::in_process::is_asked_for() {
        return MechanismState::Absent("tests run models in the daemon".to_owned());
    }
    deny_writable_code()
}

/// The finding to expect of a daemon, where none runs that could be asked.
pub fn expected() -> Finding {
    // The kernel has the file where it can filter system calls.
    if Path::new("/proc/sys/kernel/seccomp/actions_avail").exists() {
        Finding::ok(FINDING, "a daemon with these settings has no memory that is both written and executed")
    } else {
        absent("not in force: not available in this kernel")
    }
}

fn absent(state: &str) -> Finding {
    Finding::warn(
        FINDING,
        format!("{state}; an attacker who can write to the memory of the daemon could run code there"),
        "use a kernel with seccomp (CONFIG_SECCOMP_FILTER=y), and let the service manager or container allow the system call \
         seccomp, as the unit of the package does",
    )
}
