//! Trials of releases by a whole daemon: releases that it keeps or rolls back, and the effect of kills on either. The
//! update store has both releases and the state of a trial when the daemon starts, so that no platform is needed.

use std::fs::File;
use std::io::Write as _;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ledge::updates::artifact::{Artifact, ArtifactKind, FileName};
use ledge::updates::package::{ExpectedAgreement, Package};
use ledge::updates::persisted::PersistedStates;
use ledge::updates::plan::{DesiredState, RolloutAllowance, RolloutGate, RolloutPlan, StagePlan};
use ledge::updates::sha256::sha256_hex;
use ledge::updates::state::{InstalledRelease, RolloutPhase, SubjectState, UpdateEvent};
use ledge::updates::store::UpdateStore;
use serde_json::{Value, json};

use crate::daemon::{TestDaemon, TestRoot, model_folder, send_signal, write};
use crate::fault_rounds::{runtime_processes, wait_until};
use crate::feature_faults::seed::Random;

const MODEL: &str = "shapes";

/// The longest that a trial may take here.
const TRIAL_TIME_MAX: Duration = Duration::from_mins(4);

/// A trial: version 1 runs, and version 2 has been fetched.
struct Trial {
    old: &'static str,
    new: &'static str,
    /// The runtime that the old version names in its model.toml.
    old_runtime: Option<&'static str>,
    /// The answers of the new version on which it agreed with the old one, in a thousand.
    agreed: Option<u64>,
    shadow: StagePlan,
    soak: StagePlan,
    /// The daemon's limit of CPU time changes all the time.
    quota_changes: bool,
}

impl Trial {
    /// With default gates, and stages of some hundred requests.
    fn of(old: &'static str, new: &'static str) -> Self {
        let stage = StagePlan { share: 1.0, min_s: 0, min_requests: 300, max_s: 120, ..StagePlan::SHADOW };
        Self {
            old,
            new,
            old_runtime: None,
            agreed: None,
            shadow: stage,
            soak: StagePlan { min_s: 3, ..stage },
            quota_changes: false,
        }
    }

    fn plan(&self, version: u64) -> RolloutPlan {
        RolloutPlan {
            rollout: format!("r-{version}").parse().unwrap(),
            target: format!("models/{MODEL}/{version}/model.onnx").parse().unwrap(),
            shadow: self.shadow,
            canary: StagePlan::CANARY,
            soak: self.soak,
            gate: RolloutGate::default(),
            max_attempts: 5,
            byte_budget: None,
            allow_downgrade: false,
        }
    }

    /// A root with the update store in which the trial begins.
    fn root(&self) -> TestRoot {
        let root = TestRoot::new()
            .set("updates.repository=\"file:///nowhere\"")
            .set("updates.min_free_mb=0")
            .set("log.level=\"ledge=debug,audit=info\"");
        let store = root.folder.path().join("updates");
        std::fs::create_dir_all(&store).unwrap();
        let mut state = SubjectState::default();
        for (version, model) in [(1, self.old), (2, self.new)] {
            let plan = self.plan(version);
            let agreement = self.agreed.filter(|_| version == 2);
            let agreement =
                agreement.map(|agreed| ExpectedAgreement { version: "1".parse().unwrap(), agreed, compared: 1_000 });
            let package = Package { schema: 1, agreement, ..Package::default() };
            let desired_state =
                DesiredState { desired: Some((plan, RolloutAllowance::Everything)), ..DesiredState::default() };
            let described = UpdateEvent::Described { digest: format!("{version:064x}"), package: package.into() };
            for event in [UpdateEvent::Wanted { desired_state, has_own: false }, described, UpdateEvent::Passed] {
                state = state.after(event, ArtifactKind::Model);
            }
            let runtime = self.old_runtime.filter(|_| version == 1);
            install(&store, model, runtime, &state.trial.as_ref().unwrap().release);
            while version == 1 && state.trial.is_some() {
                state = state.after(UpdateEvent::Passed, ArtifactKind::Model);
            }
        }
        assert_eq!(state.trial.as_ref().unwrap().stage, RolloutPhase::Verified);
        let mut persisted = PersistedStates::empty(&store);
        persisted.subjects.insert(subject(), state);
        persisted.write().unwrap();
        root
    }
}

fn subject() -> Artifact {
    format!("models/{MODEL}").parse().unwrap()
}

/// Puts a release into the store, as a download would.
fn install(store: &Path, model: &str, runtime: Option<&str>, release: &InstalledRelease) {
    let opened = UpdateStore::open(store).unwrap();
    let mut files: Vec<(FileName, String)> = Vec::new();
    for entry in std::fs::read_dir(model_folder(model)).unwrap() {
        let path = entry.unwrap().path();
        let mut content = std::fs::read(&path).unwrap();
        if let Some(runtime) = runtime.filter(|_| path.ends_with("model.toml")) {
            content.splice(0..0, format!("runtime = \"{runtime}\"\n").into_bytes());
        }
        let sha256 = sha256_hex(&content);
        write(&store.join("blobs").join(&sha256), &content);
        files.push((path.file_name().unwrap().to_str().unwrap().parse().unwrap(), sha256));
    }
    opened.assemble(&subject(), release, &files).unwrap();
}

/// A row of four numbers from 0 to 1, of which the fourth has no effect on a good model.
fn row(random: &mut Random) -> Value {
    let data: Vec<f64> = (0..4).map(|_| f64::from(random.below(1_000_000)) / 1e6).collect();
    json!({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 4], "data": data}]})
}

/// Callers of the model, while `work` is done. Returns its result, and the statuses other than 200.
fn called<T>(daemon: &TestDaemon, callers: usize, work: impl FnOnce() -> T) -> (T, Vec<u16>) {
    let (is_over, other) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let done = std::thread::scope(|scope| {
        for caller in 0..callers {
            let (is_over, other) = (&is_over, &other);
            scope.spawn(move || {
                let (mut client, mut random) = (daemon.client(), Random::new(&format!("caller {caller}")));
                while !is_over.load(Ordering::Relaxed) {
                    let answer = client.post_json(&format!("/v2/models/{MODEL}/infer"), &row(&mut random));
                    if answer.status != 200 {
                        other.lock().unwrap().push(answer.status);
                    }
                }
            });
        }
        let done = std::panic::catch_unwind(AssertUnwindSafe(work));
        is_over.store(true, Ordering::Relaxed);
        done
    });
    (done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), other.into_inner().unwrap())
}

/// The end of the trial: `committed`, or the cause of the rollback with its detail.
fn outcome(daemon: &TestDaemon) -> (String, String) {
    let begun = Instant::now();
    loop {
        let status = daemon.client().get("/updates").json();
        let told = &status["subjects"][0];
        if told["trial"].is_null() && told["last"]["version"] == 2 {
            let text = |key: &str| told["last"][key].as_str().unwrap_or_default().to_owned();
            let cause = if text("result") == "committed" { text("result") } else { text("cause") };
            return (cause, text("detail"));
        }
        assert!(begun.elapsed() < TRIAL_TIME_MAX, "{status}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn tried(trial: &Trial) -> (String, String) {
    let quota = trial.quota_changes.then(ChangingQuota::start);
    let root = quota.iter().fold(trial.root(), |root, quota| quota.on(root));
    let daemon = root.start_ready();
    let (outcome, other) = called(&daemon, 2, || outcome(&daemon));
    assert!(other.is_empty(), "callers got {other:?}: {outcome:?}");
    outcome
}

#[track_caller]
fn ends(trial: &Trial, cause: &str, words: &str) {
    let (found, detail) = tried(trial);
    assert!(found == cause && detail.contains(words), "{found}: {detail}");
}

#[test]
fn a_version_with_the_same_answers_is_committed_in_the_runtime_of_the_one_before() {
    // By itself, the new one would run in the first runtime that takes it, or in the quicker one.
    for runtime in ["openvino", "onnxruntime"] {
        let trial = Trial { old_runtime: Some(runtime), ..Trial::of("release_good", "release_better") };
        let daemon = trial.root().start_ready();
        let (found, _) = called(&daemon, 2, || outcome(&daemon));
        assert_eq!(found.0, "committed", "{found:?}");
        let ready = daemon.events("model.loaded");
        assert!(ready.iter().any(|line| line["version"] == "2"), "{ready:?}");
        assert!(ready.iter().all(|line| line["runtime"] == runtime), "{ready:?}");
    }
}

#[test]
fn a_version_that_gives_nan_now_and_then_is_taken_back() {
    ends(&Trial::of("release_good", "release_nan"), "errors", "by values that are not finite");
}

#[test]
fn a_version_that_agrees_less_often_than_was_signed_is_taken_back_and_one_that_agrees_as_often_is_not() {
    let signed = |new, agreed| Trial { agreed: Some(agreed), ..Trial::of("release_good", new) };
    ends(&signed("release_wrong", 995), "agreement", "995 of 1000 did where the release was signed");
    ends(&signed("release_good", 1_000), "committed", "");
}

#[test]
fn a_version_of_twice_the_time_is_taken_back_after_a_second_measurement() {
    let trial = Trial::of("release_work", "release_work_twice");
    let daemon = trial.root().start_ready();
    let (cause, detail) = outcome(&daemon);
    assert_eq!(cause, "latency", "{detail}");
    assert!(!daemon.events("update.timed_again").is_empty(), "{}", daemon.log());
}

fn call_without_end(daemon: &TestDaemon) {
    let (mut client, mut random) = (daemon.client(), Random::new("caller"));
    loop {
        client.post_json(&format!("/v2/models/{MODEL}/infer"), &row(&mut random));
    }
}

/// Kills the daemon, or first a process of its models, at any moment of a trial, and starts it again.
fn killed_again_and_again(kills: usize) {
    let (mut random, mut root) = (Random::new("kills"), Trial::of("release_work", "release_work_again").root());
    for kill in 0..kills {
        let daemon = root.start_ready();
        let answer = daemon.client().post_json(&format!("/v2/models/{MODEL}/infer"), &row(&mut random));
        assert_eq!(answer.status, 200, "start {kill}: {}", String::from_utf8_lossy(&answer.body));
        let until = Instant::now() + Duration::from_millis(random.below(6_000));
        std::thread::scope(|scope| {
            // It ends with the daemon, in the middle of a call.
            scope.spawn(|| std::panic::catch_unwind(AssertUnwindSafe(|| call_without_end(&daemon))));
            while Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
            if random.below(2_u64) == 0 {
                for process in runtime_processes(&daemon) {
                    send_signal(process, "KILL");
                }
            }
            send_signal(daemon.pid(), "KILL");
        });
        root = daemon.kill();
    }
    let daemon = root.start_ready();
    let (found, _) = called(&daemon, 2, || outcome(&daemon));
    assert_eq!(found.0, "committed", "{found:?}");
}

#[test]
fn kills_of_daemon_and_workers_take_no_good_version_back() {
    killed_again_and_again(6);
}

#[test]
#[ignore = "twenty kills, and minutes: make soak"]
fn twenty_kills_of_daemon_and_workers_take_no_good_version_back() {
    killed_again_and_again(20);
}

#[test]
fn four_starts_in_a_row_that_found_a_load_under_way_end_a_trial() {
    let trial = Trial::of("release_good", "release_better");
    let mut root = Trial { soak: StagePlan { min_s: 600, max_s: 600, ..trial.soak }, ..trial }.root();
    let mark = root.folder.path().join("updates/marks/models").join(MODEL);
    for _ in 0..4 {
        // As a daemon leaves it that ends while it loads the release.
        write(&mark, b"1");
        root = root.start_ready().kill();
    }
    let daemon = root.start_ready();
    let (cause, detail) = outcome(&daemon);
    assert!(cause == "restarts" && detail.contains('4'), "{cause}: {detail}");
    let answer = daemon.client().post_json(&format!("/v2/models/{MODEL}/infer"), &row(&mut Random::new("row")));
    assert_eq!((answer.status, answer.json()["model_version"].as_str()), (200, Some("1")));
}

/// Work of other programs, of which there is more or less every half second.
struct ChangingLoad {
    is_over: Arc<AtomicBool>,
}

impl ChangingLoad {
    fn start() -> Self {
        let is_over = Arc::<AtomicBool>::default();
        let busy = Arc::<AtomicUsize>::default();
        for spinner in 0..4 {
            let (is_over, busy) = (is_over.clone(), busy.clone());
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    if spinner < busy.load(Ordering::Relaxed) {
                        std::hint::black_box((0..100_000_u64).sum::<u64>());
                    } else {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
            });
        }
        let over = is_over.clone();
        std::thread::spawn(move || {
            let mut random = Random::new("load");
            while !over.load(Ordering::Relaxed) {
                busy.store(usize::try_from(random.below(5)).unwrap(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        Self { is_over }
    }
}

impl Drop for ChangingLoad {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// A limit of CPU time that changes every second: half a core, one, or two. For root, with a cgroup of CPU time.
struct ChangingQuota {
    folder: PathBuf,
    is_over: Arc<AtomicBool>,
    changes: Option<JoinHandle<()>>,
}

impl ChangingQuota {
    fn start() -> Self {
        let all = Path::new("/sys/fs/cgroup");
        let is_second =
            std::fs::read_to_string(all.join("cgroup.controllers")).is_ok_and(|names| names.contains("cpu"));
        let folder = if is_second { all.to_owned() } else { all.join("cpu") };
        let folder = folder.join(format!("ledge-trials-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap_or_else(|error| panic!("run it as root: {}: {error}", folder.display()));
        let limit = folder.join(if is_second { "cpu.max" } else { "cpu.cfs_quota_us" });
        let is_over = Arc::<AtomicBool>::default();
        let over = is_over.clone();
        let changes = std::thread::spawn(move || {
            let mut random = Random::new("quota");
            while !over.load(Ordering::Relaxed) {
                let micros = ["50000", "100000", "200000"][random.below(3_usize)];
                // A file of the kernel, which cannot be replaced by another.
                File::options().write(true).open(&limit).unwrap().write_all(micros.as_bytes()).unwrap();
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        Self { folder, is_over, changes: Some(changes) }
    }

    fn on(&self, root: TestRoot) -> TestRoot {
        let script = format!("echo $$ >{}/cgroup.procs && exec \"$0\" \"$@\"", self.folder.display());
        root.runner(&["sh", "-c", &script])
    }
}

impl Drop for ChangingQuota {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let ended = self.changes.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_some_and(|ended| ended.is_ok()), "the quota cannot be changed");
        // It can be removed when the last process has ended.
        wait_until("the cgroup is empty", Duration::from_mins(1), || std::fs::remove_dir(&self.folder).is_ok());
    }
}

/// Good and bad versions under a load that changes all the time. `TRIALS=N` tries N of each bad kind and twice as many
/// of each good one; `KIND=TEXT` tries only the kinds with this text in their names; `--no-capture` shows the counts.
#[test]
#[ignore = "minutes for each kind, as root: TRIALS=10 cargo nextest run --run-ignored all good_versions_stay --no-capture"]
fn under_changing_load_good_versions_stay_and_bad_ones_go() {
    let trials: u32 = std::env::var("TRIALS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let agreed = |trial: Trial, agreed| Trial { agreed: Some(agreed), ..trial };
    let under_quota = |trial: Trial| Trial { quota_changes: true, ..trial };
    let in_onnx_runtime = |trial: Trial| Trial { old_runtime: Some("onnxruntime"), ..trial };
    let kinds: [(&str, Trial, &[&str]); 10] = [
        ("the same", Trial::of("release_work", "release_work_again"), &["committed"]),
        ("the same, quota", under_quota(Trial::of("release_work", "release_work_again")), &["committed"]),
        ("tiny, the same", Trial::of("release_good", "release_better"), &["committed"]),
        ("retrained", agreed(Trial::of("release_good", "release_retrained"), 60), &["committed"]),
        ("2x slower", Trial::of("release_work", "release_work_twice"), &["latency"]),
        ("2x memory", Trial::of("release_holds_some", "release_holds_twice"), &["memory"]),
        ("crash 2 %", in_onnx_runtime(Trial::of("release_good", "release_rare_crash")), &["crash"]),
        ("NaN 20 %", Trial::of("release_good", "release_nan"), &["errors"]),
        ("negated 20 %", agreed(Trial::of("release_good", "release_negated"), 995), &["agreement"]),
        ("wrong 10 %", agreed(Trial::of("release_good", "release_wrong"), 995), &["agreement"]),
    ];
    let text = std::env::var("KIND").unwrap_or_default();
    let mut wrong = Vec::new();
    for (kind, trial, expected) in kinds.iter().filter(|(kind, ..)| kind.contains(&text)) {
        let trials = if *expected == ["committed"] { 2 * trials } else { trials };
        let mut ends = std::collections::BTreeMap::<String, usize>::new();
        let begun = Instant::now();
        for number in 0..trials {
            let _load = ChangingLoad::start();
            let (found, detail) = tried(trial);
            if !expected.contains(&found.as_str()) {
                wrong.push(format!("{kind} {number}: {found}: {detail}"));
            }
            *ends.entry(found).or_default() += 1;
        }
        println!("{kind}: {ends:?} in {:?} each", begun.elapsed() / trials);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
