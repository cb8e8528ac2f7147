//! In a sandboxed process every attempt fails.

use std::os::unix::process::ExitStatusExt as _;

use ledge_sandbox::Mechanism;
use ledge_sandbox::probe::{ProbeOutcome, ProbeResult};

use crate::Test;
use crate::order::{LIMITS, ProbeOrder, parse, report_and_attempts, with_folders};

pub const TESTS: &[Test] = &[
    ("sandboxes::a_sandboxed_process_of_root_can_do_nothing", a_sandboxed_process_of_root_can_do_nothing),
    ("sandboxes::a_sandboxed_process_can_do_nothing", a_sandboxed_process_can_do_nothing),
    ("sandboxes::without_the_sandbox_the_attempts_succeed", without_the_sandbox_the_attempts_succeed),
    ("sandboxes::a_file_beyond_the_limit_ends_the_process", a_file_beyond_the_limit_ends_the_process),
];

/// The user of other systems that owns nothing.
const NOBODY: u32 = 65534;

/// The signal of a file that is too large.
const SIGXFSZ: i32 = 25;

/// Fewer attempts than there are: a probe that ended early made fewer.
const ATTEMPTS_MIN: usize = 50;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn assert_sandboxed(user: Option<u32>, exceptions: &[&str]) {
    let output = with_folders(|folders| ProbeOrder::Probe { folders, is_sandboxed: true }.output(user));
    let (report, attempts) = report_and_attempts(&output);
    assert!(report.is_tight(), "{report:?}");
    assert!(attempts.len() >= ATTEMPTS_MIN, "{output:?}");
    let is_wrong = |result: &&ProbeResult| !matches!(result.outcome, ProbeOutcome::Denied(_));
    let wrong: Vec<_> = attempts.iter().filter(is_wrong).map(|result| result.attempt.as_str()).collect();
    assert_eq!(wrong, exceptions, "{attempts:#?}");
    if exceptions.is_empty() {
        for mechanism in [Mechanism::UserNamespace, Mechanism::ThreadLimit] {
            let state = report.state(mechanism).unwrap();
            assert!(state.is_in_force() || !has_user_namespaces(), "{mechanism:?}: {state}");
        }
    }
}

fn has_user_namespaces() -> bool {
    std::fs::read_to_string("/proc/sys/user/max_user_namespaces").is_ok_and(|most| most.trim() != "0")
}

fn a_sandboxed_process_can_do_nothing() {
    assert_sandboxed(is_root().then_some(NOBODY), &[]);
}

fn a_sandboxed_process_of_root_can_do_nothing() {
    if is_root() {
        // The kernel limits no threads of root.
        assert_sandboxed(None, &["start more threads than allowed"]);
    }
}

fn without_the_sandbox_the_attempts_succeed() {
    let output = with_folders(|folders| ProbeOrder::Probe { folders, is_sandboxed: false }.output(None));
    let attempts: Vec<ProbeResult> = parse(&output);
    // It became another program at the end.
    assert!(output.status.success() && attempts.len() >= ATTEMPTS_MIN - 1, "{output:?}");
    let count = |wanted: fn(&ProbeOutcome) -> bool| attempts.iter().filter(|result| wanted(&result.outcome)).count();
    if is_root() {
        assert_eq!(count(|outcome| matches!(outcome, ProbeOutcome::Denied(_))), 0, "{attempts:#?}");
    }
    assert!(count(|outcome| *outcome == ProbeOutcome::Allowed) >= ATTEMPTS_MIN / 2, "{attempts:#?}");
}

fn a_file_beyond_the_limit_ends_the_process() {
    let (status, bytes) = with_folders(|folders| {
        let output = ProbeOrder::WriteBeyondLimit { folders: folders.clone() }.output(None);
        (output.status, folders.writable.join("large").metadata().unwrap().len())
    });
    assert_eq!(status.signal(), Some(SIGXFSZ), "{status:?}");
    assert_eq!(bytes, LIMITS.file_bytes);
}
