//! Releases tried in a separate process: each bad one is stopped for its own cause, and does not harm the caller.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::LazyLock;
use std::time::Duration;

use ledge::engine::Runtimes;
use ledge::identity::sealing::{MASTER_KEY_BYTES, Sealer};
use ledge::isolation::{ChildSettings, ChildStarter};
use ledge::updates::package::{DeclaredPort, Package, PreflightLimits, Requirements};
use ledge::updates::plan::RolloutGate;
use ledge::updates::preflight::{
    self, ConfigurationPreflight, LiveModel, PreflightError, PreflightSettings, ReleaseTrialFigures,
};
use ledge::updates::state::{RollbackCause, RollbackReason};

use crate::daemon::{TestRoot, model_folder, setup_root, write};

fn settings() -> PreflightSettings {
    with_program(env!("CARGO_BIN_EXE_ledge"))
}

/// Settings of processes that run this program, with their files in `folder`.
pub fn children(folder: &Path, program: PathBuf) -> ChildSettings {
    ChildSettings {
        starter: ChildStarter::Direct(program),
        folder: folder.join("instances"),
        memory_folder: Some(folder.join("memory")),
        memory_bytes: None,
        content_bytes: 1 << 28,
        is_yielding: false,
        is_trial: false,
    }
}

/// The settings of trials with processes that run this program.
fn with_program(program: impl Into<PathBuf>) -> PreflightSettings {
    static FOLDER: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());
    let children = children(FOLDER.path(), program.into());
    let runtimes = Runtimes::new(setup_root().join("runtimes"));
    PreflightSettings { measure: false, ..PreflightSettings::new(runtimes, children, Duration::from_secs(30)) }
}

fn release(name: &str) -> PathBuf {
    model_folder(&format!("release_{name}"))
}

fn port(name: &str, shape: [i64; 2]) -> DeclaredPort {
    DeclaredPort { name: name.to_owned(), datatype: "FP32".to_owned(), shape: shape.into() }
}

/// As the platform signs it.
fn package() -> Package {
    Package {
        limits: PreflightLimits { memory_mb: Some(512), seconds: Some(60) },
        inputs: vec![port("IN", [-1, 4])],
        outputs: vec![port("OUT", [-1, 3])],
        ..Package::default()
    }
}

fn run(
    settings: &PreflightSettings,
    folder: &Path,
    package: &Package,
    gate: &RolloutGate,
) -> Result<ReleaseTrialFigures, PreflightError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(preflight::run(settings, folder, package, gate))
}

fn tried(name: &str) -> Result<ReleaseTrialFigures, PreflightError> {
    run(&settings(), &release(name), &package(), &RolloutGate::default())
}

/// The reason for which a release is refused for good.
#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T, PreflightError>) -> RollbackReason {
    match outcome.unwrap_err() {
        PreflightError::Failed(reason) => reason,
        other => panic!("it would be tried again: {other}"),
    }
}

/// The reason for which it is tried again.
#[track_caller]
fn interrupted<T: std::fmt::Debug>(outcome: Result<T, PreflightError>) -> RollbackReason {
    match outcome.unwrap_err() {
        PreflightError::Interrupted(reason) => reason,
        other => panic!("it would never be tried again, or without end: {other}"),
    }
}

#[track_caller]
fn stopped(outcome: Result<ReleaseTrialFigures, PreflightError>, cause: RollbackCause, words: &str) {
    let reason = refused(outcome);
    assert!(reason.cause == cause && reason.detail.contains(words) && !reason.detail.contains('\n'), "{reason}");
}

#[test]
fn a_good_release_passes_and_says_how_it_does() {
    for measure in [false, true] {
        let settings = PreflightSettings { measure, ..settings() };
        let report = run(&settings, &release("good"), &package(), &RolloutGate::default()).unwrap();
        assert_eq!((report.golden_right, report.golden_total, &report.golden_fault), (10, 10, &None));
        assert!(report.runs > 10 && report.p50_us <= report.p95_us && report.p95_us > 0, "{report:?}");
        // More than the program itself needs, and less than the limit.
        assert!((20 << 20..512 << 20).contains(&report.peak_bytes), "{report:?}");
        assert_eq!((report.inputs, report.outputs), (package().inputs, package().outputs));
        assert!(measure || report.runtime == "onnxruntime", "{}", report.runtime);
    }
}

#[test]
fn a_slow_release_passes_and_its_figures_show_it() {
    // On a busy machine, other processes may take the core in most runs of one trial; hardly in five trials.
    let mut seen = Vec::new();
    let shown = (0..5).any(|_| {
        let [good, slow] = ["good", "slow"].map(|name| tried(name).unwrap());
        seen.push((good.p50_us, slow.p50_us));
        slow.p50_us > 10 * good.p50_us.max(1)
    });
    assert!(shown, "usual times of the good and the slow release, in microseconds: {seen:?}");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_release_that_crashes_its_runtime_crashes_nothing_else() {
    stopped(tried("crash"), RollbackCause::Crash, "crashed with SIGFPE (arithmetic error) while loading it");
}

#[test]
fn a_release_that_eats_memory_is_stopped_at_its_limit() {
    stopped(tried("memory"), RollbackCause::Memory, "at most 512");
    // A single allocation far above the limit fails.
    stopped(tried("huge"), RollbackCause::Memory, "alloc");
    let little = Package { limits: PreflightLimits { memory_mb: Some(1), seconds: None }, ..package() };
    stopped(run(&settings(), &release("good"), &little, &RolloutGate::default()), RollbackCause::Memory, "at most 1");
}

#[test]
fn a_release_that_does_not_end_is_stopped_in_time() {
    let brief = Package { limits: PreflightLimits { memory_mb: None, seconds: Some(2) }, ..package() };
    let outcome = run(&settings(), &release("endless"), &brief, &RolloutGate::default());
    stopped(outcome, RollbackCause::Deadline, "was not done after 2 s, while loading it");
}

#[test]
fn a_release_with_other_answers_is_stopped_at_its_golden_inputs() {
    stopped(tried("other_answers"), RollbackCause::Golden, "golden input golden_0.json");
}

/// A copy of a release, to be changed.
fn copy(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(release(name)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    folder
}

#[test]
fn a_golden_input_that_cannot_be_read_refuses_no_release_and_a_wrong_answer_does() {
    let folder = copy("good");
    std::fs::remove_file(folder.path().join("golden_0.json")).unwrap();
    let reason = interrupted(run(&settings(), folder.path(), &package(), &RolloutGate::default()));
    assert!(reason.detail.contains("golden_0.json"), "{reason}");
    // Words prove nothing.
    let folder = copy("good");
    let config = std::fs::read_to_string(folder.path().join("model.toml")).unwrap();
    write(&folder.path().join("model.toml"), format!("\"golden input\" = 1\n{config}").as_bytes());
    stopped(run(&settings(), folder.path(), &package(), &RolloutGate::default()), RollbackCause::Load, "golden input");
    stopped(tried("other_answers"), RollbackCause::Golden, "golden input golden_0.json");
}

#[test]
fn a_release_that_cannot_answer_within_its_own_deadline_is_stopped_though_there_is_nothing_to_compare_it_with() {
    // A run takes some 10 ms.
    let folder = copy("slow");
    let config = std::fs::read_to_string(folder.path().join("model.toml")).unwrap();
    write(&folder.path().join("model.toml"), format!("{config}\n[queue]\ndefault_timeout_ms = 1\n").as_bytes());
    let outcome = run(&settings(), folder.path(), &package(), &RolloutGate::default());
    stopped(outcome, RollbackCause::Latency, "and callers wait 1 ms (queue.default_timeout_ms of model.toml");
    // Or within that of the box.
    let hurried = PreflightSettings { timeout: Duration::from_millis(1), ..settings() };
    stopped(
        run(&hurried, &release("slow"), &package(), &RolloutGate::default()),
        RollbackCause::Latency,
        "callers wait 1 ms",
    );
}

#[test]
fn a_release_with_bad_accuracy_is_stopped_below_the_share_that_was_asked_for() {
    let with = |golden_min| {
        let gate = RolloutGate { golden_min: Some(golden_min), ..RolloutGate::default() };
        run(&settings(), &release("bad_accuracy"), &package(), &gate)
    };
    stopped(with(0.9), RollbackCause::Golden, "7 of 10");
    let report = with(0.7).unwrap();
    assert_eq!((report.golden_right, report.golden_total), (7, 10));
    assert!(report.golden_fault.unwrap().contains("golden_0.json"));
}

#[test]
fn a_release_that_takes_other_inputs_than_were_signed_is_stopped() {
    stopped(tried("other_inputs"), RollbackCause::Load, "the signed input \"IN\" is not in the model");
    let wide = Package { inputs: vec![port("IN", [-1, 5])], ..package() };
    let outcome = run(&settings(), &release("good"), &wide, &RolloutGate::default());
    stopped(outcome, RollbackCause::Load, "input \"IN\" is FP32 [-1, 4], but FP32 [-1, 5] is signed");
    let more = Package { outputs: vec![port("OUT", [-1, 3]), port("MORE", [-1, 3])], ..package() };
    stopped(
        run(&settings(), &release("good"), &more, &RolloutGate::default()),
        RollbackCause::Load,
        "output \"MORE\" is not in",
    );
}

#[test]
fn a_release_that_no_runtime_loads_is_stopped_with_their_words() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(model_folder("broken_cut").join("1/model.onnx"), folder.path().join("model.onnx")).unwrap();
    stopped(
        run(&settings(), folder.path(), &Package::default(), &RolloutGate::default()),
        RollbackCause::Load,
        "is cut off",
    );
    // A release that is not there is not tried.
    let reason = interrupted(run(&settings(), Path::new("/no/such"), &Package::default(), &RolloutGate::default()));
    assert!(reason.cause == RollbackCause::Load && reason.detail.contains("/no/such"), "{reason}");
}

#[test]
fn what_this_box_lacks_is_known_before_a_process_is_started() {
    let settings = with_program("/no/such/program");
    let huge =
        Package { requires: Requirements { memory_mb: Some(u64::MAX >> 20), ..Requirements::default() }, ..package() };
    stopped(
        run(&settings, &release("good"), &huge, &RolloutGate::default()),
        RollbackCause::Requirements,
        "MiB of memory",
    );
    // This box is short of something, and the release is not at fault.
    let reason = interrupted(run(&settings, &release("good"), &package(), &RolloutGate::default()));
    assert!(reason.cause == RollbackCause::Load, "{reason}");
}

#[test]
fn nothing_of_the_environment_of_who_starts_it_reaches_a_trial() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    write(&program, b"#!/bin/sh\nenv > \"$0.env\"\n");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    run(&with_program(program.clone()), &release("good"), &package(), &RolloutGate::default()).unwrap_err();
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some(), "there is something to hide");
    let environment = std::fs::read_to_string(program.with_extension("env")).unwrap();
    let names = environment.lines().filter_map(|line| Some(line.split_once('=')?.0));
    // The last three are the shell's own.
    let libraries = ["PATH", "LD_LIBRARY_PATH", "ORT_DISABLE_TELEMETRY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"];
    let known = [&libraries[..], &["PWD", "SHLVL", "_"]].concat();
    assert_eq!(names.filter(|name| !known.contains(name)).collect::<Vec<_>>(), [""; 0], "{environment}");
}

#[test]
fn nobody_starts_a_trial_by_hand() {
    let output = TestRoot::new().command(&["update", "trial"]).stdin(Stdio::null()).output().unwrap();
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && words.contains("daemon"), "{words}");
    let help = TestRoot::new().command(&["update", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(!help.lines().any(|line| line.trim_start().starts_with("trial")), "{help}");
}

/// The preflight of a release with these settings, on a box that is started with `--root` and these arguments.
fn settings_tried(settings_toml: &str, file: &str, arguments: &[&str]) -> Result<(), PreflightError> {
    let root = tempfile::tempdir().unwrap();
    write(&root.path().join("ledge.toml"), file.as_bytes());
    let release = root.path().join("updates/releases/configurations/night/2-0123456789abcdef");
    write(&release.join("settings.toml"), settings_toml.as_bytes());
    let words = ["serve", "--root", root.path().to_str().unwrap()];
    let arguments = words.iter().chain(arguments).map(|&word| word.to_owned()).collect();
    let how = ConfigurationPreflight { arguments, environment: Vec::new() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(preflight::run_configuration(&settings(), &release, &Package::default(), how))
}

#[test]
fn settings_are_tried_as_the_daemon_would_read_them() {
    let good = "[serving]\nmax_queue_size = 10\n[updates]\npoll_interval_s = 60\n";
    assert_eq!(settings_tried(good, "", &["--set", "serving.max_queue_size=20"]), Ok(()));
    for (settings_toml, words) in [
        ("[http]\nlisten = [\"0.0.0.0:80\"]\n", "settings.toml:2: http.listen"),
        ("[egress]\nallow = []\n", "can be set only by the owner of the box"),
        ("[serving]\nmax_queue_size = 0\n", "expected a whole number from 1 to 1000000"),
        ("[serving]\nmax_queue_sise = 1\n", "max_queue_sise"),
        ("not toml", "settings.toml:1"),
    ] {
        let reason = refused(settings_tried(settings_toml, "", &[]));
        assert!(reason.cause == RollbackCause::Load && reason.detail.contains(words), "{reason}");
    }
}

fn live_model(folder: &Path, files: &Path) -> LiveModel {
    let (name, version) = ("any".parse().unwrap(), "1".parse().unwrap());
    LiveModel { name, version, folder: folder.into(), files: files.into(), golden_min: None }
}

#[test]
fn a_runtime_is_tried_with_what_it_would_run() {
    let run = |name: &str, folder: &Path, models: &[&str]| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let released = |name: &&str| live_model(&release(name), &release(name));
        // And one of the owner's, with its versions below the folder of the model.
        let wine = model_folder("wine_mlp");
        let models: Vec<_> = models.iter().map(released).chain([live_model(&wine, &wine.join("1"))]).collect();
        let name = name.parse().unwrap();
        runtime.block_on(preflight::run_runtime(&settings(), &name, folder, &Package::default(), &models))
    };
    let libraries = setup_root().join("runtimes");
    assert_eq!(run("onnxruntime", &libraries, &["good", "better"]), Ok(()));
    assert_eq!(run("openvino", &libraries, &["good"]), Ok(()));
    let cause = |outcome: Result<(), PreflightError>| refused(outcome).cause;
    assert_eq!(cause(run("onnxruntime", &libraries, &["good", "other_answers"])), RollbackCause::Golden);
    assert_eq!(cause(run("tensorrt", &libraries, &[])), RollbackCause::Load);
    let broken = tempfile::tempdir().unwrap();
    assert_eq!(cause(run("onnxruntime", broken.path(), &[])), RollbackCause::Load);
    write(&broken.path().join("libonnxruntime.so"), b"no library");
    assert_eq!(cause(run("onnxruntime", broken.path(), &[])), RollbackCause::Load);
}

#[test]
fn a_sealed_release_that_cannot_be_opened_now_is_not_refused_for_it() {
    let folder = copy("good");
    let settings = PreflightSettings { sealer: Sealer::with_keys(&[[1; MASTER_KEY_BYTES]]), ..settings() };
    let tried = || run(&settings, folder.path(), &package(), &RolloutGate::default());
    let PreflightError::Postponed(reason) = tried().unwrap_err() else { panic!("it counts as an attempt") };
    assert_eq!(reason.cause, RollbackCause::Disk, "{reason}");
    // The files are as signed: they were never encrypted.
    let names =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let sums: Vec<_> = names.map(|name| format!("{}  {name}", "0".repeat(64))).collect();
    write(&folder.path().join(".sha256sums"), (sums.join("\n") + "\n").as_bytes());
    tried().unwrap();
}
