//! The audit log within its quota: a box that records for a month without a connection to its platform.

use std::collections::BTreeSet;
use std::path::Path;

use ledge::audit::config::AuditConfig;
use ledge::audit::status::{AuditState, AuditSyncEvent};
use ledge::audit::writer::AuditLogWriter;
use ledge::audit_event::inference::CallOutcome;
use ledge::audit_event::{AuditEvent, AuditSink};
use ledge::principal::Principal;
use tokio::runtime::{Builder, Runtime};

use crate::audit::{audit, is_whole, losses, records, tile};
use crate::daemon::TestRoot;

/// The rows of a minute: four callers, three models.
const ROWS: u64 = 12;

/// The writer of a box, without the box: a minute passes as soon as it is recorded.
struct Offline {
    root: TestRoot,
    runtime: Runtime,
    sink: AuditSink,
    state: AuditState,
    thread: std::thread::JoinHandle<()>,
    quota: u64,
    offered: u64,
    /// Of each record its number, which is its time in microseconds.
    rows: u64,
    most: u64,
}

impl Offline {
    fn new(quota_mb: u64, synced: bool) -> Self {
        let root = TestRoot::new().set("device.id=\"box-1\"");
        let mut config = AuditConfig { path: audit(&root), quota_mb, min_free_mb: 0, ..AuditConfig::default() };
        if synced {
            config.sync.url = Some("http://127.0.0.1:1/audit".parse().unwrap());
        }
        let (sink, queue) = AuditSink::channel();
        let state = AuditState::default();
        let writer = AuditLogWriter::new(
            &config,
            &"box-1".parse().unwrap(),
            queue,
            state.clone(),
            ledge::identity::sealing::Sealer::none(),
        );
        let thread = std::thread::spawn(move || writer.run());
        let runtime = Builder::new_current_thread().build().unwrap();
        Self { root, runtime, sink, state, thread, quota: quota_mb << 20, offered: 0, rows: 0, most: 0 }
    }

    /// Records a number of minutes, each with a row for each caller and model, and checks the disk meanwhile.
    fn minutes(&mut self, minutes: u64) {
        for minute in 0..minutes {
            for row in 0..ROWS {
                self.rows += 1;
                let (caller, model) = (row / 3, ["person_detect", "minilm", "wine_quality"][(row % 3) as usize]);
                let event = AuditEvent::InferenceMinute {
                    model: Some(model.parse().unwrap()),
                    version: Some(3.try_into().unwrap()),
                    digest: Some("0123456789abcdef".into()),
                    outcome: CallOutcome::Ok,
                    calls: row + 1,
                    us: self.rows,
                    us_max: 1,
                };
                self.offered += row + 1;
                self.sink.record(&Principal::Peer(format!("10.0.0.{caller}").parse().unwrap()), event);
            }
            if minute % 50 == 49 || minute + 1 == minutes {
                assert!(self.durable());
                let bytes = bytes(&audit(&self.root).join("logs"));
                self.most = self.most.max(bytes);
                assert!(bytes <= self.quota + self.quota / 10, "{bytes} bytes of {}", self.quota);
            }
        }
    }

    fn durable(&self) -> bool {
        let mark = self.sink.mark();
        self.runtime.block_on(self.sink.durable_since(mark))
    }

    /// An event that is no inference.
    fn event(&self) -> bool {
        let mark = self.sink.mark();
        self.sink.record_own(AuditEvent::TrustReset);
        self.runtime.block_on(self.sink.durable_since(mark))
    }

    fn ends(self) -> TestRoot {
        self.sink.close();
        self.thread.join().unwrap();
        self.root
    }
}

fn bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { bytes(&path) } else { path.metadata().unwrap().len() }).sum()
}

/// The rows that are in the log, and the calls that they stand for.
fn taken(root: &TestRoot) -> (BTreeSet<u64>, u64) {
    let (mut rows, mut sum) = (BTreeSet::new(), 0);
    for record in records(root, 1) {
        if let AuditEvent::InferenceMinute { calls, us, .. } = record.event {
            assert!(rows.insert(us), "row {us} twice");
            sum += calls;
        }
    }
    (rows, sum)
}

/// A box that has to send its log, cannot do so for a number of minutes, and then can.
fn offline(quota_mb: u64, minutes: u64) {
    let mut offline = Offline::new(quota_mb, true);
    offline.minutes(minutes);
    for _ in 0..20 {
        assert!(offline.event(), "events have room where calls have none");
    }
    let (rows, sum) = taken(&offline.root);
    let status = offline.state.status();
    let log = status.log.unwrap();
    assert_eq!((log.first, status.lost), (0, (offline.offered - sum, 0)), "calls that are neither taken nor lost");
    assert!(status.lost.0 > 0 && status.error.is_none(), "{status:?}");
    let last = records(&offline.root, 1).last().unwrap().seq;
    let each = bytes(&audit(&offline.root).join("logs")) / (last + 1);
    println!(
        "offline: quota {quota_mb} MiB, {} rows offered, {} taken, {last} records of {each} bytes, at most {} bytes on the disk",
        offline.rows,
        rows.len(),
        offline.most
    );
    println!(
        "a month of {ROWS} rows a minute is {} MiB; with the default of 512 MiB {} days fit",
        (43_200 * ROWS * each) >> 20,
        (512 << 20) / (1440 * ROWS * each)
    );
    // The first rows are there without gaps: none was dropped for a later one.
    assert!(rows.iter().copied().eq(1..=rows.len() as u64));

    // The platform is back, and has everything that is signed.
    let size = offline.state.heads().borrow().as_ref().unwrap().checkpoint.size;
    offline.state.tell(AuditSyncEvent::Has { generation: 1, size });
    assert!(offline.event());
    let status = offline.state.status();
    let log = status.log.unwrap();
    assert!(log.first > 0 && log.first <= size, "{status:?}");
    assert_eq!(losses(&records(&offline.root, 1))["quota"], (offline.offered - sum, 0));
    let before = offline.rows;
    offline.minutes(10);
    let (later, _) = taken(&offline.root);
    assert!((before + 1..=offline.rows).all(|row| later.contains(&row)), "recording goes on");
    // Nothing that the platform lacks is gone.
    assert_eq!(records(&offline.root, 1)[0].seq, log.first);
    let root = offline.ends();
    is_whole(&root);
}

#[test]
fn a_month_offline_stays_within_the_quota_and_says_what_it_lost() {
    offline(8, 5_000);
}

#[test]
#[ignore = "half a million records: make soak"]
fn a_whole_month_offline_stays_within_the_quota_and_says_what_it_lost() {
    offline(64, 43_200);
}

#[test]
fn a_box_that_sends_its_log_nowhere_gives_up_its_oldest_records_and_says_so() {
    let mut alone = Offline::new(8, false);
    alone.minutes(5_000);
    let status = alone.state.status();
    let log = status.log.unwrap();
    assert!(log.first > 0 && status.lost == (0, 0), "{status:?}");
    println!(
        "alone: {} rows offered, records {} to {} held, at most {} bytes",
        alone.rows, log.first, log.size, alone.most
    );
    // The rest has no gap, and fills more than half of the quota.
    let (rows, _) = taken(&alone.root);
    assert!(rows.iter().copied().eq(alone.rows - rows.len() as u64 + 1..=alone.rows));
    assert!(alone.most > alone.quota / 2 && bytes(&audit(&alone.root).join("logs")) > alone.quota / 2);
    assert!(!tile(&alone.root, 1, 0).exists());
    let root = alone.ends();
    is_whole(&root);
    let mut pruned = Vec::new();
    for record in records(&root, 1) {
        if let AuditEvent::RecordsPruned { below, synced } = record.event {
            assert!(!synced && below < record.seq, "{record:?}");
            pruned.push(below);
        }
    }
    assert_eq!(pruned.last(), Some(&log.first));
    assert!(pruned.is_sorted());
}
