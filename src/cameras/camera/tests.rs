use std::sync::Mutex;

use serde_json::{Value, json};

use ledge_engine::pipeline::detection::DetectionBox;

use super::*;

/// Records the published messages.
#[derive(Debug, Default)]
pub(crate) struct KeptMessages(Mutex<Vec<CameraMessage>>);

impl CameraPublisher for KeptMessages {
    fn publish(&self, message: CameraMessage) -> bool {
        self.0.lock().unwrap().push(message);
        true
    }
}

impl KeptMessages {
    /// The events, counts and pictures since the last call, each with the last level of its topic.
    fn take(&self) -> Vec<(String, Value)> {
        self.take_all().into_iter().filter(|(level, _)| !["state", "status"].contains(&level.as_str())).collect()
    }

    /// The messages since the last call, each with the last level of its topic.
    fn take_all(&self) -> Vec<(String, Value)> {
        let all = std::mem::take(&mut *self.0.lock().unwrap());
        let read = |message: CameraMessage| {
            let level = message.topic.rsplit('/').next().unwrap().to_owned();
            let text = String::from_utf8_lossy(&message.payload).into_owned();
            (level, serde_json::from_slice(&message.payload).unwrap_or(Value::String(text)))
        };
        all.into_iter().map(read).collect()
    }
}

fn camera(text: &str) -> (Camera, Arc<KeptMessages>) {
    let published = Arc::new(KeptMessages::default());
    let config = toml::from_str(&format!("name = 'yard'\n{text}")).unwrap();
    (Camera::new(config, "all", published.clone(), AuditSink::to_nowhere()), published)
}

fn at(second: u64) -> Moment {
    Moment { steady_ms: second * 1000, unix_ms: 1_760_000_000_000 + second * 1000 }
}

fn object(label: &str, score: f32, x: f64) -> Detection {
    let area = DetectionBox { x, y: 40.0, width: 10.0, height: 40.0 };
    Detection { label: label.to_owned(), score, area, margin: 0.0 }
}

fn found(detections: &[Detection]) -> FoundObjects {
    FoundObjects { detections: detections.to_vec(), ..FoundObjects::default() }
}

fn see(camera: &Camera, second: u64, detections: &[Detection]) -> LookResult {
    camera.looked_at(blake3::hash(&second.to_le_bytes()), at(second));
    camera.found(blake3::hash(&second.to_le_bytes()), None, (100, 100), found(detections), at(second))
}

const GATE: &str = "
    labels = ['person', 'car']
    [[zones]]
    name = 'gate'
    points = [[0, 0], [0.5, 0], [0.5, 1], [0, 1]]
    labels = ['person']
";

#[test]
fn an_event_has_its_zone_and_the_surest_object_and_counts_follow() {
    let (camera, published) = camera(GATE);
    see(&camera, 0, &[]);
    assert_eq!(published.take(), [], "nothing could be there yet");
    let people =
        [object("person", 0.5, 10.0), object("person", 0.75, 20.0), object("car", 0.9, 80.0), object("cow", 0.9, 0.0)];
    see(&camera, 1, &people);
    let zero = json!({"everywhere": {"person": 0, "car": 0}, "gate": {"person": 0}});
    let [(topic, counts)] = published.take().try_into().unwrap();
    assert_eq!((topic.as_str(), &counts["zones"]), ("counts", &zero));
    see(&camera, 2, &people);
    let messages = published.take();
    let events: Vec<_> =
        messages.iter().filter(|(topic, _)| topic == "events").map(|(_, event)| event.clone()).collect();
    let place = |event: &Value| {
        format!("{} {} {}", event["zone"].as_str().unwrap(), event["label"].as_str().unwrap(), event["count"])
    };
    assert_eq!(
        events.iter().map(place).collect::<Vec<_>>(),
        ["everywhere car 1", "everywhere person 2", "gate person 2"]
    );
    let person = &events[1];
    let expected = json!({
        "event": "appeared", "camera": "yard", "zone": "everywhere", "label": "person", "count": 2,
        "at": "2025-10-09T08:53:22Z", "score": 0.75, "box": {"x": 20.0, "y": 40.0, "width": 10.0, "height": 40.0},
    });
    assert_eq!(person, &expected);
    let zones = json!({"everywhere": {"person": 2, "car": 1}, "gate": {"person": 2}});
    assert_eq!(messages.last().map(|(_, counts)| &counts["zones"]), Some(&zones));

    // The same picture again and again: nothing more. Then an empty one.
    for second in 3..10 {
        camera.unchanged(at(second));
    }
    assert_eq!(published.take(), []);
    for second in 10..=14 {
        see(&camera, second, &[]);
    }
    let gone: Vec<_> = published.take().into_iter().map(|(topic, message)| (topic, message["event"].clone())).collect();
    assert_eq!(gone.iter().filter(|(_, event)| event == "gone").count(), 3);
    assert_eq!(gone.len(), 4);
}

#[test]
fn what_is_masked_or_unsure_or_of_another_label_does_not_count() {
    let (camera, published) =
        camera("min_score = 0.5\nappear_after = 1\nmask = [[[0, 0], [0.5, 0], [0.5, 1], [0, 1]]]\nlabels = ['person']");
    let objects = [object("person", 0.9, 10.0), object("person", 0.4, 80.0), object("car", 0.9, 80.0)];
    see(&camera, 0, &objects);
    assert!(published.take().iter().all(|(topic, _)| topic == "counts"));
    assert_eq!(camera.counted(&objects, (100, 100)), []);
    see(&camera, 1, &[object("person", 0.5, 80.0)]);
    assert_eq!(published.take()[0].1["event"], "appeared");
}

#[test]
fn the_model_is_asked_about_new_pictures_and_while_something_is_open() {
    let (camera, _) = camera("");
    let hash = |text: &str| blake3::hash(text.as_bytes());
    let size = (100, 100);
    let gray = |value: u8| {
        let pixels = (0..100 * 100_u32).flat_map(|at| [if at % 100 < 20 { value } else { 90 }; 3]).collect();
        GrayPicture::of(&ledge_engine::pipeline::image::Rgb8Image::new(100, 100, pixels).unwrap(), size)
    };
    assert_eq!(camera.judge_bytes(&hash("a"), at(2)), PictureDecision::AskModel);
    camera.found(hash("a"), Some(gray(30)), size, found(&[]), at(0));
    assert_eq!(camera.judge_bytes(&hash("a"), at(2)), PictureDecision::Unchanged);
    assert_eq!(camera.judge_bytes(&hash("b"), at(2)), PictureDecision::Compare);
    assert_eq!(camera.judge_picture(&gray(30)), PictureDecision::Unchanged);
    assert_eq!(camera.judge_picture(&gray(0)), PictureDecision::AskModel);
    camera.found(hash("b"), Some(gray(0)), size, found(&[object("person", 0.9, 10.0)]), at(1));
    assert_eq!(camera.judge_bytes(&hash("c"), at(2)), PictureDecision::AskModel, "the person may be a mistake");
    assert_eq!(camera.judge_bytes(&hash("b"), at(2)), PictureDecision::Unchanged);
    camera.found(hash("c"), Some(gray(0)), size, found(&[object("person", 0.9, 10.0)]), at(2));
    assert_eq!(camera.judge_bytes(&hash("d"), at(61)), PictureDecision::Compare);
    assert_eq!(camera.judge_bytes(&hash("d"), at(62)), PictureDecision::AskModel, "a minute has passed");
    assert_eq!(camera.judge_bytes(&hash("c"), at(61)), PictureDecision::Unchanged, "they are the same bytes");
    assert_eq!(camera.judge_bytes(&hash("c"), at(62)), PictureDecision::AskModel, "the model may be another version");
}

#[test]
fn nothing_is_gone_because_the_model_is_away() {
    let gone_after = |unanswered: u32| {
        let (camera, published) = camera("hold_ms = 5000\nappear_after = 1");
        see(&camera, 0, &[object("person", 0.9, 10.0)]);
        // Missed once, and then no answer for an hour.
        see(&camera, 1, &[]);
        let told = (1..=unanswered).map(|_| camera.failed("no answer".into(), at(2)));
        assert!(told.enumerate().all(|(earlier, has_changed)| has_changed == (earlier == 1)));
        published.take();
        let is_gone = |second: &u64| {
            see(&camera, *second, &[]);
            published.take().iter().any(|(_, message)| message["event"] == "gone")
        };
        (3600..3620).find(is_gone).unwrap() - 3600
    };
    // A single failure is a pause between two pictures; several make the hold time begin again.
    assert_eq!([1, 2, 100].map(gone_after), [0, 5, 5]);

    // With answers in between it is no outage.
    let (camera, published) = camera("");
    for second in 0..2 {
        see(&camera, second, &[object("person", 0.9, 10.0)]);
        camera.failed("no answer".into(), at(second));
    }
    assert!(published.take().iter().any(|(_, message)| message["event"] == "appeared"));
}

#[test]
fn the_state_is_published_when_it_changes_and_the_time_of_the_last_new_picture_once_a_minute() {
    let (camera, published) = camera("frozen_after_ms = 300000");
    let hash = |text: &str| blake3::hash(text.as_bytes());
    let told = || -> Vec<String> {
        let tell = |(level, message): (String, Value)| match level.as_str() {
            "state" => message.as_str().unwrap().to_owned(),
            _ => format!("{} {}", message["state"], message["new_picture_at"]).replace('"', ""),
        };
        published.take_all().into_iter().map(tell).collect()
    };
    assert!(!camera.missed("late".into(), false, at(0)));
    assert_eq!(told(), [""; 0], "one failure says nothing");
    assert!(camera.missed("gone".into(), false, at(1)));
    assert_eq!(told(), ["offline", "away null"]);
    for second in 2..=120 {
        assert_eq!(camera.looked_at(hash(&second.to_string()), at(second)), second == 2);
    }
    let time = |second: u64| at(second).text();
    assert_eq!(told(), ["online".to_owned(), format!("online {}", time(2)), format!("online {}", time(62))]);

    // Pictures with the same bytes change nothing until they are too old.
    let same = hash("120");
    assert!((121..420).all(|second| camera.froze(&same, at(second)).is_none() && !camera.looked_at(same, at(second))));
    assert_eq!((camera.froze(&same, at(420)), camera.froze(&same, at(421))), (Some(true), Some(false)));
    assert_eq!(told(), ["offline".to_owned(), format!("frozen {}", time(120))]);
    // Both are unavailable for Home Assistant: the word stays, the status is another one.
    assert!(camera.failed("cut off".into(), at(422)) && camera.missed("gone".into(), true, at(423)));
    assert_eq!(told(), [format!("failing {}", time(120)), format!("away {}", time(120))]);
    assert!(camera.looked_at(hash("a"), at(424)));
    assert_eq!(told(), ["online".to_owned(), format!("online {}", time(424))]);
}

#[test]
fn a_camera_that_is_failing_is_online_again_when_the_model_answers() {
    let (camera, _) = camera("");
    let (hash, size) = (blake3::hash(b"a"), (100, 100));
    camera.looked_at(hash, at(0));
    camera.found(hash, None, size, found(&[]), at(0));
    assert_eq!(camera.judge_bytes(&hash, at(1)), PictureDecision::Unchanged);
    camera.failed("full".into(), at(1));
    assert_eq!(camera.judge_bytes(&hash, at(2)), PictureDecision::Unchanged, "one failure says nothing");
    camera.failed("full".into(), at(2));
    assert_eq!(camera.judge_bytes(&hash, at(3)), PictureDecision::AskModel);
}

#[test]
fn pictures_are_wanted_at_changes_and_at_intervals() {
    let (camera, published) = camera("publish_pictures = true\nappear_after = 1\npicture_interval_ms = 10000");
    assert!(see(&camera, 0, &[]).wants_picture);
    camera.publish_picture(vec![1].into(), at(0));
    assert!(!see(&camera, 9, &[]).wants_picture);
    assert!(see(&camera, 9, &[object("car", 0.9, 1.0)]).wants_picture);
    assert!(see(&camera, 10, &[object("car", 0.9, 1.0)]).wants_picture);
    assert!(published.take().iter().any(|(topic, _)| topic == "picture"));
}
