//! The audit log on a full disk, and after power cuts.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::time::Duration;

use ledge::audit::layout::whole_entries;
use ledge::audit::local::generations;
use ledge::audit::record::AuditRecord;
use ledge::audit_event::AuditEvent;

use crate::audit::{audit, calls, count, infer, is_whole, losses, records, signed, status, stop, tile};
use crate::client::Client;
use crate::core::add_sub_request;
use crate::daemon::{TestDaemon, TestRoot};
use crate::feature_faults::disk::{Disk, Log};
use crate::feature_faults::seed::Random;
use crate::feature_faults::shim::Shim;

/// Without one there is nothing to back up.
const VIEW: &str = r#"
[[entity]]
name = "device"
value_type = "Int64"

[[feature_view]]
name = "plain"
entities = ["device"]
source = { name = "events" }
schema = [{ name = "number", dtype = "Int64" }]
"#;

fn root() -> TestRoot {
    TestRoot::new().models(&["add_sub"]).views(VIEW).set("audit.inference=\"calls\"").set("log.level=\"info\"")
}

/// An administrative request that costs little: a backup of a store without rows.
fn backup(client: &mut Client) -> u16 {
    client.get("/features/backup").status
}

fn backed_up(event: &AuditEvent) -> bool {
    matches!(event, AuditEvent::FeatureStoreBackedUp { .. })
}

/// Administers and infers while there is no room; gives how many calls that were.
fn refuses_and_goes_on(daemon: &TestDaemon) -> u64 {
    let mut client = daemon.client();
    let mut sent = 0;
    let told = loop {
        infer(&mut client);
        sent += 1;
        let told = client.get("/audit/status").json();
        if told["error"].is_string() {
            break told;
        }
        assert!(sent < 20_000, "{told}");
    };
    assert!(told["error"].as_str().unwrap().contains("No space left on device"), "{told}");
    let refused = client.get("/features/backup");
    assert!(refused.status == 503 && refused.error().contains("No space left on device"), "{refused:?}");
    for _ in 0..10 {
        infer(&mut client);
    }
    sent + 10
}

#[test]
fn a_full_disk_loses_calls_counted_and_nothing_that_was_answered() {
    let shim = Shim::build();
    for kills in [false, true] {
        let path = shim.file("budget");
        let budget = File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
        let set = |bytes: i64| budget.write_all_at(&bytes.to_le_bytes(), 0).unwrap();
        set(1 << 40);
        let root = root();
        let folder = root.folder.path().canonicalize().unwrap().join("audit");
        let root = root.variable("LD_PRELOAD", shim.library()).variable("FAULT_FOLDER", folder);
        let mut daemon = root.variable("FAULT_BUDGET", path).start();
        let mut client = daemon.client();
        let mut offered = 20;
        (0..offered).for_each(|_| infer(&mut client));
        assert_eq!(backup(&mut client), 200);
        // In the middle of a record.
        set(1234);
        offered += refuses_and_goes_on(&daemon);
        if kills {
            // The count of earlier losses is gone with the process.
            daemon = daemon.kill().start();
            offered = 20 + refuses_and_goes_on(&daemon);
        }
        set(1 << 40);
        let mut client = daemon.client();
        status(&mut client, |status| status["error"].is_null());
        assert_eq!(backup(&mut client), 200);
        (0..5).for_each(|_| infer(&mut client));
        offered += 5;
        let root = stop(daemon);
        is_whole(&root);
        let found = records(&root, 1);
        assert_eq!(count(&found, backed_up), 2);
        let (lost, _) = losses(&found)["disk"];
        assert_eq!(losses(&found).len(), 1, "{:?}", losses(&found));
        if kills {
            assert!(lost > 0 && calls(&found) + lost >= offered, "{} {lost} {offered}", calls(&found));
        } else {
            assert_eq!(calls(&found) + lost, offered);
        }
    }
}

/// The number of records that a power cut left. No start has checked them yet: anything may follow them.
fn left(root: &TestRoot) -> u64 {
    let mut left = 0;
    for file in (0..).map_while(|index| std::fs::read(tile(root, 1, index)).ok()) {
        for entry in whole_entries(&file).0 {
            if !AuditRecord::parse(entry).is_ok_and(|record| record.seq == left) {
                return left;
            }
            left += 1;
        }
    }
    left
}

/// The promises of the daemon, each with the length of the shim's log at that time.
#[derive(Default)]
struct Promises {
    /// Records that are durable, as the status says.
    sizes: Vec<(u64, u64)>,
    backups: Vec<u64>,
    sent: u64,
}

fn rounds(rounds: usize, test: &str) {
    let (mut random, shim) = (Random::new(test), Shim::build());
    let root = root();
    let folder = root.folder.path().canonicalize().unwrap().join("audit");
    std::fs::create_dir(&folder).unwrap();
    let mut root = root.variable("LD_PRELOAD", shim.library()).variable("FAULT_FOLDER", &folder);
    // Records that must stay, with backups among them.
    let (mut least, mut answered, mut sent, mut torn, mut total) = (0, 0, 0, 0, 0);
    for round in 0..=rounds {
        let log = shim.file(&format!("log-{round}"));
        let mut disk = Disk::of(&folder);
        let daemon = root.variable("FAULT_LOG", &log).start();
        let mut client = daemon.client();
        let told = status(&mut client, |status| status["size"].as_u64() > Some(0));
        assert!(told["alarm"].is_null() && told["error"].is_null(), "{told}");
        assert_eq!(generations(&folder).unwrap(), [1], "{}", daemon.log());
        let found = records(&daemon.root, 1);
        assert!(found.len() as u64 >= least, "{} of {least}", found.len());
        assert!(found.iter().map(|record| record.seq).eq(0..found.len() as u64));
        let backups = count(&found, backed_up) as u64;
        assert!((answered..=sent).contains(&backups), "{backups} of {answered} to {sent}");
        (answered, sent) = (backups, backups);
        let promises = Mutex::new(Promises::default());
        let enough = random.below(30) + 1;
        let mark = || std::fs::metadata(&log).unwrap().len();
        root = std::thread::scope(|scope| {
            let (mark, promises, address) = (&mark, &promises, daemon.address);
            for _ in 0..2 {
                scope.spawn(move || {
                    let Ok(mut client) = Client::try_tcp(address) else { return };
                    while client.try_post_json("/v2/models/add_sub/infer", &add_sub_request(1, 1)).is_ok() {}
                });
            }
            scope.spawn(move || {
                let Ok(mut client) = Client::try_tcp(address) else { return };
                while let Ok(answer) = client.try_get("/audit/status") {
                    let size = answer.json()["size"].as_u64().unwrap();
                    promises.lock().unwrap().sizes.push((size, mark()));
                }
            });
            scope.spawn(move || {
                let Ok(mut client) = Client::try_tcp(address) else { return };
                loop {
                    promises.lock().unwrap().sent += 1;
                    let Ok(answer) = client.try_get("/features/backup") else { return };
                    assert_eq!(answer.status, 200, "{answer:?}");
                    promises.lock().unwrap().backups.push(mark());
                }
            });
            let begun = std::time::Instant::now();
            while promises.lock().unwrap().backups.len() < enough && begun.elapsed() < Duration::from_mins(1) {
                std::thread::yield_now();
            }
            daemon.kill()
        });
        let promises = promises.into_inner().unwrap();
        let record = Log::read(&log);
        let cut = if random.one_in(2) { record.calls() } else { random.below(record.calls() + 1) };
        let at = record.length(cut);
        let sizes = promises.sizes.iter().filter(|(_, mark)| *mark <= at).map(|(size, _)| *size);
        // A cut before the first of this start leaves what there was.
        least = sizes.max().unwrap_or(0).max(if cut > 0 { 0 } else { found.len() as u64 });
        answered += promises.backups.iter().filter(|mark| **mark <= at).count() as u64;
        sent += promises.sent;
        total += promises.backups.len();
        disk.run(&record, cut);
        torn += disk.cut_power(&mut random);
        std::fs::remove_file(&log).unwrap();
        let left = left(&root);
        assert!(signed(&root, 1).unwrap_or(0) <= left, "a head above its {left} records");
    }
    println!("| faults | rounds | administrative requests answered | torn files |\n| --- | --- | --- | --- |");
    println!("| power cuts | {rounds} | {total} | {torn} |");
    let root = stop(root.start());
    assert_eq!(audit(&root), folder);
    is_whole(&root);
}

#[test]
fn what_the_audit_log_promised_survives_power_cuts() {
    rounds(4, "audit power cuts");
}

#[test]
#[ignore = "200 rounds: make soak"]
fn what_the_audit_log_promised_survives_200_power_cuts() {
    rounds(200, "audit power cuts");
}
