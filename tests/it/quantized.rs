//! Classifiers that take and give integers, as those made for small accelerators do.

use ledge::engine::tflite::quantization;
use serde_json::{Value, json};

use crate::client::Client;
use crate::daemon::{TestRoot, model_folder};
use crate::fuzz::mutate;

const COLOURS: &str = "quantized_colours";

fn picture(name: &str) -> Vec<u8> {
    std::fs::read(model_folder(COLOURS).join(format!("{name}.png"))).unwrap()
}

/// The labels of a photograph, best first, with their scores.
fn labels(client: &mut Client, model: &str, photograph: &str) -> Vec<(Value, f64)> {
    let path = format!("/v2/models/{model}/infer");
    let answer = client.post(&path, &[("content-type", "image/png")], &picture(photograph));
    assert_eq!(answer.status, 200, "{model}, {photograph}: {answer:?}");
    let answer = answer.json();
    let labels = answer["labels"].as_array().unwrap().iter();
    labels.map(|label| (label["label"].clone(), label["score"].as_f64().unwrap())).collect()
}

fn text(path: &str) -> String {
    let (model, file) = path.split_once('/').unwrap();
    std::fs::read_to_string(model_folder(model).join(file)).unwrap()
}

#[test]
fn a_quantized_classifier_answers_photographs_in_what_its_scores_are_worth() {
    let daemon = TestRoot::new().models(&[COLOURS]).start();
    let client = &mut daemon.client();
    for colour in ["red", "green", "blue"] {
        let found = labels(client, COLOURS, colour);
        assert_eq!(found[0], (json!(colour), 243.0 / 256.0), "{found:?}");
        assert_eq!((found.len(), found[1].0.clone()), (4, json!("nothing")), "{found:?}");
        let whole: f64 = found.iter().map(|(_, score)| score).sum();
        assert!((0.98..1.02).contains(&whole), "{found:?}");
    }
    assert_eq!(labels(client, COLOURS, "grey")[0].0, "nothing");
    // A call with tensors gets the integers.
    let red = [255, 0, 0].repeat(16);
    let pixels = json!({"name": "pixels", "datatype": "UINT8", "shape": [1, 4, 4, 3], "data": red});
    let answer = client.post_json(&format!("/v2/models/{COLOURS}/infer"), &json!({"inputs": [pixels]})).json();
    assert_eq!((&answer["outputs"][0]["datatype"], &answer["outputs"][0]["data"][1]), (&json!("UINT8"), &json!(243)));
}

#[test]
fn normalised_pixels_are_quantized_as_the_input_is() {
    let config = text("quantized_colours/model.toml")
        .replace("top_k = 4", "top_k = 4\nmean = [128, 128, 128]\nstd = [128, 128, 128]");
    let daemon = TestRoot::new().models(&[COLOURS]).file("quantized_colours/model.toml", config).start();
    assert_eq!(labels(&mut daemon.client(), COLOURS, "red")[0], (json!("red"), 243.0 / 256.0));
}

#[test]
fn scores_of_unknown_worth_are_refused_at_the_load_until_model_toml_says_it() {
    let said = text("uint8_scores/model.toml")
        .replace("labels = ", "quantization = { scale = 0.00390625, zero_point = 0 }\nlabels = ");
    let of_floats = "[[output]]\nname = \"OUTPUT0\"\nquantization = { scale = 1.0, zero_point = 0 }\n";
    let root = TestRoot::new()
        .models(&["uint8_scores", "add_sub"])
        .model_as("uint8_scores", "said")
        .file("said/model.toml", said)
        .file("add_sub/model.toml", of_floats);
    let output = root.command(&["models", "check"]).output().unwrap();
    let checked = String::from_utf8(output.stdout).unwrap();
    assert!(!output.status.success() && checked.contains("ok, loaded in"), "{checked}");
    let daemon = root.start();
    for words in
        ["cannot answer a photograph", "the scores are UINT8", "quantization = { scale = ..., zero_point = ... }"]
    {
        assert!(daemon.client().refusal("uint8_scores").contains(words) && checked.contains(words), "{checked}");
    }
    assert!(daemon.client().refusal("add_sub").contains("quantization is for integers"));
    let found = labels(&mut daemon.client(), "said", "red");
    assert_eq!(found, [(json!("red"), 255.0 / 256.0), (json!("green"), 0.0), (json!("blue"), 0.0)]);
}

#[test]
fn labels_that_do_not_fit_the_classes_are_refused_with_both_numbers() {
    let mut root = TestRoot::new();
    for (name, lines) in [
        ("none", "red\ngreen\nblue\n"),
        ("more", "background\nnothing\nred\ngreen\nblue\n"),
        ("half", "red\n"),
        ("blank", "nothing\nred\ngreen\nblue\n\n\n"),
    ] {
        root = root.model_as(COLOURS, name).file(&format!("{name}/labels.txt"), lines);
    }
    let daemon = root.start();
    for (model, words) in [
        ("none", "output \"scores\" has 4 classes and labels.txt has 3 lines"),
        ("none", "is a first line \"background\" missing?"),
        ("more", "has 4 classes and labels.txt has 5 lines"),
        ("more", "a background class that the model lacks?"),
        ("half", "has 4 classes and labels.txt has 1 lines"),
    ] {
        let reason = daemon.client().refusal(model);
        assert!(reason.contains(words), "{reason}");
    }
    assert_eq!(labels(&mut daemon.client(), "blank", "blue")[0].0, "blue");
}

#[test]
fn what_a_tflite_file_says_is_read_and_a_damaged_one_breaks_nothing() {
    let file = |model: &str| std::fs::read(model_folder(model).join("1/model.tflite")).unwrap();
    let (colours, floats) = (file(COLOURS), file("tflite_blazeface"));
    let known = quantization(&colours);
    let of = |name: &str| (known[name].scale, known[name].zero_point);
    assert_eq!((known.len(), of("pixels"), of("scores")), (2, (1.0 / 128.0, 128), (1.0 / 256.0, 0)));
    assert!(quantization(&floats).is_empty());
    for end in 0..colours.len() {
        assert!(quantization(&colours[..end]).len() <= 2);
    }
    let changed =
        (0..50_000).filter(|&seed| quantization(&mutate(seed, &[&colours, &floats[..2000]])) != known).count();
    assert!((1000..50_000).contains(&changed), "some say something else, and some the same: {changed}");
}
