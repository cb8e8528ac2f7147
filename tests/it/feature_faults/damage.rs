//! One damaged file, of any kind, at any place: every value is read back, or the loss is reported; never another value.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use ledge::clock::unix_millis;

use super::books::{Books, VIEWS};
use super::seed::Random;
use super::writers::{Writers, check, start};
use crate::daemon::{TestRoot, copy};

/// A store with a snapshot, journal behind it, and an index that has both.
struct Store {
    root: TestRoot,
    kept: PathBuf,
    /// Pushes are acknowledged, and not settled; the mark of each is its number.
    books: Books,
    end: End,
}

/// The end of the daemon.
#[derive(Debug, Clone, Copy)]
enum End {
    InOrder,
    /// It was killed a while after the last push: the index has it.
    Killed,
    /// It was killed at once: only the journal has the last pushes.
    KilledAtOnce,
}

impl Store {
    fn new(end: End, random: &mut Random) -> Self {
        let root = TestRoot::new().views(VIEWS).set("features.snapshot_mb=1").set("log.level=\"info\"");
        let kept = root.folder.path().join("kept");
        let mut daemon = start(root).daemon;
        let writers = Writers::new(Books::new(3000), None);
        let mut client = daemon.client();
        let folder = daemon.root.folder.path().join("features");
        let has_snapshot = || {
            fs::read_dir(&folder)
                .unwrap()
                .any(|entry| entry.unwrap().path().extension().is_some_and(|extension| extension == "ledge"))
        };
        while !has_snapshot() {
            assert_eq!(writers.push(&mut client, random, false).unwrap(), 200);
        }
        daemon.wait_for_event("features.snapshot_taken");
        for push in 0..8 {
            assert_eq!(writers.push(&mut client, random, push % 2 == 0).unwrap(), 200);
        }
        match end {
            End::InOrder => {
                daemon.signal("TERM");
                assert!(daemon.wait().success());
            }
            End::Killed => wait_for_flush(&folder),
            End::KilledAtOnce => {}
        }
        let root = daemon.kill();
        let books = writers.books.into_inner().unwrap();
        copy(&folder, &kept);
        Self { root, kept, books, end }
    }

    fn files(&self) -> BTreeMap<String, PathBuf> {
        fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { walk(&path, found) } else { found.push(path) }
            }
        }
        let mut found = Vec::new();
        walk(&self.kept, &mut found);
        let named = |path: PathBuf| (path.strip_prefix(&self.kept).unwrap().display().to_string(), path);
        found
            .into_iter()
            .map(named)
            .filter(|(name, path)| name != "lock" && path.metadata().unwrap().len() > 0)
            .collect()
    }

    /// Damages one file, starts the daemon on it, and reads everything; returns the loss.
    fn try_damage(mut self, name: &str, kind: &str, random: &mut Random) -> (Self, Option<String>) {
        let folder = self.root.folder.path().join("features");
        fs::remove_dir_all(&folder).unwrap();
        copy(&self.kept, &folder);
        let file = fs::File::options().read(true).write(true).open(folder.join(name)).unwrap();
        let length = file.metadata().unwrap().len();
        let at = random.next() % length;
        match kind {
            "flipped" => {
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                file.write_all_at(&[byte[0] ^ (1 << random.below(8))], at).unwrap();
            }
            "cut" => file.set_len(at).unwrap(),
            "zeroed" => {
                let (from, to) = (at / 4096 * 4096, (at / 4096 * 4096 + 4096).min(length));
                file.write_all_at(&vec![0; usize::try_from(to - from).unwrap()], from).unwrap();
            }
            "removed" => fs::remove_file(folder.join(name)).unwrap(),
            kind => panic!("{kind}"),
        }
        drop(file);
        let place = format!("{name}, {length} bytes, {kind} at {at}, {:?}", self.end);
        let daemon = start(self.root).daemon;
        let mut books = self.books.clone();
        books.settle(u64::MAX);
        let findings = books.check(&mut daemon.client()).unwrap().unwrap();
        let log = daemon.log();
        assert!(findings.wrong.is_empty(), "{place}: {findings:#?}\n{log}");
        let mut lost = None;
        if !findings.lost.is_empty() {
            let told = ["features.damaged", "features.entries_lost"].map(|name| daemon.events(name).len());
            assert!(told != [0, 0], "{place}: {findings:#?}\n{log}");
            lost = Some(place);
        }
        // After any damage, the next start finds a store in order.
        self.root = daemon.kill();
        (self, lost)
    }
}

/// Waits until the index on the disk has everything that is in memory. It writes within seconds if there is anything,
/// in several writes: only when it has let a while go by without one is there nothing left.
fn wait_for_flush(store: &Path) {
    let written = || {
        let layers = fs::read_dir(store).unwrap().map(|entry| entry.unwrap().path().join("db"));
        layers.filter_map(|database| database.metadata().ok()?.modified().ok()).max().unwrap()
    };
    let (begin, pushed) = (Instant::now(), unix_millis());
    while unix_millis_of(written()) <= pushed {
        assert!(begin.elapsed() < Duration::from_mins(1), "the index was not written");
        std::thread::yield_now();
    }
    let (mut last, mut since) = (written(), Instant::now());
    while since.elapsed() < Duration::from_millis(600) {
        std::thread::yield_now();
        let now = written();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
}

fn unix_millis_of(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis().try_into().unwrap()
}

const KINDS: [&str; 4] = ["flipped", "cut", "zeroed", "removed"];

fn damage(each: usize, test: &str) {
    let mut random = Random::new(test);
    let (mut tried, mut lost) = (0, Vec::new());
    for end in [End::InOrder, End::Killed, End::KilledAtOnce] {
        let mut store = Store::new(end, &mut random);
        for (name, _) in store.files() {
            for _ in 0..each {
                let kind = if random.one_in(2) { "flipped" } else { KINDS[random.below(KINDS.len())] };
                let result = store.try_damage(&name, kind, &mut random);
                store = result.0;
                lost.extend(result.1);
                tried += 1;
            }
        }
    }
    println!("| damaged | places | with a loss |\n| --- | --- | --- |\n| one file | {tried} | {} |", lost.len());
    for place in lost {
        println!("{place}");
    }
}

#[test]
fn one_damaged_file_loses_nothing_or_it_is_told() {
    damage(2, "damage");
}

#[test]
#[ignore = "over a thousand places: make soak"]
fn a_thousand_damaged_files_lose_nothing_or_it_is_told() {
    damage(50, "damage");
}

#[test]
fn a_store_that_was_not_damaged_is_as_it_was() {
    let mut random = Random::new("no damage");
    for end in [End::InOrder, End::Killed, End::KilledAtOnce] {
        let mut store = Store::new(end, &mut random);
        let daemon = start(store.root).daemon;
        store.books.settle(u64::MAX);
        check(&daemon, &mut store.books);
    }
}
