//! Texts in place of tensors: a text, a tensor of texts, OpenAI's form, and too much of each.

use serde_json::{Value, json};

use crate::access_matrix::key;
use crate::client::{Client, Response};
use crate::daemon::{TestDaemon, TestRoot};

const CONFIG: &str = "[pipeline.text_embedding]\nmax_tokens = 8\nnormalize = false\n";

fn root() -> TestRoot {
    TestRoot::new().models(&["word_vectors", "add_sub"]).file("word_vectors/model.toml", CONFIG)
}

fn start() -> TestDaemon {
    root().start()
}

fn post(client: &mut Client, content_type: &str, body: &[u8]) -> Response {
    client.post("/v2/models/word_vectors/infer", &[("content-type", content_type)], body)
}

#[track_caller]
fn refusal(answer: &Response, status: u16) -> String {
    assert_eq!(answer.status, status, "{answer:?}");
    answer.json()["error"].as_str().unwrap().to_owned()
}

#[test]
fn a_text_is_answered_with_its_vector_and_whether_it_was_cut() {
    let daemon = start();
    let client = &mut daemon.client();
    let answer = |client: &mut Client, text: &str| {
        post(client, "text/plain; charset=utf-8", text.as_bytes()).json()["embeddings"][0].clone()
    };
    assert_eq!(answer(client, "Red red"), json!({"embedding": [3.25, 4.0, 1.0], "tokens": 4, "truncated": false}));
    let long = answer(client, &"red ".repeat(9));
    assert_eq!((&long["tokens"], &long["truncated"]), (&json!(8), &json!(true)));
    let (requests, _) = daemon.counted("word_vectors");
    assert_eq!(requests, Some(2));
}

#[test]
fn a_tensor_of_texts_is_answered_with_tensors_in_its_order() {
    let daemon = start();
    let client = &mut daemon.client();
    // Texts of all lengths: they share runs with others of like length.
    let texts: Vec<String> =
        (0..600).map(|index| ["red", "green", "blue"][index % 3].to_owned() + &" dark".repeat(index % 7)).collect();
    let ask = |client: &mut Client, outputs: Value| {
        let input = json!({"name": "text", "datatype": "BYTES", "shape": [600], "data": texts});
        let request = json!({"id": "7", "inputs": [input], "outputs": outputs});
        post(client, "application/json", request.to_string().as_bytes())
    };
    let answer = ask(client, json!([])).json();
    assert_eq!((&answer["id"], &answer["model_name"]), (&json!("7"), &json!("word_vectors")), "{answer}");
    let outputs = answer["outputs"].as_array().unwrap();
    let named: Vec<_> = outputs.iter().map(|output| (output["name"].as_str().unwrap(), &output["shape"])).collect();
    assert_eq!(named, [("embedding", &json!([600, 3])), ("tokens", &json!([600])), ("truncated", &json!([600]))]);
    for (index, text) in texts.iter().enumerate() {
        let alone = post(client, "text/plain", text.as_bytes()).json()["embeddings"][0].clone();
        assert_eq!(
            outputs[0]["data"].as_array().unwrap()[index * 3..index * 3 + 3],
            *alone["embedding"].as_array().unwrap()
        );
        assert_eq!(outputs[1]["data"][index], alone["tokens"]);
    }

    let tokens = ask(client, json!([{"name": "tokens"}])).json();
    assert_eq!(tokens["outputs"].as_array().unwrap().len(), 1);
    let message = refusal(&ask(client, json!([{"name": "vectors"}])), 400);
    assert_eq!(message, "unexpected inference output 'vectors' for model 'word_vectors'");
}

#[test]
fn what_is_no_text_or_too_much_of_it_is_told_and_others_are_served() {
    let daemon = start();
    let client = &mut daemon.client();
    assert_eq!(post(client, "text/plain", b"caf\xe9").status, 400);
    assert_eq!(refusal(&post(client, "text/plain", b" \n"), 400), "there is no text");
    assert_eq!(post(client, "text/plain", &vec![b'a'; 10 << 20]).status, 413);
    assert_eq!(post(client, "text/plain", &vec![b'a'; 256 << 10]).status, 200);
    let many = json!({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [2049], "data": vec!["a"; 2049]}]});
    assert!(refusal(&post(client, "application/json", many.to_string().as_bytes()), 413).contains("2049"));
    // Hostile texts for a tokenizer.
    for text in
        ["\u{0}\u{202e}\u{fffd}\u{1f468}\u{200d}\u{1f469}", &"a\u{301}".repeat(10_000), &"\u{3000}".repeat(10_000)]
    {
        let status = post(client, "text/plain", format!("x{text}").as_bytes()).status;
        assert_eq!(status, 200);
    }
}

#[test]
fn a_model_that_takes_no_texts_reads_json_that_a_browser_calls_text() {
    let daemon = start();
    let client = &mut daemon.client();
    let input = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [1, 16], "data": vec![1; 16]});
    let request = json!({"inputs": [input("INPUT0"), input("INPUT1")]}).to_string();
    let path = "/v2/models/add_sub/infer";
    assert_eq!(client.post(path, &[("content-type", "text/plain;charset=UTF-8")], request.as_bytes()).status, 200);
    let message = refusal(&client.post(path, &[("content-type", "text/plain")], b"a sentence"), 400);
    assert!(message.contains("'add_sub'"), "{message}");
    let message = refusal(&client.post("/v2/models/word_vectors/infer", &[("content-type", "image/png")], b"x"), 400);
    assert!(message.contains("'word_vectors'"), "{message}");
}

fn embeddings(client: &mut Client, body: &Value) -> Response {
    client.post("/v1/embeddings", &[("content-type", "application/json")], body.to_string().as_bytes())
}

#[test]
fn an_alias_of_openai_is_its_model_and_nothing_else_has_that_name() {
    let name = "text-embedding-3-small";
    let daemon = root().set(&format!("openai.aliases={{{name:?} = 'word_vectors', other = 'unknown'}}")).start();
    let client = &mut daemon.client();
    let listed = client.get("/v1/models").json();
    let ids: Vec<_> = listed["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["word_vectors", name]);
    assert_eq!(client.get(&format!("/v1/models/{name}")).json()["id"], name);

    let answer = embeddings(client, &json!({"model": name, "input": "red red"})).json();
    assert_eq!((&answer["model"], &answer["data"][0]["embedding"]), (&json!(name), &json!([3.25, 4.0, 1.0])));
    assert_eq!(daemon.counted("word_vectors").0, Some(1));
    assert_eq!(embeddings(client, &json!({"model": "other", "input": "red"})).status, 404);
    assert_eq!(client.get("/v1/models/other").status, 404);
    assert_eq!(client.get(&format!("/v2/models/{name}")).status, 404);
}

#[test]
fn embeddings_and_models_have_the_form_of_openai() {
    let daemon = start();
    let client = &mut daemon.client();
    let listed = client.get("/v1/models").json();
    assert_eq!(listed["data"], json!([{"id": "word_vectors", "object": "model", "created": 0, "owned_by": "ledge"}]));
    assert_eq!(client.get("/v1/models/word_vectors").json(), listed["data"][0]);

    let answer = embeddings(client, &json!({"model": "word_vectors", "input": ["red red", "red ".repeat(9)]})).json();
    assert_eq!(answer["data"][0], json!({"object": "embedding", "index": 0, "embedding": [3.25, 4.0, 1.0]}));
    assert_eq!(answer["data"][1]["truncated"], true);
    assert_eq!(answer["usage"], json!({"prompt_tokens": 12, "total_tokens": 12}));
    let (requests, _) = daemon.counted("word_vectors");
    assert_eq!(requests, Some(1));

    for (body, status, code) in [
        (json!({"model": "word_vectors", "input": [[1, 2]]}), 400, Value::Null),
        (json!({"model": "word_vectors", "input": "red", "dimensions": 2}), 400, Value::Null),
        (json!({"model": "add_sub", "input": "red"}), 400, Value::Null),
        (json!({"model": "unknown", "input": "red"}), 404, json!("model_not_found")),
        (json!({"model": "word_vectors", "input": "a".repeat(10 << 20)}), 413, Value::Null),
    ] {
        let refused = embeddings(client, &body);
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["type"], &error["code"]), (status, &json!("invalid_request_error"), &code));
    }
    for unknown in ["unknown", "add_sub"] {
        let refused = client.get(&format!("/v1/models/{unknown}"));
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (404, &json!("model_not_found")));
    }
}

#[test]
fn a_key_for_one_model_embeds_with_no_other() {
    let root = TestRoot::new().models(&["word_vectors"]).file("word_vectors/model.toml", CONFIG);
    let other = root.model_as("word_vectors", "other").file("other/model.toml", CONFIG);
    let key = key(&other, &["shop", "--role", "infer", "--model", "word_vectors"]);
    let daemon = other.start();
    let client = &mut daemon.client();
    let body = json!({"model": "word_vectors", "input": "red"}).to_string();
    let unknown = client.post("/v1/embeddings", &[("authorization", "Bearer sk-x")], body.as_bytes());
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (401, &json!("invalid_api_key")));

    let bearer = format!("Bearer {key}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let mut ask = |model: &str| {
        let body = json!({"model": model, "input": "red"}).to_string();
        client.post("/v1/embeddings", &headers, body.as_bytes()).status
    };
    assert_eq!((ask("word_vectors"), ask("other")), (200, 403));
    let listed = client.request("GET", "/v1/models", &headers, b"").json();
    assert_eq!(listed["data"].as_array().unwrap().len(), 1);
}

#[test]
fn the_model_that_ships_knows_which_sentences_mean_the_same() {
    let daemon = TestRoot::new().models(&["all_minilm_l6_v2"]).start();
    let client = &mut daemon.client();
    let input =
        ["How do I return shoes?", "Can I send back a pair of boots?", "The bakery opens at six in the morning."];
    let answer = embeddings(client, &json!({"model": "all_minilm_l6_v2", "input": input})).json();
    let vector = |row: usize| serde_json::from_value::<Vec<f64>>(answer["data"][row]["embedding"].clone()).unwrap();
    let cosine = |a: usize, b: usize| vector(a).iter().zip(vector(b)).map(|(a, b)| a * b).sum::<f64>();
    assert!((cosine(0, 0) - 1.0).abs() < 1e-5);
    assert!(cosine(0, 1) > 0.6 && cosine(0, 2) < 0.2 && cosine(1, 2) < 0.2, "{} {}", cosine(0, 1), cosine(0, 2));
}
