//! An update is cut off, by `kill -9` and by power cuts, at every step that it leaves on the disk: the next start serves the
//! old version or the new one, never none, and ends at the new one by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::daemon::{TestDaemon, TestRoot};
use crate::faults::points::{CutOff, Points, Recording};
use crate::faults::seed::Random;
use crate::platform::{Callers, Fleet, SHAPES, look, shapes, status, subject};
use crate::releases::{add, answered, files};

/// What may be fetched again.
const AGAIN: u64 = 1 << 20;

/// The size of a model that takes some steps to come.
const LARGE_KB: usize = 3 << 10;

/// Every stage, each of them short.
const STAGES: [&str; 4] =
    ["--shadow", "share=0.5,min_requests=1,max_s=1", "--canary", "share=0.5,min_requests=1,max_s=1"];

/// An update from version 1 to version 2, and everything that it did on the disk.
struct Recorded {
    fleet: Fleet,
    points: Points,
    /// The folder that was recorded.
    folder: PathBuf,
    /// The root that it is in.
    _root: TestRoot,
    /// The files when nothing went wrong.
    whole: BTreeSet<PathBuf>,
}

impl Recorded {
    fn new() -> Self {
        let fleet = Fleet::new("");
        add(&fleet.platform, 1, 1);
        add(&fleet.platform, 2, LARGE_KB);
        fleet.platform.start("r-1", "models/shapes/1", &[]);
        let daemon = fleet.enrol(TestRoot::new()).start();
        daemon.wait_for_log("update committed");
        let root = stopped(daemon);
        fleet.platform.start("r-2", "models/shapes/2", &STAGES);
        let folder = root.folder.path().canonicalize().unwrap().join("updates");
        let recording = Recording::new(&folder);
        let variables = recording.variables();
        let root = variables.into_iter().fold(root, |root, (name, value)| root.variable(name, value));
        let daemon = root.start();
        daemon.wait_for_log("update committed");
        let root = stopped(daemon);
        Self { fleet, points: recording.points(), whole: names(&folder), folder, _root: root }
    }

    /// The bytes of version 2 that are not there at `point`.
    fn missing(&self, point: usize) -> u64 {
        let lengths: BTreeMap<PathBuf, u64> = self.points.lengths(point);
        let here = |sha256: &str| {
            let blob = self.folder.join("blobs").join(sha256);
            lengths.get(&blob).or_else(|| lengths.get(&blob.with_extension("part"))).copied().unwrap_or(0)
        };
        files(&self.fleet.platform, 2).into_iter().map(|(sha256, length)| length - here(&sha256)).sum()
    }

    fn fetched(&self) -> u64 {
        self.fleet.nginx.transfers(SHAPES, 2).iter().map(|answered| answered.bytes).sum()
    }

    /// Starts a daemon on what is left at `point`. How many bytes it fetched again.
    fn go_on(&self, point: usize, how: CutOff, random: &mut Random) -> u64 {
        let what = format!("{how:?} at point {point}");
        let (missing, before) = (self.missing(point), self.fetched());
        self.points.leave(point, how, random);
        let root = TestRoot::new();
        let folder = root.folder.path().join("updates");
        std::fs::rename(&self.folder, &folder).unwrap();
        std::fs::create_dir(&self.folder).unwrap();
        let daemon = self.fleet.enrol(root).start();
        // From the first moment on.
        let first = answered(&mut daemon.client());
        assert!([1, 2].contains(&first), "{what}");
        let callers = Callers::start(&daemon, 1, SHAPES, &shapes());
        committed(&daemon, 2);
        assert_eq!(answered(&mut daemon.client()), 2, "{what}");
        // A canary answers some, and its incumbent the others.
        let versions = callers.stop_unharmed().remove(0).versions;
        assert!(versions.iter().all(|version| ["1", "2"].contains(&version.as_str())), "{what}: {versions:?}");
        let fetched = self.fetched() - before;
        assert!(
            fetched >= missing && fetched - missing <= AGAIN,
            "{what}: {fetched} bytes came, {missing} were missing"
        );
        drop(stopped(daemon));
        assert_eq!(names(&folder), self.whole, "{what}: not the files of an update that nobody disturbed");
        fetched - missing
    }
}

/// Ends the daemon in order.
fn stopped(mut daemon: TestDaemon) -> TestRoot {
    daemon.signal("TERM");
    assert!(daemon.wait().success());
    daemon.kill()
}

/// The files of a folder, by their paths below it.
fn names(folder: &Path) -> BTreeSet<PathBuf> {
    let (mut found, mut folders) = (BTreeSet::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for path in std::fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.strip_prefix(folder).unwrap().to_owned());
            }
        }
    }
    found
}

/// Waits until a version is committed, however many times the daemon said so before.
#[track_caller]
fn committed(daemon: &TestDaemon, version: u64) {
    for _ in 0..600 {
        let told = subject(daemon, "models/shapes");
        assert_ne!(told["last"]["result"], "rolled_back", "{told}");
        if told["stage"] == "idle" && told["version"] == version {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("{}", status(daemon));
}

fn cut_off_at(chosen: impl Fn(&Points) -> Vec<usize>, how: CutOff) {
    let (recorded, mut random) = (Recorded::new(), Random::new(&format!("{how:?}")));
    let chosen = chosen(&recorded.points);
    println!("{} of {} points", chosen.len(), recorded.points.count());
    let again = chosen.iter().map(|point| recorded.go_on(*point, how, &mut random)).max().unwrap();
    println!("at most {again} bytes were fetched again");
}

/// As many of the steps, from the first to the last.
fn some(points: &Points, count: usize) -> Vec<usize> {
    let steps = points.at_syncs_and_names();
    let mut some: Vec<_> = (0..count).map(|n| steps[n * (steps.len() - 1) / (count - 1)]).collect();
    some.dedup();
    some
}

#[test]
fn a_daemon_that_was_killed_during_an_update_serves_and_goes_on() {
    cut_off_at(|points| some(points, 12), CutOff::Kill);
}

#[test]
fn a_daemon_without_power_during_an_update_serves_and_goes_on() {
    cut_off_at(|points| some(points, 12), CutOff::Power);
}

#[test]
#[ignore = "every fsync and every name: make soak"]
fn a_daemon_that_was_killed_at_any_step_of_an_update_serves_and_goes_on() {
    cut_off_at(Points::at_syncs_and_names, CutOff::Kill);
}

#[test]
#[ignore = "every fsync and every name: make soak"]
fn a_daemon_without_power_at_any_step_of_an_update_serves_and_goes_on() {
    cut_off_at(Points::at_syncs_and_names, CutOff::Power);
}

#[test]
fn a_kill_in_any_stage_leaves_the_old_version_or_the_new_one() {
    let mut fleet = Fleet::new("limit_rate 2m;");
    add(&fleet.platform, 1, 1);
    fleet.platform.start("r-1", "models/shapes/1", &[]);
    let mut daemon = fleet.enrol(TestRoot::new()).start();
    daemon.wait_for_log("update committed");
    let stages = ["downloading", "verified", "staged", "shadow", "canary", "active"];
    for (version, stage) in (2..).zip(stages) {
        add(&fleet.platform, version, if stage == "downloading" { 8 << 10 } else { 1 });
        let callers = Callers::start(&daemon, 2, SHAPES, &shapes());
        fleet.platform.start(&format!("r-{version}"), &format!("models/shapes/{version}"), &STAGES);
        look(&daemon);
        let mut came = 0;
        if stage == "downloading" {
            while came < 3 << 20 {
                came = status(&daemon)["fetched_bytes"].as_u64().unwrap();
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        } else {
            while daemon.wait_for_log("update moved")["stage"] != stage {}
        }
        let root = daemon.kill();
        let mut seen = callers.stop();
        // Without a limit from here on.
        if stage == "downloading" {
            fleet.nginx.start_again(Some(""));
        }
        daemon = root.start();
        answered(&mut daemon.client());
        let callers = Callers::start(&daemon, 2, SHAPES, &shapes());
        committed(&daemon, version);
        seen.extend(callers.stop_unharmed());
        let (old, new) = ((version - 1).to_string(), version.to_string());
        let versions: Vec<&String> = seen.iter().flat_map(|answers| &answers.versions).collect();
        assert!(versions.iter().all(|version| **version == old || **version == new), "{stage}: {versions:?}");
        let last =
            fleet.nginx.transfers(SHAPES, version).into_iter().rfind(|answered| answered.path.ends_with("model.onnx"));
        let last = last.unwrap();
        assert!(last.from + AGAIN >= came && last.from <= came + AGAIN, "{stage}: {came} bytes had come: {last:?}");
    }
}
