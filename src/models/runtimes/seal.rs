//! The findings about the seal of the processes that run models.

use std::io;

use ledge_part::check::Check;
use ledge_sandbox::{Finding, Mechanism, SealReport, State};

/// One finding for each mechanism, from the report of a process of models; one where none could be started.
pub fn checks(report: io::Result<SealReport>) -> Vec<Check> {
    match report {
        Ok(report) => report.findings.iter().map(check).collect(),
        Err(error) => vec![Check::fail(
            "seal of models",
            format!("the process of models cannot be started, so no model runs: {error}"),
            "let the service manager or container allow new processes, and memory for them; then start Ledge again",
        )],
    }
}

fn check(finding: &Finding) -> Check {
    let Finding { mechanism, state } = finding;
    let name = format!("seal of models: {}", mechanism.name());
    match state {
        State::InForce(_) => Check::ok(&name, state.to_string()),
        State::Partial(_) | State::Absent(_) => {
            let detail = format!("{state}; without it {}", mechanism.without());
            if mechanism.is_essential() {
                Check::warn(&name, detail, advice(*mechanism))
            } else {
                // The list of system calls denies the same.
                Check::ok(&name, detail)
            }
        }
    }
}

fn advice(mechanism: Mechanism) -> &'static str {
    match mechanism {
        Mechanism::Files | Mechanism::TcpPorts | Mechanism::DeviceCommands | Mechanism::SocketsAndSignals => {
            "use a kernel from 5.13 on with Landlock (CONFIG_SECURITY_LANDLOCK=y, and landlock in the boot parameter lsm=), \
             and let the service manager or container allow the system calls landlock_*, as the unit of the package does"
        }
        Mechanism::SystemCalls => {
            "use a kernel with seccomp (CONFIG_SECCOMP_FILTER=y), and let the service manager or container allow the system \
             call seccomp, as the unit of the package does"
        }
        Mechanism::Capabilities => {
            "run Ledge as a user of its own and not as root, as the unit of the package does (User=ledge)"
        }
        Mechanism::UserNamespace | Mechanism::NetworkNamespace | Mechanism::IpcNamespace => {
            "allow user namespaces: user.max_user_namespaces, RestrictNamespaces= of the unit"
        }
        Mechanism::ResourceLimits | Mechanism::ThreadLimit | Mechanism::NoNewPrivileges | Mechanism::PrivateMemory => {
            "let the service manager or container allow the system calls prctl and prlimit64, as the unit of the package does"
        }
    }
}

#[cfg(test)]
mod tests {
    use ledge_part::check::Status;

    use super::*;

    fn of(mechanism: Mechanism, state: State) -> Vec<Check> {
        checks(Ok(SealReport { findings: vec![Finding { mechanism, state }] }))
    }

    #[test]
    fn a_mechanism_that_is_missing_is_told_with_its_consequence_and_the_remedy() {
        let found = of(Mechanism::Files, State::Absent("not available in this kernel".to_owned()));
        assert_eq!((found.len(), found[0].status), (1, Status::Warn));
        assert!(found[0].detail.contains("can open every file"), "{found:?}");
        assert!(found[0].advice.as_ref().unwrap().contains("Landlock"), "{found:?}");
        // Others deny the same.
        let found = of(Mechanism::UserNamespace, State::Absent("forbidden".to_owned()));
        assert_eq!((found[0].status, found[0].advice.as_deref()), (Status::Ok, None));
        assert!(found[0].detail.contains("only the list of system calls"), "{found:?}");
        let found = of(Mechanism::SystemCalls, State::InForce(String::new()));
        assert_eq!((found[0].status, found[0].detail.as_str()), (Status::Ok, "in force"));
    }

    #[test]
    fn a_process_that_does_not_start_is_a_failure() {
        let found = checks(Err(io::Error::other("no memory")));
        assert!(found[0].status == Status::Fail && found[0].detail.contains("no memory"), "{found:?}");
    }
}
