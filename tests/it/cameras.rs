//! Cameras without a broker: their findings, their metrics and the check of their configuration.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::camera_server::{CameraServer, Login, PASSWORD, USER};
use crate::daemon::{TestDaemon, TestRoot, data, write};

/// A root with these cameras, and the password in `password`.
fn root(config: &str) -> TestRoot {
    let root = TestRoot::new();
    write(&root.folder.path().join("password"), PASSWORD.as_bytes());
    write(&root.folder.path().join("wrong"), b"another word");
    write(&root.folder.path().join("ledge.toml"), config.as_bytes());
    root
}

fn camera(name: &str, server: &CameraServer, password: &str) -> String {
    format!(
        "[[camera]]\nname = {name:?}\nurl = {:?}\nuser = {USER:?}\npassword_file = {password:?}\n",
        server.url(name)
    )
}

/// Waits until a metric of the camera `yard` has at least this value.
#[track_caller]
fn wait_for(daemon: &TestDaemon, metric: &str, least: f64) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let text = String::from_utf8(daemon.client().get("/metrics").body).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(metric)?.trim().parse::<f64>().ok());
        if value.is_some_and(|value| value >= least) {
            return;
        }
        assert!(Instant::now() < deadline, "{metric}: {value:?}\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_doctor_asks_each_camera_for_a_picture() {
    let server = CameraServer::start(Login::Digest);
    for name in ["yard", "gate"] {
        server.show(name, [data("photos/cows.jpg").into()]);
    }
    let config =
        camera("yard", &server, "password") + &camera("gate", &server, "wrong") + &camera("gone", &server, "password");
    let output = root(&config).command(&["doctor", "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found: Vec<String> = report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|check| check["name"].as_str().unwrap().starts_with("camera"))
        .map(|check| format!("{} {}: {}", check["status"], check["name"], check["detail"]).replace('"', ""))
        .collect();
    assert_eq!(found.len(), 3, "{report:#}");
    assert!(found[0].starts_with("ok camera yard: a picture of "), "{found:?}");
    assert!(found[1].starts_with("fail camera gate: ") && found[1].contains("refuses the login"), "{found:?}");
    assert!(found[2].starts_with("fail camera gone: ") && found[2].contains("status 404"), "{found:?}");
    assert!(!report.to_string().contains(PASSWORD));
}

#[test]
fn the_doctor_asks_the_daemon_for_the_models_of_cameras() {
    let server = CameraServer::start(Login::None);
    let camera = |name: &str, more: &str| {
        server.show(name, [data("photos/cows.jpg").into()]);
        format!("[[camera]]\nname = {name:?}\nurl = {:?}\n{more}\n", server.url(name))
    };
    let config = camera("yard", "publish_pictures = true")
        + &camera("gate", "model = \"add_sub\"")
        + &camera("gone", "model = \"nope\"")
        + "[mqtt]\nbroker = \"mqtt://127.0.0.1:9\"\n";
    let daemon = root(&config).models(&["coco_detector", "add_sub"]).start();
    let output = daemon.root.command(&["doctor", "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = report["checks"].as_array().unwrap().iter().filter(|check| check["name"] == "cameras");
    assert_eq!(
        found.map(|check| check["detail"].as_str().unwrap()).collect::<Vec<_>>(),
        [
            "the model add_sub of gate does not find objects",
            "no picture of yard is published: the model face_detector, which finds the faces to blur, is not loaded",
            "the model nope of gone is not loaded",
        ]
    );
}

#[test]
fn a_camera_elsewhere_needs_an_entry_that_may_get_requests() {
    let config = "[[camera]]\nname = 'yard'\nurl = 'http://10.0.0.7/snap.jpg'\n";
    assert_eq!(root(config).mistakes(), ["ledge.toml:3 camera[0].url"]);
    let allowed = root(&format!("{config}[[egress.allow]]\nhost = '10.0.0.7:80'\nregion = 'lan'\n"));
    assert_eq!(allowed.warnings(), [""; 0]);
}

#[test]
fn the_detector_of_the_package_sees_who_stands_before_the_camera() {
    let server = CameraServer::start(Login::Basic);
    server.show("yard", [data("photos/astronaut.jpg").into()]);
    let config = camera("yard", &server, "password") + "interval_ms = 100\nlabels = ['person']\n";
    let daemon = root(&config).models(&["coco_detector"]).start();
    wait_for(&daemon, "ledge_camera_events_total{camera=\"yard\"}", 1.0);
    // The same bytes again and again: the model is asked once.
    wait_for(&daemon, "ledge_camera_pictures_total{camera=\"yard\",result=\"unchanged\"}", 5.0);
    wait_for(&daemon, "ledge_camera_online{camera=\"yard\"}", 1.0);
    assert_eq!(daemon.counted("coco_detector").0, Some(1));
    let log = daemon.log();
    assert!(!log.contains(PASSWORD));
}
