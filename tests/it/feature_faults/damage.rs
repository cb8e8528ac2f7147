//! One damaged file, of any kind, at any place: every value is read back, or the loss is told; never another value.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::books::{Books, VIEWS};
use super::seed::Random;
use super::writers::{Desk, check, start};
use crate::daemon::{TestRoot, copy};

/// A store with a snapshot, journal behind it, and an index that has both.
struct Store {
    root: TestRoot,
    kept: PathBuf,
    books: Books,
    in_order: bool,
}

impl Store {
    fn new(in_order: bool, random: &mut Random) -> Self {
        let root = TestRoot::new().views(VIEWS).set("features.snapshot_mb=1").set("log.level=\"info\"");
        let kept = root.folder.path().join("kept");
        let mut daemon = start(root).daemon;
        let desk = Desk::new(Books::new(3000), None);
        let mut client = daemon.client();
        let folder = daemon.root.folder.path().join("features");
        let has_snapshot = || fs::read_dir(&folder).unwrap().any(|entry| {
            entry.unwrap().path().extension().is_some_and(|extension| extension == "ledge")
        });
        while !has_snapshot() {
            assert_eq!(desk.push(&mut client, random, false).unwrap(), 200);
        }
        daemon.wait_for_log("a snapshot of the feature store was taken");
        for push in 0..8 {
            assert_eq!(desk.push(&mut client, random, push % 2 == 0).unwrap(), 200);
        }
        if in_order {
            daemon.signal("TERM");
            assert!(daemon.wait().success());
        }
        let root = daemon.kill();
        let mut books = desk.books.into_inner().unwrap();
        books.settle(u64::MAX);
        copy(&folder, &kept);
        Self { root, kept, books, in_order }
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
        found.into_iter().map(named).filter(|(name, path)| name != "lock" && path.metadata().unwrap().len() > 0).collect()
    }

    /// Damages one file, starts the daemon on it, and reads everything; what was lost.
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
        let place = format!("{name}, {length} bytes, {kind} at {at}, stopped in order: {}", self.in_order);
        let daemon = start(self.root).daemon;
        let findings = self.books.clone().check(&mut daemon.client()).unwrap().unwrap();
        let log = daemon.log();
        assert!(findings.wrong.is_empty(), "{place}: {findings:#?}\n{log}");
        let mut lost = None;
        if !findings.lost.is_empty() {
            let told = log.lines().any(|line| line.contains("\"ERROR\"") && line.contains("feature store"));
            assert!(told, "{place}: {findings:#?}\n{log}");
            lost = Some(place);
        }
        // Whatever it was, the next start finds a store in order.
        self.root = daemon.kill();
        (self, lost)
    }
}

const KINDS: [&str; 3] = ["flipped", "cut", "zeroed"];

fn damage(every: usize, test: &str) {
    let mut random = Random::new(test);
    let (mut tried, mut lost) = (0, Vec::new());
    for in_order in [true, false] {
        let mut store = Store::new(in_order, &mut random);
        for (name, _) in store.files() {
            for _ in 0..every {
                for kind in KINDS.into_iter().chain(["removed"]) {
                    let result = store.try_damage(&name, kind, &mut random);
                    store = result.0;
                    lost.extend(result.1);
                    tried += 1;
                }
            }
        }
    }
    println!("| damaged | places | with a loss that was told |\n| --- | --- | --- |\n| one file | {tried} | {} |", lost.len());
    lost.iter().for_each(|place| println!("{place}"));
}

#[test]
fn one_damaged_file_loses_nothing_or_it_is_told() {
    damage(1, "damage");
}

#[test]
#[ignore = "a thousand places: make soak"]
fn a_thousand_damaged_files_lose_nothing_or_it_is_told() {
    damage(20, "damage");
}

#[test]
fn a_store_that_was_not_damaged_is_as_it_was() {
    let mut random = Random::new("no damage");
    for in_order in [true, false] {
        let mut store = Store::new(in_order, &mut random);
        let daemon = start(store.root).daemon;
        check(&daemon, &mut store.books);
    }
}
