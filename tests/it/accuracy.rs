//! `ledge models evaluate`: right answers are counted as right.

use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use crate::daemon::{TestRoot, data, write};

fn evaluate(root: &TestRoot, arguments: &[&str]) -> Output {
    root.command(&["models", "evaluate"]).args(arguments).output().unwrap()
}

#[track_caller]
fn report(root: &TestRoot, arguments: &[&str]) -> Value {
    let output = evaluate(root, &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn failure(root: &TestRoot, arguments: &[&str]) -> String {
    let output = evaluate(root, arguments);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

/// A folder of photographs, one folder a class.
fn classes(folder: &Path, files: &[(&str, &str)]) {
    for (class, file) in files {
        write(&folder.join(class).join(file), &data(&format!("photos/{file}")));
    }
}

#[test]
fn right_answers_are_counted_by_a_list_and_by_folders() {
    let root = TestRoot::new().models(&["efficientnet_lite0"]);
    let images = root.folder.path().join("images");
    classes(&images, &[("espresso", "coffee.png"), ("tripod", "camera.webp"), ("tripod", "camera_orientation6.jpg")]);
    // A tabby is among the best five, a tiger cat is the best.
    classes(&images, &[("tabby", "chelsea.jpg")]);
    let folder = images.display().to_string();
    let expected = json!({
        "model": "efficientnet_lite0", "version": 1, "files": 4, "top1": 0.75, "top5": 1.0, "unlabelled": 0, "failed": [],
    });
    assert_eq!(report(&root, &["efficientnet_lite0", &folder]), expected);

    let list = root.folder.path().join("labels.csv");
    let rows =
        "file,label\ncoffee.png,espresso\ncamera.webp,tripod\ntripod/camera_orientation6.jpg,872\nchelsea.jpg,tabby\n";
    write(&list, rows.as_bytes());
    let list = list.display().to_string();
    assert_eq!(report(&root, &["efficientnet_lite0", &folder, "--labels", &list]), expected);

    write(&images.join("coffee.png"), &data("photos/coffee.png"));
    let output = evaluate(&root, &["efficientnet_lite0", &folder]);
    let text =
        "efficientnet_lite0 version 1: top-1 75.00 %, top-5 100.00 % of 4 files\nwithout a label: 1 of 5 files\n";
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stdout).as_ref()), (Some(0), text));

    classes(&images, &[("no such class", "coffee.png")]);
    let told = failure(&root, &["efficientnet_lite0", &folder]);
    assert!(told.starts_with(text.lines().next().unwrap()) && told.contains("\"no such class\""), "{told}");
}

#[test]
fn the_scores_of_inference_requests_are_ranked_by_labels_and_class_numbers() {
    let root = TestRoot::new().models(&["wine_mlp"]);
    let golden: Value =
        serde_json::from_slice(&std::fs::read(root.model("wine_mlp/golden/rows.json")).unwrap()).unwrap();
    // Its classes are, by their scores, 0, 1 and 2.
    let row = &golden["inputs"][0]["data"].as_array().unwrap()[..13];
    let input = json!({"name": "features", "datatype": "FP32", "shape": [1, 13], "data": row});
    let requests = root.folder.path().join("requests");
    for class in ["class_0", "0", "class_2", "1"] {
        write(&requests.join(class).join("wine.json"), json!({"inputs": [&input]}).to_string().as_bytes());
    }
    let report = report(&root, &["wine_mlp", &requests.display().to_string()]);
    assert_eq!([&report["files"], &report["top1"], &report["top5"]], [&json!(4), &json!(0.5), &json!(1.0)], "{report}");
}

#[test]
fn what_cannot_be_evaluated_is_said_with_the_way_out() {
    let root = TestRoot::new().models(&["add_sub"]);
    let folder = root.folder.path().join("files");
    write(&folder.join("notes.txt"), b"x");
    let error = failure(&root, &["add_sub", &folder.display().to_string()]);
    assert!(error.contains(&folder.display().to_string()) && !error.contains("--labels"), "{error}");
    write(&folder.join("a.json"), b"{}");
    let error = failure(&root, &["add_sub", &folder.display().to_string()]);
    assert!(error.contains("--labels"), "{error}");
    write(&folder.join("0/b.json"), b"{}");
    let error = failure(&root, &["add_sub", &folder.display().to_string(), "--version", "7"]);
    assert!(error.contains("version 7"), "{error}");
}
