//! The messages of mistakes that people make: each names the thing, the reason, and what to do. All of them come from
//! the real binary.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::cli::{run, text};
use crate::client::Client;
use crate::daemon::{TestRoot, data, model_folder, write};

const CLASSIFIER: &str = "efficientnet_lite0";

/// The first bytes of a photograph of a telephone.
const HEIC: &[u8] = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic\0\0\0\x08meta";

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// Asserts an exit code, and that words appear in a text.
#[track_caller]
fn check(output: &Output, code: i32, told: &[u8], words: &[&str]) {
    let told = text(told);
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    for word in words {
        assert!(told.contains(word), "{word:?} is not in {output:?}");
    }
}

/// A root with a good model, one with its file next to the version folder, and two folders with names that no model can
/// have.
fn misplaced() -> (TestRoot, String) {
    let long = "m".repeat(137);
    let model = std::fs::read(model_folder("add_sub").join("1/model.onnx")).unwrap();
    let root = TestRoot::new().models(&["add_sub"]);
    let root = root.file("flat/model.onnx", &model).file("My Model/1/model.onnx", &model);
    (root.file(&format!("{long}/1/model.onnx"), &model), long)
}

#[test]
fn models_that_are_misplaced_or_misnamed_are_listed_checked_and_found_by_doctor() {
    let (root, long) = misplaced();
    let flat = format!("move model.onnx into {}", root.model("flat").join("1").display());
    let misnamed = "model name \"My Model\" has a character outside A-Z a-z 0-9 . _ -: rename the folder";
    let example = format!("{}, for example to My_Model", root.model("My Model").display());
    let too_long = format!("is longer than 128 bytes: rename the folder {}", root.model(&long).display());
    let all = [flat.as_str(), misnamed, &example, &too_long];

    let one = run(&root, &["models", "check", "flat"]);
    check(&one, 1, &one.stdout, &["flat has no version folder", &flat]);
    let list = run(&root, &["models", "list"]);
    check(&list, 0, &list.stdout, &[&all[..], &["serves 1"]].concat());
    let rows: Value = serde_json::from_slice(&run(&root, &["models", "list", "--json"]).stdout).unwrap();
    let names: Vec<_> = rows.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["add_sub", "flat", "My Model", &long]);
    let checked = run(&root, &["models", "check"]);
    check(&checked, 1, &checked.stdout, &[&all[..], &["ok, loaded in"]].concat());

    let doctor = run(&root, &["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let finding = |name: &str| {
        let found = report["checks"].as_array().unwrap().iter().find(|check| check["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {report}")).clone()
    };
    let folders = finding("model folders");
    let detail = folders["detail"].as_str().unwrap();
    assert!(folders["status"] == "warn" && all[1..].iter().all(|words| detail.contains(words)), "{folders}");
    assert!(finding("model flat")["detail"].as_str().unwrap().contains(&flat), "{report}");

    let daemon = root.start();
    for name in ["My Model", &long] {
        let line = daemon.wait_for_event_since_start("repository.folder_skipped");
        let logged = daemon.log();
        assert!(line["level"] == "WARN" && logged.contains(&daemon.root.model(name).display().to_string()), "{line}");
    }
    let findings = daemon.client().get("/findings").json();
    let found = findings["checks"].as_array().unwrap().iter().find(|check| check["name"] == "model folders");
    assert!(found.unwrap()["detail"].as_str().unwrap().contains(misnamed), "{findings}");
}

#[test]
fn a_model_that_is_missing_is_named_with_the_folder_and_similar_names() {
    let root = TestRoot::new().models(&["add_sub", "ir_add"]);
    let photo = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/photos/coffee.png");
    let folder = root.folder.path().join("models").display().to_string();
    let words = |elsewhere| {
        let missing = format!("there is no model 'add-sup' in {folder}. Did you mean add_sub?");
        [missing, "`ledge models list`".to_owned(), format!("--root DIR looks in another folder{elsewhere}")]
    };
    let server = ", and --url URL asks a running server";
    for (command, elsewhere) in [
        (&["infer", "add-sup", photo][..], server),
        (&["models", "evaluate", "add-sup", "."], ""),
        (&["models", "show", "add-sup"], ""),
        (&["tune", "add-sup", "--dry-run"], ""),
    ] {
        let output = run(&root, command);
        check(&output, 1, &output.stderr, &words(elsewhere).each_ref().map(String::as_str));
    }
    let output = run(&root, &["models", "check", "add-sup", "add_sub"]);
    check(&output, 1, &output.stdout, &words("").each_ref().map(String::as_str));
    let row = |line: &str| line.split_whitespace().next() == Some("add_sub") || line.starts_with("add_sub");
    assert!(text(&output.stdout).lines().any(row), "the others are checked: {output:?}");

    let daemon = root.start();
    let url = format!("http://{}", daemon.address);
    let out = daemon.root.folder.path().join("answers.jsonl").display().to_string();
    for more in [&[][..], &["--out", &out]] {
        let output = run(&daemon.root, &[&["infer", "add-sup", photo, "--url", &url], more].concat());
        check(&output, 1, &output.stderr, &["unknown model: 'add-sup' is not found", "Did you mean add_sub?"]);
    }
}

#[test]
fn a_key_for_a_model_that_is_missing_is_created_with_a_warning() {
    let root = TestRoot::new().models(&["add_sub"]);
    let output = run(&root, &["keys", "create", "till", "--role", "infer", "--model", "ad_sub", "--model", "add_sub"]);
    let warning = "warning: --model ad_sub: there is no model 'ad_sub' in ";
    check(&output, 0, &output.stderr, &["The key 'till'", warning, "Did you mean add_sub?"]);
    assert!(text(&output.stdout).starts_with("ledge_"), "{output:?}");
    let output = run(&root, &["keys", "create", "door", "--role", "infer", "--model", "add_sub"]);
    assert!(output.status.success() && !text(&output.stderr).contains("warning"), "{output:?}");
}

#[test]
fn the_command_alone_shows_its_help_and_no_internal_verb() {
    let ledge = |arguments: &[&str], root: bool| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ledge"));
        command.args(arguments).env_remove("LEDGE_ROOT").env_remove("LEDGE_CONFIG");
        if root {
            command.env("LEDGE_ROOT", "/tmp");
        }
        command.output().unwrap()
    };
    for (arguments, root) in [(&[][..], false), (&[], true), (&["--root", "/tmp"], false), (&["runtim"], false)] {
        let output = ledge(arguments, root);
        check(&output, 2, &output.stderr, &["Usage: ledge"]);
        let told = text(&output.stderr) + &text(&output.stdout);
        let internal = ["runtime,", "runtime'", "spawner", "pages", "generate-assets"];
        assert!(!internal.iter().any(|verb| told.contains(verb)), "{arguments:?}: {told}");
    }
    let help = text(&ledge(&[], false).stderr);
    assert!(help.contains("Run a model on files") && help.contains("ledge doctor"), "{help}");
}

/// Files that are no photographs, with words of the reason.
fn strange_files() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let page = b"<!DOCTYPE html><title>Login</title>".to_vec();
    vec![
        ("a.avif", b"\0\0\0\x1cftypavif\0\0\0\0mif1avifmiaf".to_vec(), "an AVIF image: convert it to JPEG"),
        ("b.bmp", b"BM\x46\0\0\0\0\0\0\0\x36\0\0\0".to_vec(), "a BMP image: convert it to JPEG"),
        ("c.gif", b"GIF89a\x01\0\x01\0".to_vec(), "a GIF image: convert it to JPEG"),
        ("d.heic", HEIC.to_vec(), "a HEIC image: convert it to JPEG"),
        ("e.jpg", vec![0; 5000], "5000 bytes that begin with zeros"),
        ("f.jpg", b"\xE9\x01\x02\x03".to_vec(), "4 bytes of an unknown format: the file may be damaged"),
        ("g.jpg", b"Not Found".to_vec(), "9 bytes of text"),
        ("h.jpg", Vec::new(), "nothing (0 bytes)"),
        ("i.jpg", page, "a web page: check the address that it came from"),
        ("j.pdf", b"%PDF-1.7".to_vec(), "takes no documents: send a JPEG, PNG or WebP image"),
    ]
}

#[test]
fn files_of_a_folder_that_are_no_photographs_fail_with_their_format() {
    let root = TestRoot::new().models(&[CLASSIFIER]);
    let folder = root.folder.path().join("photos");
    for (name, content, _) in strange_files() {
        write(&folder.join(name), &content);
    }
    write(&folder.join("z.heic"), &data("photos/coffee.png"));
    write(&folder.join("notes.txt"), b"not a photograph");
    write(&folder.join(".hidden"), b"nor this");
    let infer = ["infer", CLASSIFIER, folder.to_str().unwrap(), "--json"];
    let alone = run(&root, &infer);
    let daemon = root.start();
    let asked = run(&daemon.root, &[&infer[..], &["--url", &format!("http://{}", daemon.address)]].concat());
    for output in [alone, asked] {
        check(&output, 1, &output.stderr, &["searched for photographs, documents and .json: 1 .txt"]);
        let answers: Vec<Value> =
            text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(answers.len(), strange_files().len() + 1);
        for (answer, (name, _, reason)) in answers.iter().zip(strange_files()) {
            let error = answer["error"].as_str().unwrap_or_else(|| panic!("{name} has an answer: {answer}"));
            assert!(answer["file"].as_str().unwrap().ends_with(name) && error.contains(reason), "{answer}");
        }
        let good = answers.last().unwrap();
        assert_eq!(good["labels"][0]["label"], "espresso", "the bytes decide, and not the name: {good}");
    }
}

#[track_caller]
fn refused(client: &mut Client, model: &str, content_type: Option<&str>, body: &[u8], words: &[&str]) {
    let headers: Vec<_> = content_type.map(|kind| ("content-type", kind)).into_iter().collect();
    let answer = client.post(&format!("/v2/models/{model}/infer"), &headers, body);
    assert_eq!(answer.status, 400, "{answer:?}");
    for word in words {
        assert!(answer.error().contains(word), "{content_type:?}: {word:?} is not in {}", answer.error());
    }
}

#[test]
fn a_body_that_is_another_file_is_named_over_http() {
    const READER: &str = "document_reader";
    // Without its golden inputs, which take most of the time of its load.
    let mut reader: toml::Table = read(&model_folder(READER).join("model.toml")).parse().unwrap();
    reader.remove("golden").unwrap();
    let root = TestRoot::new().models(&[CLASSIFIER, READER, "add_sub", "word_vectors"]);
    let root = root.file("word_vectors/model.toml", "[pipeline.text_embedding]\nmax_tokens = 8\n");
    let daemon = root.file(&format!("{READER}/model.toml"), toml::to_string(&reader).unwrap()).start();
    let client = &mut daemon.client();
    let heic = "a HEIC image: convert it to JPEG, PNG or WebP";
    for kind in [Some("image/heic"), Some("image/jpeg"), Some("application/octet-stream"), Some("text/plain"), None] {
        refused(client, CLASSIFIER, kind, HEIC, &["expected a JPEG, PNG or WebP image, got ", heic]);
        refused(client, READER, kind, HEIC, &["expected a PDF, TIFF, JPEG, PNG, WebP, GIF or BMP file, got ", heic]);
    }
    refused(
        client,
        READER,
        Some("application/pdf"),
        b"",
        &["expected a PDF, TIFF, JPEG, PNG, WebP, GIF or BMP file, got nothing"],
    );
    for kind in [Some("application/octet-stream"), Some("text/plain"), None] {
        let words = ["the body is a PDF document: send it with 'Content-Type: application/pdf'"];
        refused(client, READER, kind, b"%PDF-1.7\n%\xE2\xE3\n", &words);
    }
    let jpeg = &data("photos/chelsea.jpg");
    refused(client, READER, Some("text/plain"), jpeg, &["the body is a JPEG image", "'Content-Type: image/jpeg'"]);
    refused(client, CLASSIFIER, Some("application/octet-stream"), &[0xE9; 9], &["got 9 bytes of an unknown format"]);
    refused(client, CLASSIFIER, Some("text/plain"), b"a sentence", &["image, got 10 bytes of text"]);
    refused(client, "add_sub", None, HEIC, &["the body is a HEIC image, not an inference request"]);
    refused(client, "word_vectors", None, jpeg, &["expected a text in UTF-8, got a JPEG image"]);
    refused(client, "word_vectors", None, b"caf\xE9 noir", &["a text in UTF-8, got 9 bytes of an unknown format"]);
    // A request stays one.
    refused(client, CLASSIFIER, Some("application/json"), b"{\"inputs\": 1}", &["'inputs' of the request"]);
}

#[test]
fn a_message_that_is_another_file_is_named_over_mqtt() {
    let bindings = format!("mqtt.bindings=[{{topic='cameras/+', model='{CLASSIFIER}', publish='seen/{{1}}'}}]");
    let root = TestRoot::new().models(&[CLASSIFIER]).set("device.id=\"box\"").set(&bindings);
    let file = root.folder.path().join("phone.heic");
    for (content, words) in [(HEIC, "got a HEIC image: convert it"), (&[0xE9; 9], "got 9 bytes of an unknown format")] {
        write(&file, content);
        for topic in ["cameras/door", "ledge/v1/box/infer/efficientnet_lite0"] {
            let output = run(&root, &["mqtt", "try", topic, file.to_str().unwrap(), "--json"]);
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert!(report.to_string().contains(words), "{topic}: {words:?} is not in {report}");
        }
    }
}

#[test]
fn top_shortens_labels_and_leaves_detections_and_rows_whole() {
    let root = TestRoot::new().models(&["coco_detector", CLASSIFIER, "wine_mlp"]);
    let photo = |name: &str| format!("{}/tests/data/photos/{name}", env!("CARGO_MANIFEST_DIR"));
    let line = |arguments: &[&str]| -> Value {
        let output = run(&root, arguments);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let cows = photo("cows.jpg");
    let detections = |answer: &Value| answer["detections"].as_array().unwrap().len();
    let shown = line(&["infer", "coco_detector", &cows, "--top", "1", "--json"]);
    assert!(detections(&shown) >= 3, "{shown}");
    let out = root.folder.path().join("answers.jsonl");
    let written = run(&root, &["infer", "coco_detector", &cows, "--top", "1", "--out", out.to_str().unwrap()]);
    assert!(written.status.success(), "{written:?}");
    let stored: Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
    assert_eq!(stored["detections"], shown["detections"]);
    let table = text(&run(&root, &["infer", "coco_detector", &cows, "--top", "1"]).stdout);
    assert_eq!(table.lines().count(), 1 + detections(&shown), "{table}");

    let labels = line(&["infer", CLASSIFIER, &photo("coffee.png"), "--top", "1", "--json"]);
    assert_eq!(labels["labels"].as_array().unwrap().len(), 1);
    let config: toml::Table = read(&root.model("wine_mlp").join("model.toml")).parse().unwrap();
    let columns = config["pipeline"]["table"]["columns"].as_array().unwrap().iter();
    let row: serde_json::Map<_, _> =
        columns.map(|column| (column["name"].as_str().unwrap().to_owned(), json!(1.5))).collect();
    let rows = root.folder.path().join("rows.json");
    write(&rows, json!([row, row, row]).to_string().as_bytes());
    let answers = line(&["infer", "wine_mlp", rows.to_str().unwrap(), "--top", "1", "--json"]);
    assert_eq!(answers["rows"].as_array().map(Vec::len), Some(3), "{answers}");
}

#[test]
fn doctor_shows_its_steps_and_fits_the_terminal() {
    let root = TestRoot::new().models(&["add_sub", "ir_add"]);
    // The terminal of `script`, of bsdutils, made as narrow as a window next to another one.
    let words: Vec<String> = {
        let command = root.command(&["doctor"]);
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| format!("'{}'", word.to_str().unwrap().replace('\'', r"'\''"))).collect()
    };
    let shell = format!("stty cols 70 rows 40; {}", words.join(" "));
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &shell, "/dev/null"]).env("TERM", "xterm");
    let output = script.stdin(Stdio::null()).output().expect("script, of bsdutils");
    check(&output, 0, &output.stdout, &["trying the model add_sub (1 of 2)", "trying the model ir_add (2 of 2)"]);

    let shown = without_escapes(&text(&output.stdout));
    let last = |line: &str| line.rsplit('\r').find(|part| !part.is_empty()).unwrap_or_default().to_owned();
    let report: Vec<String> = shown.lines().map(last).collect();
    let wide = text(&run(&root, &["doctor"]).stdout);
    assert!(wide.lines().any(|line| line.chars().count() > 100) && !wide.contains("trying"), "{wide}");
    // The longest words, such as paths, are kept whole.
    let too_long = |line: &&String| line.chars().count() > 70 && line.trim_start().contains(' ') && !line.contains('/');
    assert_eq!(report.iter().find(too_long), None, "{shown}");
    assert!(report.iter().any(|line| line.split_whitespace().any(|word| word == "add_sub")), "{shown}");
}

/// The text of a terminal without the sequences that move its cursor and erase lines.
fn without_escapes(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + part.trim_start_matches(|c: char| !c.is_ascii_alphabetic()).get(1..).unwrap_or("")
    })
}
