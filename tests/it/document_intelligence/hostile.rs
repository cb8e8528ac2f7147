//! Analyses that are made to harm: floods and bombs. The memory of the daemon stays within its limit, and others are
//! served.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::*;
use crate::daemon::{data, processes, write};

const MIB: usize = 1 << 20;
/// Analyses of a flood.
const ATTEMPTS: usize = 10_000;
/// Connections that begin them.
const SENDERS: usize = 8;
/// The most that 32 operations, their requests and connections may take, with what the allocator keeps of them.
const FLOOD_BYTES_MAX: usize = 64 * MIB;
/// `http.max_memory_bytes` and `http.max_body_bytes` for bombs.
const LIMIT: usize = 256 * MIB;
const BODY_MAX: usize = 24 * MIB;
/// The memory of the daemon beyond the limit, for what no request counts.
const MARGIN: usize = 64 * MIB;

/// A figure of the daemon's own process, in bytes.
fn status_bytes(daemon: &TestDaemon, key: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.split_whitespace().next().unwrap().parse::<usize>().unwrap() << 10
}

/// The memory of the daemon now. Its peak is measured from here on.
fn resident(daemon: &TestDaemon) -> usize {
    write(format!("/proc/{}/clear_refs", daemon.pid()).as_ref(), b"5");
    status_bytes(daemon, "VmRSS:")
}

/// The most memory since [`resident`].
fn peak(daemon: &TestDaemon) -> usize {
    status_bytes(daemon, "VmHWM:")
}

/// The CPU time of the daemon's own process.
fn cpu(daemon: &TestDaemon) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.pid())).unwrap();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // Clock ticks are hundredths of a second.
    Duration::from_millis(10 * fields[11..=12].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>())
}

/// Waits until nothing is held for any call, and no document is drawn.
#[track_caller]
fn wait_until_nothing_is_left(daemon: &TestDaemon) {
    let began = Instant::now();
    let held = || daemon.client().metric::<f64>("ledge_http_body_memory_bytes");
    while held() > 0.0 || !processes(daemon.pid(), "pages").is_empty() {
        assert!(began.elapsed() < ANALYSIS_TIMEOUT, "{} bytes are still held", held());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Analyzes a receipt for the caller with this key.
#[track_caller]
fn serve(daemon: &TestDaemon, headers: &[(&str, &str)]) {
    let client = &mut daemon.client();
    let path = location(&begin(client, READ, headers, &receipt()));
    assert_eq!(ended(client, &path, headers)["status"], "succeeded");
}

/// Calls `serve` for another caller until all senders have ended; the number of calls.
fn serve_others(daemon: &TestDaemon, key: &str, senders: &AtomicUsize) -> usize {
    let mut served = 0;
    while senders.load(Relaxed) > 0 {
        serve(daemon, &[("x-api-key", key)]);
        served += 1;
    }
    served
}

#[test]
fn ten_thousand_analyses_of_one_caller_are_bounded_and_leave_nothing() {
    let root = root().set("documents.keep_results_s=20");
    let other = key(&root, &["other", "--role", "infer"]);
    let daemon = root.start();
    // Memory that a first analysis allocates for ever is not that of the flood.
    serve(&daemon, &[]);
    let (idle, cpu_before, began) = (resident(&daemon), cpu(&daemon), Instant::now());

    // A file that a process is started for, and one that is refused at once.
    let files: [&[u8]; 2] = [b"%PDF-", b"\x89PNG\r\n\x1a\n"];
    let (statuses, senders): (Mutex<BTreeMap<u16, usize>>, _) = (Mutex::default(), AtomicUsize::new(SENDERS));
    let served = std::thread::scope(|scope| {
        for sender in 0..SENDERS {
            let (daemon, statuses, senders) = (&daemon, &statuses, &senders);
            scope.spawn(move || {
                let client = &mut daemon.client();
                for attempt in 0..ATTEMPTS / SENDERS {
                    let answer = begin(client, READ, &[], files[(sender + attempt) % 2]);
                    *statuses.lock().unwrap().entry(answer.status).or_insert(0) += 1;
                }
                senders.fetch_sub(1, Relaxed);
            });
        }
        serve_others(&daemon, &other, &senders)
    });
    let (statuses, more) = (statuses.into_inner().unwrap(), peak(&daemon).saturating_sub(idle));
    let figures = format!(
        "{statuses:?} in {:?} with {:?} of CPU time of the daemon, {served} others, {} kB on top of {} kB",
        began.elapsed(),
        cpu(&daemon).saturating_sub(cpu_before),
        more >> 10,
        idle >> 10
    );
    println!("{figures}");
    assert!(statuses.keys().all(|status| [202, 429].contains(status)), "{figures}");
    assert!(statuses.values().sum::<usize>() == ATTEMPTS && statuses[&202] >= 32 && served > 0, "{figures}");
    assert!(more < FLOOD_BYTES_MAX, "{figures}");
    wait_until_nothing_is_left(&daemon);
    serve(&daemon, &[]);
}

/// The body of a request with this document.
fn body(document: &[u8]) -> Vec<u8> {
    json!({"base64Source": BASE64_STANDARD.encode(document)}).to_string().into_bytes()
}

/// Bodies that are refused at once, with the status and the inner code of the error.
fn refused_bodies() -> Vec<(&'static str, Vec<u8>, u16, &'static str)> {
    let parameter = "InvalidParameter";
    let nested = |before: &str, after: &str| format!("{before}{}{after}", "[".repeat(BODY_MAX / 2)).into_bytes();
    let source = |text: String| format!(r#"{{"base64Source": "{text}"}}"#).into_bytes();
    vec![
        ("nested", nested(r#"{"base64Source": "#, "}"), 400, parameter),
        ("nested in another member", nested(r#"{"other": "#, ""), 400, parameter),
        ("nested objects", format!("{}{{", r#"{"a":"#.repeat(BODY_MAX / 16)).into_bytes(), 400, parameter),
        ("zeros", source("A".repeat(BODY_MAX - 1000)), 400, "InvalidContent"),
        ("escaped zeros", source("\\u0041".repeat(BODY_MAX / 8)), 400, "InvalidContent"),
        ("zeros in rows", source("AAAA\\n".repeat(BODY_MAX / 8)), 400, "InvalidContent"),
        ("no base64", source("A".repeat(BODY_MAX / 2) + "?"), 400, parameter),
        ("cut", source("A".repeat(BODY_MAX / 2))[..BODY_MAX / 4].to_vec(), 400, parameter),
        ("too long", source("A".repeat(BODY_MAX)), 413, "InvalidContentLength"),
    ]
}

/// Documents that ask for far more memory than they have.
fn bombs() -> Vec<(&'static str, Vec<u8>)> {
    let mut png = Vec::new();
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    (0..64).for_each(|_| encoder.write_all(&vec![0; MIB]).unwrap());
    png.extend(b"\x89PNG\r\n\x1a\n");
    let header = [&60_000_u32.to_be_bytes()[..], &60_000_u32.to_be_bytes(), &[8, 2, 0, 0, 0]].concat();
    for (kind, chunk) in [(b"IHDR", header), (b"IDAT", encoder.finish().unwrap())] {
        let mut sum = flate2::Crc::new();
        sum.update(kind);
        sum.update(&chunk);
        png.extend([&u32::try_from(chunk.len()).unwrap().to_be_bytes()[..], kind, &chunk].concat());
        png.extend(sum.sum().to_be_bytes());
    }
    let mut gif = data("documents/receipt.gif");
    gif[6..10].fill(0xFF);
    vec![("PNG", png), ("PDF", crate::document_pdf::spaces()), ("GIF", gif)]
}

#[test]
fn bombs_are_refused_within_the_memory_of_requests() {
    let root = TestRoot::new().models(&[MODEL, "add_sub"]);
    let root = root.set(&format!("http.max_memory_bytes={LIMIT}")).set(&format!("http.max_body_bytes={BODY_MAX}"));
    let other = key(&root, &["other", "--role", "infer"]);
    let daemon = root.set("documents.keep_results_s=5").start();
    serve(&daemon, &[]);
    let (idle, cpu_before, began) = (resident(&daemon), cpu(&daemon), Instant::now());

    let bombs = bombs();
    let senders = AtomicUsize::new(3);
    let served = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for (kind, body, status, code) in refused_bodies() {
                    let answer = post(&daemon, &body);
                    let error = &answer.json()["error"];
                    assert_eq!(
                        (answer.status, &error["innererror"]["code"]),
                        (status, &json!(code)),
                        "{kind}: {answer:?}"
                    );
                    assert!(error["message"].as_str().unwrap().len() < 1000, "{kind}: {error}");
                }
                senders.fetch_sub(1, Relaxed);
            });
        }
        scope.spawn(|| {
            for (kind, bomb) in &bombs {
                let client = &mut daemon.client();
                let path = location(&post(&daemon, &body(bomb)));
                let operation = ended(client, &path, &[]);
                let error = &operation["error"];
                assert_eq!(operation["status"], "failed", "{kind}: {operation}");
                assert_eq!(
                    (&error["code"], &error["innererror"]["code"]),
                    (&json!("InvalidRequest"), &json!("InvalidContent")),
                    "{kind}"
                );
            }
            senders.fetch_sub(1, Relaxed);
        });
        serve_others(&daemon, &other, &senders)
    });
    let figures = format!(
        "{:?} with {:?} of CPU time of the daemon, {served} others, {} MiB at most, {} MiB idle",
        began.elapsed(),
        cpu(&daemon).saturating_sub(cpu_before),
        peak(&daemon) / MIB,
        idle / MIB
    );
    println!("{figures}");
    assert!(served > 0 && peak(&daemon) < idle + LIMIT + MARGIN, "{figures}");
    wait_until_nothing_is_left(&daemon);
}

/// Sends a body, again while there is no memory for it.
fn post(daemon: &TestDaemon, body: &[u8]) -> Response {
    loop {
        let headers = [("content-type", "application/json")];
        let answer = daemon.client().post(&format!("{READ}:analyze?{VERSION}"), &headers, body);
        if answer.status != 503 {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
