//! The finding about the sandbox of the processes that run models.

use std::io;

use ledge_part::check::Finding;
use ledge_sandbox::{Mechanism, MechanismReport, SandboxReport};

/// The name of the finding.
pub const FINDING: &str = "seal of models";

/// The finding, from the report of the processes of models.
pub fn check(report: io::Result<SandboxReport>) -> Finding {
    match report {
        Ok(report) => of(&report),
        Err(error) => Finding::fail(
            FINDING,
            format!("the process of models cannot be started, so no model runs: {error}"),
            "let the service manager or container allow new processes, and memory for them; then start Ledge again",
        ),
    }
}

/// Warns of a gap that no other mechanism closes. For the other gaps, names the mechanisms that close them.
fn of(report: &SandboxReport) -> Finding {
    let lacking: Vec<&MechanismReport> = report.lacking().collect();
    if lacking.is_empty() {
        return Finding::ok(FINDING, "wholly in force");
    }
    // Mechanisms with the same reason are named together.
    let mut reasons: Vec<(String, Vec<&MechanismReport>)> = Vec::new();
    for finding in &lacking {
        let state = finding.state.to_string();
        match reasons.iter_mut().find(|(reason, _)| *reason == state) {
            Some((_, findings)) => findings.push(finding),
            None => reasons.push((state, vec![finding])),
        }
    }
    let told: Vec<String> = reasons.iter().map(|(reason, findings)| told(reason, findings)).collect();
    let detail = format!("in force, but for {}", told.join("; "));
    match lacking.iter().find(|finding| finding.mechanism.is_essential()) {
        Some(finding) => Finding::warn(FINDING, detail, advice(finding.mechanism)),
        None => Finding::info(FINDING, detail),
    }
}

/// Mechanisms that are not in force for one reason, and the gaps that this leaves.
fn told(reason: &str, findings: &[&MechanismReport]) -> String {
    let names: Vec<_> = findings.iter().map(|finding| finding.mechanism.name()).collect();
    let mut open: Vec<String> = Vec::new();
    let covered: Vec<_> = findings.iter().filter_map(|finding| finding.mechanism.covered_by_system_calls()).collect();
    if !covered.is_empty() {
        open.push(format!("only the list of system calls keeps {} from the process", listed(&covered)));
    }
    let uncovered = findings.iter().filter(|finding| finding.mechanism.covered_by_system_calls().is_none());
    open.extend(uncovered.map(|finding| finding.leaves_open()));
    format!("{} ({reason}): {}", listed(&names), open.join(", and "))
}

/// Words as a sentence lists them.
fn listed(words: &[&str]) -> String {
    match words {
        [words @ .., last] if !words.is_empty() => format!("{} and {last}", words.join(", ")),
        words => words.concat(),
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
    use ledge_part::check::FindingStatus;
    use ledge_sandbox::MechanismState;

    use super::*;

    /// The finding where these mechanisms are in another state.
    fn finding(others: &[(Mechanism, MechanismState)]) -> Finding {
        let state = |mechanism| match others.iter().find(|(other, _)| *other == mechanism) {
            Some((_, state)) => state.clone(),
            None => MechanismState::InForce(String::new()),
        };
        let findings = Mechanism::ALL.map(|mechanism| MechanismReport { mechanism, state: state(mechanism) });
        check(Ok(SandboxReport { findings: findings.into() }))
    }

    #[test]
    fn a_sandbox_without_an_essential_mechanism_is_a_warning_with_its_consequence_and_the_remedy() {
        let found = finding(&[(Mechanism::Files, MechanismState::Absent("not available in this kernel".to_owned()))]);
        assert_eq!(found.status, FindingStatus::Warn);
        assert!(found.detail.contains("can open every file"), "{found:?}");
        assert!(found.advice.as_ref().unwrap().contains("Landlock"), "{found:?}");
    }

    #[test]
    fn a_sandbox_as_the_unit_allows_it_names_what_is_missing_and_what_takes_its_place() {
        let forbidden = || MechanismState::Absent("forbidden".to_owned());
        let found = finding(&[
            (Mechanism::ThreadLimit, MechanismState::Partial("1536 together".to_owned())),
            (Mechanism::UserNamespace, forbidden()),
            (Mechanism::NetworkNamespace, forbidden()),
            (Mechanism::IpcNamespace, forbidden()),
        ]);
        assert_eq!((found.status, found.advice.as_deref()), (FindingStatus::Info, None));
        assert_eq!(
            found.detail,
            "in force, but for limit of threads (partly in force: 1536 together): the process can keep other processes of \
             models from starting threads, and the daemon goes on; user namespace, network namespace and IPC namespace (not in \
             force: forbidden): only the list of system calls keeps the rights of its user, the network and the shared memory \
             of other processes from the process"
        );
        assert_eq!(finding(&[]), Finding::ok(FINDING, "wholly in force"));
    }

    #[test]
    fn a_process_that_does_not_start_is_a_failure() {
        let found = check(Err(io::Error::other("no memory")));
        assert!(found.status == FindingStatus::Fail && found.detail.contains("no memory"), "{found:?}");
    }
}
