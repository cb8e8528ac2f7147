//! The state of a camera, wherever somebody looks: online, failing, frozen, away; and an hour of all of them, with time
//! passed in.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use image::ImageFormat;
use ledge::cameras::cameras::Cameras;
use ledge::cameras::clock::{Clock, Moment};
use ledge::cameras::config::{CamerasConfig, HomeAssistantConfig};
use ledge::cameras::messages::{CameraMessage, CameraPublisher};
use ledge::principal::Principal;
use ledge::shutdown::Shutdown;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};

use crate::appliance::{Appliance, OPENVINO};
use crate::camera_pictures::{SIZE, camera, model_toml, root, services, wait_for};
use crate::camera_server::{CameraServer, Login, picture, picture_as};
use crate::daemon::{TestDaemon, copy, model_folder, write};
use crate::hook_server::HookServer;

const RED: [&str; 4] = ["red", "", "", ""];
const RED_AND_GREEN: [&str; 4] = ["red", "", "", "green"];
const BLUE: [&str; 4] = ["blue", "", "", ""];

/// The pictures of a sensor that shows one scene: the bytes differ from each one to the next.
#[derive(Clone)]
struct Sensor {
    pictures: Vec<Arc<[u8]>>,
    taken: usize,
}

impl Sensor {
    fn new(format: ImageFormat, quarters: [&str; 4], size: (u32, u32), noise: u32) -> Self {
        let pictures = (noise..noise + 4).map(|noise| picture_as(format, quarters, size, noise)).collect();
        Self { pictures, taken: 0 }
    }

    fn take(&mut self) -> Arc<[u8]> {
        self.taken += 1;
        self.pictures[self.taken % self.pictures.len()].clone()
    }
}

/// The first half of a picture: its header is whole.
fn cut_off(picture: &[u8]) -> Arc<[u8]> {
    picture[..picture.len() / 2].into()
}

/// The samples of a camera's metric, by their labels.
fn samples(daemon: &TestDaemon, metric: &str) -> Vec<(String, f64)> {
    let text = String::from_utf8(daemon.client().get("/metrics").body).unwrap();
    let of_metric = text.lines().filter_map(|line| line.strip_prefix(metric)?.strip_prefix('{')?.split_once("} "));
    of_metric.map(|(labels, value)| (labels.to_owned(), value.parse().unwrap())).collect()
}

/// The finding of `ledge doctor` about the camera `yard`.
fn doctor(daemon: &TestDaemon) -> String {
    let output = daemon.root.command(&["doctor", "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap().iter().filter(|check| check["name"] == "camera yard");
    let found: Vec<_> = checks.map(|check| format!("{} {}", check["status"], check["detail"])).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].replace('"', "")
}

/// A state, the answer of the camera, and the words of its reason and of the finding.
type Trouble = (&'static str, Option<Arc<[u8]>>, &'static str, &'static str);

#[test]
fn a_camera_is_online_failing_frozen_or_away_wherever_somebody_looks() {
    let (server, hook) = (CameraServer::start(Login::None), HookServer::start());
    let sensor = Sensor::new(ImageFormat::Jpeg, RED, SIZE, 0);
    let live = |sensor: &Sensor| {
        let mut sensor = sensor.clone();
        server.answer("yard", move || Some(sensor.take()));
    };
    live(&sensor);
    let alert = format!("[[alert]]\nname = \"shop\"\nurl = {:?}\nchecks = [\"camera\"]\nhold_s = 1\n", hook.url());
    let more = "blur = []\nlabels = ['red', 'green', 'blue']\nfrozen_after_ms = 1500";
    let daemon = root(&(camera("yard", &server, more) + &alert)).start();
    let is = |state: &str| wait_for(&daemon, "yard", |camera| camera["state"] == state);

    let check_metrics = |state: &str| {
        let of: Vec<_> = samples(&daemon, "ledge_camera_state").into_iter().filter(|(_, value)| *value > 0.5).collect();
        assert_eq!(of, [(format!("camera=\"yard\",state=\"{state}\""), 1.0)]);
        let online = f64::from(u8::from(state == "online"));
        assert_eq!(samples(&daemon, "ledge_camera_online"), [("camera=\"yard\"".to_owned(), online)]);
    };
    let check_online = || {
        assert_eq!(is("online")["reason"], Value::Null);
        check_metrics("online");
    };
    check_online();
    wait_for(&daemon, "yard", |camera| camera["counts"]["everywhere"]["red"] == 1);
    let picture = format!("ok a picture of {}x{} pixels, ", SIZE.0, SIZE.1);
    assert!(doctor(&daemon).starts_with(&picture), "{}", doctor(&daemon));

    let pages: Arc<[u8]> = b"<html>log in first</html>".as_slice().into();
    let still = sensor.pictures[0].clone();
    let broken = cut_off(&still);
    let troubles: [Trouble; 4] = [
        ("failing", Some(broken), "cut off", "fail its picture cannot be used: "),
        ("failing", Some(pages), "expected a JPEG, PNG or WebP image", "fail its picture cannot be used: "),
        ("frozen", Some(still), "have the same bytes", "fail it is frozen: all its pictures since "),
        ("away", None, "127.0.0.1", "fail it gives no picture: "),
    ];
    for (state, answer, reason, finding) in troubles {
        server.answer("yard", move || answer.clone());
        let found = wait_for(&daemon, "yard", |camera| {
            camera["state"] == state && camera["reason"].as_str().is_some_and(|text| text.contains(reason))
        });
        assert!(found["since"].is_string() && found["counts"]["everywhere"]["red"] == 1, "{found}");
        check_metrics(state);
        assert!(doctor(&daemon).starts_with(finding), "{}", doctor(&daemon));
        let told = hook.next();
        assert_eq!((told.news().as_str(), &told.message["severity"]), ("camera yard firing", &json!("fail")));
        assert!(told.message["detail"].as_str().unwrap().contains(reason), "{}", told.message);

        live(&sensor);
        check_online();
        assert_eq!(hook.next().news(), "camera yard resolved");
    }
    // The time of the last new picture: of now, and then of longer and longer ago.
    let age = || samples(&daemon, "ledge_camera_picture_age_seconds")[0].1;
    let deadline = Instant::now() + Duration::from_secs(30);
    while age() > 1.0 {
        assert!(Instant::now() < deadline, "{}", age());
        std::thread::sleep(Duration::from_millis(20));
    }
    server.answer("yard", || None);
    let away = is("away");
    let at = away["new_picture_at"].clone();
    while age() < 1.0 {
        assert!(Instant::now() < deadline, "{}", age());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(is("away")["new_picture_at"], at);

    // The formats that models take, under any content type of the camera.
    for (format, scene, label) in [(ImageFormat::Png, RED_AND_GREEN, "green"), (ImageFormat::WebP, BLUE, "blue")] {
        live(&Sensor::new(format, scene, SIZE, 10));
        let found = wait_for(&daemon, "yard", |camera| camera["counts"]["everywhere"][label] == 1);
        assert_eq!((&found["state"], &found["reason"]), (&json!("online"), &Value::Null));
        assert!(doctor(&daemon).starts_with(&picture), "{}", doctor(&daemon));
    }
}

const HOUR_S: u64 = 3600;

/// The size of the pictures of the hour: there are 1,700 of them.
const SMALL: (u32, u32) = (112, 112);

/// A clock that jumps to the time for which the camera's task waits, so that an hour takes only the time of its work.
#[derive(Debug, Default)]
struct HourClock {
    now_ms: AtomicU64,
    is_over: Notify,
}

impl HourClock {
    fn second(&self) -> u64 {
        self.now_ms.load(Ordering::SeqCst) / 1000
    }
}

impl Clock for HourClock {
    fn now(&self) -> Moment {
        let steady_ms = self.now_ms.load(Ordering::SeqCst);
        Moment { steady_ms, unix_ms: 1_760_000_000_000 + steady_ms }
    }

    fn sleep_until(&self, steady_ms: u64) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            if steady_ms >= HOUR_S * 1000 {
                self.is_over.notify_one();
                std::future::pending::<()>().await;
            }
            self.now_ms.fetch_max(steady_ms, Ordering::SeqCst);
            tokio::task::yield_now().await;
        })
    }
}

/// Records the messages of a camera, with the second of the hour.
#[derive(Debug)]
struct Diary {
    clock: Arc<HourClock>,
    told: Mutex<Vec<(u64, String, Value)>>,
}

impl CameraPublisher for Diary {
    fn publish(&self, CameraMessage { topic, payload, .. }: CameraMessage) -> bool {
        let text = String::from_utf8_lossy(&payload).into_owned();
        let content = serde_json::from_slice(&payload).unwrap_or(Value::String(text));
        let level = topic.rsplit('/').next().unwrap().to_owned();
        self.told.lock().unwrap().push((self.clock.second(), level, content));
        true
    }
}

/// The behaviour of the camera of the hour at a second.
enum Scene {
    Live,
    Png,
    WebP,
    /// Every second picture is cut off.
    Flaky,
    CutOff,
    Page,
    /// The same bytes.
    Still,
    Away,
}

fn scene(second: u64) -> Scene {
    match second {
        300..345 | 2000..2600 | 3100..3160 => Scene::Away,
        600..900 => Scene::CutOff,
        1200..1560 | 3000..3100 | 3160..3300 => Scene::Still,
        1800..1830 => Scene::Page,
        2700..2760 => Scene::Png,
        2760..2820 => Scene::WebP,
        2900..3000 => Scene::Flaky,
        _ => Scene::Live,
    }
}

/// The states of the hour, each with the seconds within which it has to begin.
const STATES: [(&str, std::ops::RangeInclusive<u64>); 12] = [
    ("online", 0..=2),
    // After two requests. Back within five seconds.
    ("away", 300..=304),
    ("online", 345..=350),
    // After two pictures, and after one.
    ("failing", 600..=604),
    ("online", 900..=902),
    // Two minutes after the last new picture.
    ("frozen", 1320..=1324),
    ("online", 1560..=1562),
    ("failing", 1800..=1804),
    ("online", 1830..=1832),
    ("away", 2000..=2004),
    // After five minutes it is asked less often, but once a minute.
    ("online", 2600..=2661),
    ("away", 3100..=3104),
];

/// The states after these: the bytes of before it was away, which are too old by then.
const LAST_STATES: [(&str, std::ops::RangeInclusive<u64>); 2] = [("frozen", 3160..=3165), ("online", 3300..=3302)];

#[tokio::test]
async fn an_hour_of_a_camera_is_told_as_it_was() {
    let own = Appliance::new();
    let model = own.folder.path().join("models/m");
    copy(&model_folder("colour_detector"), &model);
    write(&model.join("model.toml"), format!("{OPENVINO}{}", model_toml()).as_bytes());
    own.repository().refresh(&Principal::Local).await.unwrap();

    let (clock, server) = (Arc::new(HourClock::default()), CameraServer::start(Login::None));
    let requests = Arc::new(Mutex::new(Vec::new()));
    let (time, asked) = (clock.clone(), requests.clone());
    let [mut jpeg, mut png, mut webp] =
        [(ImageFormat::Jpeg, RED), (ImageFormat::Png, RED_AND_GREEN), (ImageFormat::WebP, RED_AND_GREEN)]
            .map(|(format, quarters)| Sensor::new(format, quarters, SMALL, 0));
    let still = picture(RED, SMALL, 99);
    server.answer("yard", move || {
        asked.lock().unwrap().push(time.now().steady_ms);
        match scene(time.second()) {
            Scene::Live => Some(jpeg.take()),
            Scene::Png => Some(png.take()),
            Scene::WebP => Some(webp.take()),
            Scene::Flaky if jpeg.taken % 2 == 0 => Some(jpeg.take()),
            Scene::Flaky | Scene::CutOff => Some(cut_off(&jpeg.take())),
            Scene::Page => Some(b"<html>log in first</html>".as_slice().into()),
            Scene::Still => Some(still.clone()),
            Scene::Away => None,
        }
    });

    let config = format!(
        "name = \"yard\"\nurl = {:?}\nmodel = \"m\"\nmin_score = 0.6\ninterval_ms = 2000\nblur = []\n",
        server.url("yard")
    );
    let diary = Arc::new(Diary { clock: clock.clone(), told: Mutex::default() });
    let services = services(&own, diary.clone(), clock.clone());
    let (_home_assistant, messages) = mpsc::channel(1);
    let cameras = CamerasConfig(vec![toml::from_str(&config).unwrap()]);
    let (_cameras, tasks) = Cameras::new(&cameras, &HomeAssistantConfig::default(), services, messages);
    let (shutdown, began) = (Shutdown::default(), Instant::now());
    tasks.spawn(&Arc::default(), &shutdown);
    let is_over = tokio::time::timeout(Duration::from_secs(90), clock.is_over.notified()).await;
    assert!(is_over.is_ok(), "the hour stands at {} s: {:?}", clock.second(), diary.told.lock().unwrap());
    println!("an hour of {} requests took {:.1} s", requests.lock().unwrap().len(), began.elapsed().as_secs_f64());
    assert!(shutdown.drain(Duration::from_secs(10)).await);
    own.end().await;

    let told = std::mem::take(&mut *diary.told.lock().unwrap());
    let of = |level: &'static str| {
        told.iter().filter(move |(_, of, _)| of == level).map(|(second, _, content)| (*second, content))
    };
    let mut states: Vec<(u64, &str)> =
        of("status").map(|(at, status)| (at, status["state"].as_str().unwrap())).collect();
    // The time of the last new picture is published in between.
    states.dedup_by_key(|(_, state)| *state);
    let expected: Vec<_> = STATES.iter().chain(&LAST_STATES).collect();
    assert_eq!(states.len(), expected.len(), "{states:?}");
    for ((at, state), (expected, when)) in states.iter().zip(expected) {
        assert!(state == expected && when.contains(at), "{state} at {at}: not {expected} within {when:?}; {states:?}");
    }

    // Home Assistant's availability changes with it, and each state is published once.
    let mut words: Vec<_> =
        states.iter().map(|(_, state)| if *state == "online" { "online" } else { "offline" }).collect();
    words.dedup();
    assert_eq!(of("state").map(|(_, word)| word.as_str().unwrap()).collect::<Vec<_>>(), words);

    // The age of the last new picture: of the first still one while it is frozen, of a minute ago at most otherwise.
    let new_picture = |status: &Value| {
        let at = ledge::clock::parse_micros(status["new_picture_at"].as_str().unwrap()).unwrap() / 1_000_000;
        u64::try_from(at).unwrap() - 1_760_000_000
    };
    for (at, status) in of("status") {
        let at_most = match (status["state"].as_str().unwrap(), at) {
            ("online", _) => 0..=0,
            ("frozen", 1320..1560) => 118..=124,
            ("frozen", _) => 156..=165,
            ("failing", _) => 2..=6,
            _ => 0..=104,
        };
        assert!(at_most.contains(&(at - new_picture(status))), "{at} {status}");
    }

    // Nothing appears or is gone because of any of it.
    let events = of("events").map(|(at, event)| {
        let text = |key: &str| event[key].as_str().unwrap();
        assert!(at < 6 || (2700..2840).contains(&at), "{at} {event}");
        format!("{} {}", text("label"), text("event"))
    });
    assert_eq!(events.collect::<Vec<_>>(), ["red appeared", "green appeared", "green gone"]);

    // Every five seconds for five minutes, and then less often.
    let mut tries = std::mem::take(&mut *requests.lock().unwrap());
    tries.dedup();
    let gaps = |from_s: u64, to_s: u64| -> Vec<u64> {
        let within: Vec<_> = tries.iter().filter(|at| (from_s * 1000..to_s * 1000).contains(*at)).collect();
        within.windows(2).map(|pair| pair[1] - pair[0]).collect()
    };
    let (eager, patient) = (gaps(2000, 2300), gaps(2305, 2600));
    assert!(eager.len() >= 55 && eager.iter().all(|gap| *gap <= 5000), "{eager:?}");
    assert!((3..=15).contains(&patient.len()) && patient.iter().all(|gap| *gap <= 60_000), "{patient:?}");
}
