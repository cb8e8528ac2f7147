//! A full disk, and room again: writes are refused with words, reads and models go on, and nothing is lost.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;
use serde_json::json;

use super::books::{Books, Sent, VIEWS};
use super::seed::Random;
use super::shim::{Number, Shim};
use super::writers::{Writers, check, start};
use crate::daemon::{TestDaemon, TestRoot};

/// Another program that fills the disk.
trait Space {
    fn fill(&self);
    fn empty(&self);

    /// Returns `true` if not even the index has any room.
    fn is_absolute(&self) -> bool {
        false
    }
}

/// Reads and inferences while there is no room: every one is answered.
pub fn goes_on(daemon: &TestDaemon, writers: &Writers<'_>, least: Duration) {
    let until = Instant::now() + least;
    let mut client = daemon.client();
    loop {
        let mut books = writers.books.lock().unwrap().clone();
        books.settle(u64::MAX);
        let findings = books.check(&mut client).unwrap();
        let findings = findings.unwrap_or_else(|reason| panic!("reads end: {reason}"));
        assert!(findings.lost.is_empty() && findings.wrong.is_empty(), "{findings:#?}");
        let input = |name: &str| json!({"name": name, "shape": [1, 16], "datatype": "FP32", "data": vec![1.0; 16]});
        let answer =
            client.post_json("/v2/models/add_sub/infer", &json!({"inputs": [input("INPUT0"), input("INPUT1")]}));
        assert_eq!(answer.status, 200, "{answer:?}");
        if Instant::now() > until {
            return;
        }
    }
}

/// Fills the disk under writes, kills the daemon meanwhile if asked to, and makes room again.
fn full_and_back(root: TestRoot, space: &dyn Space, kills: bool, random: &mut Random) {
    let mut daemon = root.start();
    let writers = Writers::new(Books::new(500), None);
    let mut client = daemon.client();
    for _ in 0..30 {
        assert_eq!(writers.push(&mut client, random, false).unwrap(), 200);
    }
    space.fill();
    let refused = (0..5_000).any(|_| writers.push(&mut client, random, false).unwrap() == 507);
    assert!(refused, "five thousand pushes found room on a full disk");
    let answer = loop {
        // A smaller one may still have found room.
        let (number, path, body) = writers.books.lock().unwrap().next(Sent { entities: vec![1], direct: true });
        let answer = client.post_json(path, &body);
        if answer.status != 200 {
            break answer;
        }
        writers.books.lock().unwrap().acknowledge(number, 0);
    };
    assert_eq!(answer.status, 507, "{answer:?}");
    // The index writes by itself every five seconds, and sled does not survive a write that fails.
    goes_on(&daemon, &writers, Duration::from_secs(if space.is_absolute() { 7 } else { 1 }));
    if kills {
        let root = daemon.kill();
        daemon = root.start();
        goes_on(&daemon, &writers, Duration::from_secs(1));
        space.empty();
    } else {
        space.empty();
    }
    let mut client = daemon.client();
    assert_eq!(writers.push(&mut client, random, false).unwrap(), 200);
    if !kills {
        assert_eq!(daemon.events("features.ready").len(), 1, "the index was given up");
    }
    goes_on(&daemon, &writers, Duration::ZERO);
    let root = daemon.kill();
    let mut books = writers.books.into_inner().unwrap();
    books.settle(u64::MAX);
    check(&start(root).daemon, &mut books);
}

pub fn root() -> TestRoot {
    TestRoot::new().models(&["add_sub"]).views(VIEWS).set("log.level=\"info\"").set("features.snapshot_mb=1")
}

/// More than any test writes.
pub const ROOM: i64 = 1 << 40;

/// The budget of the shim, only for the journal: no room for the rest of a group.
impl Space for Number {
    fn fill(&self) {
        self.set(50_123);
    }

    fn empty(&self) {
        self.set(ROOM);
    }
}

#[test]
fn a_journal_that_finds_no_room_in_the_middle_of_a_group_stops_writes_and_nothing_else() {
    let (mut random, shim) = (Random::new("full"), Shim::build());
    for kills in [false, true] {
        let root = root().set("features.min_free_mb=16");
        let store = root.folder.path().canonicalize().unwrap().join("features/journal");
        let budget = shim.number("budget", ROOM);
        let root = root.variable("LD_PRELOAD", shim.library()).variable("FAULT_FOLDER", store);
        full_and_back(root.variable("FAULT_BUDGET", &budget.path), &budget, kills, &mut random);
    }
}

/// Files of another program, on the disk of the test.
struct Neighbour {
    folder: PathBuf,
    megabytes: u64,
}

/// A terabyte, which every file system of that size can give to one file.
const LARGEST_FILE_MB: u64 = 1 << 20;

impl Space for Neighbour {
    fn fill(&self) {
        std::fs::create_dir(&self.folder).unwrap();
        let mut left = self.megabytes;
        for number in 0.. {
            let file = File::create(self.folder.join(number.to_string())).unwrap();
            let megabytes = left.min(LARGEST_FILE_MB);
            rustix::fs::fallocate(file, FallocateFlags::empty(), 0, megabytes << 20)
                .expect("the temporary folder lies on a disk that can set room aside (fallocate)");
            left -= megabytes;
            if left == 0 {
                return;
            }
        }
    }

    fn empty(&self) {
        std::fs::remove_dir_all(&self.folder).unwrap();
    }
}

/// The most that `features.min_free_mb` may be.
const MOST_KEPT_FREE_MB: u64 = 1 << 20;

#[test]
fn below_the_room_that_is_kept_free_writes_are_refused_and_nothing_else() {
    let mut random = Random::new("neighbour");
    let root = root();
    let found = rustix::fs::statvfs(root.folder.path()).unwrap();
    let free_mb = (found.f_bavail * found.f_frsize) >> 20;
    // Far enough from both sides that other programs do not decide the test.
    let margin = (free_mb / 4).min(2048);
    let least = (free_mb - margin).min(MOST_KEPT_FREE_MB);
    let neighbour = Neighbour { folder: root.folder.path().join("neighbour"), megabytes: free_mb - least + margin };
    full_and_back(root.set(&format!("features.min_free_mb={least}")), &neighbour, true, &mut random);
}

/// A small tmpfs in a separate mount namespace, which needs root or user namespaces.
struct Tmpfs {
    holder: Child,
    /// The store, as seen from here.
    folder: PathBuf,
}

impl Tmpfs {
    fn mount(store: &PathBuf) -> Self {
        std::fs::create_dir(store).unwrap();
        let mut holder = Command::new("unshare");
        holder
            .args(["-Urm", "sh", "-c", "mount -t tmpfs -o size=64m none \"$0\" && echo mounted && exec cat"])
            .arg(store);
        let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare, of util-linux");
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "mounted\n", "this needs root, or user namespaces that anybody may make");
        let folder = PathBuf::from(format!("/proc/{}/root{}", holder.id(), store.display()));
        Self { holder, folder }
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

impl Space for Tmpfs {
    fn fill(&self) {
        let mut file = File::create(self.folder.join("neighbour")).unwrap();
        for size in [1 << 20, 4096, 1] {
            while file.write_all(&vec![1; size]).is_ok() {}
        }
    }

    fn empty(&self) {
        std::fs::remove_file(self.folder.join("neighbour")).unwrap();
    }

    fn is_absolute(&self) -> bool {
        true
    }
}

#[test]
#[ignore = "needs root or user namespaces: make soak"]
fn a_full_tmpfs_stops_writes_and_nothing_else() {
    let mut random = Random::new("tmpfs");
    for kills in [false, true] {
        let root = root().set("features.min_free_mb=16");
        let tmpfs = Tmpfs::mount(&root.folder.path().join("features"));
        let holder = tmpfs.holder.id().to_string();
        let root = root.runner(&["nsenter", "-t", &holder, "-U", "-m", "--preserve-credentials", "--"]);
        full_and_back(root, &tmpfs, kills, &mut random);
    }
}
