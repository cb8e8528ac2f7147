//! Threads that push at full rate until the daemon is gone, and the status of a daemon after its start.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Condvar, Mutex};
use std::thread::Scope;
use std::time::{Duration, Instant};

use super::books::{Books, ENTITIES, Sent};
use super::seed::Random;
use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot};

const THREADS: usize = 4;

/// Threads that push and keep the books together.
pub struct Writers<'p> {
    pub books: Mutex<Books>,
    changed: Condvar,
    /// The log of the shim.
    log: Option<&'p Path>,
}

impl<'p> Writers<'p> {
    pub fn new(books: Books, log: Option<&'p Path>) -> Self {
        Self { books: Mutex::new(books), changed: Condvar::new(), log }
    }

    /// Begins to push, until the daemon is gone.
    pub fn write<'s>(&'s self, scope: &'s Scope<'s, '_>, address: SocketAddr, random: &mut Random) {
        for thread in 0..THREADS {
            let mut random = random.fork();
            scope.spawn(move || {
                let Ok(mut client) = Client::try_tcp(address) else { return };
                while self.push(&mut client, &mut random, thread == 0).is_ok() {}
            });
        }
    }

    /// Pushes once; the status.
    pub fn push(&self, client: &mut Client, random: &mut Random, direct: bool) -> std::io::Result<u16> {
        // Neighbours, so that the threads meet at the same entities; each entity once in a push.
        let (first, rows) = (random.below(ENTITIES), 1 + random.below(6));
        let entities = (first..first + rows).map(|entity| entity % ENTITIES).collect();
        let (number, path, body) = self.books.lock().unwrap().next(Sent { entities, direct });
        let answer = client.try_post_json(path, &body)?;
        // Every call before the acknowledgement is in the log by now.
        let mark = self.log.map_or(number.unsigned_abs(), |log| std::fs::metadata(log).unwrap().len());
        let mut books = self.books.lock().unwrap();
        match answer.status {
            200 => {
                // A thread that slept for long would otherwise look like a loss.
                let pushed = answer.header("x-ledge-pushed").unwrap();
                assert!(pushed.ends_with("duplicate=0, too_late=0"), "push {number}: {pushed}");
                books.acknowledge(number, mark);
            }
            // No room, or an error of the journal: the outcome is unknown until the next start.
            500 | 507 => {}
            429 | 503 => books.refuse(number),
            status => panic!("a push is answered {status}: {}", String::from_utf8_lossy(&answer.body)),
        }
        drop(books);
        self.changed.notify_all();
        Ok(answer.status)
    }

    /// Waits until this many pushes were acknowledged, but no longer than this time.
    pub fn wait(&self, acknowledged: usize, limit: Duration) {
        let until = Instant::now() + limit;
        let mut books = self.books.lock().unwrap();
        while books.recent() < acknowledged && Instant::now() < until {
            books = self.changed.wait_timeout(books, until.saturating_duration_since(Instant::now())).unwrap().0;
        }
    }
}

/// A daemon with a readable index.
pub struct Started {
    pub daemon: TestDaemon,
    /// The duration of recovery, as the daemon reports it.
    pub recovery: Duration,
    /// From the start of the process until then.
    pub whole: Duration,
}

/// Starts the daemon and waits until its index can be read, which may be after it is ready.
pub fn start(root: TestRoot) -> Started {
    let begin = Instant::now();
    let daemon = root.start_unready();
    let line = daemon.wait_for_event_since_start("features.ready");
    let recovery = Duration::from_millis(line["ms"].as_u64().unwrap());
    Started { daemon, recovery, whole: begin.elapsed() }
}

/// Reads everything; fails when anything is lost or wrong.
#[track_caller]
pub fn check(daemon: &TestDaemon, books: &mut Books) {
    let findings = books.check(&mut daemon.client()).unwrap().unwrap();
    assert!(findings.lost.is_empty() && findings.wrong.is_empty(), "{findings:#?}");
}

/// The findings of the rounds, as `make soak` prints them.
#[derive(Default)]
pub struct Report {
    pub recoveries: Vec<Duration>,
    pub starts: Vec<Duration>,
    pub rebuilds: usize,
    pub snapshots: usize,
    pub sizes: Vec<u64>,
    /// Files that power cuts left other than they were.
    pub torn: usize,
    pub lost: bool,
}

impl Report {
    /// Adds a round.
    pub fn add(&mut self, started: &Started, store: &Path) {
        self.recoveries.push(started.recovery);
        self.starts.push(started.whole);
        self.sizes.push(size(store));
    }

    /// Counts the events in a daemon's log at its end.
    pub fn read(&mut self, daemon: &TestDaemon) {
        let rebuilt =
            daemon.events("features.ready").last().and_then(|line| line["rebuilt"].as_u64()).unwrap_or_default();
        self.rebuilds += usize::try_from(rebuilt).unwrap();
        self.snapshots += daemon.events("features.snapshot_taken").len();
    }

    /// A row of the table.
    pub fn print(&mut self, name: &str, books: &Books) {
        let rounds = self.recoveries.len();
        let mut ms = |of: fn(&mut Self) -> &mut Vec<Duration>| {
            let times = of(self);
            times.sort();
            let at = |index: usize| times.get(index).map_or(0, Duration::as_millis);
            format!("{}/{}", at(rounds / 2), at(rounds.saturating_sub(1)))
        };
        let (recovery, start) = (ms(|report| &mut report.recoveries), ms(|report| &mut report.starts));
        println!(
            "| faults | rounds | pushes acknowledged | recovery ms p50/max | start ms p50/max | disk MiB max | snapshots | torn files | rebuilds |"
        );
        println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
        let largest = self.sizes.iter().max().map_or(0, |bytes| bytes >> 20);
        println!(
            "| {name} | {rounds} | {} | {recovery} | {start} | {largest} | {} | {} | {} |",
            books.total, self.snapshots, self.torn, self.rebuilds
        );
    }
}

/// The bytes of all files below a folder.
pub fn size(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |path: &Path| std::fs::symlink_metadata(path).map_or(0, |metadata| metadata.blocks() * 512);
    entries.map(|entry| entry.path()).map(|path| if path.is_dir() { self::size(&path) } else { size(&path) }).sum()
}
