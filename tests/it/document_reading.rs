//! Documents: pictures of pages, read by a chain of models.

use ledge::pipeline::image::{self, DecodeLimits};
use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::daemon::{TestDaemon, TestRoot, model_folder};

const MODEL: &str = "document_reader";

fn start() -> TestDaemon {
    TestRoot::new().models(&[MODEL, "efficientnet_lite0"]).start()
}

fn receipt(name: &str) -> Vec<u8> {
    std::fs::read(model_folder(MODEL).join("golden").join(name)).unwrap()
}

fn post(client: &mut Client, headers: &[(&str, &str)], body: &[u8]) -> Response {
    client.post(&format!("/v2/models/{MODEL}/infer"), headers, body)
}

#[track_caller]
fn read(client: &mut Client, file: &str) -> Value {
    let answer = post(client, &[("content-type", "image/png")], &receipt(file));
    assert_eq!(answer.status, 200, "{answer:?} {:?}", client.state(MODEL));
    answer.json()
}

#[test]
fn a_receipt_is_read_with_its_fields_and_a_time_for_each_model() {
    let daemon = start();
    let answer = read(&mut daemon.client(), "receipt.png");
    let page = &answer["document"]["pages"][0];
    assert_eq!((&page["page"], &page["width"], &page["height"]), (&json!(1), &json!(420), &json!(520)), "{page}");
    let text = page["text"].as_str().unwrap();
    let expected = ["RECEIPT", "Coffee 6.40", "Total EUR 13.70"].iter().all(|part| text.contains(part));
    assert!(expected, "{text}");

    let fields = &answer["document"]["fields"];
    assert_eq!(fields["total"]["value"]["amount"], "13.70", "{fields}");
    assert_eq!(fields["date"]["value"], "2026-11-20");
    assert_eq!(fields["number"]["value"], "A-10457");
    assert_eq!(fields["iban"], Value::Null);
    // The amount stands at the right, in the lower half.
    let [x, y] = serde_json::from_value(fields["total"]["box"][0].clone()).unwrap();
    let place: (f64, f64) = (x, y);
    assert!((300.0..345.0).contains(&place.0) && (380.0..420.0).contains(&place.1), "{place:?}");

    let stages = answer["time_ms"]["stages"].as_object().unwrap();
    assert_eq!(stages.keys().collect::<Vec<_>>(), ["find", "line_turn", "page_turn", "read"]);
    assert!(stages.values().all(|time| time.as_f64().unwrap() > 0.0), "{stages:?}");
    // One call, however many runs.
    assert_eq!(daemon.counted(MODEL).0, Some(1));
}

#[test]
fn the_times_of_a_document_add_up_to_no_more_than_its_call_took() {
    let daemon = start();
    let read = || {
        let began = std::time::Instant::now();
        let answer = read(&mut daemon.client(), "receipt.png");
        (answer["time_ms"].clone(), began.elapsed().as_secs_f64() * 1e3)
    };
    // Several at a time wait for one another.
    let answers: Vec<_> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..4).map(|_| scope.spawn(read)).collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    for (times, took) in answers {
        let of = |name: &str| times[name].as_f64().unwrap_or(0.0);
        let parts: f64 = ["decode", "queue", "compute", "postprocess"].map(of).iter().sum();
        let stages: f64 = times["stages"].as_object().unwrap().values().map(|time| time.as_f64().unwrap()).sum();
        assert!(parts <= took && stages <= took, "{times} of a call of {took} ms");
        // Little of a call is neither.
        assert!(parts > took * 0.8, "{times} of a call of {took} ms");
    }
}

#[test]
fn a_page_on_its_side_is_read_and_its_boxes_lie_on_the_page_that_came() {
    let daemon = start();
    let answer = read(&mut daemon.client(), "receipt-on-its-side.png");
    let page = &answer["document"]["pages"][0];
    assert_eq!((&page["turned"], &page["width"], &page["height"]), (&json!(90), &json!(520), &json!(420)), "{page}");
    assert_eq!(answer["document"]["fields"]["total"]["value"]["amount"], "13.70");
    for line in page["lines"].as_array().unwrap() {
        let corners: Vec<[f64; 2]> = serde_json::from_value(line["box"].clone()).unwrap();
        let inside = |[x, y]: &[f64; 2]| (0.0..=520.0).contains(x) && (0.0..=420.0).contains(y);
        assert!(corners.iter().all(inside), "{line}");
        // Read from the bottom to the top of the page that came.
        assert!(corners[0][1] > corners[1][1], "{line}");
    }
}

#[test]
fn the_text_is_the_answer_where_it_is_preferred() {
    let daemon = start();
    let client = &mut daemon.client();
    let receipt = receipt("receipt.png");
    let accept = |client: &mut Client, accept: &str| {
        post(client, &[("content-type", "image/png"), ("accept", accept)], &receipt)
    };
    let answer = accept(client, "text/plain");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/plain; charset=utf-8")));
    let text = String::from_utf8(answer.body).unwrap();
    assert!(text.starts_with("RECEIPT\n") && text.lines().any(|line| line == "Total EUR 13.70"), "{text}");
    for json in ["application/json, text/plain;q=0.5", "*/*", "text/plain;q=0"] {
        assert_eq!(accept(client, json).header("content-type"), Some("application/json"), "{json}");
    }
}

#[test]
fn the_page_comes_back_with_its_lines_and_fields_outlined() {
    let daemon = start();
    let client = &mut daemon.client();
    for (file, size) in [("receipt.png", (420, 520)), ("receipt-on-its-side.png", (520, 420))] {
        let sent = receipt(file);
        let answer = post(client, &[("content-type", "image/png"), ("accept", "image/png")], &sent);
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("image/png")), "{answer:?}");
        let [before, drawn] = [&sent, &answer.body].map(|file| image::decode(file, DecodeLimits::default()).unwrap());
        assert_eq!((drawn.width(), drawn.height()), size);
        let pixels = before.pixels().as_chunks::<3>().0.iter().zip(drawn.pixels().as_chunks::<3>().0);
        let changed = pixels.filter(|(one, other)| one != other).count();
        // Outlines around a dozen lines, and the names of three fields.
        assert!((3_000..60_000).contains(&changed), "{file}: {changed} of {}", size.0 * size.1);
    }
    let invoice = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/documents/invoice.pdf")).unwrap();
    for kind in ["application/pdf", "image/tiff"] {
        let answer = post(client, &[("content-type", kind), ("accept", "image/png")], &invoice);
        assert!(answer.status == 406 && answer.error().contains("JSON"), "{answer:?}");
    }
}

#[test]
fn a_tensor_with_the_bytes_of_a_file_is_answered_with_tensors() {
    let daemon = start();
    let client = &mut daemon.client();
    let metadata = client.get(&format!("/v2/models/{MODEL}")).json();
    assert_eq!(metadata["inputs"], json!([{"name": "document", "datatype": "BYTES", "shape": [1]}]));

    let receipt = receipt("receipt.png");
    let size = receipt.len() + 4;
    let input =
        json!({"name": "document", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": size}});
    let mut body = json!({"inputs": [input], "outputs": [{"name": "text"}]}).to_string().into_bytes();
    let length = body.len().to_string();
    body.extend(u32::try_from(receipt.len()).unwrap().to_le_bytes());
    body.extend(receipt);
    let answer = post(client, &[("inference-header-content-length", &length)], &body);
    assert_eq!(answer.status, 200, "{answer:?}");
    let outputs = &answer.json()["outputs"];
    assert_eq!((&outputs[0]["name"], &outputs[0]["shape"]), (&json!("text"), &json!([1])));
    assert!(outputs[0]["data"][0].as_str().unwrap().lines().any(|line| line == "Total EUR 13.70"), "{outputs}");

    let numbers = json!({"inputs": [{"name": "document", "datatype": "FP32", "shape": [1], "data": [1.0]}]});
    assert_eq!(client.post_json(&format!("/v2/models/{MODEL}/infer"), &numbers).status, 400);
}

#[test]
fn what_is_no_document_is_refused_and_the_next_one_is_read() {
    let daemon = start();
    let client = &mut daemon.client();
    let receipt = receipt("receipt.png");
    for body in [&b"no picture"[..], &receipt[..receipt.len() / 2], b""] {
        let answer = post(client, &[("content-type", "image/png")], body);
        assert_eq!(answer.status, 400, "{answer:?}");
    }
    let answer =
        client.post("/v2/models/efficientnet_lite0/infer", &[("content-type", "application/pdf")], b"%PDF-1.7");
    assert_eq!(answer.status, 400);
    assert!(answer.error().contains("efficientnet_lite0"), "{answer:?}");
    read(client, "receipt.png");
}

#[test]
fn a_chain_that_lacks_a_model_or_its_kind_says_so() {
    let config = std::fs::read_to_string(model_folder(MODEL).join("model.toml")).unwrap();
    let refusal = |root: TestRoot| {
        let daemon = root.start_unready();
        daemon.wait_for_event("repository.read");
        daemon.client().refusal(MODEL)
    };
    let one =
        TestRoot::new().models(&[MODEL]).file(&format!("{MODEL}/model.toml"), config.replace("kind = \"chain\"", ""));
    let reason = refusal(one);
    assert!(reason.contains("set kind = \"chain\" at the top"), "{reason}");

    let root = TestRoot::new().models(&[MODEL]);
    std::fs::remove_file(root.model(MODEL).join("1/read.onnx")).unwrap();
    let reason = refusal(root);
    assert!(reason.contains("read.onnx"), "{reason}");

    let section = "[pipeline.document_reading]\n";
    let named = config.replace(section, &format!("{section}characters = \"characters.txt\"\n"));
    let other = TestRoot::new().models(&[MODEL]).file(&format!("{MODEL}/model.toml"), named);
    let reason = refusal(other.file(&format!("{MODEL}/characters.txt"), "a\nb\nc\n"));
    assert!(reason.contains("18710") && reason.contains("characters.txt"), "{reason}");

    // A model of another kind in its place, which has no characters in its metadata.
    let other = std::fs::read(model_folder(MODEL).join("1/line_turn.onnx")).unwrap();
    let reason = refusal(TestRoot::new().models(&[MODEL]).file(&format!("{MODEL}/1/read.onnx"), other));
    assert!(reason.contains("the characters of read are missing"), "{reason}");
}

#[test]
fn a_chain_works_without_its_optional_models() {
    let root = TestRoot::new().models(&[MODEL]);
    for part in ["page_turn", "line_turn"] {
        std::fs::remove_file(root.model(MODEL).join(format!("1/{part}.onnx"))).unwrap();
    }
    // Its second golden document stands on its side.
    let config = std::fs::read_to_string(root.model(MODEL).join("model.toml")).unwrap();
    let (config, _) = config.split_once("[[golden]]").unwrap();
    let daemon = root.file(&format!("{MODEL}/model.toml"), config).start();
    let answer = read(&mut daemon.client(), "receipt.png");
    assert_eq!(answer["document"]["fields"]["total"]["value"]["amount"], "13.70");
    assert_eq!(answer["time_ms"]["stages"].as_object().unwrap().len(), 2);
}
