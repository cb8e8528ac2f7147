//! Cameras at a real broker: their messages, compared with a script of their pictures.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ledge::updates::sha256::sha256_hex;
use serde_json::{Value, json};

use crate::boxes::{logged, named_root, wait_until};
use crate::broker::{Broker, Setup};
use crate::camera_server::{CameraServer, Login, PASSWORD, USER, picture};
use crate::certificates::Authority;
use crate::daemon::{TestDaemon, TestRoot, data, setup_root, write};
use crate::message::Outgoing;
use crate::mqtt::Peer;
use crate::tls_kit::der;
use crate::tools::{mosquitto, run};

const SIZE: (u32, u32) = (560, 560);

/// Scenes with objects as `colour_detector` finds them.
const NOTHING: [&str; 4] = [""; 4];
const RED: [&str; 4] = ["red", "", "", ""];
const RED_AND_GREEN: [&str; 4] = ["red", "", "", "green"];
const BLUE_TOO: [&str; 4] = ["red", "blue", "", "green"];
const LOW_RED: [&str; 4] = ["", "", "red", ""];

/// A box with a detector of coloured quarters, and these cameras.
/// The settings for entities of the cameras and of the box.
const HOME: &str = "[home_assistant]\nenable = true\n[history]\nunusual_mqtt = true\n";

fn root(broker: &Broker, cameras: &str) -> TestRoot {
    let golden: toml::Table =
        toml::from_str(&String::from_utf8(data("pipelines/object_detection.toml")).unwrap()).unwrap();
    let root = named_root(broker, "box")
        .model_as("colour_detector", "colours")
        .file("colours/model.toml", golden["config"].as_str().unwrap());
    write(&root.folder.path().join("password"), PASSWORD.as_bytes());
    write(&root.folder.path().join("ledge.toml"), cameras.as_bytes());
    root
}

/// A camera of the configuration, with a zone that is the lower part of the picture.
fn camera(name: &str, server: &CameraServer, more: &str) -> String {
    format!(
        "[[camera]]
name = {name:?}
url = {:?}
model = \"colours\"
user = {USER:?}
password_file = \"password\"
min_score = 0.6
{more}
[[camera.zones]]
name = \"low\"
points = [[0, 0.6], [1, 0.6], [1, 1], [0, 1]]
",
        server.url(name)
    )
}

/// Pictures by scene, each some times with other bytes.
struct Gallery(BTreeMap<[&'static str; 4], Vec<Arc<[u8]>>>);

const VARIANTS: u32 = 6;

impl Gallery {
    fn new() -> Self {
        let scenes = [NOTHING, RED, RED_AND_GREEN, BLUE_TOO, LOW_RED];
        let variants = |scene| (0..VARIANTS).map(|noise| picture(scene, SIZE, noise)).collect();
        Self(scenes.into_iter().map(|scene| (scene, variants(scene))).collect())
    }

    /// The pictures of a script: with other bytes each time, or with the same while the scene stays.
    fn script(&self, scenes: &[([&'static str; 4], usize)], varies: bool) -> Vec<Arc<[u8]>> {
        let mut number = 0;
        let mut pictures = Vec::new();
        for (scene, times) in scenes {
            for _ in 0..*times {
                number += usize::from(varies);
                pictures.push(self.0[scene][number % VARIANTS as usize].clone());
            }
        }
        pictures
    }
}

/// The samples of a metric, summed over cameras, by their `result`.
fn results(daemon: &TestDaemon) -> BTreeMap<String, f64> {
    let text = String::from_utf8(daemon.client().get("/metrics").body).unwrap();
    let mut sums = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("ledge_camera_")) {
        let (labels, value) = line.rsplit_once(' ').unwrap();
        let name = labels.split('{').next().unwrap();
        let result = labels.split("result=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or(name);
        *sums.entry(result.to_owned()).or_default() += value.parse::<f64>().unwrap();
    }
    sums
}

/// The counts of the camera `yard` that the broker keeps.
fn counts(broker: &Broker) -> Value {
    kept(broker, "ledge/v1/box/cameras/yard/counts")
}

/// The message that the broker keeps for a topic.
fn kept(broker: &Broker, topic: &str) -> Value {
    let message = run(mosquitto("mosquitto_sub", broker).args(["-V", "5", "-W", "30", "-C", "1", "-t", topic]));
    serde_json::from_str(&message).unwrap()
}

#[test]
fn twenty_cameras_tell_what_appeared_when_and_nothing_else() {
    const CAMERAS: usize = 20;
    let (broker, server, gallery) = (Broker::new(), CameraServer::start(Login::Digest), Gallery::new());
    let names: Vec<String> = (0..CAMERAS).map(|number| format!("camera{number}")).collect();
    let mut config = String::new();
    let mut length = 0;
    for (number, name) in names.iter().enumerate() {
        let script = [
            (NOTHING, 2 + number % 4),
            (RED, 4),
            // A picture on which it is missed.
            (NOTHING, 1),
            (RED, 3),
            (RED_AND_GREEN, 4),
            // A picture with something that is not there.
            (BLUE_TOO, 1),
            (RED_AND_GREEN, 2),
            (NOTHING, 7),
            (LOW_RED, 4),
            (NOTHING, 7),
        ];
        length = length.max(script.iter().map(|(_, times)| times).sum());
        server.show(name, gallery.script(&script, number % 2 == 0));
        write!(config, "{}", camera(name, &server, "hold_ms = 2500")).unwrap();
    }

    let peer = Peer::subscribed(&broker, "watcher", "ledge/v1/box/cameras/+/events");
    let daemon = root(&broker, &config).start();
    wait_until("all pictures", || names.iter().all(|name| server.served(name) > length));

    let mut found: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for message in peer.received() {
        let event: Value = serde_json::from_str(&message.text()).unwrap();
        let text = |key: &str| event[key].as_str().unwrap().to_owned();
        assert_eq!(message.topic, format!("ledge/v1/box/cameras/{}/events", text("camera")));
        let subject = format!("{} in {}", text("label"), text("zone"));
        found.entry((text("camera"), subject)).or_default().push(text("event"));
    }
    let mut expected = BTreeMap::new();
    for name in &names {
        for (subject, times) in
            [("red in everywhere", 2), ("red in low", 1), ("green in everywhere", 1), ("green in low", 1)]
        {
            expected.insert((name.clone(), subject.to_owned()), ["appeared", "gone"].repeat(times));
        }
    }
    assert_eq!(
        found,
        expected.into_iter().map(|(of, events)| (of, events.into_iter().map(str::to_owned).collect())).collect()
    );

    // Each camera logged in once, and stayed so.
    assert_eq!(server.refused(), CAMERAS);
    let results = results(&daemon);
    let (inferred, unchanged) = (results["inferred"], results["unchanged"]);
    let looks = f64::from(u32::try_from(length * CAMERAS).unwrap());
    assert!(inferred + unchanged >= looks && results["failed"] == 0.0 && results["missing"] == 0.0, "{results:?}");
    assert!(unchanged > looks * 0.3, "{results:?}");
    println!(
        "{CAMERAS} cameras: {inferred} pictures inferred, {unchanged} unchanged; {:.2} ms of comparing each",
        results["ledge_camera_compare_seconds_total"] * 1000.0 / (inferred + unchanged)
    );
}

#[test]
fn a_camera_that_is_away_says_so_once_and_nothing_is_gone() {
    let (broker, server, gallery) = (Broker::new(), CameraServer::start(Login::Basic), Gallery::new());
    server.show("yard", gallery.script(&[(RED, 1)], false));
    let peer = Peer::subscribed(&broker, "watcher", "ledge/v1/box/cameras/yard/#");
    let config = camera("yard", &server, "interval_ms = 100\nhold_ms = 300\nlabels = ['red', 'blue']");
    let daemon = root(&broker, &config).start();
    let next = |level: &str| loop {
        let message = peer.receive();
        if message.topic.ends_with(level) {
            return message.text();
        }
    };
    assert_eq!(next("/state"), "online");
    let event: Value = serde_json::from_str(&next("/events")).unwrap();
    assert_eq!((&event["event"], &event["label"]), (&json!("appeared"), &json!("red")));

    server.set_away(true);
    assert_eq!(next("/state"), "offline");
    let problem = logged(&daemon, "camera.away", 1);
    assert!(problem["camera"] == "yard", "{problem}");
    server.set_away(false);
    assert_eq!(next("/state"), "online");
    logged(&daemon, "camera.online", 2);

    assert_eq!(counts(&broker)["zones"], json!({"everywhere": {"red": 1, "blue": 0}, "low": {"red": 0, "blue": 0}}));
    assert!(peer.received().iter().all(|message| !message.topic.ends_with("/events")));
    assert_eq!(daemon.events("camera.away").len(), 1);
}

#[test]
fn a_camera_with_a_certificate_of_its_own_is_known_by_it_and_by_no_other() {
    let authority = Authority::new();
    let (own, other) = (authority.issue("a camera"), authority.issue("a camera"));
    let (broker, gallery, server) = (Broker::new(), Gallery::new(), CameraServer::start_tls(&own));
    let pinned = [
        ("byfile", "pinned_file = \"own.pem\"".to_owned()),
        ("byhash", format!("pinned_sha256 = {:?}", sha256_hex(&der(&own.certificate)))),
        ("wrong", "pinned_file = \"other.pem\"".to_owned()),
    ];
    let mut config = String::new();
    for (name, pin) in &pinned {
        server.show(name, gallery.script(&[(RED, 1)], false));
        config += &camera(name, &server, &format!("interval_ms = 100\n{pin}"));
    }
    let root = root(&broker, &config);
    for (file, identity) in [("own.pem", &own), ("other.pem", &other)] {
        write(&root.folder.path().join(file), identity.certificate.as_bytes());
    }
    let peer = Peer::subscribed(&broker, "watcher", "ledge/v1/box/cameras/+/state");
    let daemon = root.start();
    let states: BTreeMap<String, String> = (0..3)
        .map(|_| peer.receive())
        .map(|message| (message.topic.split('/').nth(4).unwrap().to_owned(), message.text()))
        .collect();
    let expected = [("byfile", "online"), ("byhash", "online"), ("wrong", "offline")];
    assert_eq!(states, expected.map(|(name, state)| (name.to_owned(), state.to_owned())).into());

    let warning = logged(&daemon, "camera.away", 1);
    let presented = format!("is not the pinned one, its SHA-256 is {}", sha256_hex(&der(&own.certificate)));
    assert!(warning["camera"] == "wrong" && warning["reason"].as_str().unwrap().contains(&presented), "{warning}");
    assert_eq!(server.served("wrong"), 0);
}

#[test]
fn photographs_of_calls_and_bindings_make_the_events_of_the_camera_that_they_name() {
    let (broker, gallery) = (Broker::new(), Gallery::new());
    let config = "
[[camera]]
name = \"till\"
min_score = 0.6
hold_ms = 0
[[camera]]
name = \"door\"
url = \"http://127.0.0.1:9/\"
[[mqtt.bindings]]
topic = \"till/snapshot\"
model = \"colours\"
publish = \"till/objects\"
camera = \"till\"
";
    let peer = Peer::subscribed(&broker, "watcher", "ledge/v1/box/cameras/till/events");
    let caller = Peer::subscribed(&broker, "caller", "answers/caller");
    let daemon = root(&broker, config).start();
    logged(&daemon, "mqtt.subscribed", 1);
    let picture = |scene, number: usize| gallery.0[&scene][number].clone();
    let post = |camera: &str, accept: &str, photograph: &[u8]| {
        let headers = [("content-type", "image/jpeg"), ("x-ledge-camera", camera), ("accept", accept)];
        daemon.client().post("/v2/models/colours/infer", &headers, photograph).status
    };
    // One photograph as a call for JSON, one for a picture.
    assert_eq!(post("till", "*/*", &picture(RED, 0)), 200);
    assert_eq!(post("till", "image/jpeg", &picture(RED, 1)), 200);
    let event = |text: &str| {
        let event: Value = serde_json::from_str(text).unwrap();
        format!("{} {} in {}", event["event"], event["label"], event["zone"]).replace('"', "")
    };
    assert_eq!(event(&peer.receive().text()), "appeared red in everywhere");

    for (camera, status) in [("door", 400), ("yard", 400), ("a b", 400)] {
        assert_eq!(post(camera, "*/*", &picture(RED, 2)), status, "{camera}");
    }
    for number in 0..2 {
        peer.send(Outgoing::new("till/snapshot", picture(NOTHING, number).to_vec()));
    }
    assert_eq!(event(&peer.receive().text()), "gone red in everywhere");

    // Calls over MQTT name the camera in a user property.
    let call = |camera: &str, picture: &[u8]| {
        let call = Outgoing::new("ledge/v1/box/infer/colours", picture.to_vec()).content_type("image/jpeg");
        caller.send(call.answer_to("answers/caller").user("camera", camera));
        caller.receive().status()
    };
    assert_eq!([0, 1].map(|number| call("till", &picture(LOW_RED, number))), [200, 200]);
    assert_eq!(event(&peer.receive().text()), "appeared red in everywhere");
    assert_eq!(["door", "yard", "a b"].map(|camera| call(camera, &picture(NOTHING, 2))), [400; 3]);

    let wrong = root(&broker, &config.replace("camera = \"till\"", "camera = \"door\""));
    let found = wrong.command(&["config", "check"]).output().unwrap();
    let found = String::from_utf8_lossy(&found.stdout).into_owned() + &String::from_utf8_lossy(&found.stderr);
    assert!(found.contains("mqtt.bindings[0].camera: door is no [[camera]] without a url"), "{found}");
}

#[test]
fn a_published_picture_is_blurred_annotated_and_recorded_and_removed_when_it_is_switched_off() {
    let (broker, server, gallery) = (Broker::new(), CameraServer::start(Login::None), Gallery::new());
    server.show("yard", gallery.script(&[(RED_AND_GREEN, 1)], false));
    let topic = "ledge/v1/box/cameras/yard/picture";
    let peer = Peer::subscribed(&broker, "watcher", topic);
    let on = camera("yard", &server, "publish_pictures = true\nblur = ['green']\nlabels = ['red']");
    let daemon = root(&broker, &on).start();
    let published = peer.receive().payload;
    let shown = image::load_from_memory(&published).unwrap().to_rgb8();
    assert_eq!(shown.dimensions(), SIZE);
    // The edge of the green quarter is blurred, that of the red one has its line; far away the picture is as it was.
    let original = image::load_from_memory(&gallery.0[&RED_AND_GREEN][0]).unwrap().to_rgb8();
    let differs = |x, y| {
        let (one, other) = (shown.get_pixel(x, y).0, original.get_pixel(x, y).0);
        one.iter().zip(other).map(|(one, other)| one.abs_diff(other)).max().unwrap() > 40
    };
    assert!((0..SIZE.0 / 2).any(|x| differs(x, 140)), "no box of red");
    assert!(!(300..540).any(|x| differs(x, 140)), "the upper right quarter has nothing");
    // The texture is gone where it is blurred.
    let roughness = |picture: &image::RgbImage, left: u32, top: u32| -> u32 {
        let at = |x, y| u32::from(picture.get_pixel(x, y).0[0]);
        (left..left + 100)
            .flat_map(|x| (top..top + 100).map(move |y| (x, y)))
            .map(|(x, y)| at(x, y).abs_diff(at(x + 1, y)))
            .sum()
    };
    assert!(roughness(&shown, 400, 400) * 3 < roughness(&original, 400, 400));
    assert!(roughness(&shown, 400, 100) * 2 > roughness(&original, 400, 100));

    wait_until("the record", || run(&mut daemon.root.command(&["audit", "show"])).contains("pictures_published"));
    let root = daemon.kill();
    let off = on.replace("publish_pictures = true", "");
    write(&root.folder.path().join("ledge.toml"), off.as_bytes());
    let _daemon = root.start();
    assert_eq!(peer.receive().payload.len(), 0);
}

#[test]
fn a_picture_that_is_too_large_for_the_broker_is_dropped_and_the_connection_stays() {
    let broker = Setup::new().line("max_packet_size 10000").start();
    let (server, gallery) = (CameraServer::start(Login::None), Gallery::new());
    server.show("yard", gallery.script(&[(RED, 30)], true));
    let peer = Peer::subscribed(&broker, "watcher", "ledge/v1/box/cameras/yard/events");
    let more = "interval_ms = 100\npicture_interval_ms = 0\nchange_threshold = 0\npublish_pictures = true\nblur = []";
    let daemon = root(&broker, &camera("yard", &server, more)).start();
    let dropped = daemon.wait_for_event_since_start("mqtt.message_too_large");
    assert!(dropped["topic"] == "ledge/v1/box/cameras/yard/picture" && dropped["level"] == "WARN", "{dropped}");
    wait_until("many pictures", || results(&daemon)["ledge_camera_published_pictures_total"] > 20.0);
    let logged = |name: &str| daemon.events(name).iter().filter(|line| line["level"] != "DEBUG").count();
    let of = ["mqtt.message_too_large", "mqtt.connected", "mqtt.disconnected"].map(logged);
    assert_eq!(of, [1, 1, 0], "{}", daemon.log());
    // Events get out as before.
    assert_eq!(peer.receive().json()["event"], "appeared");
}

#[test]
fn no_picture_is_published_whose_blurred_places_cannot_be_found_and_faces_are_blurred_where_they_can() {
    let (broker, server, gallery) = (Broker::new(), CameraServer::start(Login::None), Gallery::new());
    // The default names persons, whom this detector of colours does not know; and there is no model of faces.
    for (name, blur) in [("persons", ""), ("faces", "blur = ['face']")] {
        server.show(name, gallery.script(&[(RED, 1)], false));
        let config = camera(name, &server, &format!("publish_pictures = true\n{blur}"));
        let daemon = root(&broker, &config).start();
        let told = daemon.wait_for_event("camera.picture_withheld").to_string();
        assert!(told.contains(if blur.is_empty() { "no label \\\"person\\\"" } else { "face_detector" }), "{told}");
        let published = results(&daemon)["ledge_camera_published_pictures_total"];
        assert!(published.abs() < f64::EPSILON, "{published}");
    }

    let astronaut: Arc<[u8]> = data("photos/astronaut.jpg").into();
    server.show("room", [astronaut.clone()]);
    let config = format!("[[camera]]\nname = \"room\"\nurl = {:?}\npublish_pictures = true\n", server.url("room"));
    let root = named_root(&broker, "box").models(&["coco_detector", "face_detector"]);
    write(&root.folder.path().join("ledge.toml"), config.as_bytes());
    let peer = Peer::subscribed(&broker, "watcher", "ledge/v1/box/cameras/room/picture");
    let _daemon = root.start();
    let shown = image::load_from_memory(&peer.receive().payload).unwrap().to_rgb8();
    let sent = image::load_from_memory(&astronaut).unwrap().to_rgb8();
    // The features of the face are gone.
    let roughness = |picture: &image::RgbImage| -> u32 {
        let at = |x, y| u32::from(picture.get_pixel(x, y).0[0]);
        (115..165).flat_map(|x| (55..105).map(move |y| (x, y))).map(|(x, y)| at(x, y).abs_diff(at(x + 1, y))).sum()
    };
    assert!(roughness(&shown) * 2 < roughness(&sent), "{} {}", roughness(&shown), roughness(&sent));
}

#[test]
fn home_assistant_is_told_the_entities_again_when_it_starts_and_no_more_when_it_is_switched_off() {
    let (broker, server, gallery) = (Broker::new(), CameraServer::start(Login::Digest), Gallery::new());
    server.show("yard", gallery.script(&[(RED, 1)], false));
    let peer = Peer::subscribed(&broker, "home", "homeassistant/+/+/+/config");
    let config = camera("yard", &server, "labels = ['red', 'traffic light']\npublish_pictures = true");
    let daemon = root(&broker, &format!("{HOME}{config}")).start();
    // A count and a presence for two labels in two zones, the connection, the state, the last new picture and the
    // picture; and whether the box is unusual.
    let entities: BTreeMap<String, String> =
        (0..13).map(|_| peer.receive()).map(|message| (message.topic.clone(), message.text())).collect();
    assert_eq!(entities.len(), 13);
    logged(&daemon, "mqtt.subscribed", 1);
    peer.send(Outgoing::new("homeassistant/status", "offline"));
    peer.send(Outgoing::new("homeassistant/status", "online"));
    let again: BTreeMap<String, String> =
        (0..13).map(|_| peer.receive()).map(|message| (message.topic.clone(), message.text())).collect();
    assert_eq!(again, entities);
    assert_eq!(kept(&broker, "ledge/v1/box/unusual"), json!({ "events": [] }));

    // Switched off, they are gone.
    let root = daemon.kill();
    write(&root.folder.path().join("ledge.toml"), config.as_bytes());
    let _daemon = root.start();
    let removed: BTreeMap<String, usize> =
        (0..13).map(|_| peer.receive()).map(|message| (message.topic.clone(), message.payload.len())).collect();
    assert!(removed.values().all(|length| *length == 0) && removed.keys().eq(entities.keys()), "{removed:?}");
    let began = Instant::now();
    assert!(peer.receive_within(Duration::from_secs(1)).is_none() && began.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_broker_that_forgot_everything_is_told_again() {
    let (mut broker, server, gallery) = (Broker::new(), CameraServer::start(Login::None), Gallery::new());
    server.show("yard", gallery.script(&[(RED, 1)], false));
    let config = camera("yard", &server, "labels = ['red']\nappear_after = 1\npublish_pictures = true\nblur = []");
    let daemon = root(&broker, &format!("[home_assistant]\nenable = true\n{config}")).start();
    wait_until("the counts", || counts(&broker)["zones"]["everywhere"]["red"] == 1);
    for restart in 1..=2 {
        broker.stop();
        // Without persistence, so that messages kept afterwards were published afterwards.
        broker.start_again();
        logged(&daemon, "mqtt.subscribed", restart + 1);
        assert_eq!(counts(&broker)["zones"]["everywhere"]["red"], 1);
        for topic in [
            "ledge/v1/box/cameras/yard/state",
            "ledge/v1/box/cameras/yard/status",
            "ledge/v1/box/cameras/yard/picture",
            "homeassistant/+/+/+/config",
        ] {
            run(mosquitto("mosquitto_sub", &broker).args(["-V", "5", "-W", "30", "-C", "1", "-F", "%t", "-t", topic]));
        }
    }
    // Nothing appeared again.
    let events = results(&daemon)["ledge_camera_events_total"];
    assert!((events - 1.0).abs() < f64::EPSILON, "{events}");
}

#[test]
fn home_assistants_own_schemas_and_templates_accept_the_entities() {
    let python = setup_root().join("peers/homeassistant/bin/python3");
    assert!(python.is_file(), "{} is missing: `make setup-homeassistant` gets it", python.display());
    let (broker, server, gallery) = (Broker::new(), CameraServer::start(Login::Digest), Gallery::new());
    server.show("yard", gallery.script(&[(RED, 1)], false));
    let peer = Peer::subscribed(&broker, "home", "homeassistant/+/+/+/config");
    let config = camera("yard", &server, "labels = ['red', 'traffic \"light\"']\npublish_pictures = true");
    let _daemon = root(&broker, &format!("{HOME}{config}")).start();
    let entities: BTreeMap<String, String> =
        (0..13).map(|_| peer.receive()).map(|message| (message.topic.clone(), message.text())).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("entities.json");
    write(&file, serde_json::to_string(&entities).unwrap().as_bytes());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/clients/home_assistant.py");
    let mut command = Command::new(python);
    command.arg(script).arg(&file).arg(counts(&broker).to_string()).env("PYTHONDONTWRITEBYTECODE", "1");
    assert_eq!(run(&mut command).trim(), "13 entities");
}
