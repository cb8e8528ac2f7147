//! The cost of the audit log: for the caller of a model, for appending and committing records, for signing heads, and
//! for a start.
//!
//! `cargo bench --bench audit_log -- --quick`, or with a part of a name: `cargo bench --bench audit_log -- commit`. It
//! writes into the folder for temporary files: `TMPDIR=/a/disk` measures another disk than that of `/tmp`. The size of
//! a record on the disk is printed before the first measurement.

#![expect(clippy::unwrap_used, reason = "a benchmark that panics says where")]

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ledge::audit::config::AuditConfig;
use ledge::audit::key::AuditKey;
use ledge::audit::log::AuditLog;
use ledge::audit::record::{Actor, ActorKind, AuditRecord, Timestamp, VERSION};
use ledge::audit::status::AuditState;
use ledge::audit::writer::AuditLogWriter;
use ledge::audit_event::inference::{AuditCallGroup, CallOutcome, DigestPrefix, RecordDetail};
use ledge::audit_event::tag::{TagContent, TagKey};
use ledge::audit_event::{AuditEvent, AuditSink};
use ledge::names::DeviceName;
use ledge::principal::Principal;
use ledge::tensor::Tensor;
use tempfile::TempDir;

/// The records of a group commit.
const COMMIT_RECORDS: u64 = 1000;

/// The records of a long log.
const LONG_LOG_RECORDS: u64 = 1_000_000;

/// A log in a temporary folder.
struct LogFolder {
    folder: TempDir,
    device: DeviceName,
    key: AuditKey,
}

impl LogFolder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let device: DeviceName = "box-1".parse().unwrap();
        let (key, _) =
            AuditKey::load_or_create(folder.path(), &device, &ledge::identity::sealing::Sealer::none()).unwrap();
        Self { folder, device, key }
    }

    fn open(&self) -> AuditLog {
        AuditLog::open(self.folder.path(), &self.device, &self.key).unwrap().log
    }
}

/// The record of an inference call.
fn record(seq: u64) -> Vec<u8> {
    let key = TagKey::new(3, [7; 32]);
    let event = AuditEvent::Inference {
        model: Some("person_detect".parse().unwrap()),
        version: Some(2.try_into().unwrap()),
        digest: Some("0123456789abcdef".to_owned()),
        outcome: CallOutcome::Ok,
        us: 8123,
        input: None,
        output: None,
    };
    let actor = Actor { kind: ActorKind::Ip, tag: Some(key.of_text("192.0.2.7")) };
    AuditRecord { v: VERSION, seq, ts: Timestamp(1_767_225_600_000 + seq), actor, event }.to_line()
}

fn append(log: &mut AuditLog, count: u64) {
    for seq in log.size()..log.size() + count {
        log.append(&record(seq)).unwrap();
    }
}

fn appends(criterion: &mut Criterion) {
    let line = record(0);
    let mut group = criterion.benchmark_group("append");
    group.throughput(Throughput::Elements(COMMIT_RECORDS));
    // Without fsync: hashing and copying the record.
    group.bench_function("1000 in memory", |bencher| {
        let disk = LogFolder::new();
        let mut log = disk.open();
        bencher.iter_custom(|iterations| {
            let mut sum = Duration::ZERO;
            for _ in 0..iterations {
                let start = Instant::now();
                for _ in 0..COMMIT_RECORDS {
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
        let disk = LogFolder::new();
        let mut log = disk.open();
        bencher.iter(|| {
            for _ in 0..COMMIT_RECORDS {
                log.append(&line).unwrap();
            }
            log.commit().unwrap();
        });
    });
    group.bench_function("1 and commit", |bencher| {
        let disk = LogFolder::new();
        let mut log = disk.open();
        bencher.iter(|| {
            log.append(&line).unwrap();
            log.commit().unwrap();
        });
    });
    group.finish();
}

fn signs(criterion: &mut Criterion) {
    let disk = LogFolder::new();
    let mut log = disk.open();
    // The largest number of hashes for a root: no tile is full.
    append(&mut log, 65_535);
    log.commit().unwrap();
    criterion.bench_function("sign", |bencher| {
        bencher.iter_custom(|iterations| {
            let mut sum = Duration::ZERO;
            for _ in 0..iterations {
                append(&mut log, 1);
                log.commit().unwrap();
                let start = Instant::now();
                log.sign(&disk.key).unwrap();
                sum += start.elapsed();
            }
            sum
        });
    });
}

/// The cost of recording a call for the caller of a model, while the writer works on another thread: with the tags of a
/// row of 13 numbers and its answer, and with those of a picture of 602,112 bytes, which the writer makes.
fn calls(criterion: &mut Criterion) {
    let device: DeviceName = "box-1".parse().unwrap();
    let tensor = |elements: usize| Tensor::from_vec(vec![1, elements], vec![0.5_f32; elements]).unwrap();
    let content = |elements| TagContent::Tensors(vec![("input".to_owned(), tensor(elements))]);
    let (row, picture, answer) = (content(13), content(150_528), content(3));
    let key = AuditCallGroup {
        model: Some("person_detect".parse().unwrap()),
        version: Some(2.try_into().unwrap()),
        digest: DigestPrefix::of("0123456789abcdef"),
        principal: Principal::Peer([192, 0, 2, 7].into()),
        outcome: CallOutcome::Ok,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut group = criterion.benchmark_group("call");
    for (name, detail, input) in [
        ("by the minute", RecordDetail::Minutes, None),
        ("each, a row", RecordDetail::Calls, Some(&row)),
        ("each, a picture", RecordDetail::Calls, Some(&picture)),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let config = AuditConfig { path: folder.path().to_owned(), inference: detail, ..AuditConfig::default() };
        let (sink, queue) = AuditSink::with_policy(config.policy());
        let writer = AuditLogWriter::new(
            &config,
            &device,
            queue,
            AuditState::default(),
            ledge::identity::sealing::Sealer::none(),
        );
        let writer = std::thread::spawn(move || writer.run());
        sink.record_own(AuditEvent::Stopped);
        assert!(runtime.block_on(sink.durable()), "the log opens with its keys");
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|count| {
                let mut spent = Duration::ZERO;
                // A hundred at a time: otherwise the waiting contents would fill their memory, which they do not when
                // models run in between.
                for from in (0..count).step_by(100) {
                    let started = Instant::now();
                    for _ in from..count.min(from + 100) {
                        let tag = |content: &TagContent| sink.taggable(content.clone());
                        let input = input.and_then(tag);
                        let output = input.is_some().then(|| tag(&answer)).flatten();
                        sink.record_call(key.clone(), 81, input, output);
                    }
                    spent += started.elapsed();
                    runtime.block_on(sink.durable());
                }
                spent
            });
        });
        assert_eq!(sink.lost(), 0);
        sink.close();
        writer.join().unwrap();
    }
    group.finish();
}

fn starts(criterion: &mut Criterion) {
    let disk = LogFolder::new();
    let mut log = disk.open();
    while log.size() < LONG_LOG_RECORDS {
        append(&mut log, 10 * COMMIT_RECORDS);
        log.commit().unwrap();
    }
    log.sign(&disk.key).unwrap();
    let records = u64::try_from(record(LONG_LOG_RECORDS).len()).unwrap();
    println!("a record of {records} bytes takes {} bytes on the disk", log.bytes() / LONG_LOG_RECORDS);
    drop(log);
    let mut group = criterion.benchmark_group("open");
    group.sample_size(10);
    group
        .bench_function("1000000 records", |bencher| bencher.iter(|| assert_eq!(disk.open().size(), LONG_LOG_RECORDS)));
    group.finish();
}

criterion_group!(benches, appends, signs, calls, starts);
criterion_main!(benches);
