//! Pictures as software for cameras sends and wants them: the interface of DeepStack, and annotated photographs.

use ledge::audit_event::AuditEvent;
use ledge::pipeline::detection::Detection;
use ledge::pipeline::image::{self, DecodeLimits, Rgb8Image};
use serde_json::{Value, json};

use crate::access_matrix::key;
use crate::audit::{records, stop};
use crate::certificates::{Authority, Identity};
use crate::client::{Client, Response};
use crate::daemon::{TestRoot, data, model_folder, write};
use crate::tls_kit::{TlsClient, with_certificate};

const DETECTOR: &str = "coco_detector";

fn cows() -> Vec<u8> {
    data("photos/cows.jpg")
}

/// A form with these fields in their order. The picture has a file name and no content type, as from .NET clients.
fn form(fields: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, content) in fields {
        let file = if *name == "image" { "; filename=\"image\"" } else { "" };
        body.extend(format!("--Ledge\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n").bytes());
        body.extend(*content);
        body.extend(b"\r\n");
    }
    body.extend(b"--Ledge--\r\n");
    body
}

fn post(client: &mut Client, path: &str, fields: &[(&str, &[u8])]) -> Response {
    client.post(path, &[("content-type", "multipart/form-data; boundary=Ledge")], &form(fields))
}

/// The predictions of an answer.
#[track_caller]
fn predictions(answer: &Response) -> Vec<Value> {
    let document = answer.json();
    assert_eq!((answer.status, &document["success"]), (200, &json!(true)), "{document}");
    document["predictions"].as_array().unwrap().clone()
}

/// The message of an error in DeepStack's form.
#[track_caller]
fn refusal(answer: &Response, status: u16) -> String {
    let document = answer.json();
    assert_eq!((answer.status, &document["success"]), (status, &json!(false)), "{document}");
    document["error"].as_str().unwrap().to_owned()
}

#[test]
fn predictions_are_the_detections_of_the_model_in_whole_pixels() {
    let daemon = TestRoot::new().models(&[DETECTOR]).start();
    let client = &mut daemon.client();
    let path = format!("/v2/models/{DETECTOR}/infer");
    let answer = client.post(&path, &[("content-type", "image/jpeg")], &cows()).json();
    let found: Vec<Detection> = serde_json::from_value(answer["detections"].clone()).unwrap();
    assert_eq!(found.len(), 3);

    let predicted = predictions(&post(client, "/v1/vision/detection", &[("image", &cows())]));
    assert_eq!(predicted, predictions(&post(client, "/v1/vision/custom/coco_detector", &[("image", &cows())])));
    for (prediction, detection) in predicted.iter().zip(&found) {
        assert_eq!(prediction["label"], "cow");
        let confidence = prediction["confidence"].as_f64().unwrap();
        assert!((confidence - f64::from(detection.score)).abs() < 1e-6, "{prediction}");
        let area = detection.area;
        for (edge, place) in
            [("x_min", area.x), ("y_min", area.y), ("x_max", area.x + area.width), ("y_max", area.y + area.height)]
        {
            let pixel = prediction[edge].as_u64().unwrap();
            assert!((f64::from(u32::try_from(pixel).unwrap()) - place).abs() <= 0.5, "{edge} {prediction} {area:?}");
        }
    }

    let least = f64::from(found[1].score).to_string();
    let clear = post(client, "/v1/vision/detection", &[("min_confidence", least.as_bytes()), ("image", &cows())]);
    assert_eq!(predictions(&clear), predicted[..2]);
}

#[test]
fn the_configuration_chooses_labels_models_and_how_many_predictions() {
    let root = TestRoot::new().models(&[DETECTOR, "face_detector", "efficientnet_lite0"]);
    let root = root.set("vision.labels=[\"cow\"]").set("vision.max_predictions=2");
    let daemon = root.set("vision.scene=\"efficientnet_lite0\"").start();
    let client = &mut daemon.client();
    assert_eq!(predictions(&post(client, "/v1/vision/detection", &[("image", &cows())])).len(), 2);
    let person = data("photos/astronaut.jpg");
    assert_eq!(predictions(&post(client, "/v1/vision/detection", &[("image", &person)])), [json!(null); 0]);

    let faces = predictions(&post(client, "/v1/vision/face", &[("image", &person)]));
    assert_eq!((faces.len(), faces[0].get("label")), (1, None));
    let scene = post(client, "/v1/vision/scene", &[("image", &data("photos/chelsea.jpg"))]).json();
    assert_eq!((&scene["success"], &scene["label"]), (&json!(true), &json!("tiger cat")), "{scene}");

    let listed = client.post("/v1/vision/custom/list", &[], b"").json();
    assert_eq!(listed["models"], json!([DETECTOR, "face_detector"]));
    assert_eq!(client.get("/v1/status/ping").json(), json!({"success": true}));
}

#[test]
fn errors_have_the_form_that_clients_read() {
    let daemon = TestRoot::new().models(&["add_sub"]).model_as(DETECTOR, DETECTOR).start();
    let client = &mut daemon.client();
    let detect = "/v1/vision/detection";
    let not_a_form = client.post(detect, &[("content-type", "image/jpeg")], &cows());
    for (answer, words) in [
        (not_a_form, "-F image="),
        (post(client, detect, &[("min_confidence", b"0.4")]), "no field image"),
        (post(client, detect, &[("image", b"no picture")]), "JPEG, PNG or WebP"),
        (post(client, detect, &[("image", &cows()[..5000])]), "cut off"),
        (post(client, detect, &[("image", &cows()), ("min_confidence", b"2")]), "field min_confidence"),
    ] {
        let told = refusal(&answer, 400);
        assert!(told.contains(words), "{words}: {told}");
    }
    assert!(refusal(&post(client, "/v1/vision/scene", &[("image", &cows())]), 403).contains("vision.scene"));
    assert!(refusal(&post(client, "/v1/vision/face", &[("image", &cows())]), 403).contains("vision.face"));
    refusal(&post(client, "/v1/vision/custom/nothing", &[("image", &cows())]), 404);
    assert!(refusal(&post(client, "/v1/vision/custom/add_sub", &[("image", &cows())]), 400).contains("photographs"));
    assert_eq!(predictions(&post(client, detect, &[("image", &cows())])).len(), 3, "the connection goes on");

    for (method, path, status) in [
        ("POST", "/v1/vision/face/recognize", 404),
        ("GET", "/v1/vision", 404),
        ("GET", "/v1/status", 404),
        ("GET", detect, 405),
        ("POST", "/v1/status/ping", 405),
        ("POST", "/v1/vision/custom/%ff", 400),
    ] {
        let mut client = daemon.client();
        client.send(format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n").as_bytes());
        let answer = client.receive();
        refusal(&answer, status);
        assert_eq!(answer.header("allow").is_some(), status == 405, "{method} {path}");
    }
    let near = daemon.client().get("/v1/visions");
    assert_eq!((near.status, near.json().get("success")), (404, None), "another interface");
}

#[test]
fn a_key_in_the_form_is_a_key_and_a_wrong_one_never_falls_back() {
    let root = TestRoot::new().models(&[DETECTOR]).model_as(DETECTOR, "other");
    let (all, other) =
        (key(&root, &["cameras", "--role", "infer"]), key(&root, &["one", "--role", "infer", "--model", "other"]));
    let reader = key(&root, &["reader", "--role", "viewer"]);
    let daemon = root.start();
    let client = &mut daemon.client();
    let detect = "/v1/vision/detection";
    let mut with = |key: &str| post(client, detect, &[("image", &cows()), ("api_key", key.as_bytes())]);
    assert_eq!(predictions(&with("")).len(), 3, "no key: the roles of loopback");
    assert_eq!(predictions(&with(&all)).len(), 3);
    for wrong in ["wrong", &format!("{all}x")] {
        let refused = with(wrong);
        refusal(&refused, 401);
        assert_eq!(refused.header("www-authenticate"), Some("Bearer realm=\"ledge\", error=\"invalid_token\""));
    }
    assert!(refusal(&with(&other), 403).contains("other"));
    assert!(refusal(&with(&reader), 403).contains("infer"));

    let fields: [(&str, &[u8]); 2] = [("image", &cows()), ("api_key", other.as_bytes())];
    let headers = [("content-type", "multipart/form-data; boundary=Ledge"), ("x-api-key", all.as_str())];
    assert!(refusal(&client.post(detect, &headers, &form(&fields)), 400).contains("two different keys"));
    let listed = post(client, "/v1/vision/custom/list", &[("api_key", other.as_bytes())]).json();
    assert_eq!(listed["models"], json!(["other"]));
    // As Python's requests sends a form without files.
    let line = [("content-type", "application/x-www-form-urlencoded")];
    let mut list = |key: &str| client.post("/v1/vision/custom/list", &line, format!("api_key={key}").as_bytes());
    assert_eq!(list(&other).json()["models"], json!(["other"]));
    refusal(&list("wrong"), 401);
}

#[test]
fn a_stranger_shows_its_key_in_the_first_64_kb_of_the_form() {
    let root = TestRoot::closed().set("access.loopback=[]").models(&[DETECTOR]);
    let key = key(&root, &["cameras", "--role", "infer"]);
    let daemon = root.start();
    let detect = "/v1/vision/detection";
    let (image, more) = (cows(), vec![0; 70 << 10]);
    let first: [(&str, &[u8]); 3] = [("api_key", key.as_bytes()), ("more", &more), ("image", &image)];
    let last: [(&str, &[u8]); 3] = [("more", &more), ("image", &image), ("api_key", key.as_bytes())];
    assert_eq!(predictions(&post(&mut daemon.client(), detect, &first)).len(), 3);
    assert!(refusal(&post(&mut daemon.client(), detect, &last), 401).contains("before the field image"));
    let small: [(&str, &[u8]); 2] = [("image", &image[..1000]), ("api_key", key.as_bytes())];
    // The key was found.
    refusal(&post(&mut daemon.client(), detect, &small), 400);
    refusal(&post(&mut daemon.client(), detect, &[("image", &more)]), 401);
    refusal(&post(&mut daemon.client(), detect, &[("api_key", b"wrong"), ("image", &image)]), 401);
}

#[test]
fn a_key_in_the_form_decides_whatever_else_the_caller_is_and_whatever_it_may_do() {
    let authority = Authority::new();
    let root = with_certificate(TestRoot::new(), &authority).models(&[DETECTOR]).model_as(DETECTOR, "other");
    let root = root.set("http.tls.client_certificates=optional").set("http.tls.client_ca_file=\"clients.pem\"").set(
        "access.certificates=[{name=\"viewer\", roles=[\"viewer\"]}, \
             {name=\"other\", roles=[\"infer\"], models=[\"other\"]}, {name=\"all\", roles=[\"infer\"]}]",
    );
    write(&root.folder.path().join("clients.pem"), authority.pem().as_bytes());
    let all = key(&root, &["cameras", "--role", "infer"]);
    let one = key(&root, &["one", "--role", "infer", "--model", "other"]);
    let reader = key(&root, &["reader", "--role", "viewer"]);
    let daemon = root.start();
    let client =
        |identity: Option<&Identity>| TlsClient::new(authority.pem(), identity).client(daemon.address).unwrap();
    let (detection, custom) = ("/v1/vision/detection", "/v1/vision/custom/coco_detector");
    let image = cows();
    let ask = |name: &str, path: &str, key: &str| {
        post(&mut client(Some(&authority.issue(name))), path, &[("api_key", key.as_bytes()), ("image", &image)])
    };
    for path in [detection, custom] {
        for name in ["viewer", "other"] {
            refusal(&ask(name, path, ""), 403);
            assert_eq!(predictions(&ask(name, path, &all)).len(), 3, "{name} {path}");
        }
        for name in ["viewer", "other", "all", "stranger"] {
            assert!(refusal(&ask(name, path, &one), 403).contains("limited to the models other"), "{name} {path}");
            assert!(refusal(&ask(name, path, &reader), 403).contains("key:reader"), "{name} {path}");
            refusal(&ask(name, path, "wrong"), 401);
        }
    }

    // A key in a header and another one in the form are two callers.
    let fields: [(&str, &[u8]); 2] = [("api_key", all.as_bytes()), ("image", &image)];
    let content = ("content-type", "multipart/form-data; boundary=Ledge");
    let with = |header: (&str, &str)| client(None).post(custom, &[content, header], &form(&fields));
    refusal(&with(("x-api-key", &one)), 403);
    refusal(&with(("x-api-key", &reader)), 403);
    // As a header does, the key makes a proxy's request one of a known caller.
    assert_eq!(predictions(&with(("origin", "http://cameras.example"))).len(), 3);
    let keyless = [content, ("origin", "http://cameras.example")];
    refusal(&client(None).post(custom, &keyless, &form(&[("image", &image)])), 401);
}

#[test]
fn without_encryption_only_pictures_are_served_only_to_the_named_network_and_only_with_a_key() {
    let root = TestRoot::new().models(&[DETECTOR]);
    let key = key(&root, &["cameras", "--role", "infer"]);
    let plain = |peers: &str| format!("{{listen=\"127.0.0.1:0\", peers=[\"{peers}\"]}}");
    let daemon = root.set(&format!("http.local_plain=[{}, {}]", plain("127.0.0.0/8"), plain("10.0.0.0/8"))).start();
    let at = |networks: &str| {
        let plain = daemon.events("listener.listening_unencrypted");
        let line = plain.iter().find(|line| line["networks"] == networks);
        let line = line.unwrap_or_else(|| panic!("no listener for {networks} in {}", daemon.log()));
        line["address"].as_str().unwrap().parse().unwrap()
    };
    let client = &mut Client::tcp(at("127.0.0.0/8"));
    let detect = "/v1/vision/detection";
    let fields: [(&str, &[u8]); 2] = [("api_key", key.as_bytes()), ("image", &cows())];
    assert_eq!(predictions(&post(client, detect, &fields)).len(), 3);
    for hidden in ["/v2", "/metrics", "/v2/health/live", "/openapi.json"] {
        assert_eq!(client.get(hidden).status, 404, "{hidden}");
    }
    let keyless = post(&mut Client::tcp(at("127.0.0.0/8")), detect, &[("image", &cows())]);
    assert!(refusal(&keyless, 401).contains("api_key"), "loopback's roles mean nothing there");
    assert!(Client::tcp(at("10.0.0.0/8")).try_get("/v1/status/ping").is_err(), "closed");

    let verdict = daemon.root.command(&["doctor"]).output().unwrap();
    let told = String::from_utf8(verdict.stdout).unwrap();
    assert!(told.contains("serves pictures without encryption to 127.0.0.0/8"), "{told}");
    let records = records(&stop(daemon), 1);
    let networks = records.iter().filter_map(|record| match &record.event {
        AuditEvent::ListensUnencrypted { networks, .. } => Some(networks.join(" ")),
        _ => None,
    });
    assert_eq!(networks.collect::<Vec<_>>(), ["127.0.0.0/8", "10.0.0.0/8"]);
}

fn picture(answer: &Response) -> Rgb8Image {
    assert_eq!(answer.status, 200, "{answer:?}");
    image::decode(&answer.body, DecodeLimits::default()).unwrap()
}

#[test]
fn a_caller_that_prefers_a_picture_gets_the_photograph_with_boxes_in_it() {
    let daemon = TestRoot::new().models(&[DETECTOR, "efficientnet_lite0", "add_sub"]).start();
    let client = &mut daemon.client();
    let mut ask = |model: &str, photograph: &[u8], accept: &str| {
        let headers = [("content-type", "image/jpeg"), ("accept", accept)];
        client.post(&format!("/v2/models/{model}/infer"), &headers, photograph)
    };
    let sent = image::decode(&cows(), DecodeLimits::default()).unwrap();
    for accept in ["image/png", "image/jpeg", "text/html, image/png;q=0.9, */*;q=0.5"] {
        let answer = ask(DETECTOR, &cows(), accept);
        assert!(accept.contains(answer.header("content-type").unwrap()), "{answer:?}");
        let drawn = picture(&answer);
        assert_eq!((drawn.width(), drawn.height()), (sent.width(), sent.height()));
        let differ = |(one, other): (&u8, &u8)| one.abs_diff(*other) > 60;
        let changed = drawn.pixels().iter().zip(sent.pixels()).filter(|pair| differ(*pair)).count();
        assert!((1000..sent.pixels().len() / 4).contains(&changed), "{accept}: {changed}");
    }
    // Turned by Exif, it is sent back as it is seen.
    let turned = data("photos/camera_orientation6.jpg");
    let upright = image::decode(&turned, DecodeLimits::default()).unwrap();
    let drawn = picture(&ask(DETECTOR, &turned, "image/png"));
    assert_eq!((drawn.width(), drawn.height()), (upright.width(), upright.height()));

    for accept in ["*/*", "application/json", "image/webp, application/json"] {
        assert_eq!(ask(DETECTOR, &cows(), accept).header("content-type"), Some("application/json"), "{accept}");
    }
    let refused = ask("efficientnet_lite0", &cows(), "image/jpeg");
    assert!(refused.status == 406 && refused.error().contains("efficientnet_lite0"), "{refused:?}");
    assert_eq!(ask(DETECTOR, b"no picture", "image/jpeg").status, 400);
    let numbers = client.post("/v2/models/add_sub/infer", &[("accept", "image/png")], b"{\"inputs\": []}");
    assert_eq!(numbers.status, 406);
}

#[test]
fn what_is_to_be_blurred_is_blurred_or_there_is_no_picture() {
    let astronaut = data("photos/astronaut.jpg");
    let ask = |root: TestRoot| {
        let headers = [("content-type", "image/jpeg"), ("accept", "image/png")];
        root.start().client().post(&format!("/v2/models/{DETECTOR}/infer"), &headers, &astronaut)
    };
    let root = || TestRoot::new().models(&[DETECTOR]);
    let plain = picture(&ask(root()));
    let blurred = picture(&ask(root().models(&["face_detector"]).set("vision.blur=[\"face\"]")));
    let (plain, blurred) = (face_colors(&plain), face_colors(&blurred));
    assert!(plain > 500 && blurred < 40, "{plain} {blurred}");

    let refused = ask(root().set("vision.blur=[\"face\"]"));
    assert_eq!((refused.status, refused.error().contains("face_detector")), (404, true), "{refused:?}");
}

/// The number of colors in the face of `photos/astronaut.jpg`.
fn face_colors(picture: &Rgb8Image) -> usize {
    let rows = picture.pixels().chunks_exact(picture.width() as usize * 3).skip(60).take(40);
    let pixels = rows.flat_map(|row| row.as_chunks::<3>().0[120..165].iter().copied());
    pixels.collect::<std::collections::BTreeSet<_>>().len()
}

#[test]
fn a_person_that_the_answer_does_not_report_is_blurred() {
    let astronaut = data("photos/astronaut.jpg");
    let config = std::fs::read_to_string(model_folder(DETECTOR).join("model.toml")).unwrap();
    let (config, _golden) = config.split_once("[[golden]]").unwrap();
    // The person has a score of .54.
    let models = [
        ("reports", "min_score = 0.4", 1),
        ("is_unsure", "min_score = 0.9", 0),
        ("asks_more_of_persons", "min_score = 0.4\nmin_scores = { person = 0.9 }", 0),
        ("reports_cows", "min_score = 0.4\nlabels = [\"cow\"]", 0),
    ];
    let root = models.into_iter().fold(TestRoot::new().set("vision.blur=[\"person\"]"), |root, (model, setting, _)| {
        let config = config.replace("min_score = 0.4", setting);
        root.model_as(DETECTOR, model).file(&format!("{model}/model.toml"), config)
    });
    let daemon = root.start();
    for (model, _, reported) in models {
        let ask = |accept| {
            let headers = [("content-type", "image/jpeg"), ("accept", accept)];
            daemon.client().post(&format!("/v2/models/{model}/infer"), &headers, &astronaut)
        };
        let answer = ask("application/json").json();
        assert_eq!(answer["detections"].as_array().unwrap().len(), reported, "{model}: {answer}");
        let colors = face_colors(&picture(&ask("image/png")));
        assert!(colors < 40, "{model}: {colors}");
    }
}
