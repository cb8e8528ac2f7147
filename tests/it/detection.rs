//! Objects in real photographs, found by the detectors of `models/`.

use std::io::Cursor;

use ledge::pipeline::detection::{Detection, DetectionBox};
use ledge::pipeline::image::{self, DecodeLimits, ImageFormat};

use crate::client::Client;
use crate::daemon::{TestRoot, data, model_folder};

const RUNTIMES: [&str; 2] = ["onnxruntime", "openvino"];

/// A root with a model in each runtime, under the names of the runtimes.
fn in_both_runtimes(model: &str) -> TestRoot {
    let text = std::fs::read_to_string(model_folder(model).join("model.toml")).unwrap();
    RUNTIMES.into_iter().fold(TestRoot::new(), |root, runtime| {
        let pinned = text.replace("runtime = \"auto\"", &format!("runtime = \"{runtime}\""));
        assert_ne!(pinned, text);
        root.model_as(model, runtime).file(&format!("{runtime}/model.toml"), &pinned)
    })
}

/// The objects that a model finds in a photograph; all of them are inside it.
fn detect(client: &mut Client, model: &str, photograph: &[u8]) -> Vec<Detection> {
    let content_type = ImageFormat::sniff(photograph).unwrap().content_type();
    let answer = client.post(&format!("/v2/models/{model}/infer"), &[("content-type", content_type)], photograph);
    assert_eq!(answer.status, 200, "{answer:?}");
    let found: Vec<Detection> = serde_json::from_value(answer.json()["detections"].clone()).unwrap();

    let picture = image::decode(photograph, DecodeLimits::default()).unwrap();
    for Detection { area: DetectionBox { x, y, width, height }, .. } in &found {
        assert!(*x >= 0.0 && *y >= 0.0 && x + width <= f64::from(picture.width()), "{found:?}");
        assert!(y + height <= f64::from(picture.height()), "{found:?}");
    }
    assert!(found.is_sorted_by(|one, other| one.score >= other.score), "{found:?}");
    found
}

fn photo(name: &str) -> Vec<u8> {
    data(&format!("photos/{name}"))
}

fn labels(found: &[Detection]) -> Vec<&str> {
    found.iter().map(|detection| detection.label.as_str()).collect()
}

/// Asserts that two lists have the same objects at the same places.
fn check_same(one: &[Detection], other: &[Detection]) {
    assert_eq!(labels(one), labels(other));
    for (one, other) in one.iter().zip(other) {
        assert!(one.area.overlap(other.area) >= 0.9 && (one.score - other.score).abs() <= 0.05, "{one:?} {other:?}");
    }
}

#[test]
fn the_detector_finds_what_photographs_show_in_both_runtimes() {
    let daemon = in_both_runtimes("coco_detector").start();
    let client = &mut daemon.client();
    for (photograph, shown) in [
        ("cows.jpg", &["cow", "cow", "cow"][..]),
        ("camera.webp", &["person"]),
        ("astronaut.jpg", &["person"]),
        ("camera_orientation6.jpg", &["person"]),
    ] {
        let [one, other] = RUNTIMES.map(|runtime| detect(client, runtime, &photo(photograph)));
        assert_eq!(labels(&one), shown, "{photograph}");
        check_same(&one, &other);
    }

    // The same pixels, turned by EXIF and stored as they are seen.
    let turned = photo("camera_orientation6.jpg");
    let seen = image::decode(&turned, DecodeLimits::default()).unwrap();
    let upright = ::image::RgbImage::from_raw(seen.width(), seen.height(), seen.pixels().to_vec()).unwrap();
    let mut png = Cursor::new(Vec::new());
    upright.write_to(&mut png, ::image::ImageFormat::Png).unwrap();
    check_same(&detect(client, "openvino", &turned), &detect(client, "openvino", png.get_ref()));
}

#[test]
fn the_sharper_detector_and_that_of_faces_agree_in_both_runtimes() {
    for (model, photograph, shown) in [
        ("coco_detector_512", "cows.jpg", &["cow", "cow", "cow"][..]),
        ("face_detector", "astronaut.jpg", &["face"]),
        ("face_detector", "cows.jpg", &[]),
    ] {
        let daemon = in_both_runtimes(model).start();
        let [one, other] = RUNTIMES.map(|runtime| detect(&mut daemon.client(), runtime, &photo(photograph)));
        assert_eq!(labels(&one), shown, "{model} {photograph}");
        check_same(&one, &other);
    }
}

#[test]
fn a_detector_whose_labels_are_short_or_whose_golden_objects_are_not_there_is_refused() {
    let text = std::fs::read_to_string(model_folder("coco_detector").join("model.toml")).unwrap();
    let elsewhere = text.replace("box = [83.4, 116.7, 279.1, 156.8]", "box = [0, 0, 50, 50]");
    assert_ne!(elsewhere, text);
    let daemon = TestRoot::new()
        .model_as("coco_detector", "short")
        .file("short/labels.txt", "person\n")
        .model_as("coco_detector", "elsewhere")
        .file("elsewhere/model.toml", &elsewhere)
        .start();
    let reason = |model: &str| daemon.client().state(model).1;
    assert!(["\"heat\"", "80"].iter().all(|name| reason("short").contains(name)), "{}", reason("short"));
    assert!(reason("elsewhere").contains("expected \"cow\" at [0.0, 0.0, 50.0, 50.0]"), "{}", reason("elsewhere"));
}
