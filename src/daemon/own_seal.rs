//! The seal of the daemon itself: no memory of it is both written and executed. Whatever it would start inherits that, so
//! the spawner, which was started before, starts the processes that load runtimes.

use std::path::Path;

use anyhow::Context;
use ledge_isolation::{Isolation, Spawner, SpawnerProcess, Starter};
use ledge_part::check::Check;
use ledge_sandbox::{State, deny_writable_code};
use ledge_service::limited_process::THIS_PROGRAM;
use ledge_service::shutdown::Shutdown;
use tokio::sync::oneshot;

/// The name of the finding.
pub const FINDING: &str = "seal of the daemon";

/// The state of the seal, and the starter of other processes.
#[derive(Debug, Clone)]
pub struct OwnSeal {
    /// `None` where models may run in this process.
    sealed: Option<Sealed>,
}

#[derive(Debug, Clone)]
struct Sealed {
    spawner: Spawner,
    code: State,
}

impl OwnSeal {
    /// Seals this process, unless `isolation` lets models run in it: OpenVINO writes code. To be called before any store
    /// or key is opened.
    ///
    /// A restart in place cannot take the seal off. After one, `isolation` becomes [`Isolation::Process`] where it is
    /// none, until the service is started again.
    pub fn apply(isolation: &mut Isolation, spawner: std::io::Result<SpawnerProcess>) -> anyhow::Result<Self> {
        let is_denied_already = spawner.as_ref().is_ok_and(SpawnerProcess::is_code_denied);
        if *isolation == Isolation::None && !is_denied_already {
            // A spawner that is not needed ends with its handle, and is waited for.
            if let Ok(process) = spawner {
                let _ = process.connect();
            }
            return Ok(Self { sealed: None });
        }
        if *isolation == Isolation::None {
            tracing::warn!(
                "runtimes.isolation = none takes effect when the service is stopped and started again: until then models \
                 run in a process of their own, because a restart in place keeps what the daemon denies itself"
            );
            *isolation = Isolation::Process;
        }

        let spawner = spawner.and_then(SpawnerProcess::connect);
        let spawner = spawner.context(
            "the process that starts the processes of models cannot be started; runtimes.isolation = none runs models in the \
             daemon",
        )?;
        let code = if is_denied_already {
            State::InForce("since before a restart in place".to_owned())
        } else {
            deny_writable_code()
        };
        if code.is_in_force() {
            tracing::info!(
                spawner = spawner.pid(),
                "the daemon is sealed: no memory of it is both written and executed"
            );
        } else {
            tracing::warn!(reason = %code, "the daemon is not sealed: its memory may be written and executed");
        }
        Ok(Self { sealed: Some(Sealed { spawner, code }) })
    }

    /// Starts other processes of this program.
    pub fn starter(&self) -> Starter {
        match &self.sealed {
            Some(Sealed { spawner, .. }) => Starter::Spawner(spawner.clone()),
            None => Starter::Direct(THIS_PROGRAM.into()),
        }
    }

    /// True when this process cannot write code.
    pub fn is_code_denied(&self) -> bool {
        self.sealed.as_ref().is_some_and(|sealed| sealed.code.is_in_force())
    }

    /// Ends the daemon in order when the spawner ends: it inherits what this process is denied, so this process cannot
    /// start another one, and neither can its next program.
    pub fn watch(&self, shutdown: &Shutdown) {
        let Some(Sealed { spawner, .. }) = &self.sealed else { return };
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
        self.sealed.as_ref().map(|sealed| sealed.spawner.leave(sealed.code.is_in_force())).transpose()
    }

    /// The finding about it; `None` where models run in this process, which is a finding of its own.
    pub fn finding(&self) -> Option<Check> {
        let Sealed { code, .. } = self.sealed.as_ref()?;
        Some(if code.is_in_force() {
            Check::ok(FINDING, "in force: no memory of the daemon is both written and executed")
        } else {
            absent(&code.to_string())
        })
    }
}

/// The finding to expect of a daemon that has this setting, where none runs that could be asked.
pub fn expected(isolation: Isolation) -> Option<Check> {
    if isolation == Isolation::None {
        return None;
    }
    // The kernel has the file where it can filter system calls.
    Some(if Path::new("/proc/sys/kernel/seccomp/actions_avail").exists() {
        Check::ok(FINDING, "a daemon with these settings has no memory that is both written and executed")
    } else {
        absent("not in force: not available in this kernel")
    })
}

fn absent(state: &str) -> Check {
    Check::warn(
        FINDING,
        format!("{state}; an attacker who can write to the memory of the daemon could run code there"),
        "use a kernel with seccomp (CONFIG_SECCOMP_FILTER=y), and let the service manager or container allow the system call \
         seccomp, as the unit of the package does",
    )
}
