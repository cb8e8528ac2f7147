//! What the audit log costs: records appended and made durable, heads signed, a start.
//!
//! `cargo bench --bench audit_log -- --quick`, or with a part of a name: `cargo bench --bench audit_log -- commit`. What it
//! writes lies in the folder for temporary files: `TMPDIR=/a/disk` measures another disk than that of `/tmp`. The bytes that
//! a record takes are printed before the first measurement.

#![expect(clippy::unwrap_used, reason = "a benchmark that panics says where")]

use std::time::{Duration, Instant};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use ledge::audit::key::AuditKey;
use ledge::audit::log::Log;
use ledge::audit::record::{Actor, ActorKind, AuditRecord, Timestamp, VERSION};
use ledge::audit_event::AuditEvent;
use ledge::audit_event::inference::Outcome;
use ledge::audit_event::tag::TagKey;
use ledge::names::DeviceName;
use tempfile::TempDir;

/// The records of a group commit.
const GROUP: u64 = 1000;

/// The records of a long log.
const MILLION: u64 = 1_000_000;

struct Disk {
    folder: TempDir,
    device: DeviceName,
    key: AuditKey,
}

impl Disk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let device: DeviceName = "box-1".parse().unwrap();
        let (key, _) = AuditKey::load_or_create(folder.path(), &device).unwrap();
        Self { folder, device, key }
    }

    fn open(&self) -> Log {
        Log::open(self.folder.path(), &self.device, &self.key).unwrap().log
    }
}

/// An inference call as it is recorded.
fn record(seq: u64) -> Vec<u8> {
    let key = TagKey::new(3, [7; 32]);
    let event = AuditEvent::Inference {
        model: Some("person_detect".parse().unwrap()),
        version: Some(2.try_into().unwrap()),
        digest: Some("0123456789abcdef".to_owned()),
        outcome: Outcome::Ok,
        us: 8123,
        input: None,
        output: None,
    };
    let actor = Actor { kind: ActorKind::Ip, tag: Some(key.of_text("192.0.2.7")) };
    AuditRecord { v: VERSION, seq, ts: Timestamp(1_767_225_600_000 + seq), actor, event }.to_line()
}

fn append(log: &mut Log, count: u64) {
    for seq in log.size()..log.size() + count {
        log.append(&record(seq)).unwrap();
    }
}

fn appends(criterion: &mut Criterion) {
    let line = record(0);
    let mut group = criterion.benchmark_group("append");
    group.throughput(Throughput::Elements(GROUP));
    // Without fsync: the hashing, and the copy of the record.
    group.bench_function("1000 in memory", |bencher| {
        let disk = Disk::new();
        let mut log = disk.open();
        bencher.iter_custom(|iterations| {
            let mut sum = Duration::ZERO;
            for _ in 0..iterations {
                let start = Instant::now();
                for _ in 0..GROUP {
                    log.append(&line).unwrap();
                }
                sum += start.elapsed();
                // Otherwise the memory would fill up.
                log.commit().unwrap();
            }
            sum
        });
    });
    group.bench_function("1000 and commit", |bencher| {
        let disk = Disk::new();
        let mut log = disk.open();
        bencher.iter(|| {
            for _ in 0..GROUP {
                log.append(&line).unwrap();
            }
            log.commit().unwrap();
        });
    });
    group.bench_function("1 and commit", |bencher| {
        let disk = Disk::new();
        let mut log = disk.open();
        bencher.iter(|| {
            log.append(&line).unwrap();
            log.commit().unwrap();
        });
    });
    group.finish();
}

fn signs(criterion: &mut Criterion) {
    let disk = Disk::new();
    let mut log = disk.open();
    // The most that a root is made of: no tile is whole.
    append(&mut log, 65_535);
    log.commit().unwrap();
    criterion.bench_function("sign", |bencher| {
        bencher.iter_batched(
            || log.size(),
            |size| {
                append(&mut log, 1);
                log.commit().unwrap();
                assert_eq!(log.sign(&disk.key).unwrap().size, size + 1);
            },
            BatchSize::PerIteration,
        );
    });
}

fn starts(criterion: &mut Criterion) {
    let disk = Disk::new();
    let mut log = disk.open();
    while log.size() < MILLION {
        append(&mut log, 10 * GROUP);
        log.commit().unwrap();
    }
    log.sign(&disk.key).unwrap();
    let records = u64::try_from(record(MILLION).len()).unwrap();
    println!("a record of {records} bytes takes {} bytes on the disk", log.bytes() / MILLION);
    drop(log);
    let mut group = criterion.benchmark_group("open");
    group.sample_size(10);
    group.bench_function("1000000 records", |bencher| bencher.iter(|| assert_eq!(disk.open().size(), MILLION)));
    group.finish();
}

criterion_group!(benches, appends, signs, starts);
criterion_main!(benches);
