//! The Open Inference Protocol, row by row: every endpoint, every error, every datatype.

use crate::access_matrix::routes;
use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::daemon::{TestDaemon, TestRoot};
use crate::features::VIEWS;

fn add_sub() -> TestDaemon {
    TestRoot::new().models(&["add_sub"]).file("add_sub/model.toml", "max_batch_size = 16\n").start()
}

/// An input of `add_sub`: one row of sixteen numbers.
fn row(name: &str, value: f64) -> Value {
    json!({"name": name, "datatype": "FP32", "shape": [1, 16], "data": vec![value; 16]})
}

fn both() -> Value {
    json!({"inputs": [row("INPUT0", 3.0), row("INPUT1", 1.0)]})
}

/// Replaces one key of the first input of a good request.
fn with(key: &str, value: Value) -> Value {
    let mut request = both();
    request["inputs"][0][key] = value;
    request
}

fn infer(client: &mut Client, request: &Value) -> Response {
    client.post_json("/v2/models/add_sub/infer", request)
}

#[test]
fn the_server_says_who_it_is() {
    let daemon = add_sub();
    let client = &mut daemon.client();
    for path in ["/v2", "/v2/"] {
        let metadata = client.get(path).json();
        assert_eq!(metadata["name"], "ledge");
        assert_eq!(metadata["version"], env!("CARGO_PKG_VERSION"));
        let extensions: Vec<&str> =
            metadata["extensions"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        for extension in [
            "model_repository",
            "statistics",
            "model_configuration",
            "binary_tensor_data",
            "classification",
            "parameters",
        ] {
            assert!(extensions.contains(&extension), "{extension} is missing in {extensions:?}");
        }
    }
    for path in
        ["/v2/health/live", "/v2/health/ready", "/v2/models/add_sub/ready", "/v2/models/add_sub/versions/1/ready"]
    {
        let answer = client.get(path);
        assert_eq!((answer.status, path), (200, path));
        // KServe's client reads a key of an object, which must be true.
        let key = if path.ends_with("live") { "live" } else { "ready" };
        assert_eq!(answer.json()[key], json!(true), "{path}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(client.request("HEAD", path, &[], b"").status, 200);
    }
}

#[test]
fn a_model_says_what_it_takes_and_gives() {
    let daemon = add_sub();
    let client = &mut daemon.client();
    let tensor = |name| json!({"name": name, "datatype": "FP32", "shape": [-1, 16]});
    for path in ["/v2/models/add_sub", "/v2/models/add_sub/versions/1", "/v2/models/add%5fsub?ignored=1"] {
        let metadata = client.get(path).json();
        assert_eq!(metadata["name"], "add_sub");
        assert_eq!(metadata["versions"], json!(["1"]));
        assert_eq!(metadata["platform"], "onnxruntime_onnx");
        assert_eq!(metadata["inputs"], json!([tensor("INPUT0"), tensor("INPUT1")]));
        assert_eq!(metadata["outputs"], json!([tensor("OUTPUT0"), tensor("OUTPUT1")]));
    }
    let config = client.get("/v2/models/add_sub/config").json();
    assert_eq!(config["name"], "add_sub");
    assert_eq!(config["max_batch_size"], 16);
    assert_eq!(config["input"][0]["data_type"], "TYPE_FP32");
    assert_eq!(config["input"][0]["dims"], json!([16]));
    assert_eq!(config["output"][1]["name"], "OUTPUT1");
}

#[test]
fn an_answer_has_the_outputs_in_order_and_the_id_only_when_given() {
    let daemon = add_sub();
    let client = &mut daemon.client();
    let answer = infer(client, &both());
    assert_eq!(answer.status, 200);
    let text = String::from_utf8(answer.body.clone()).unwrap();
    assert!(text.starts_with(r#"{"model_name":"add_sub","model_version":"1","outputs":[{"name":"OUTPUT0","#), "{text}");
    let answer = answer.json();
    assert_eq!(answer["outputs"][0]["data"], json!(vec![4.0; 16]));
    assert_eq!(answer["outputs"][1]["data"], json!(vec![2.0; 16]));
    assert!(answer.get("id").is_none());

    let mut request = both();
    request["id"] = json!("a\"b");
    request["model_name"] = json!("ignored");
    request["outputs"] = json!([{"name": "OUTPUT1"}]);
    let answer = infer(client, &request).json();
    assert_eq!(answer["id"], "a\"b");
    assert_eq!(answer["outputs"].as_array().unwrap().len(), 1);
    assert_eq!(answer["outputs"][0]["name"], "OUTPUT1");
    let of_version = client.post_json("/v2/models/add_sub/versions/1/infer", &both());
    assert_eq!(of_version.json()["model_version"], "1");
}

#[test]
fn every_wrong_request_gets_its_status_and_a_message_that_names_the_mistake() {
    let daemon = add_sub();
    let client = &mut daemon.client();
    let cases: Vec<(&str, Value, &str)> = vec![
        ("no inputs", json!({}), "inputs"),
        ("inputs of the wrong type", json!({"inputs": 3}), "inputs"),
        ("numeric id", json!({"id": 3, "inputs": []}), "id"),
        ("missing shape", json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "data": []}]}), "shape"),
        ("missing datatype", json!({"inputs": [{"name": "INPUT0", "shape": [1], "data": []}]}), "datatype"),
        ("negative dimension", with("shape", json!([-1, 16])), "shape"),
        ("wrong element count", with("data", json!(vec![1.0; 15])), "INPUT0"),
        ("data that is no array", with("data", json!(1.0)), "INPUT0"),
        ("ragged nesting", with("data", json!([[1.0], 2.0])), "INPUT0"),
        ("nesting against the shape", with("data", json!([[vec![1.0; 8], vec![1.0; 8]]])), "INPUT0"),
        ("a text among numbers", with("data", json!(vec!["1"; 16])), "INPUT0"),
        ("empty inputs", json!({"inputs": []}), "missing required input(s) ['INPUT0','INPUT1']"),
        ("one input missing", json!({"inputs": [row("INPUT0", 1.0)]}), "missing required input(s) ['INPUT1']"),
        ("unknown input", with("name", json!("X")), "unexpected inference input 'X' for model 'add_sub'"),
        ("duplicate input", with("name", json!("INPUT1")), "input 'INPUT1' already exists in request"),
        (
            "wrong datatype",
            with("datatype", json!("FP64")),
            "inference input 'INPUT0' data-type is 'FP64', but model 'add_sub' expects 'FP32'",
        ),
        ("unknown datatype", with("datatype", json!("FP33")), "invalid datatype"),
        (
            "wrong shape",
            json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 17], "data": vec![0.0; 17]}, row("INPUT1", 0.0)]}),
            "unexpected shape for input 'INPUT0' for model 'add_sub'. Expected [-1,16], got [1,17]",
        ),
        (
            "too large a batch",
            json!({"inputs": [
                {"name": "INPUT0", "datatype": "FP32", "shape": [17, 16], "data": vec![0.0; 272]},
                {"name": "INPUT1", "datatype": "FP32", "shape": [17, 16], "data": vec![0.0; 272]}]}),
            "inference request batch-size must be <= 16 for 'add_sub'",
        ),
        (
            "unknown output",
            json!({"inputs": both()["inputs"], "outputs": [{"name": "ZZ"}]}),
            "unexpected inference output 'ZZ' for model 'add_sub'",
        ),
    ];
    for (what, request, message) in cases {
        let answer = infer(client, &request);
        assert_eq!(answer.status, 400, "{what}: {answer:?}");
        assert!(answer.error().contains(message), "{what}: {}", answer.error());
    }
    for (what, body, message) in [
        ("malformed JSON", &b"{\"inputs\": ["[..], ""),
        ("an empty body", b"", ""),
        ("not JSON", b"hello", ""),
        (
            "a number too large for FP32",
            br#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[1e39]}]}"#,
            "INPUT0",
        ),
        ("missing data", br#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1]}]}"#, "no field is set"),
    ] {
        let answer = client.post("/v2/models/add_sub/infer", &[], body);
        assert_eq!(answer.status, 400, "{what}: {answer:?}");
        assert!(answer.error().contains(message), "{what}: {}", answer.error());
    }
    assert_eq!(infer(client, &both()).status, 200, "nothing else was disturbed");
}

#[test]
fn what_is_not_there_is_404_and_what_is_not_loaded_is_503() {
    let daemon = add_sub();
    let client = &mut daemon.client();
    let cases = [
        ("GET", "/v2/models/nope", "Request for unknown model: 'nope' is not found"),
        ("GET", "/v2/models/nope/ready", "'nope'"),
        ("GET", "/v2/models/nope/config", "'nope'"),
        ("GET", "/v2/models/nope/stats", "'nope'"),
        ("GET", "/v2/models/add_sub/versions/9", "Request for unknown model: 'add_sub' version 9 is not found"),
        ("GET", "/v2/models/add_sub/versions/9/ready", "version 9"),
        ("GET", "/v2/models/add_sub/versions/abc", "model version \"abc\" is not a positive integer"),
        ("GET", "/v2/models/add_sub/versions/01/config", "model version"),
        ("GET", "/v2/models/add_sub/versions/-1/stats", "model version"),
        ("POST", "/v2/models/add_sub/versions/abc/infer", "model version"),
        ("GET", "/v2/models/add_sub/ready//", "no route"),
        ("POST", "/v2/models/nope/infer", "'nope'"),
        ("POST", "/v2/repository/models/nope/load", "failed to load 'nope'"),
        ("POST", "/v2/repository/models/nope/unload", "'nope'"),
        ("GET", "/v3", "/v3"),
        ("POST", "/v2/models/add_sub/nothing", "no route"),
    ];
    for (verb, path, message) in cases {
        let body = if path.ends_with("/infer") { both().to_string() } else { String::new() };
        let answer = client.request(verb, path, &[], body.as_bytes());
        assert_eq!(answer.status, 404, "{verb} {path}: {answer:?}");
        assert!(answer.error().contains(message), "{path}: {}", answer.error());
    }
    for path in ["/v2/models/a%2Fb", "/v2/models/%2e%2e/ready", "/v2/models/%ff"] {
        let answer = client.get(path);
        assert!(answer.status == 400 && !answer.error().is_empty(), "{path}: {answer:?}");
    }
    assert_eq!(client.post("/v2/repository/models/add_sub/unload", &[], b"").status, 200);
    let answer = client.get("/v2/models/add_sub/ready");
    assert_eq!((answer.status, &answer.json()["ready"]), (503, &json!(false)));
    assert!(answer.error().contains("add_sub"), "{answer:?}");
    let answer = infer(client, &both());
    assert!(answer.error().contains("add_sub"), "{answer:?}");
    assert_eq!(answer.status, 404);
    assert_eq!(client.get("/v2/health/ready").status, 200);
}

#[test]
fn a_wrong_verb_is_405_with_the_verbs_that_are_allowed() {
    let daemon = add_sub();
    let client = &mut daemon.client();
    for (verb, path, allowed) in [
        ("GET", "/v2/models/add_sub/infer", "POST"),
        ("DELETE", "/v2", "GET,HEAD"),
        ("GET", "/v2/repository/index", "POST"),
    ] {
        let answer = client.request(verb, path, &[], b"");
        assert_eq!(answer.status, 405, "{answer:?}");
        assert_eq!(answer.header("allow"), Some(allowed));
        assert!(answer.error().contains(verb));
    }
}

/// A request of `n` JSON bytes and the binary data behind them.
fn binary(client: &mut Client, path: &str, json: &Value, data: &[u8]) -> Response {
    let mut body = json.to_string().into_bytes();
    let length = body.len().to_string();
    body.extend_from_slice(data);
    client.post(path, &[("inference-header-content-length", &length)], &body)
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn binary_row(name: &str, size: u64) -> Value {
    json!({"name": name, "datatype": "FP32", "shape": [1, 16], "parameters": {"binary_data_size": size}})
}

#[test]
fn binary_tensors_go_in_and_out_mixed_with_json() {
    let daemon = add_sub();
    let client = &mut daemon.client();
    let path = "/v2/models/add_sub/infer";
    let request = json!({
        "inputs": [binary_row("INPUT0", 64), row("INPUT1", 1.0)],
        "outputs": [{"name": "OUTPUT1", "parameters": {"binary_data": true}}, {"name": "OUTPUT0"}],
    });
    let answer = binary(client, path, &request, &floats(&[5.0; 16]));
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
    let length: usize = answer.header("inference-header-content-length").unwrap().parse().unwrap();
    let json: Value = serde_json::from_slice(&answer.body[..length]).unwrap();
    assert_eq!(json["outputs"][0]["parameters"]["binary_data_size"], 64);
    assert!(json["outputs"][0].get("data").is_none());
    assert_eq!(json["outputs"][1]["data"], json!(vec![6.0; 16]));
    assert_eq!(&answer.body[length..], floats(&[4.0; 16]));

    // All outputs binary by default; one of them not.
    let request = json!({
        "parameters": {"binary_data_output": true},
        "inputs": [row("INPUT0", 2.0), row("INPUT1", 1.0)],
        "outputs": [{"name": "OUTPUT0"}, {"name": "OUTPUT1", "parameters": {"binary_data": false}}],
    });
    let answer = client.post_json(path, &request);
    let length: usize = answer.header("inference-header-content-length").unwrap().parse().unwrap();
    assert_eq!(&answer.body[length..], floats(&[3.0; 16]));
    let json: Value = serde_json::from_slice(&answer.body[..length]).unwrap();
    assert_eq!(json["outputs"][1]["data"], json!(vec![1.0; 16]));
}

#[test]
fn binary_bodies_that_do_not_add_up_are_400() {
    let daemon = add_sub();
    let client = &mut daemon.client();
    let path = "/v2/models/add_sub/infer";
    let request = json!({"inputs": [binary_row("INPUT0", 64), row("INPUT1", 1.0)]});
    let cases = [
        (request.clone(), 60, "expecting 4 additional bytes"),
        (request.clone(), 68, "unexpected additional input data"),
        (json!({"inputs": [binary_row("INPUT0", 60), row("INPUT1", 1.0)]}), 60, "Expected 64, got 60"),
        (json!({"inputs": [binary_row("INPUT0", u64::MAX), row("INPUT1", 1.0)]}), 64, ""),
        (
            json!({"inputs": [with("parameters", json!({"binary_data_size": 64}))["inputs"][0], row("INPUT1", 1.0)]}),
            64,
            "data",
        ),
    ];
    for (request, bytes, message) in cases {
        let answer = binary(client, path, &request, &vec![0; bytes]);
        assert_eq!(answer.status, 400, "{answer:?}");
        assert!(answer.error().contains(message), "{}", answer.error());
    }
    for length in ["99999", "-1", "abc", "1.5", ""] {
        let answer = client.post(path, &[("inference-header-content-length", length)], request.to_string().as_bytes());
        assert_eq!(answer.status, 400, "{length}: {answer:?}");
        assert!(!answer.error().is_empty());
    }
}

#[test]
fn a_raw_body_is_the_only_input_and_all_outputs_are_binary() {
    let daemon = TestRoot::new().models(&["dynamic_sum", "add_sub", "identity_string", "fixed_shape"]).start();
    let client = &mut daemon.client();
    let raw = |client: &mut Client, model: &str, body: &[u8]| {
        client.post(&format!("/v2/models/{model}/infer"), &[("inference-header-content-length", "0")], body)
    };
    let answer = raw(client, "dynamic_sum", &floats(&[1.0, 2.0, 3.5]));
    assert_eq!(answer.status, 200, "{answer:?}");
    let length: usize = answer.header("inference-header-content-length").unwrap().parse().unwrap();
    assert_eq!(&answer.body[length..], floats(&[6.5]));
    assert_eq!(raw(client, "fixed_shape", &floats(&[0.0; 12])).status, 200);
    assert_eq!(raw(client, "identity_string", b"hello").status, 200);
    for (model, body) in [("add_sub", &[0_u8; 64][..]), ("dynamic_sum", &[0; 3]), ("fixed_shape", &[0; 47])] {
        let answer = raw(client, model, body);
        assert!(answer.status == 400 && !answer.error().is_empty(), "{model}: {answer:?}");
    }
}

/// The name of a test model, its datatype, two elements as JSON, their bytes, and elements that are refused.
type Sample = (&'static str, &'static str, Value, Vec<u8>, Vec<Value>);

/// Every datatype.
fn datatypes() -> Vec<Sample> {
    vec![
        ("bool", "BOOL", json!([true, false]), vec![1, 0], vec![json!(1), json!("true")]),
        ("uint8", "UINT8", json!([0, 255]), vec![0, 255], vec![json!(256), json!(-1), json!(1.0), json!(true)]),
        ("uint16", "UINT16", json!([1, 65535]), vec![1, 0, 255, 255], vec![json!(65536), json!(-1)]),
        ("uint32", "UINT32", json!([1, u32::MAX]), vec![1, 0, 0, 0, 255, 255, 255, 255], vec![json!(1_u64 << 32)]),
        (
            "uint64",
            "UINT64",
            json!([1, u64::MAX]),
            [1, u64::MAX].map(u64::to_le_bytes).concat(),
            vec![json!(-1), json!(1e30)],
        ),
        ("int8", "INT8", json!([-128, 127]), vec![128, 127], vec![json!(128), json!(-129)]),
        ("int16", "INT16", json!([-1, 2]), vec![255, 255, 2, 0], vec![json!(40000)]),
        ("int32", "INT32", json!([-1, 2]), vec![255, 255, 255, 255, 2, 0, 0, 0], vec![json!(1_u64 << 31)]),
        ("int64", "INT64", json!([i64::MIN, 2]), [i64::MIN, 2].map(i64::to_le_bytes).concat(), vec![json!(u64::MAX)]),
        ("fp16", "FP16", json!([1.5, -2.0]), vec![0, 0x3e, 0, 0xc0], vec![json!(1e6), json!("1")]),
        ("bf16", "BF16", json!([1.5, -2.0]), vec![0xc0, 0x3f, 0, 0xc0], vec![json!(1e39)]),
        ("fp32", "FP32", json!([1.5, -2.0]), floats(&[1.5, -2.0]), vec![json!(1e39), json!(null)]),
        ("fp64", "FP64", json!([1.5, 1e300]), [1.5_f64, 1e300].map(f64::to_le_bytes).concat(), vec![json!("x")]),
        ("string", "BYTES", json!(["é", ""]), b"\x02\0\0\0\xc3\xa9\0\0\0\0".to_vec(), vec![json!(1)]),
    ]
}

#[test]
fn every_datatype_travels_in_json_and_in_binary() {
    let names: Vec<String> = datatypes().iter().map(|(name, ..)| format!("identity_{name}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let daemon = TestRoot::new().models(&names).start();
    let client = &mut daemon.client();
    for (name, datatype, elements, bytes, refused) in datatypes() {
        let path = format!("/v2/models/identity_{name}/infer");
        let input =
            |data: Value| json!({"inputs": [{"name": "IN", "datatype": datatype, "shape": [1, 2], "data": data}]});
        let answer = client.post_json(&path, &input(elements.clone()));
        assert_eq!(answer.status, 200, "{datatype}: {answer:?}");
        let answer = answer.json();
        assert_eq!(answer["outputs"][0]["datatype"], datatype);
        assert_eq!(answer["outputs"][0]["shape"], json!([1, 2]));
        assert_eq!(answer["outputs"][0]["data"], elements, "{datatype}");
        assert_eq!(client.post_json(&path, &input(json!([elements]))).status, 200, "{datatype} nested");

        let request = json!({
            "parameters": {"binary_data_output": true},
            "inputs": [{"name": "IN", "datatype": datatype, "shape": [2, 1], "parameters": {"binary_data_size": bytes.len()}}],
        });
        let answer = binary(client, &path, &request, &bytes);
        assert_eq!(answer.status, 200, "{datatype}: {answer:?}");
        let length: usize = answer.header("inference-header-content-length").unwrap().parse().unwrap();
        assert_eq!(&answer.body[length..], bytes, "{datatype}");

        for element in refused {
            let mut data = elements.clone();
            data[1] = element.clone();
            let answer = client.post_json(&path, &input(data));
            assert_eq!(answer.status, 400, "{datatype} {element}: {answer:?}");
            assert!(answer.error().contains("IN"), "{}", answer.error());
        }
    }
}

#[test]
fn an_output_that_json_cannot_carry_is_a_400_that_names_binary() {
    let daemon = TestRoot::new().models(&["log_nan", "identity_string"]).start();
    let client = &mut daemon.client();
    let metadata = client.get("/v2/models/log_nan").json();
    let (name, shape) = (metadata["inputs"][0]["name"].clone(), metadata["inputs"][0]["shape"].clone());
    let shape: Vec<i64> = shape.as_array().unwrap().iter().map(|dim| dim.as_i64().unwrap().max(1)).collect();
    let count = usize::try_from(shape.iter().product::<i64>()).unwrap();
    let mut request =
        json!({"inputs": [{"name": name, "datatype": "FP32", "shape": shape, "data": vec![-1.0; count]}]});
    let answer = client.post_json("/v2/models/log_nan/infer", &request);
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.error().contains("binary"), "{}", answer.error());
    request["parameters"] = json!({"binary_data_output": true});
    assert_eq!(client.post_json("/v2/models/log_nan/infer", &request).status, 200);
}

/// A request for `identity_string` with these strings in binary form.
fn strings(strings: &[&[u8]], parameters: &str) -> (String, Vec<u8>) {
    let data: Vec<u8> = strings
        .iter()
        .flat_map(|string| [&u32::try_from(string.len()).unwrap().to_le_bytes()[..], string].concat())
        .collect();
    let head = format!(
        r#"{{"inputs":[{{"name":"IN","datatype":"BYTES","shape":[1,{}],"parameters":{{"binary_data_size":{}}}}}]{parameters}}}"#,
        strings.len(),
        data.len()
    );
    (head.len().to_string(), [head.as_bytes(), &data].concat())
}

#[test]
fn strings_of_any_bytes_come_back_as_they_went_in() {
    let daemon = TestRoot::new().models(&["identity_string"]).start();
    let client = &mut daemon.client();
    let path = "/v2/models/identity_string/infer";
    let all: Vec<u8> = (0..=255).collect();
    let sent: [&[u8]; 6] = [b"\xff\xfe not UTF-8", b"", b"a\0b\0", &all, "é".as_bytes(), &vec![0; 70_000]];
    let (length, body) = strings(&sent, r#","parameters":{"binary_data_output":true}"#);
    let answer = client.post(path, &[("inference-header-content-length", &length)], &body);
    assert_eq!(answer.status, 200, "{answer:?}");
    let json_length: usize = answer.header("inference-header-content-length").unwrap().parse().unwrap();
    assert!(answer.body[json_length..] == body[length.parse().unwrap()..], "other bytes came back");

    // JSON has no way to write them.
    let (length, body) = strings(&sent[..1], "");
    let answer = client.post(path, &[("inference-header-content-length", &length)], &body);
    assert_eq!(answer.status, 400, "{answer:?}");
    let told = answer.error();
    assert!(told.contains("'OUT'") && told.contains("'binary_data'"), "{told}");
}

#[test]
fn messages_speak_of_json_and_not_of_rust() {
    let daemon = TestRoot::new().models(&["add_sub"]).views(VIEWS).start();
    let client = &mut daemon.client();
    let rust = words_of_rust();
    for (path, body) in [
        ("/v2/models/add_sub/infer", r#"{"inputs": {}}"#),
        ("/v2/models/add_sub/infer", r#"{"inputs": [1]}"#),
        ("/v2/models/add_sub/infer", "[]"),
        ("/v2/models/add_sub/infer", r#"{"inputs": [{"name": 5}]}"#),
        ("/v2/models/add_sub/infer", r#"{"inputs": [{"name": "INPUT0", "shape": [-1, 16]}]}"#),
        ("/v2/models/add_sub/infer", r#"{"inputs": [{"name": "INPUT0", "shape": [1.5]}]}"#),
        ("/v2/models/add_sub/infer", r#"{"inputs": [{"name": "INPUT0", "shape": {}}]}"#),
        (
            "/v2/models/add_sub/infer",
            r#"{"inputs": [{"name": "X", "shape": [1], "datatype": "INT64", "data": [1.5]}]}"#,
        ),
        (
            "/v2/models/add_sub/infer",
            r#"{"inputs": [{"name": "X", "shape": [1], "datatype": "UINT8", "data": [256]}]}"#,
        ),
        ("/v2/models/add_sub/infer", r#"{"inputs": [{"name": "X", "shape": [1], "datatype": "BOOL", "data": ["a"]}]}"#),
        ("/v2/models/add_sub/infer", r#"{"inputs": ["#),
        ("/v2/repository/index", r#"{"ready": 1}"#),
        ("/get-online-features", "{}"),
        ("/get-online-features", r#"{"entities": [], "features": {}}"#),
        ("/push", r#"{"push_source_name": 1, "df": {}}"#),
        ("/features/erase", r#"{"entity": 5}"#),
        ("/features/erase", "[]"),
    ] {
        let answer = client.post(path, &[("content-type", "application/json")], body.as_bytes());
        assert!(answer.status == 400 || answer.status == 422, "{path} {body}: {answer:?}");
        let told = String::from_utf8(answer.body).unwrap();
        let found: Vec<_> = rust.iter().filter(|word| told.contains(*word)).collect();
        assert!(found.is_empty(), "{path} {body}: {told} has {found:?}");
    }
}

/// Names of Rust types in serde's messages.
fn words_of_rust() -> [&'static str; 22] {
    [
        "usize",
        "u8",
        "u16",
        "u32",
        "u64",
        "i8",
        "i16",
        "i32",
        "i64",
        "f32",
        "f64",
        "struct ",
        "a sequence",
        "sequence,",
        "map,",
        "a map",
        "invalid type",
        "invalid value",
        "missing field",
        "variant",
        "floating point",
        "EOF",
    ]
}

#[test]
fn classification_answers_with_value_index_and_label() {
    let daemon = TestRoot::new().models(&["wine_mlp"]).start();
    let client = &mut daemon.client();
    let metadata = client.get("/v2/models/wine_mlp").json();
    let output = metadata["outputs"][0]["name"].clone();
    let row = [13.2, 1.78, 2.14, 11.2, 100.0, 2.65, 2.76, 0.26, 1.28, 4.38, 1.05, 3.4, 1050.0];
    let request = json!({
        "inputs": [{"name": "features", "datatype": "FP32", "shape": [2, 13], "data": [row, row]}],
        "outputs": [{"name": output, "parameters": {"classification": 2}}],
    });
    let answer = client.post_json("/v2/models/wine_mlp/infer", &request).json();
    assert_eq!(answer["outputs"][0]["datatype"], "BYTES");
    assert_eq!(answer["outputs"][0]["shape"], json!([2, 2]));
    let first = answer["outputs"][0]["data"][0].as_str().unwrap();
    let parts: Vec<&str> = first.splitn(3, ':').collect();
    assert!(parts.len() == 3 && parts[0].parse::<f32>().unwrap() > 0.5 && parts[1] == "0", "{first}");
    assert_eq!(answer["outputs"][0]["data"][0], answer["outputs"][0]["data"][2]);
}

#[test]
fn statistics_count_requests_elements_runs_and_failures() {
    let daemon = add_sub();
    let client = &mut daemon.client();
    let before = client.get("/v2/models/add_sub/stats").json()["model_stats"][0].clone();
    let rows = |name| json!({"name": name, "datatype": "FP32", "shape": [3, 16], "data": vec![1.0; 48]});
    for _ in 0..2 {
        assert_eq!(infer(client, &json!({"inputs": [rows("INPUT0"), rows("INPUT1")]})).status, 200);
    }
    assert_eq!(infer(client, &with("name", json!("X"))).status, 400);
    for path in ["/v2/models/add_sub/stats", "/v2/models/add_sub/versions/1/stats", "/v2/models/stats"] {
        let stats = client.get(path).json()["model_stats"][0].clone();
        let delta = |key: &str| stats[key].as_u64().unwrap() - before[key].as_u64().unwrap();
        assert_eq!((delta("inference_count"), delta("execution_count")), (6, 2), "{path}");
        let count = |key: &str| {
            let of = |stats: &Value| stats["inference_stats"][key]["count"].as_u64().unwrap();
            of(&stats) - of(&before)
        };
        assert_eq!((count("success"), count("fail"), count("queue"), count("compute_infer")), (2, 1, 2, 2));
        assert!(stats["inference_stats"]["compute_infer"]["ns"].as_u64().unwrap() > 0);
        let batch = stats["batch_stats"].as_array().unwrap().iter().find(|batch| batch["batch_size"] == 3).unwrap();
        assert_eq!(batch["compute_infer"]["count"], 2);
        assert!(stats["last_inference"].as_u64().unwrap() > 1_700_000_000_000);
    }
    let metrics = String::from_utf8(client.get("/metrics").body).unwrap();
    let line =
        r#"ledge_inference_requests_total{model="add_sub",version="1",runtime="onnxruntime",outcome="success"} 2"#;
    assert!(metrics.contains(line), "{metrics}");
    assert!(metrics.contains("ledge_process_resident_memory_bytes"), "{metrics}");
}

#[test]
fn the_index_lists_every_version_with_its_state() {
    let daemon = TestRoot::new().models(&["add_sub", "broken_empty"]).model_as("add_sub", "second").start();
    let client = &mut daemon.client();
    // The official client sends no body at all.
    let index = client.post("/v2/repository/index", &[], b"").json();
    let names: Vec<&str> = index.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["add_sub", "broken_empty", "second"]);
    assert_eq!((&index[0]["state"], &index[0]["version"]), (&json!("READY"), &json!("1")));
    assert_eq!(index[1]["state"], "UNAVAILABLE");
    assert!(index[1]["reason"].as_str().unwrap().contains("model.onnx"), "{index}");
    client.post("/v2/repository/models/second/unload", &[], b"{\"parameters\":{\"unload_dependents\":false}}");
    let ready = client.post("/v2/repository/index", &[], b"{\"ready\":true}").json();
    assert_eq!(ready.as_array().unwrap().len(), 1, "{ready}");
    let index = client.post("/v2/repository/index", &[], b"{}").json();
    assert_eq!((&index[2]["state"], &index[2]["reason"]), (&json!("UNAVAILABLE"), &json!("unloaded")));
    assert_eq!(client.post("/v2/repository/models/second/load", &[], b"{}").status, 200);
    assert_eq!(client.get("/v2/models/second/ready").status, 200);
    let upload = json!({"parameters": {"config": "{}", "file:1/model.onnx": "AA=="}});
    let answer = client.post_json("/v2/repository/models/second/load", &upload);
    assert!(answer.status == 400 && answer.error().contains("file"), "{answer:?}");
    assert_eq!(client.post("/v2/repository/index", &[], b"[").status, 400);
}

#[test]
fn the_openapi_document_names_exactly_the_routes_that_exist() {
    let config = "[pipeline.text_embedding]\nmax_tokens = 8\n";
    let root = TestRoot::new().models(&["add_sub", "word_vectors"]).file("word_vectors/model.toml", config);
    // Its pictures come with calls, and none has come.
    let root = root.set("camera=[{name=\"yard\"}]").set("alert=[{name=\"shop\", url=\"http://127.0.0.1:9/\"}]");
    let daemon = root.views(VIEWS).start();
    let client = &mut daemon.client();
    let document = client.get("/openapi.json").json();
    let paths = document["paths"].as_object().unwrap();
    // The rest of a path is a parameter like any other there.
    let rules = routes();
    let routes: Vec<String> = rules.iter().map(|route| route.path.replace("{*", "{")).collect();
    assert!(routes.len() > 15, "{routes:?}");
    for route in &routes {
        assert!(paths.contains_key(route), "openapi.json lacks {route}");
    }
    for route in &rules {
        let operation = &document["paths"][route.path.replace("{*", "{")][route.method.to_lowercase()];
        let needs: Vec<_> = route.needs.iter().map(|need| need.as_str()).collect();
        assert_eq!(operation["x-ledge-permission"], json!(needs), "{}", route.path);
        let security = if route.is_public() { json!([]) } else { Value::Null };
        assert_eq!(operation["security"], security, "{}", route.path);
        for status in ["401", "403", "429"] {
            assert_eq!(operation["responses"][status].is_object(), route.is_guarded(), "{} {status}", route.path);
        }
    }
    assert_eq!(client.post_json("/keys", &json!({"name": "till", "roles": ["infer"]})).status, 200);
    // The first head of the log is signed a moment after the start.
    crate::audit::status(client, |status| status["checkpoint"].is_string());
    for (path, verbs) in paths {
        assert!(routes.contains(path), "openapi.json has {path}, the router has not");
        for verb in verbs.as_object().unwrap().keys() {
            let path = path.replace("/v1/models/{model}", "/v1/models/word_vectors");
            let path = path.replace("{model}", "add_sub").replace("{version}", "1");
            let path = path.replace("{feature_view}", "driver_stats").replace("{feature_service}", "driver_activity");
            let path = path.replace("{generation}", "1").replace("{path}", "entries/000.p/1");
            // Without a number of events the answer does not end.
            let path = path.replace("{file}", "app.js").replace("/figures/live", "/figures/live?events=0");
            let path = path.replace("{camera}", "yard").replace("{alert}", "shop");
            // A key that there is.
            let path = path.replace("{key}", "till");
            let answer = client.request(&verb.to_uppercase(), &path, &[], b"{}");
            // Documents have no model here, and no result; nothing was erased; there are no jobs and no such session, and no
            // minute was judged yet.
            let is_without = ["/documentintelligence/", "/audit/erasures/", "/jobs/", "/unusual/", "/sessions/"]
                .iter()
                .any(|begin| path.starts_with(begin));
            let is_known = answer.status != 404 || is_without || path == "/process";
            let is_routed = !String::from_utf8_lossy(&answer.body).contains("no route");
            assert!(is_known && is_routed && answer.status != 405, "{verb} {path}: {answer:?}");
        }
    }
}
