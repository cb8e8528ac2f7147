//! All of it at once, for minutes: the daemon neither ends nor hangs nor grows.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::framing::{CASES, REQUESTS, request};
use super::{Target, WAYS, Way, bombs, head, tensor, tls};
use crate::client::Client;
use crate::daemon::TestRoot;

/// The number of attackers of each kind at a time.
const ATTACKERS: usize = 4;

/// The memory for the bodies of all of them together, and the most that the daemon may grow with it.
const MEMORY: &str = "http.max_memory_bytes=268435456";
const PEAK_KB: u64 = 2 * (256 << 10);

/// The most memory in kB that the daemon may gain between the first round and the end.
const GROWTH_KB: u64 = 32 << 10;

/// One attack after the other, until there is no time left.
fn attack(target: &Target, until: Instant, requests: &AtomicU64, way: Way) {
    let packed = bombs::gzip(&vec![b' '; 100 << 20]);
    let pictures = [("image/png", bombs::png()), ("image/jpeg", bombs::jpeg()), ("image/webp", bombs::webp())];
    let deep = "[".repeat(1_000_000);
    let large = tensor(500_000);
    while Instant::now() < until {
        for (fields, body, _) in CASES {
            abrupt(target, way, &request(fields, body));
        }
        for (request, _) in REQUESTS {
            abrupt(target, way, request.as_bytes());
        }
        let post = |path: &str, headers: &[(&str, &str)], body: &[u8]| {
            let status = Client::over(target.connect(way)).post(path, headers, body).status;
            assert!([200, 400, 413, 429, 503].contains(&status), "{path} {headers:?}: {status}");
        };
        post(super::INFER, &[("content-encoding", "gzip")], &packed);
        post(super::INFER, &[], deep.as_bytes());
        post(super::INFER, &[], large.as_bytes());
        for (kind, picture) in &pictures {
            post("/v2/models/efficientnet_lite0/infer", &[("content-type", kind)], picture);
        }
        abrupt(target, way, head(&"x: y\r\n".repeat(200)).as_bytes());
        abrupt(target, way, format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(70_000)).as_bytes());
        // Asked for and not read.
        for _ in 0..4 {
            let mut stream = target.connect(way);
            let head = head(&format!("content-length: {}\r\n", large.len()));
            let _ = stream.write_all(&[head.as_bytes(), large.as_bytes()].concat());
            let _ = stream.read(&mut [0]);
        }
        if way == Way::Tls {
            for record in tls::records() {
                let mut stream = std::net::TcpStream::connect(target.tls_address).unwrap();
                let _ = stream.write_all(&record);
            }
        }
        requests.fetch_add((CASES.len() + REQUESTS.len() + 12) as u64, Ordering::Relaxed);
    }
}

/// Sends, reads the first bytes of the answer, and hangs up.
fn abrupt(target: &Target, way: Way, bytes: &[u8]) {
    let mut stream = target.connect(way);
    let _ = stream.write_all(bytes);
    let _ = stream.read(&mut [0; 1000]);
}

fn attack_for(target: &Target, time: Duration) -> u64 {
    let (until, requests) = (Instant::now() + time, AtomicU64::new(0));
    std::thread::scope(|scope| {
        for attacker in 0..ATTACKERS {
            let requests = &requests;
            scope.spawn(move || attack(target, until, requests, WAYS[attacker % WAYS.len()]));
        }
        // An honest caller next to them.
        while Instant::now() < until {
            let answer = target.daemon.client().post(super::INFER, &[], tensor(10).as_bytes());
            assert_eq!(answer.status, 200, "{answer:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    requests.load(Ordering::Relaxed)
}

#[test]
#[ignore = "minutes, and more with HOSTILE_MINUTES: `make hostile`"]
fn minutes_of_attacks_leave_the_daemon_as_it_was() {
    let minutes = std::env::var("HOSTILE_MINUTES").map_or(5, |text| text.parse().unwrap());
    let root = TestRoot::new().models(&["efficientnet_lite0", "identity_fp32"]);
    let target = Target::with(root, &["log.level=\"info\"", "http.write_timeout_ms=2000", MEMORY]);
    attack_for(&target, Duration::from_secs(20));
    let before = target.rss_kb();
    let mut requests = 0;
    for minute in 1..=minutes {
        requests += attack_for(&target, Duration::from_mins(1));
        let peak = target.peak_kb();
        assert!(peak < before + PEAK_KB, "{before} kB before, {peak} kB at most");
        println!("minute {minute}: {requests} attacks, {} kB (before {before} kB)", target.rss_kb());
    }
    target.serves();
    let after = target.rss_kb();
    assert!(after < before + GROWTH_KB, "{before} kB before, {after} kB after");
    for line in target.daemon.log().lines() {
        assert!(!line.contains("panic"), "{line}");
    }
}
