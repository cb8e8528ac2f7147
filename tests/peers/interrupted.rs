//! An update is cut off, by `kill -9` and by power cuts, at every step that it leaves on the disk: the next start
//! serves the old version or the new one, never none, and ends at the new one by itself.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use crate::daemon::{TestDaemon, TestRoot, send_signal};
use crate::faults::points::{CutOff, Points, Recording};
use crate::faults::seed::Random;
use crate::nginx::Nginx;
use crate::platform::{Callers, Fleet, SHAPES, look, shapes, status};
use crate::releases::{add, answered, files};
use crate::tools::{path_of, run};

/// The most bytes that may be fetched again.
const AGAIN: u64 = 1 << 20;

/// The number of daemons at a time.
const AT_ONCE: usize = 3;

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
        daemon.wait_for_event("update.committed");
        let root = stopped(daemon);
        fleet.platform.start("r-2", "models/shapes/2", &STAGES);
        let folder = root.folder.path().canonicalize().unwrap().join("updates");
        let recording = Recording::new(&folder);
        let variables = recording.variables();
        let root = variables.into_iter().fold(root, |root, (name, value)| root.variable(name, value));
        let daemon = root.start();
        daemon.wait_for_event("update.committed");
        let root = stopped(daemon);
        Self { fleet, points: recording.points(), whole: names(&folder), folder, _root: root }
    }

    /// Puts the files that are left at `point` under a separate root, and returns how many bytes of version 2 were
    /// missing.
    fn left_at(&self, point: usize, how: CutOff, random: &mut Random) -> (TestRoot, u64) {
        let lengths = self.points.lengths(point);
        let missing = missing(&self.fleet, |sha256| {
            let blob = self.folder.join("blobs").join(sha256);
            lengths.get(&blob).or_else(|| lengths.get(&blob.with_extension("part"))).copied()
        });
        self.points.leave(point, how, random);
        let root = TestRoot::new();
        ledge::durable::rename(&self.folder, &root.folder.path().join("updates")).unwrap();
        std::fs::create_dir(&self.folder).unwrap();
        (root, missing)
    }

    /// Checks that a daemon leaves the same files in the end as one that was not interrupted.
    #[track_caller]
    fn assert_cleared_up(&self, root: &TestRoot, what: &str) {
        let found = names(&root.folder.path().join("updates"));
        let other: Vec<_> = found.symmetric_difference(&self.whole).collect();
        assert!(other.is_empty(), "{what}: {other:?} are not as after an update that nobody disturbed");
    }
}

/// The bytes of version 2 that are not there, by the length of the blobs that are, whole or in part.
fn missing(fleet: &Fleet, here: impl Fn(&str) -> Option<u64>) -> u64 {
    files(&fleet.platform, 2).into_iter().map(|(sha256, length)| length - here(&sha256).unwrap_or(0)).sum()
}

/// Starts a daemon where another one was cut off, with `missing` bytes of version 2 missing. Returns the bytes that it
/// fetched again, and the files that it leaves.
fn goes_on(fleet: &Fleet, root: TestRoot, missing: u64, what: &str) -> (u64, TestRoot) {
    // A separate server, which counts only its requests.
    let nginx = Nginx::start(&fleet.platform.repository(), &fleet.authority, "");
    let daemon = fleet.enrol(root).set(&format!("updates.repository={:?}", nginx.url())).start();
    // From the first moment on.
    let first = answered(&mut daemon.client());
    assert!([1, 2].contains(&first), "{what}: version {first}");
    let callers = Callers::start(&daemon, 1, SHAPES, &shapes());
    committed(&daemon, 2);
    assert_eq!(answered(&mut daemon.client()), 2, "{what}");
    // A canary answers some, and its incumbent the others.
    let versions = callers.stop_unharmed().remove(0).versions;
    assert!(versions.iter().all(|version| ["1", "2"].contains(&version.as_str())), "{what}: {versions:?}");
    let came = nginx.transfers(SHAPES, 2).iter().map(|answered| answered.bytes).sum::<u64>();
    assert!(came >= missing && came - missing <= AGAIN, "{what}: {came} bytes came, {missing} were missing");
    (came - missing, stopped(daemon))
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
    // A disk that others write to may keep an fsync waiting for a minute, and the daemon with it; callers hear nothing
    // of it.
    for _ in 0..1800 {
        // It is said in a moment when the daemon has just become ready.
        let told = status(daemon)["subjects"][0].clone();
        assert_ne!(told["last"]["result"], "rolled_back", "{told}");
        if told["stage"] == "idle" && told["version"] == version {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{}", status(daemon));
}

fn cut_off_at(chosen: impl Fn(&Points) -> Vec<usize>, how: CutOff) {
    let (recorded, random) = (Recorded::new(), Random::new(&format!("{how:?}")));
    let chosen = chosen(&recorded.points);
    println!("{} of {} points", chosen.len(), recorded.points.count());
    // Daemons wait most of the time.
    let left = Mutex::new((chosen.into_iter(), random));
    let next = || {
        let (points, random) = &mut *left.lock().unwrap();
        points.next().map(|point| (point, recorded.left_at(point, how, random)))
    };
    let work = || {
        let mut most = 0;
        while let Some((point, (root, missing))) = next() {
            let what = format!("{how:?} at point {point}");
            let (again, root) = goes_on(&recorded.fleet, root, missing, &what);
            recorded.assert_cleared_up(&root, &what);
            most = most.max(again);
        }
        most
    };
    let again = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).max()
    });
    println!("at most {} bytes were fetched again", again.unwrap());
}

#[test]
fn a_daemon_that_was_killed_during_an_update_serves_and_goes_on() {
    cut_off_at(|points| points.spread(12), CutOff::Kill);
}

#[test]
fn a_daemon_without_power_during_an_update_serves_and_goes_on() {
    cut_off_at(|points| points.spread(12), CutOff::Power);
}

#[test]
#[ignore = "every fsync and every name: make soak"]
fn a_daemon_that_was_killed_at_any_step_of_an_update_serves_and_goes_on() {
    cut_off_at(Points::steps, CutOff::Kill);
}

#[test]
#[ignore = "every fsync and every name: make soak"]
fn a_daemon_without_power_at_any_step_of_an_update_serves_and_goes_on() {
    cut_off_at(Points::steps, CutOff::Power);
}

/// Another way to the same, which knows nothing of the shim: `strace` kills the daemon at the call of this number of
/// any of its threads, before the call is made.
#[test]
fn a_daemon_that_strace_killed_during_an_update_serves_and_goes_on() {
    let fleet = Fleet::new("");
    add(&fleet.platform, 1, 1);
    add(&fleet.platform, 2, LARGE_KB);
    fleet.platform.start("r-1", "models/shapes/1", &[]);
    let daemon = fleet.enrol(TestRoot::new()).start();
    daemon.wait_for_event("update.committed");
    let old = stopped(daemon);
    fleet.platform.start("r-2", "models/shapes/2", &STAGES);
    for call in [2, 9, 12, 18] {
        let root = TestRoot::new();
        let folder = root.folder.path().join("updates");
        // With its hard links.
        run(Command::new("cp").arg("-a").arg(old.folder.path().join("updates")).arg(&folder));
        let root = fleet.enrol(root);
        killed_at(call, &root);
        let missing = missing(&fleet, |sha256| {
            let blob = folder.join("blobs").join(sha256);
            let found = std::fs::metadata(&blob).or_else(|_| std::fs::metadata(blob.with_extension("part")));
            found.ok().map(|found| found.len())
        });
        println!("call {call}: {missing} bytes are missing");
        goes_on(&fleet, root, missing, &format!("call {call}"));
    }
}

/// Runs the daemon until one of its threads has made this many calls that matter to the disk.
fn killed_at(call: usize, root: &TestRoot) {
    let daemon = root.command(&["serve"]);
    let mut command = Command::new(path_of("strace"));
    let calls = "fsync,fdatasync,rename,renameat,renameat2";
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={calls}")]);
    command.args(["-e", &format!("inject={calls}:signal=SIGKILL:when={call}")]);
    command.arg(daemon.get_program()).args(daemon.get_args());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    for _ in 0..600 {
        if let Some(status) = child.try_wait().unwrap() {
            // It ends like the program that it traces.
            assert_eq!(status.signal(), Some(9), "call {call}: {status}");
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
    for traced in children.split_whitespace() {
        send_signal(traced.parse().unwrap(), "KILL");
    }
    child.wait().unwrap();
    panic!("no thread made {call} calls");
}

#[test]
fn a_kill_in_any_stage_leaves_the_old_version_or_the_new_one() {
    let mut fleet = Fleet::new("limit_rate 2m;");
    add(&fleet.platform, 1, 1);
    fleet.platform.start("r-1", "models/shapes/1", &[]);
    let mut daemon = fleet.enrol(TestRoot::new()).start();
    daemon.wait_for_event("update.committed");
    let stages = ["downloading", "verified", "staged", "shadow", "canary", "active"];
    for (version, stage) in (2..).zip(stages) {
        add(&fleet.platform, version, if stage == "downloading" { 8 << 10 } else { 1 });
        let callers = Callers::start(&daemon, 1, SHAPES, &shapes());
        fleet.platform.start(&format!("r-{version}"), &format!("models/shapes/{version}"), &STAGES);
        look(&daemon);
        let mut came = 0;
        if stage == "downloading" {
            while came < 3 << 20 {
                came = status(&daemon)["fetched_bytes"].as_u64().unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
        } else {
            while daemon.wait_for_event("update.moved")["stage"] != stage {}
        }
        let root = daemon.kill();
        let mut seen = callers.stop();
        // Without a limit from here on.
        if stage == "downloading" {
            fleet.nginx.start_again(Some(""));
        }
        daemon = root.start();
        answered(&mut daemon.client());
        let callers = Callers::start(&daemon, 1, SHAPES, &shapes());
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
