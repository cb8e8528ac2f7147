//! Tests of the writer without its thread, turn by turn.

use ledge_service::audit_event::AuditSink;

use super::*;
use crate::layout::{log_folder, whole_entries};
use crate::local::generations;
use crate::record::AuditRecord;
use crate::status::AuditSyncEvent;

struct Bench {
    folder: tempfile::TempDir,
    sink: AuditSink,
    state: AuditState,
    writer: AuditLogWriter,
}

impl Bench {
    fn new() -> Self {
        Self::over(tempfile::tempdir().unwrap())
    }

    /// The writer of a daemon that starts with the content of this folder.
    fn over(folder: tempfile::TempDir) -> Self {
        let config = AuditConfig { path: folder.path().join("audit"), min_free_mb: 0, ..AuditConfig::default() };
        let (sink, queue) = AuditSink::channel();
        let state = AuditState::default();
        let writer = AuditLogWriter::new(
            &config,
            &"box-1".parse().unwrap(),
            queue,
            state.clone(),
            ledge_identity::sealing::Sealer::none(),
        );
        Self { folder, sink, state, writer }
    }

    fn turn(&mut self) {
        let batch = self.writer.queue.take();
        self.writer.turn(batch);
    }

    fn audit(&self) -> PathBuf {
        self.folder.path().join("audit")
    }

    fn file(&self, generation: u32) -> PathBuf {
        log_folder(&self.audit(), generation).join("tile/entries/000")
    }

    fn events(&self, generation: u32) -> Vec<AuditEvent> {
        let file = std::fs::read(self.file(generation)).unwrap();
        whole_entries(&file).0.into_iter().map(|entry| AuditRecord::parse(entry).unwrap().event).collect()
    }
}

fn of(events: &[AuditEvent]) -> Vec<&'static str> {
    events.iter().map(AuditEvent::action).collect()
}

#[test]
fn a_quiet_box_says_that_it_is_there_once_a_day() {
    let mut quiet = Bench::new();
    quiet.turn();
    let day = |quiet: &mut Bench| quiet.writer.written = Instant::now().checked_sub(IDLE_RECORD_INTERVAL).unwrap();
    let idle = |quiet: &Bench| quiet.events(1).iter().filter(|event| **event == AuditEvent::Idle).count();
    quiet.turn();
    assert_eq!(idle(&quiet), 0);
    for days in 1..3 {
        day(&mut quiet);
        quiet.turn();
        quiet.turn();
        assert_eq!(idle(&quiet), days);
    }
    // Records of other events report it as well.
    day(&mut quiet);
    quiet.sink.record_own(AuditEvent::Stopped);
    quiet.turn();
    quiet.turn();
    assert_eq!(idle(&quiet), 2);
    assert!(!AuditEvent::Idle.is_urgent() && !AuditEvent::Idle.is_warning());
}

#[test]
fn a_log_that_cannot_take_its_first_record_takes_it_as_soon_as_it_can() {
    let mut full = Bench::new();
    let (entries, mark) = (full.file(1), full.sink.mark());
    full.writer.open(clock::unix_millis());
    std::fs::create_dir_all(entries.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("/dev/full", &entries).unwrap();
    full.sink.record_own(AuditEvent::TrustReset);
    full.turn();
    let status = full.state.status();
    assert!(status.error.unwrap().contains("No space left on device"));
    assert_eq!((status.log.unwrap().size, status.lost, full.sink.mark() == mark), (0, (0, 1), false));
    full.sink.record_own(AuditEvent::Stopped);
    full.turn();
    assert_eq!(of(&full.events(1)), ["log_begun", "audit_key_made", "tag_key_made", "records_lost", "stopped"]);
    assert_eq!((full.state.status().error, full.state.status().lost), (None, (0, 1)));
}

#[test]
fn a_start_tells_the_records_behind_the_signed_head_no_later_than_the_head() {
    let mut killed = Bench::new();
    killed.sink.record_own(AuditEvent::TrustReset);
    killed.turn();
    killed.sink.record_own(AuditEvent::Idle);
    killed.turn();
    let Bench { folder, writer, .. } = killed;
    drop(writer);
    let mut started = Bench::over(folder);
    assert_eq!(started.state.status().log, None);
    started.writer.open(clock::unix_millis());
    let head = started.state.heads().borrow().as_ref().unwrap().checkpoint.size;
    let size = started.state.status().log.unwrap().size;
    assert!(size > head && size == started.events(1).len() as u64, "{size} records, and a head over {head}");
}

#[test]
fn a_failure_that_loses_nothing_is_over_when_it_is_over() {
    let mut idle = Bench::new();
    idle.turn();
    let checkpoint = log_folder(&idle.audit(), 1).join("checkpoint");
    idle.sink.record_own(AuditEvent::Stopped);
    let _ = std::fs::remove_file(&checkpoint);
    std::fs::create_dir(&checkpoint).unwrap();
    idle.turn();
    assert!(idle.state.status().error.unwrap().contains("checkpoint"));
    std::fs::remove_dir(&checkpoint).unwrap();
    idle.writer.open.as_mut().unwrap().signed = Instant::now().checked_sub(CLOCK_CHECK_INTERVAL).unwrap();
    // No event is recorded here. Were the error kept, administrators would be refused for ever.
    idle.turn();
    assert_eq!(idle.state.status().error, None);
    assert!(checkpoint.is_file());
}

#[test]
fn a_log_that_the_platform_knows_otherwise_is_an_alarm_and_another_begins() {
    let mut forked = Bench::new();
    forked.turn();
    let before = std::fs::read(forked.file(1)).unwrap();
    forked.state.tell(AuditSyncEvent::Forked { generation: 1 });
    forked.sink.record_own(AuditEvent::Stopped);
    forked.turn();
    // The same once more is no news.
    forked.state.tell(AuditSyncEvent::Forked { generation: 1 });
    forked.turn();
    assert_eq!(generations(&forked.audit()).unwrap(), [1, 2]);
    assert_eq!((of(&forked.events(2)), std::fs::read(forked.file(1)).unwrap()), (vec!["log_begun", "stopped"], before));
    let status = forked.state.status();
    assert!(status.origin.ends_with("/2") && status.alarm.unwrap().contains("ledge.audit/box-1/1"));

    // The next start knows of it, until the log that is the evidence was taken away.
    drop(forked.writer);
    let mut again = Bench::over(forked.folder);
    again.turn();
    assert_eq!(again.state.status().alarm.unwrap(), "the platform has another history of ledge.audit/box-1/1");
    std::fs::remove_dir_all(log_folder(&again.audit(), 1)).unwrap();
    drop(again.writer);
    let mut over = Bench::over(again.folder);
    over.turn();
    assert_eq!(over.state.status().alarm, None);
}

#[test]
fn records_of_older_logs_go_first_and_make_room_for_a_log_that_has_few() {
    let mut full = Bench::new();
    full.writer.limits.quota = 200_000;
    full.writer.is_synced = true;
    full.turn();
    for below in 1000..2150 {
        full.sink.record_own(AuditEvent::RecordsPruned { below, synced: false });
    }
    full.turn();
    let bytes = full.state.status().log.unwrap().bytes;
    assert!((190_000..210_000).contains(&bytes) && full.file(1).exists(), "{bytes}");
    full.state.tell(AuditSyncEvent::Forked { generation: 1 });
    full.sink.record_own(AuditEvent::Stopped);
    full.turn();
    full.turn();
    assert!(full.file(1).exists(), "the platform may lack it");
    full.state.tell(AuditSyncEvent::Has { generation: 1, size: 1154 });
    full.turn();
    full.turn();
    let status = full.state.status();
    assert!(!full.file(1).exists() && status.log.unwrap().bytes < 100_000, "{status:?}");
    assert_eq!(full.writer.room, LogCapacity::Enough);
    let again = full.events(2).len();
    full.turn();
    assert_eq!(full.events(2).len(), again);
}

#[tokio::test]
async fn another_history_on_the_platform_is_an_alarm_and_another_log_begins() {
    let Bench { folder: _folder, sink, state, writer } = Bench::new();
    let thread = std::thread::spawn(move || writer.run());
    let mut heads = state.heads();
    let is_of = |generation| {
        move |head: &Option<PublishedCheckpoint>| head.as_ref().is_some_and(|head| head.generation == generation)
    };
    sink.record_own(AuditEvent::Stopped);
    heads.wait_for(is_of(1)).await.unwrap();
    assert_eq!(state.status().alarm, None);

    state.tell(AuditSyncEvent::Forked { generation: 1 });
    heads.wait_for(is_of(2)).await.unwrap();
    let alarm = state.status().alarm.unwrap();
    assert_eq!(alarm, "the platform has another history of ledge.audit/box-1/1");
    sink.close();
    thread.join().unwrap();
}
