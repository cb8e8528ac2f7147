//! A system that lacks or forbids a mechanism: the report says which and why, and the others are in force.

use std::collections::BTreeMap;

use ledge_sandbox::{Mechanism, MechanismState, SandboxReport};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use crate::Test;
use crate::order::{LIMITS, ProbeOrder, parse};

pub const TESTS: &[Test] = &[
    (
        "refusals::on_this_system_a_sandbox_reports_each_mechanism_once",
        on_this_system_a_sandbox_reports_each_mechanism_once,
    ),
    ("refusals::forbidden_namespaces_are_reported", forbidden_namespaces_are_reported),
    ("refusals::a_kernel_without_landlock_is_reported", a_kernel_without_landlock_is_reported),
    ("refusals::a_kernel_without_seccomp_is_reported", a_kernel_without_seccomp_is_reported),
    (
        "refusals::capabilities_that_cannot_be_dropped_are_reported_unless_there_are_none",
        capabilities_that_cannot_be_dropped_are_reported_unless_there_are_none,
    ),
    ("refusals::limits_that_cannot_be_set_are_reported", limits_that_cannot_be_set_are_reported),
];

/// Makes this system one that denies these calls, as a service manager or an old kernel does.
pub fn deny(calls: &[i64], error: i32) {
    if calls.is_empty() {
        return;
    }
    // Limits can still be read.
    let is_new_limit = SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0).unwrap();
    let sets_limit = SeccompRule::new(vec![is_new_limit]).unwrap();
    let rule = |call| if call == libc::SYS_prlimit64 { vec![sets_limit.clone()] } else { Vec::new() };
    let rules: BTreeMap<i64, _> = calls.iter().map(|call| (*call, rule(*call))).collect();
    let denied = SeccompAction::Errno(error.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, denied, std::env::consts::ARCH.try_into().unwrap());
    seccompiler::apply_filter(&BpfProgram::try_from(filter.unwrap()).unwrap()).unwrap();
}

fn report(denied: &[i64], error: i32) -> SandboxReport {
    let mut reports = ProbeOrder::Report { denied: denied.to_vec(), error }.lines();
    assert_eq!(reports.len(), 1);
    reports.remove(0)
}

/// The reason why a mechanism is absent.
fn reason(report: &SandboxReport, mechanism: Mechanism) -> &str {
    match report.state(mechanism) {
        Some(MechanismState::Absent(reason)) => reason,
        other => panic!("{mechanism:?}: {other:?}"),
    }
}

fn on_this_system_a_sandbox_reports_each_mechanism_once() {
    let report = report(&[], 0);
    let reported: Vec<_> = report.findings.iter().map(|finding| finding.mechanism).collect();
    assert_eq!(reported, Mechanism::ALL);
    assert!(report.is_tight(), "{report:?}");
    let limits = report.state(Mechanism::ResourceLimits).unwrap().to_string();
    assert!(limits.contains(&format!("{} open files", LIMITS.open_files)), "{limits}");
}

fn forbidden_namespaces_are_reported() {
    let report = report(&[libc::SYS_unshare], libc::EPERM);
    for mechanism in [Mechanism::UserNamespace, Mechanism::NetworkNamespace, Mechanism::IpcNamespace] {
        assert!(reason(&report, mechanism).contains("RestrictNamespaces="), "{report:?}");
    }
    let threads = report.state(Mechanism::ThreadLimit).unwrap().to_string();
    assert!(threads.contains("no user namespace") || threads.contains("root"), "{threads}");
    // The list of system calls denies the operations that the namespaces would prevent.
    assert!(report.is_tight() && report.lacking().count() == 4, "{report:?}");
}

fn a_kernel_without_landlock_is_reported() {
    let calls = [libc::SYS_landlock_create_ruleset, libc::SYS_landlock_restrict_self];
    let report = report(&calls, libc::ENOSYS);
    assert!(reason(&report, Mechanism::Files).contains("this kernel has no Landlock (Linux 5.13)"), "{report:?}");
    assert!(!report.is_tight() && report.state(Mechanism::SystemCalls).unwrap().is_in_force(), "{report:?}");

    let report = self::report(&calls, libc::EOPNOTSUPP);
    assert!(reason(&report, Mechanism::Files).contains("not enabled"), "{report:?}");
}

fn a_kernel_without_seccomp_is_reported() {
    let report = report(&[libc::SYS_seccomp], libc::EINVAL);
    assert!(reason(&report, Mechanism::SystemCalls).contains("not available in this kernel"), "{report:?}");
    assert!(!report.is_tight() && report.state(Mechanism::Files).unwrap().is_in_force(), "{report:?}");
}

fn capabilities_that_cannot_be_dropped_are_reported_unless_there_are_none() {
    // As the unit of Ledge: no namespaces, no capability, and no call that changes capabilities.
    let calls = [libc::SYS_unshare, libc::SYS_capset];
    let report = report(&calls, libc::EPERM);
    let has_any = rustix::thread::capabilities(None).unwrap().permitted != rustix::thread::CapabilitySet::empty();
    assert_eq!(report.state(Mechanism::Capabilities).unwrap().is_in_force(), !has_any, "{report:?}");
    assert_eq!(report.is_tight(), !has_any, "{report:?}");

    // The id of the user `nobody`, which has no capability wherever the test runs.
    let output = ProbeOrder::Report { denied: calls.to_vec(), error: libc::EPERM }.output(has_any.then_some(65534));
    let report: Vec<SandboxReport> = parse(&output);
    assert!(report[0].is_tight(), "{report:?}");
}

fn limits_that_cannot_be_set_are_reported() {
    let report = report(&[libc::SYS_prlimit64], libc::EPERM);
    let limits = reason(&report, Mechanism::ResourceLimits);
    assert!(limits.contains("forbidden by a setting of this system"), "{limits}");
    assert!(!report.is_tight(), "{report:?}");
}
