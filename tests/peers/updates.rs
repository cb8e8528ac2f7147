//! The whole way of an update: `ledge-platform`, nginx with client certificates, a daemon under load.

use std::process::Command;

use ledge::rollout::manifest::RolloutManifest;
use serde_json::{Value, json};

use crate::boxes::wait_until;
use crate::broker::Broker;
use crate::daemon::{TestDaemon, TestRoot, copy, model_folder, write};
use crate::fault_rounds::assert_models_are_sealed;
use crate::platform::{Callers, Fleet, Platform, SHAPES, look, shapes, status, subject, until, versions, wine};
use crate::tools::{mosquitto, run};

#[test]
fn a_new_version_goes_live_under_load_and_no_request_is_lost() {
    let fleet = Fleet::new("");
    fleet.platform.add_model("wine_mlp", 2, &model_folder("wine_mlp"), &[]);
    let daemon = fleet.enrol(TestRoot::new().models(&["wine_mlp"])).start();
    let callers = Callers::start(&daemon, 4, "wine_mlp", &wine());
    fleet.platform.start(
        "r-1",
        "models/wine_mlp/2",
        &["--shadow", "share=0.5,min_requests=50,max_s=30", "--canary", "share=0.2,min_requests=50,max_s=30"],
    );
    look(&daemon);
    daemon.wait_for_event("update.committed");
    for answers in callers.stop_unharmed() {
        assert_eq!(answers.versions.first().map(String::as_str), Some("1"), "{answers:?}");
        assert_eq!(answers.versions.last().map(String::as_str), Some("2"), "{answers:?}");
    }
    let told = subject(&daemon, "models/wine_mlp");
    assert_eq!((told["version"].as_u64(), told["stage"].as_str()), (Some(2), Some("idle")), "{told}");
    assert_eq!(told["last"]["result"], "committed", "{told}");
    // It also runs after a power cut, regardless of the owner's folder.
    let daemon = daemon.kill().start();
    assert_eq!(versions(&daemon, "wine_mlp"), json!(["2"]));
}

#[test]
fn a_release_that_asks_for_the_daemon_runs_in_a_sealed_process() {
    let fleet = Fleet::new("");
    let source = tempfile::tempdir().unwrap();
    copy(&model_folder("release_good"), source.path());
    let config = std::fs::read_to_string(source.path().join("model.toml")).unwrap();
    write(&source.path().join("model.toml"), format!("isolation = \"none\"\n{config}").as_bytes());
    fleet.platform.add_model(SHAPES, 1, source.path(), &[]);
    let daemon = fleet.enrol(TestRoot::new()).start();
    fleet.platform.start("r-1", "models/shapes/1", &[]);
    look(&daemon);
    daemon.wait_for_event("update.committed");
    assert_eq!(daemon.client().post_json(&format!("/v2/models/{SHAPES}/infer"), &shapes()).status, 200);
    assert_models_are_sealed(&daemon);
}

/// A release that must not get through.
struct Bad {
    model: &'static str,
    /// The gates of the rollout.
    gate: &'static [&'static str],
    package: &'static [&'static str],
    cause: &'static str,
    stage: &'static str,
}

const BAD: [Bad; 5] = [
    Bad {
        model: "release_bad_accuracy",
        gate: &["--gate", "golden_min=0.9"],
        package: &[],
        cause: "golden",
        stage: "verified",
    },
    Bad {
        // Without a word about gates.
        model: "release_slow",
        gate: &[],
        package: &[],
        cause: "latency",
        stage: "staged",
    },
    Bad { model: "release_crash", gate: &[], package: &[], cause: "crash", stage: "verified" },
    Bad {
        model: "release_memory",
        gate: &[],
        package: &["--limit-memory-mb", "512"],
        cause: "memory",
        stage: "verified",
    },
    Bad { model: "release_other_answers", gate: &[], package: &[], cause: "golden", stage: "verified" },
];

#[test]
fn bad_versions_are_stopped_at_their_gates_while_the_old_one_answers_and_not_tried_again() {
    let fleet = Fleet::new("");
    fleet.platform.add_model(SHAPES, 1, &model_folder("release_good"), &[]);
    fleet.platform.start("r-1", "models/shapes/1", &[]);
    let daemon = fleet.enrol(TestRoot::new()).start();
    // A box without the model has it now.
    daemon.wait_for_event("update.committed");
    let callers = Callers::start(&daemon, 2, SHAPES, &shapes());
    for (number, Bad { model, gate, package, cause, stage }) in (2..).zip(BAD) {
        let (rollout, target) = (format!("r-{number}"), format!("models/shapes/{number}"));
        fleet.platform.add_model(SHAPES, number, &model_folder(model), package);
        fleet.platform.start(&rollout, &target, gate);
        look(&daemon);
        let line = daemon.wait_for_event("update.rolled_back");
        assert_eq!((&line["cause"], &line["stage"], &line["rollout"]), (&json!(cause), &json!(stage), &json!(rollout)));
        let told = subject(&daemon, "models/shapes");
        assert_eq!((&told["version"], &told["stage"], &told["trial"]), (&json!(1), &json!("idle"), &Value::Null));
        let last = &told["last"];
        assert_eq!(
            (&last["result"], &last["cause"], &last["rollout"]),
            (&json!("rolled_back"), &json!(cause), &json!(rollout))
        );
        look(&daemon);
        look(&daemon);
        fleet.platform.run(&["rollout", "stop"], &["--id", &rollout]);
    }
    for answers in callers.stop_unharmed() {
        assert_eq!(answers.versions, ["1"]);
    }
    let log = daemon.log();
    let count = |text: &str| log.lines().filter(|line| line.contains(text)).count();
    // Each began once, and each end is in the audit log.
    assert_eq!(count("\"stage\":\"downloading\""), 1 + BAD.len(), "{log}");
    let rolled_back = || daemon.log().lines().filter(|line| line.contains(r#"\"stage\":\"rolled_back\""#)).count();
    wait_until("the ends are recorded", || rolled_back() >= BAD.len());
    assert_eq!(rolled_back(), BAD.len(), "{log}");
    assert_eq!(versions(&daemon, SHAPES), json!(["1"]));
}

#[test]
fn a_version_that_fails_requests_or_answers_otherwise_is_stopped_by_what_it_answers() {
    // No golden input shows it: the classes are in another order, and no signed answer says otherwise.
    let fleet = Fleet::new("");
    fleet.platform.add_model(SHAPES, 1, &model_folder("release_good"), &[]);
    let unproven = tempfile::tempdir().unwrap();
    std::fs::copy(model_folder("release_other_answers").join("model.onnx"), unproven.path().join("model.onnx"))
        .unwrap();
    fleet.platform.add_model(SHAPES, 2, unproven.path(), &["--no-golden"]);
    fleet.platform.start("r-1", "models/shapes/1", &[]);
    let daemon = fleet.enrol(TestRoot::new()).start();
    daemon.wait_for_event("update.committed");
    let callers = Callers::start(&daemon, 2, SHAPES, &shapes());
    let shadow = ["--shadow", "share=1,min_requests=1000,max_s=60", "--gate", "agreement_min=0.95"];
    fleet.platform.start("r-2", "models/shapes/2", &shadow);
    look(&daemon);
    let line = daemon.wait_for_event("update.rolled_back");
    assert_eq!((&line["cause"], &line["stage"]), (&json!("agreement"), &json!("shadow")), "{line}");
    for answers in callers.stop_unharmed() {
        assert_eq!(answers.versions, ["1"], "nobody was answered by a shadow");
    }
}

#[test]
fn a_rollout_that_says_nothing_is_mirrored_and_soaks_before_it_is_a_success() {
    let fleet = Fleet::new("");
    for (version, model) in [(1, "release_good"), (2, "release_better")] {
        fleet.platform.add_model(SHAPES, version, &model_folder(model), &[]);
    }
    fleet.platform.start("r-1", "models/shapes/1", &[]);
    let daemon = fleet.enrol(TestRoot::new()).start();
    daemon.wait_for_event("update.committed");
    let callers = Callers::start(&daemon, 1, SHAPES, &shapes());
    fleet.platform.run(&["rollout", "start"], &["--id", "r-2", "--target", "models/shapes/2", "--waves", "all"]);
    look(&daemon);
    let mut stages = Vec::new();
    while stages.last().is_none_or(|stage| stage != "active") {
        stages.push(daemon.wait_for_event("update.moved")["stage"].as_str().unwrap().to_owned());
    }
    assert_eq!(stages, ["downloading", "verified", "staged", "shadow", "active"]);
    // It answers, and the version before is one order away.
    assert_eq!(subject(&daemon, "models/shapes")["stage"], "active");
    cli(&daemon, &["update", "rollback", "shapes"]);
    assert_eq!(versions(&daemon, SHAPES), json!(["1"]));
    callers.stop_unharmed();
}

#[test]
fn a_rollout_that_says_nothing_means_the_same_to_the_platform_and_to_a_box() {
    let platform = Platform::new();
    platform.add_model(SHAPES, 1, &model_folder("release_good"), &[]);
    platform.run(&["rollout", "start"], &["--id", "r-1", "--target", "models/shapes/1"]);
    let shown = run(platform.command(&["rollout", "show"]).arg("--json"));
    let mut written = serde_json::from_str::<Value>(&shown).unwrap()[0].take();
    let plan = |manifest: &Value| {
        let manifest = RolloutManifest::parse(manifest.to_string().as_bytes()).unwrap();
        manifest.rollouts.into_iter().next().unwrap().plan
    };
    let explicit = plan(&written);
    // As an older platform wrote it.
    let rollout = written["rollouts"][0].as_object_mut().unwrap();
    for key in ["gate", "shadow", "canary", "soak"] {
        assert!(rollout.remove(key).is_some(), "{key}");
    }
    assert_eq!(plan(&written), explicit);
}

#[test]
fn a_version_that_was_taken_with_some_wrong_answers_loads_again_with_them() {
    let fleet = Fleet::new("");
    fleet.platform.add_model(SHAPES, 1, &model_folder("release_bad_accuracy"), &[]);
    fleet.platform.start("r-1", "models/shapes/1", &["--gate", "golden_min=0.7"]);
    let daemon = fleet.enrol(TestRoot::new()).start();
    daemon.wait_for_event("update.committed");
    let daemon = daemon.kill().start();
    assert_eq!(versions(&daemon, SHAPES), json!(["1"]));
}

#[test]
fn the_operator_goes_back_without_a_network() {
    let mut fleet = Fleet::new("");
    for version in [1, 2] {
        let model = if version == 1 { "release_good" } else { "release_better" };
        fleet.platform.add_model(SHAPES, version, &model_folder(model), &[]);
    }
    fleet.platform.start("r-1", "models/shapes/1", &[]);
    let daemon = fleet.enrol(TestRoot::new()).start();
    daemon.wait_for_event("update.committed");
    fleet.platform.start("r-2", "models/shapes/2", &[]);
    look(&daemon);
    daemon.wait_for_event("update.committed");
    assert_eq!(versions(&daemon, SHAPES), json!(["2"]));
    fleet.nginx.stop();
    let said = cli(&daemon, &["update", "rollback", "shapes"]);
    assert!(said.contains("goes back"), "{said}");
    assert_eq!(versions(&daemon, SHAPES), json!(["1"]));
    // It is not tried again when the network is back, and the reason is known.
    fleet.nginx.start_again(None);
    look(&daemon);
    let told = subject(&daemon, "models/shapes");
    assert_eq!((&told["version"], &told["trial"]), (&json!(1), &Value::Null), "{told}");
    assert_eq!(told["last"]["cause"], "operator", "{told}");
    let said = cli(&daemon, &["update", "status"]);
    assert!(said.contains("models/shapes") && said.contains("operator"), "{said}");
}

#[test]
fn a_stick_brings_what_the_network_does_not() {
    let mut fleet = Fleet::new("");
    fleet.platform.add_model(SHAPES, 1, &model_folder("release_good"), &[]);
    fleet.platform.start("r-1", "models/shapes/1", &[]);
    fleet.nginx.stop();
    let daemon = fleet.enrol(TestRoot::new()).start();
    let answer = daemon.client().post_json("/updates/check", &json!({}));
    assert!(answer.status >= 400 && answer.error().contains("refuses the connection"), "{answer:?}");
    let stick = format!("file://{}", fleet.platform.repository().display());
    cli(&daemon, &["update", "check", "--from", &stick]);
    daemon.wait_for_event("update.committed");
    assert_eq!(versions(&daemon, SHAPES), json!(["1"]));
}

#[test]
fn a_hint_is_followed_at_once_and_what_came_of_it_is_reported() {
    let (fleet, broker) = (Fleet::new(""), Broker::new());
    fleet.platform.add_model(SHAPES, 1, &model_folder("release_good"), &[]);
    let root = fleet.enrol(TestRoot::new()).set("updates.poll_interval_s=86400");
    let daemon = root.set(&format!("mqtt.broker={:?}", broker.url())).start();
    daemon.wait_for_event("rollout.accepted");
    fleet.platform.start("r-1", "models/shapes/1", &[]);
    let hint = ["-V", "5", "-q", "1", "-r", "-t", "ledge/v1/box-1/desired", "-m", "{}"];
    run(mosquitto("mosquitto_pub", &broker).args(hint));
    daemon.wait_for_event("update.committed");
    // Retained, so later subscribers get it too; and at once, not at the next interval.
    let reported = reported(&broker, |report| report["updates"]["subjects"][0]["last"]["result"] == "committed");
    let told = &reported["updates"]["subjects"][0];
    assert_eq!(
        (&told["subject"], &told["version"], &told["stage"]),
        (&json!("models/shapes"), &json!(1), &json!("idle"))
    );
}

#[test]
fn a_revoked_version_and_a_paused_rollout_are_obeyed() {
    let fleet = Fleet::new("");
    for (version, model) in [(1, "release_good"), (2, "release_better")] {
        fleet.platform.add_model(SHAPES, version, &model_folder(model), &[]);
    }
    fleet.platform.start("r-1", "models/shapes/1", &[]);
    let daemon = fleet.enrol(TestRoot::new()).start();
    daemon.wait_for_event("update.committed");
    // Without requests its canary lasts until it is paused.
    fleet.platform.start("r-2", "models/shapes/2", &["--canary", "share=0.5,min_requests=10,max_s=3000"]);
    look(&daemon);
    while daemon.wait_for_event("update.moved")["stage"] != "canary" {}
    fleet.platform.run(&["rollout", "pause"], &["--id", "r-2"]);
    look(&daemon);
    until(&daemon, |told| told["trial"]["held"].is_string() && told["stage"] == "canary");
    let callers = Callers::start(&daemon, 1, SHAPES, &shapes());
    fleet.platform.run(&["rollout", "resume"], &["--id", "r-2"]);
    look(&daemon);
    daemon.wait_for_event("update.committed");
    fleet.platform.run(&["rollout", "revoke"], &["models/shapes/2"]);
    look(&daemon);
    daemon.wait_for_event("update.version_restored");
    // A new request gets the version before; one in flight may end on the other.
    assert_eq!(daemon.client().post_json("/v2/models/shapes/infer", &shapes()).json()["model_version"], "1");
    callers.stop_unharmed();
    assert_eq!(subject(&daemon, "models/shapes")["last"]["cause"], "revoked", "{}", status(&daemon));
}

#[test]
fn a_revocation_of_the_newest_version_revives_no_rollout_that_it_had_replaced() {
    let fleet = Fleet::new("");
    for (version, model) in [(1, "release_good"), (2, "release_better"), (3, "release_good")] {
        fleet.platform.add_model(SHAPES, version, &model_folder(model), &[]);
    }
    fleet.platform.start("r-1", "models/shapes/1", &[]);
    let daemon = fleet.enrol(TestRoot::new()).start();
    daemon.wait_for_event("update.committed");
    // Without requests its canary lasts until the next rollout takes its place.
    fleet.platform.start("r-2", "models/shapes/2", &["--canary", "share=0.5,min_requests=10,max_s=3000"]);
    look(&daemon);
    until(&daemon, |told| told["stage"] == "canary");
    fleet.platform.start("r-3", "models/shapes/3", &[]);
    look(&daemon);
    daemon.wait_for_event("update.committed");
    fleet.platform.run(&["rollout", "revoke"], &["models/shapes/3"]);
    look(&daemon);
    daemon.wait_for_event("update.version_restored");
    let daemon = daemon.kill().start();
    look(&daemon);
    let told = subject(&daemon, "models/shapes");
    assert_eq!(
        (&told["version"], &told["trial"], &told["last"]["cause"]),
        (&json!(1), &Value::Null, &json!("revoked"))
    );
    // The platform decides the next step.
    fleet.platform.start("r-4", "models/shapes/2", &[]);
    look(&daemon);
    until(&daemon, |told| told["version"] == 2 && told["stage"] == "idle");
}

fn cli(daemon: &TestDaemon, verb: &[&str]) -> String {
    let mut command: Command = daemon.root.command(verb);
    run(command.arg("--url").arg(format!("http://{}", daemon.address)))
}

/// The first retained report of which `is` holds.
fn reported(broker: &Broker, is: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    for _ in 0..60 {
        let arguments = ["-V", "5", "-C", "1", "-W", "10", "-t", "ledge/v1/box-1/reported"];
        last = serde_json::from_str(&run(mosquitto("mosquitto_sub", broker).args(arguments))).unwrap();
        if is(&last) {
            return last;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("{last}");
}
