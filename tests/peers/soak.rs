//! A day in short: a million tiny requests with restarts of the broker in between, and memory that stays flat.
//! `make soak` runs it and shows its table.

use std::fs::read_to_string;
use std::time::Instant;

use crate::boxes::{call_until_answered, logged, root};
use crate::broker::Setup;
use crate::message::Outgoing;
use crate::mqtt::Peer;

/// Parts of the run; memory is looked at after each.
const STEPS: usize = 10;

/// The number of requests in flight for each client. More would only wait.
const UNDER_WAY: usize = 200;

/// Growth after the first step that is no leak: caches fill, and the allocator keeps memory that it had once.
const GROWTH_MB: f64 = 3.0;
const GROWTH_SHARE: f64 = 0.05;

/// The resident memory of a process and its largest so far, in MB.
fn memory_mb(pid: u32) -> (f64, f64) {
    let status = read_to_string(format!("/proc/{pid}/status")).unwrap();
    let of = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
    };
    (of("VmRSS:"), of("VmHWM:"))
}

fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

#[test]
#[ignore = "takes minutes: `make soak` runs it"]
fn a_million_requests_leave_memory_flat() {
    let requests =
        std::env::var("SOAK_REQUESTS").map_or(1_000_000, |text| text.parse().expect("SOAK_REQUESTS is a number"));
    let mut broker = Setup::new().persistent().start();
    // Not as talkative as in other tests, as the log is kept here.
    let daemon = root(&broker).set("log.level=\"info\"").start();
    let peer = Peer::subscribed(&broker, "caller", "answers");
    call_until_answered(&peer);
    println!(
        "{requests} requests over MQTT, QoS 1, {UNDER_WAY} under way; the broker is restarted in the middle of each step\n"
    );
    println!("| requests | answers | again | requests/s | resident MB | peak MB | open files |");
    println!("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    let (mut sent, mut answers, mut again, mut resident) = (0, 0, 0, Vec::new());
    for step in 1..=STEPS {
        let (started, until) = (Instant::now(), requests * step / STEPS);
        let (first, mut restarted) = (sent, false);
        let mut open = std::collections::BTreeSet::new();
        while sent < until || !open.is_empty() {
            while sent < until && open.len() < UNDER_WAY {
                peer.send(Outgoing::add_sub(&sent.to_string(), 2.0).answer_to("answers"));
                open.insert(sent);
                sent += 1;
            }
            let answer = peer.receive();
            assert!((answer.sum() - 3.0).abs() < 1e-6, "{answer:?}");
            // Not one of the calls before the start.
            let Ok(number) = answer.id().parse::<usize>() else { continue };
            answers += 1;
            // A request that came to the box again is answered again.
            again += usize::from(!open.remove(&number));
            if !restarted && sent >= first + (until - first) / 2 {
                restarted = true;
                broker.stop();
                broker.start_again();
            }
        }
        logged(&daemon, "mqtt.connected", step + 1);
        let (now, peak) = memory_mb(daemon.pid());
        resident.push(now);
        #[expect(clippy::cast_precision_loss, reason = "counts are small")]
        let rate = (until - first) as f64 / started.elapsed().as_secs_f64();
        println!("| {sent} | {answers} | {again} | {rate:.0} | {now:.1} | {peak:.1} | {} |", open_files(daemon.pid()));
    }
    let (first, last) = (resident[0], resident[STEPS - 1]);
    let allowed = GROWTH_MB.max(first * GROWTH_SHARE);
    println!(
        "\nAfter the first step {first:.1} MB, after the last {last:.1} MB; growth of up to {allowed:.1} MB counts as flat."
    );
    assert!(last - first <= allowed, "memory grew by {:.1} MB", last - first);
}
