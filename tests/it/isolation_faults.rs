//! Faults in the processes of the runtimes: only the call that caused a fault notices it.

use std::time::Duration;

use serde_json::Value;

use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot, model_folder, send_signal};
use crate::fault_rounds::{FAULTY, disturb, instance_folders, root, run, runtime_processes, send_fault, wait_until};

const LIMIT: Duration = Duration::from_mins(1);

#[test]
fn nobody_else_notices_twenty_faults_of_a_model() {
    println!("{}", run(20));
}

#[test]
fn callers_that_share_a_hand_over_get_their_own_answers_whatever_happens_to_the_process() {
    println!("{}", disturb("process", 1000));
}

/// The CPU time of a process in clock ticks.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split(' ').collect::<Vec<_>>();
    fields.get(12..14).map_or(0, |times| times.iter().filter_map(|time| time.parse::<u64>().ok()).sum())
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // An ended process that was not waited for yet counts as ended, too.
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

fn read(client: &mut Client) -> Value {
    let receipt = std::fs::read(model_folder("document_reader").join("golden/receipt.png")).unwrap();
    let answer = client.post("/v2/models/document_reader/infer", &[("content-type", "image/png")], &receipt);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["document"].clone()
}

#[test]
fn a_document_is_read_to_its_end_when_its_process_is_killed_meanwhile() {
    let root = TestRoot::new().models(&["document_reader"]).set("runtimes.isolation=process");
    let daemon = root.start();
    let expected = read(&mut daemon.client());
    for spent in [5, 30] {
        // A process that tried a model ends soon after the model is ready.
        wait_until("one process", LIMIT, || runtime_processes(&daemon).len() == 1);
        let [child] = runtime_processes(&daemon)[..] else { panic!("not one process") };
        let before = ticks(child);
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| read(&mut daemon.client()));
            wait_until("the child reads", LIMIT, || ticks(child) >= before + spent || reading.is_finished());
            assert!(!reading.is_finished(), "read before the child was killed");
            send_signal(child, "KILL");
            assert_eq!(reading.join().unwrap(), expected);
        });
        daemon.wait_for_event("process.ended");
    }
}

/// Kills the daemon as a power cut would, and checks that no child lives on and that the next start cleans up.
fn ends_with_the_daemon(daemon: TestDaemon) {
    // A process that tried a model ends soon after the model is ready.
    wait_until("one process", LIMIT, || runtime_processes(&daemon).len() == 1);
    let (children, pid) = (runtime_processes(&daemon), daemon.pid());
    let root = daemon.kill();
    wait_until("the children end", LIMIT, || !children.iter().any(|child| is_alive(*child)));
    let left = instance_folders(root.folder.path(), pid);
    assert!(!left.is_empty(), "a killed daemon removes nothing");

    let daemon = root.start();
    assert!(left.iter().all(|folder| !folder.exists()), "{left:?}");
    assert_eq!(runtime_processes(&daemon).len(), 1);
}

#[test]
fn a_child_ends_with_a_daemon_that_is_killed_and_the_next_start_cleans_up() {
    ends_with_the_daemon(TestRoot::new().models(&["wine_mlp"]).set("runtimes.isolation=process").start());
}

#[test]
fn so_does_a_child_in_a_run_that_never_ends() {
    let daemon = root("process").start();
    // A process that tried a model ends soon after the model is ready.
    wait_until("one process", LIMIT, || runtime_processes(&daemon).len() == 1);
    let [child] = runtime_processes(&daemon)[..] else { panic!("not one process") };
    let answer = send_fault(&mut daemon.client(), FAULTY, b'l');
    assert_eq!(answer.status, 504, "{answer:?}");
    let before = ticks(child);
    wait_until("the run goes on", LIMIT, || ticks(child) > before);
    ends_with_the_daemon(daemon);
}
