//! The cameras of a box as callers see them: their state, their events, and pictures for those who may see some.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ledge::audit_event::AuditSink;
use ledge::cameras::cameras::{CameraServices, Cameras};
use ledge::cameras::clock::{Clock, SystemClock};
use ledge::cameras::config::{CamerasConfig, HomeAssistantConfig};
use ledge::cameras::messages::{CameraMessage, CameraMessageKind, CameraPublisher};
use ledge::egress::{Egress, EgressConfig};
use ledge::names::ModelName;
use ledge::principal::Principal;
use ledge::repository::CandidateShare;
use ledge::shutdown::Shutdown;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::access_matrix::key;
use crate::appliance::{Appliance, OPENVINO, name};
use crate::audit::stop;
use crate::camera_server::{CameraServer, Login, PASSWORD, USER, picture};
use crate::client::Response;
use crate::daemon::{TestDaemon, TestRoot, copy, data, model_folder, write};

pub const SIZE: (u32, u32) = (560, 560);

/// The model.toml of the detector of coloured quarters.
pub fn model_toml() -> String {
    let golden: toml::Table =
        toml::from_str(&String::from_utf8(data("pipelines/object_detection.toml")).unwrap()).unwrap();
    golden["config"].as_str().unwrap().to_owned()
}

/// A box with a detector of coloured quarters, and these cameras.
pub fn root(cameras: &str) -> TestRoot {
    let root = TestRoot::new().model_as("colour_detector", "colours").file("colours/model.toml", model_toml());
    write(&root.folder.path().join("password"), PASSWORD.as_bytes());
    write(&root.folder.path().join("ledge.toml"), cameras.as_bytes());
    root
}

pub fn camera(name: &str, server: &CameraServer, more: &str) -> String {
    let url = server.url(name);
    format!(
        "[[camera]]\nname = {name:?}\nurl = {url:?}\nmodel = \"colours\"\nmin_score = 0.6\ninterval_ms = 100\n{more}\n"
    )
}

/// The document about a camera.
pub fn of_camera(daemon: &TestDaemon, name: &str) -> Value {
    let document = daemon.client().get("/cameras").json();
    let found = document["cameras"].as_array().unwrap().iter().find(|camera| camera["name"] == name).cloned();
    found.unwrap_or_else(|| panic!("{document}"))
}

/// Waits until the document about a camera is so.
#[track_caller]
pub fn wait_for(daemon: &TestDaemon, name: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let camera = of_camera(daemon, name);
        if is_so(&camera) {
            return camera;
        }
        assert!(Instant::now() < deadline, "{camera:#}\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn look(daemon: &TestDaemon, name: &str, key: &str) -> Response {
    daemon.client().request("GET", &format!("/cameras/{name}/picture"), &[("x-api-key", key)], b"")
}

/// The sum of the differences between neighbours in a part of a picture.
fn roughness(picture: &image::RgbImage, left: u32, top: u32) -> u32 {
    let at = |x, y| u32::from(picture.get_pixel(x, y).0[0]);
    (left..left + 50)
        .flat_map(|x| (top..top + 50).map(move |y| (x, y)))
        .map(|(x, y)| at(x, y).abs_diff(at(x + 1, y)))
        .sum()
}

#[test]
fn a_camera_viewer_sees_faces_blurred_and_the_zones_and_is_recorded_and_nobody_else_sees_a_picture() {
    let server = CameraServer::start(Login::None);
    let astronaut: Arc<[u8]> = data("photos/astronaut.jpg").into();
    server.show("room", [astronaut.clone()]);
    let url = server.url("room");
    let config = format!(
        "[[camera]]\nname = \"room\"\nurl = {url:?}\nlabels = [\"person\"]\n\
         [[camera.zones]]\nname = \"shelf\"\npoints = [[0.6, 0.1], [0.9, 0.1], [0.9, 0.5], [0.6, 0.5]]\n"
    );
    let root = TestRoot::closed().models(&["coco_detector", "face_detector"]);
    write(&root.folder.path().join("ledge.toml"), config.as_bytes());
    let [guard, grafana] =
        [("guard", "camera-viewer"), ("grafana", "viewer")].map(|(name, role)| key(&root, &[name, "--role", role]));
    let daemon = root.start();
    wait_for(&daemon, "room", |camera| camera["picture"].is_object());

    // Not even a program of this machine, which may see everything else of a camera.
    assert_eq!(daemon.client().get("/cameras/room/picture").status, 401);
    assert_eq!(look(&daemon, "room", &grafana).status, 403);
    let seen = look(&daemon, "room", &guard);
    assert_eq!(
        (seen.status, seen.header("content-type"), seen.header("cache-control")),
        (200, Some("image/jpeg"), Some("no-store"))
    );
    let shown = image::load_from_memory(&seen.body).unwrap().to_rgb8();
    let sent = image::load_from_memory(&astronaut).unwrap().to_rgb8();
    assert_eq!(shown.dimensions(), sent.dimensions());
    assert!(roughness(&shown, 115, 55) * 2 < roughness(&sent, 115, 55), "the face");
    // The left edge of the zone, and the middle of the zone.
    let (width, height) = sent.dimensions();
    let differs = |x: u32, y: u32| {
        let (one, other) = (shown.get_pixel(x, y).0, sent.get_pixel(x, y).0);
        one.iter().zip(other).any(|(one, other)| one.abs_diff(other) > 40)
    };
    assert!((0..20).all(|step| differs(width * 6 / 10, height * (20 + step) / 100)), "the edge of the zone");
    assert!((0..20).all(|step| !differs(width * 3 / 4, height * (20 + step) / 100)), "inside of the zone");

    // The same picture is not drawn again, and each look counts.
    assert_eq!(look(&daemon, "room", &guard).body, seen.body);
    assert_eq!(look(&daemon, "yard", &guard).status, 404);
    let faces = daemon.counted("face_detector").0;
    assert_eq!(faces, Some(1));
    let root = stop(daemon);
    let records = root.command(&["audit", "show"]).output().unwrap();
    let records = String::from_utf8(records.stdout).unwrap();
    let looks: Vec<_> = records.lines().filter(|line| line.contains("pictures_seen")).collect();
    assert!(looks.len() == 2 && looks.iter().all(|line| line.contains("room")), "{records}");
}

#[test]
fn a_picture_whose_blurred_places_cannot_be_found_is_shown_to_nobody() {
    let server = CameraServer::start(Login::None);
    let config: String = [("persons", ""), ("faces", "blur = ['face']"), ("open", "blur = []")]
        .map(|(name, blur)| {
            server.show(name, [picture(["red", "", "", ""], SIZE, 0)]);
            camera(name, &server, blur)
        })
        .concat();
    let root = root(&config);
    let admin = key(&root, &["admin", "--role", "admin"]);
    let daemon = root.start();
    for (name, reason) in [
        ("persons", "version 1 of the model colours has no label \"person\""),
        ("faces", "the model face_detector, which finds the faces to blur, is not loaded"),
    ] {
        let camera = wait_for(&daemon, name, |camera| camera["picture"].is_object());
        assert_eq!(camera["picture"]["hidden"], reason);
        let refused = look(&daemon, name, &admin);
        assert_eq!(
            (refused.status, refused.error()),
            (503, format!("no picture of {name} is shown: {reason}")),
            "its own model is there"
        );
    }
    wait_for(&daemon, "open", |camera| camera["picture"].is_object());
    assert_eq!(look(&daemon, "open", &admin).status, 200);
    // Later, the model that lacks the label may be away: it still does not have it.
    let unload = daemon.client().request(
        "POST",
        "/v2/repository/models/colours/unload",
        &[("x-api-key", &admin), ("content-type", "application/json")],
        b"{}",
    );
    assert_eq!(unload.status, 200);
    assert_eq!(look(&daemon, "persons", &admin).status, 503);
    assert_eq!(look(&daemon, "open", &admin).status, 200, "nothing is to be blurred");
    server.show("open", [picture(["", "green", "", ""], SIZE, 1)]);
    let failing = wait_for(&daemon, "open", |camera| camera["state"] == "failing");
    assert!(failing["reason"].as_str().unwrap().contains("colours"), "{failing}");
}

/// Renames the label of red objects in the folder of a model.
fn name_red(folder: &Path, label: &str, head: &str) {
    let toml = model_toml().replace("\"red\"", &format!("{label:?}"));
    write(&folder.join("model.toml"), format!("{head}{toml}").as_bytes());
    write(&folder.join("labels.txt"), format!("{label}\ngreen\nblue\n").as_bytes());
}

#[test]
fn a_picture_of_a_call_is_judged_by_the_labels_of_the_version_that_answered_it() {
    const BOTH: &str = "version_policy = \"all\"\n";
    let root = root("[[camera]]\nname = \"door\"\nblur = [\"person\"]\n");
    let model = root.model("colours");
    name_red(&model, "human", BOTH);
    let admin = key(&root, &["admin", "--role", "admin"]);
    let daemon = root.start();
    let send = |path: &str, noise: u32| {
        let headers = [("content-type", "image/jpeg"), ("x-ledge-camera", "door"), ("x-api-key", admin.as_str())];
        let picture = picture(["red", "", "", ""], SIZE, noise);
        let sent = daemon.client().post(&format!("/v2/models/colours{path}/infer"), &headers, &picture);
        assert_eq!(sent.status, 200, "{sent:?}");
        wait_for(&daemon, "door", |camera| camera["picture"]["bytes"] == picture.len())["picture"]["hidden"].clone()
    };
    let humans = "version 1 of the model colours has no label \"person\"";
    assert_eq!(send("", 0), humans);

    // Version 2 has the label. Version 1 stays as it was, because its file cannot be loaded any more.
    copy(&model.join("1"), &model.join("2"));
    write(&model.join("1/model.onnx"), b"no longer a model");
    name_red(&model, "person", BOTH);
    daemon.client().post("/v2/repository/models/colours/load", &[("x-api-key", &admin)], b"");
    assert_eq!(send("", 1), Value::Null);
    assert_eq!(look(&daemon, "door", &admin).status, 200);
    assert_eq!(send("/versions/1", 2), humans);
    assert_eq!(look(&daemon, "door", &admin).status, 503);
}

/// Keeps what cameras publish.
#[derive(Debug, Default)]
struct Published(Mutex<Vec<CameraMessage>>);

impl CameraPublisher for Published {
    fn publish(&self, message: CameraMessage) -> bool {
        self.0.lock().unwrap().push(message);
        true
    }
}

impl Published {
    async fn wait_for(&self, is_it: impl Fn(&CameraMessage) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.0.lock().unwrap().iter().any(&is_it) {
            assert!(Instant::now() < deadline, "{:?}", self.0.lock().unwrap());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// The services of the cameras of a test.
pub fn services(own: &Appliance, publisher: Arc<dyn CameraPublisher>, clock: Arc<dyn Clock>) -> CameraServices {
    CameraServices {
        egress: Egress::new(&EgressConfig::default(), AuditSink::to_nowhere()),
        serving: own.serving.clone(),
        audit: AuditSink::to_nowhere(),
        state: own.folder.path().to_owned(),
        device: "box".parse().unwrap(),
        faces: ModelName::constant("face_detector"),
        publisher: Some(publisher),
        cameras_topic: "cameras".to_owned(),
        online_topic: "online".to_owned(),
        unusual_topic: None,
        clock,
    }
}

#[tokio::test]
async fn no_picture_is_published_that_a_candidate_without_the_label_to_blur_has_answered() {
    let own = Appliance::new();
    own.owners(1, "colour_detector", "");
    name_red(&own.folder.path().join("models/m"), "person", OPENVINO);
    let red = std::fs::read(model_folder("colour_detector").join("red.png")).unwrap();
    write(&own.folder.path().join("models/m/red.png"), &red);
    own.repository().refresh(&Principal::Local).await.unwrap();
    let release = own.release(2, "colour_detector", "");
    name_red(&release.folder, "human", OPENVINO);
    write(&release.folder.join("red.png"), &red);
    own.candidate(&release, CandidateShare::Canary(1.0)).await;

    let server = CameraServer::start(Login::None);
    server.show("yard", [picture(["red", "", "", ""], SIZE, 0)]);
    let config = format!(
        "name = \"yard\"\nurl = {:?}\nmodel = \"m\"\nmin_score = 0.6\ninterval_ms = 100\nblur = [\"person\"]\n\
         publish_pictures = true\npicture_interval_ms = 0\n",
        server.url("yard")
    );
    let published = Arc::new(Published::default());
    let services = services(&own, published.clone(), Arc::new(SystemClock::default()));
    let (_home_assistant, messages) = mpsc::channel(1);
    let cameras = CamerasConfig(vec![toml::from_str(&config).unwrap()]);
    let (_cameras, tasks) = Cameras::new(&cameras, &HomeAssistantConfig::default(), services, messages);
    let shutdown = Shutdown::default();
    tasks.spawn(&Arc::default(), &shutdown);

    let tells_of = |message: &CameraMessage, label: &str| {
        message.kind == CameraMessageKind::Data && String::from_utf8_lossy(&message.payload).contains(label)
    };
    let is_picture = |message: &CameraMessage| message.kind == CameraMessageKind::Picture;
    published.wait_for(|message| tells_of(message, "human")).await;
    // From now on the live version would answer, but the objects on the same picture are still known from the
    // candidate.
    own.repository().set_candidate(&name(), None);
    let pictures_before = server.served("yard");
    while server.served("yard") < pictures_before + 5 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!published.0.lock().unwrap().iter().any(is_picture), "a picture with people who are not blurred");

    server.show("yard", [picture(["red", "red", "", ""], SIZE, 1)]);
    published.wait_for(is_picture).await;
    published.wait_for(|message| tells_of(message, "person")).await;
    assert!(shutdown.drain(Duration::from_secs(10)).await);
    own.end().await;
}

#[test]
fn what_a_camera_counts_and_why_it_is_away_is_told_without_its_password() {
    let server = CameraServer::start(Login::Digest);
    let scene = |quarters, noise| picture(quarters, SIZE, noise);
    server.show("yard", [scene(["red", "", "", "green"], 0)]);
    let login = format!(
        "user = {USER:?}\npassword_file = \"password\"\nhold_ms = 200\nlabels = ['red', 'green', 'blue']\nblur = []\n\
         [[camera.zones]]\nname = \"low\"\npoints = [[0, 0.6], [1, 0.6], [1, 1], [0, 1]]\nlabels = ['green']\n"
    );
    let secret = format!("{}?password=hunter2&channel=1", server.url("till"));
    let config = camera("yard", &server, &login)
        + &format!("[[camera]]\nname = \"till\"\nurl = {secret:?}\nmodel = \"colours\"\n")
        + "[[camera]]\nname = \"door\"\nblur = ['red']\n";
    let daemon = root(&config).start();

    let yard = wait_for(&daemon, "yard", |camera| camera["counts"]["low"]["green"] == 1);
    assert_eq!(yard["counts"], json!({"everywhere": {"red": 1, "green": 1, "blue": 0}, "low": {"green": 1}}));
    assert_eq!((&yard["state"], &yard["reason"], &yard["model"]), (&json!("online"), &Value::Null, &json!("colours")));
    assert_eq!((&yard["picture"]["width"], &yard["picture"]["hidden"]), (&json!(SIZE.0), &Value::Null));
    let points = json!([[0.0, 0.6], [1.0, 0.6], [1.0, 1.0], [0.0, 1.0]]);
    assert_eq!(yard["zones"], json!([{"name": "low", "points": points, "labels": ["green"]}]));

    let till = wait_for(&daemon, "till", |camera| camera["state"] == "away");
    assert!(till["url"].as_str().unwrap().ends_with("till.jpg?password=<hidden>&channel=1"), "{till}");
    assert!(till["since"].is_string() && till["picture"].is_null() && till["counts"].is_null(), "{till}");
    let document = String::from_utf8(daemon.client().get("/cameras").body).unwrap();
    assert!(!document.contains("hunter2") && !document.contains(PASSWORD), "{document}");

    // Pictures of this one come with calls.
    let door = of_camera(&daemon, "door");
    assert_eq!([&door["state"], &door["url"], &door["model"]], [&json!("waiting"), &Value::Null, &Value::Null]);
    let headers = [("content-type", "image/jpeg"), ("x-ledge-camera", "door")];
    let sent = daemon.client().post("/v2/models/colours/infer", &headers, &scene(["red", "", "", ""], 1));
    assert_eq!(sent.status, 200);
    let door = wait_for(&daemon, "door", |camera| camera["picture"].is_object());
    assert_eq!([&door["state"], &door["picture"]["model"]], [&json!("online"), &json!("colours")]);

    // One is gone, and then the camera is away.
    server.show("yard", (1..4).map(|noise| scene(["red", "", "", ""], noise)));
    wait_for(&daemon, "yard", |camera| camera["counts"]["low"]["green"] == 0);
    server.set_away(true);
    let yard = wait_for(&daemon, "yard", |camera| camera["state"] == "away");
    assert!(yard["reason"].as_str().unwrap().contains("127.0.0.1"), "{yard}");
    assert_eq!(yard["counts"]["everywhere"]["red"], 1, "nothing is gone because a camera is away");

    let events = daemon.client().get("/cameras/events").json();
    let told = |event: &Value| {
        let text = |name: &str| event[name].as_str().unwrap().to_owned();
        format!("{} {} {} {}", text("camera"), text("label"), text("event"), text("zone"))
    };
    let mut all: Vec<_> = events["events"].as_array().unwrap().iter().map(told).collect();
    let newest = all.first().cloned();
    all.sort();
    let gone = ["yard green gone everywhere", "yard green gone low"];
    assert!(gone.contains(&newest.as_deref().unwrap()), "{events}");
    assert_eq!(
        all,
        ["yard green appeared everywhere", "yard green appeared low", gone[0], gone[1], "yard red appeared everywhere",]
    );
}

#[test]
fn a_camera_may_have_the_name_of_a_route() {
    let server = CameraServer::start(Login::None);
    server.show("events", [picture(["red", "", "", ""], SIZE, 0)]);
    let root = root(&camera("events", &server, "blur = []"));
    let admin = key(&root, &["admin", "--role", "admin"]);
    let daemon = root.start();
    wait_for(&daemon, "events", |camera| camera["picture"].is_object());
    assert_eq!(look(&daemon, "events", &admin).header("content-type"), Some("image/jpeg"));
    assert!(daemon.client().get("/cameras/events").json()["events"].is_array());
}
