//! gRPC: answers, errors, roles, limits, and clients that send hostile HTTP/2.

use std::collections::{BTreeSet, HashMap};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use ledge::identity::access::Role;
use prost::Message;

use crate::access_matrix::key;
use crate::access_table::Table;
use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot};
use crate::grpc_client::{GrpcAnswer, GrpcClient, framed};

/// The status codes of gRPC.
const OK: u32 = 0;
const INVALID_ARGUMENT: u32 = 3;
const DEADLINE_EXCEEDED: u32 = 4;
const NOT_FOUND: u32 = 5;
const PERMISSION_DENIED: u32 = 7;
const RESOURCE_EXHAUSTED: u32 = 8;
const UNIMPLEMENTED: u32 = 12;
const UNAUTHENTICATED: u32 = 16;

/// The messages that these tests send and read, written by hand from the protocol.
#[derive(Clone, PartialEq, Message)]
pub struct InferRequest {
    #[prost(string, tag = "1")]
    model_name: String,
    #[prost(string, tag = "2")]
    model_version: String,
    #[prost(string, tag = "3")]
    id: String,
    #[prost(map = "string, message", tag = "4")]
    parameters: HashMap<String, Parameter>,
    #[prost(message, repeated, tag = "5")]
    inputs: Vec<InputTensor>,
    #[prost(message, repeated, tag = "6")]
    outputs: Vec<OutputRequest>,
    #[prost(bytes = "bytes", repeated, tag = "7")]
    raw: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Parameter {
    #[prost(int64, optional, tag = "2")]
    number: Option<i64>,
    #[prost(string, optional, tag = "3")]
    text: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct InputTensor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    datatype: String,
    #[prost(int64, repeated, tag = "3")]
    shape: Vec<i64>,
    #[prost(map = "string, message", tag = "4")]
    parameters: HashMap<String, Parameter>,
    #[prost(message, optional, tag = "5")]
    contents: Option<Contents>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Contents {
    #[prost(float, repeated, tag = "6")]
    fp32: Vec<f32>,
    #[prost(bytes = "bytes", repeated, tag = "8")]
    bytes: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub struct OutputRequest {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(map = "string, message", tag = "2")]
    parameters: HashMap<String, Parameter>,
}

#[derive(Clone, PartialEq, Message)]
pub struct InferAnswer {
    #[prost(string, tag = "1")]
    model_name: String,
    #[prost(string, tag = "2")]
    model_version: String,
    #[prost(string, tag = "3")]
    id: String,
    #[prost(message, repeated, tag = "5")]
    outputs: Vec<InputTensor>,
    #[prost(bytes = "bytes", repeated, tag = "6")]
    raw: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub struct StreamAnswer {
    #[prost(string, tag = "1")]
    error: String,
    #[prost(message, optional, tag = "2")]
    answer: Option<InferAnswer>,
}

/// A request that names a model in its first field, and a message of one number in its first field.
#[derive(Clone, PartialEq, Message)]
pub struct Named {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    second: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Flag {
    #[prost(int32, tag = "1")]
    flag: i32,
}

fn method(name: &str) -> String {
    format!("/inference.GRPCInferenceService/{name}")
}

fn root() -> TestRoot {
    TestRoot::new().set("grpc.listen=127.0.0.1:0").models(&["add_sub", "identity_fp32"])
}

/// The address of gRPC.
pub fn grpc_address(daemon: &TestDaemon) -> SocketAddr {
    let listening = daemon.events("listener.listening");
    let line = listening.iter().find(|line| line["scheme"].as_str().is_some_and(|scheme| scheme.starts_with("grpc")));
    line.unwrap()["address"].as_str().unwrap().parse().unwrap()
}

fn client(daemon: &TestDaemon) -> GrpcClient {
    GrpcClient::connect(grpc_address(daemon))
}

fn input(name: &str, shape: &[i64]) -> InputTensor {
    InputTensor { name: name.into(), datatype: "FP32".into(), shape: shape.to_vec(), ..InputTensor::default() }
}

fn floats(values: &[f32]) -> Bytes {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A request for `add_sub` with sixteen times `one` and 2.
fn add(model: &str, one: f32) -> InferRequest {
    InferRequest {
        model_name: model.into(),
        inputs: vec![input("INPUT0", &[1, 16]), input("INPUT1", &[1, 16])],
        raw: vec![floats(&[one; 16]), floats(&[2.0; 16])],
        ..InferRequest::default()
    }
}

/// Requests with data of both kinds, as seeds of the fuzzer.
pub fn requests() -> Vec<Vec<u8>> {
    let texts = Contents { bytes: vec!["a".into(), "".into()], ..Contents::default() };
    let text = InputTensor { datatype: "BYTES".into(), contents: Some(texts), ..input("IN", &[2]) };
    let timeout = HashMap::from([("timeout".to_owned(), Parameter { number: Some(9), text: None })]);
    let of_texts = InferRequest {
        model_name: "m".into(),
        id: "7".into(),
        parameters: timeout,
        inputs: vec![text],
        outputs: vec![OutputRequest { name: "OUT".into(), ..OutputRequest::default() }],
        ..InferRequest::default()
    };
    [add("add_sub", 1.0), of_texts].iter().map(Message::encode_to_vec).collect()
}

fn answer(answer: &GrpcAnswer) -> InferAnswer {
    assert_eq!(answer.headers["content-type"], "application/grpc");
    assert_eq!((answer.status, answer.http), (Some(OK), 200), "{answer:?}");
    InferAnswer::decode(answer.messages[0].clone()).unwrap()
}

#[test]
fn raw_tensors_and_contents_are_answered_with_the_same_raw_tensors() {
    let daemon = root().start();
    let client = client(&daemon);
    let raw = InferRequest { id: "seven".into(), ..add("add_sub", 1.0) };
    let by_contents = InferRequest {
        inputs: [("INPUT0", 1.0), ("INPUT1", 2.0)]
            .map(|(name, value)| {
                let contents = Some(Contents { fp32: vec![value; 16], ..Contents::default() });
                InputTensor { contents, ..input(name, &[1, 16]) }
            })
            .into(),
        raw: Vec::new(),
        ..raw.clone()
    };
    for request in [raw, by_contents] {
        let told = answer(&client.call(&method("ModelInfer"), &request));
        assert_eq!(
            (told.model_name.as_str(), told.model_version.as_str(), told.id.as_str()),
            ("add_sub", "1", "seven")
        );
        let names: Vec<_> = told.outputs.iter().map(|output| (output.name.as_str(), &output.shape[..])).collect();
        assert_eq!(names, [("OUTPUT0", &[1, 16][..]), ("OUTPUT1", &[1, 16])]);
        assert_eq!(told.raw, [floats(&[3.0; 16]), floats(&[-1.0; 16])]);
    }
    let classes = HashMap::from([("classification".to_owned(), Parameter { number: Some(1), text: None })]);
    let outputs = vec![OutputRequest { name: "OUTPUT1".into(), parameters: classes }];
    let told = answer(&client.call(&method("ModelInfer"), &InferRequest { outputs, ..add("add_sub", 1.0) }));
    assert_eq!((told.outputs[0].datatype.as_str(), told.raw.len()), ("BYTES", 1));
    assert_eq!(daemon.counted("add_sub"), (Some(3), Some(0)));
}

#[test]
fn a_message_of_any_size_is_read_whole_whatever_frames_it_comes_in() {
    let daemon = root().start();
    let client = client(&daemon);
    // In part of a frame, in one frame, in several, and beyond the window.
    for count in [4_u16, 6_000, 40_000, 60_000].map(usize::from).into_iter().chain([800_000]) {
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let values: Vec<f32> = (0..count).map(|place| place as f32).collect();
        let shape = [1, i64::try_from(count).unwrap()];
        let request = InferRequest {
            model_name: "identity_fp32".into(),
            inputs: vec![input("IN", &shape)],
            raw: vec![floats(&values)],
            ..InferRequest::default()
        };
        let told = answer(&client.call(&method("ModelInfer"), &request));
        assert_eq!(told.outputs[0].shape, shape);
        assert!(told.raw == [floats(&values)], "{count} numbers came back as others");
    }
}

#[test]
fn errors_have_the_code_of_their_http_status_and_its_message() {
    let daemon = root().set("http.max_body_bytes=100000").start();
    let client = client(&daemon);
    let call = |request: &InferRequest| {
        let told = client.call(&method("ModelInfer"), request);
        (told.status.unwrap(), told.message)
    };
    let (status, message) = call(&add("nope", 1.0));
    assert_eq!((status, message.as_str()), (NOT_FOUND, "Request for unknown model: 'nope' is not found"));
    assert_eq!(call(&InferRequest { model_version: "7".into(), ..add("add_sub", 1.0) }).0, NOT_FOUND);
    assert_eq!(call(&InferRequest { model_version: "x".into(), ..add("add_sub", 1.0) }).0, NOT_FOUND);
    assert_eq!(call(&InferRequest { raw: vec![floats(&[1.0; 16])], ..add("add_sub", 1.0) }).0, INVALID_ARGUMENT);
    let timeout = HashMap::from([("timeout".to_owned(), Parameter { number: Some(1), text: None })]);
    assert_eq!(call(&InferRequest { parameters: timeout, ..add("add_sub", 1.0) }).0, DEADLINE_EXCEEDED);
    let region =
        HashMap::from([("shared_memory_region".to_owned(), Parameter { number: None, text: Some("r".into()) })]);
    let mut shared = add("add_sub", 1.0);
    (shared.inputs[0].parameters, shared.raw) = (region, vec![floats(&[2.0; 16])]);
    let (status, message) = call(&shared);
    assert!(status == INVALID_ARGUMENT && message.contains("shared_memory_region"), "{message}");
    let large = InferRequest { raw: vec![floats(&[1.0; 30_000])], ..add("add_sub", 1.0) };
    let (status, message) = call(&large);
    assert!(status == RESOURCE_EXHAUSTED && message.contains("http.max_body_bytes"), "{message}");

    for absent in ["SystemSharedMemoryStatus", "TraceSetting", "LogSettings", "Nonsense"] {
        let told = client.try_call(&method(absent), &[]).unwrap();
        assert_eq!(told.status, Some(UNIMPLEMENTED), "{absent}");
    }
    for broken in [&[0xff; 9][..], &[0x2a, 0x7f], &[0x3a, 0xff, 0xff, 0xff, 0xff, 0x0f]] {
        assert_eq!(client.try_call(&method("ModelInfer"), broken).unwrap().status, Some(INVALID_ARGUMENT));
    }
    let mut cut = client.open(&method("ModelInfer")).unwrap();
    cut.send_framed(Bytes::from_static(&[0, 0, 0, 0, 9, 1]), true).unwrap();
    assert_eq!(cut.finish().unwrap().status, Some(INVALID_ARGUMENT));
    let mut none = client.open(&method("ModelInfer")).unwrap();
    none.send_framed(Bytes::new(), true).unwrap();
    assert_eq!(none.finish().unwrap().status, Some(INVALID_ARGUMENT));
    let mut late = GrpcClient::connect(grpc_address(&daemon));
    late.headers.push(("grpc-timeout", "1n".into()));
    assert_eq!(late.call(&method("ModelInfer"), &add("add_sub", 1.0)).status, Some(DEADLINE_EXCEEDED));
}

#[test]
fn calls_of_a_stream_are_answered_in_their_order_and_an_error_does_not_end_it() {
    let daemon = root().start();
    let client = client(&daemon);
    let mut stream = client.open(&method("ModelStreamInfer")).unwrap();
    for number in 0..30_u16 {
        let model = if number == 7 { "nope" } else { "add_sub" };
        let request = InferRequest { id: number.to_string(), ..add(model, f32::from(number)) };
        stream.send_framed(framed(&request.encode_to_vec()), number == 29).unwrap();
    }
    for number in 0..30_u16 {
        let StreamAnswer { error, answer } = StreamAnswer::decode(stream.next().unwrap().unwrap()).unwrap();
        let answer = answer.unwrap();
        assert_eq!((answer.id, error.is_empty()), (number.to_string(), number != 7));
        if number != 7 {
            assert_eq!(answer.raw[0], floats(&[f32::from(number) + 2.0; 16]));
        }
    }
    assert_eq!(stream.next().unwrap(), None);
}

#[test]
fn compressed_messages_are_read_and_one_that_grows_too_large_is_refused() {
    let daemon = root().set("http.max_body_bytes=100000").start();
    let mut client = client(&daemon);
    client.headers.push(("grpc-encoding", "gzip".into()));
    let compressed = |message: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(message).unwrap();
        let packed = encoder.finish().unwrap();
        let length = u32::try_from(packed.len()).unwrap();
        Bytes::from([&[1][..], &length.to_be_bytes(), &packed].concat())
    };
    let call = |bytes: Bytes| {
        let mut call = client.open(&method("ModelInfer")).unwrap();
        call.send_framed(bytes, true).unwrap();
        call.finish().unwrap()
    };
    let told = answer(&call(compressed(&add("add_sub", 1.0).encode_to_vec())));
    assert_eq!(told.raw[0], floats(&[3.0; 16]));
    assert_eq!(call(compressed(&vec![0; 1 << 20])).status, Some(RESOURCE_EXHAUSTED));
    assert_eq!(call(Bytes::from_static(&[1, 0, 0, 0, 2, 9, 9])).status, Some(INVALID_ARGUMENT));
}

#[test]
fn health_checks_and_reflection_need_no_key() {
    let daemon =
        TestRoot::closed().set("grpc.listen=127.0.0.1:0").set("access.loopback=[]").models(&["add_sub"]).start();
    let client = client(&daemon);
    let named = |name: &str| Named { name: name.into(), ..Named::default() };
    let check = |name: &str| client.call("/grpc.health.v1.Health/Check", &named(name));
    for known in ["", "inference.GRPCInferenceService"] {
        let told = check(known);
        assert_eq!(Flag::decode(told.messages[0].clone()).unwrap().flag, 1, "serving");
    }
    assert_eq!(check("nope").status, Some(NOT_FOUND));
    let mut watch = client.open("/grpc.health.v1.Health/Watch").unwrap();
    watch.send_framed(framed(&named("").encode_to_vec()), true).unwrap();
    assert_eq!(Flag::decode(watch.next().unwrap().unwrap()).unwrap().flag, 1);
    for version in ["v1", "v1alpha"] {
        let path = format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
        let mut reflection = client.open(&path).unwrap();
        // list_services, field 7.
        reflection.send_framed(framed(&[0x3a, 0]), false).unwrap();
        let told = reflection.next().unwrap().unwrap();
        assert!(String::from_utf8_lossy(&told).contains("inference.GRPCInferenceService"));
    }
    assert_eq!(client.call(&method("ModelMetadata"), &named("add_sub")).status, Some(UNAUTHENTICATED));
    // The box ends the watch when it stops, and does not wait for its caller.
    let started = Instant::now();
    daemon.signal("TERM");
    while watch.next().is_ok_and(|message| message.is_some()) {}
    assert!(started.elapsed() < Duration::from_secs(50));
}

/// A request for each method, to a model where it names one.
fn calls(model: &str) -> Vec<(String, Vec<u8>)> {
    let named = Named { name: model.into(), ..Named::default() }.encode_to_vec();
    let second = Named { second: model.into(), ..Named::default() }.encode_to_vec();
    let infer = add(model, 1.0).encode_to_vec();
    let inference = [
        ("ServerLive", Vec::new()),
        ("ServerReady", Vec::new()),
        ("ServerMetadata", Vec::new()),
        ("ModelReady", named.clone()),
        ("ModelMetadata", named.clone()),
        ("ModelInfer", infer.clone()),
        ("ModelStreamInfer", infer),
        ("ModelConfig", named.clone()),
        ("ModelStatistics", named),
        ("RepositoryIndex", Vec::new()),
        ("RepositoryModelUnload", second.clone()),
        ("RepositoryModelLoad", second),
    ];
    let others = ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/List"];
    let inference = inference.map(|(name, message)| (method(name), message));
    inference.into_iter().chain(others.map(|path| (path.to_owned(), Vec::new()))).collect()
}

/// Methods with streams that do not end by themselves; another test calls them without a key.
const ENDLESS: [&str; 3] = [
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

#[test]
fn each_method_is_for_the_roles_of_the_table() {
    let table = Table::read();
    let root = TestRoot::closed()
        .set("grpc.listen=127.0.0.1:0")
        .set("access.loopback=[]")
        .models(&["add_sub"])
        .model_as("add_sub", "other");
    let keys = Role::ALL.map(|role| (role, key(&root, &[role.as_str(), "--role", role.as_str()])));
    let scoped = Role::ALL.map(|role| {
        let name = format!("{role}-one");
        (role, key(&root, &[name.as_str(), "--role", role.as_str(), "--model", "add_sub"]))
    });
    let daemon = root.start();
    let address = grpc_address(&daemon);
    let is_scoped = |path: &str| path.contains("Model") && !path.contains("Index");
    let mut sent = 0;
    let mut check = |client: &GrpcClient, roles: &[Role], refused: u32, only: Option<&str>| {
        for model in ["add_sub", "other"] {
            for (path, message) in calls(model) {
                let row = table.row("POST", &path);
                let is_allowed = row.is_public || roles.iter().any(|role| row.roles.contains(role));
                let is_own = only.is_none_or(|only| only == model) || !is_scoped(&path);
                let told = client.try_call(&path, &message).unwrap();
                // An error of a call on a stream is in its message.
                let is_in_message = path.ends_with("ModelStreamInfer") && is_allowed && !is_own;
                let expected = match () {
                    () if !is_allowed => refused,
                    () if is_own || is_in_message => OK,
                    () => PERMISSION_DENIED,
                };
                assert_eq!(told.status, Some(expected), "{roles:?} {only:?}: {path} of {model}: {told:?}");
                if is_in_message {
                    let told = StreamAnswer::decode(told.messages[0].clone()).unwrap();
                    assert!(told.error.contains("add_sub"), "{}", told.error);
                }
                sent += 1;
            }
        }
    };
    check(&GrpcClient::connect(address), &[], UNAUTHENTICATED, None);
    for (role, key) in &keys {
        check(&GrpcClient::connect(address).key(key), &[*role], PERMISSION_DENIED, None);
    }
    for (role, key) in &scoped {
        check(&GrpcClient::connect(address).key(key), &[*role], PERMISSION_DENIED, Some("add_sub"));
    }
    assert_eq!(sent, 15 * 2 * calls("m").len());
    let wrong = GrpcClient::connect(address).key("nonsense");
    assert_eq!(wrong.try_call(&method("ServerMetadata"), &[]).unwrap().status, Some(UNAUTHENTICATED));

    let called: BTreeSet<_> = calls("m").into_iter().map(|(path, _)| path).collect();
    let known = ledge::grpc::part::ROUTES.iter().map(|route| route.rule.path.to_owned());
    let known: BTreeSet<_> = known.filter(|path| !ENDLESS.contains(&path.as_str())).collect();
    assert_eq!(called, known, "each method needs a call here");
}

#[test]
fn a_load_over_grpc_is_in_the_audit_log() {
    let daemon = root().start();
    let client = client(&daemon);
    let named = Named { second: "add_sub".into(), ..Named::default() };
    assert_eq!(client.call(&method("RepositoryModelUnload"), &named).status, Some(OK));
    let ready = |client: &GrpcClient| {
        let named = Named { name: "add_sub".into(), ..Named::default() };
        Flag::decode(client.call(&method("ModelReady"), &named).messages[0].clone()).unwrap().flag
    };
    assert_eq!(ready(&client), 0);
    // KServe's clients name the model in the first field.
    let kserve = Named { name: "add_sub".into(), ..Named::default() };
    assert_eq!(client.call(&method("RepositoryModelLoad"), &kserve).status, Some(OK));
    assert_eq!(ready(&client), 1);
    let shown = daemon.root.command(&["audit", "show"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("model_unloaded") && shown.contains("model_loaded"), "{shown}");
}

#[test]
fn other_requests_over_http_2_are_answered_with_505_and_http_1_is_refused() {
    let daemon = root().start();
    let client = client(&daemon);
    let request = Request::get("http://localhost/v2/health/live").body(()).unwrap();
    let mut call = client.send(request).unwrap();
    // The answer may come first, which resets the stream.
    let _ = call.send_framed(Bytes::new(), true);
    assert_eq!(call.head().unwrap().0, 505);
    let mut plain = TcpStream::connect(grpc_address(&daemon)).unwrap();
    plain.write_all(b"GET /v2 HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut told = Vec::new();
    let _ = plain.read_to_end(&mut told);
    assert!(!told.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&told));
    // A method of gRPC is no route of HTTP/1.1.
    let mut http = daemon.client();
    assert_eq!(http.post_json(&method("ModelInfer"), &serde_json::json!({})).status, 404);
}

/// Answers to a plain caller while others attack.
fn still_answers(daemon: &TestDaemon) {
    let client = client(daemon);
    assert_eq!(answer(&client.call(&method("ModelInfer"), &add("add_sub", 1.0))).raw[0], floats(&[3.0; 16]));
    assert_eq!(Client::tcp(daemon.address).get("/v2/health/live").status, 200);
}

/// The memory of the daemon in bytes.
fn memory(daemon: &TestDaemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn a_caller_that_opens_and_resets_streams_loses_its_connection() {
    let daemon = root().start();
    still_answers(&daemon);
    let before = memory(&daemon);
    for _ in 0..3 {
        let attacker = client(&daemon);
        let mut opened = 0;
        // A thousand cancelled calls are allowed, and a few more until the box looks.
        while opened < 200_000 {
            match attacker.open(&method("ModelInfer")) {
                Ok(call) => call.reset(),
                Err(_) => break,
            }
            opened += 1;
        }
        assert!(opened < 200_000, "the connection is never closed");
    }
    still_answers(&daemon);
    assert!(memory(&daemon) < before + (50 << 20), "{} after {before}", memory(&daemon));
}

#[test]
fn headers_without_end_are_refused() {
    let daemon = root().start();
    let mut bomb =
        Request::post(format!("http://localhost{}", method("ModelInfer"))).header("content-type", "application/grpc");
    for number in 0..2000 {
        bomb = bomb.header(format!("x-{number}"), "v".repeat(500));
    }
    let attacker = client(&daemon);
    let told = attacker.send(bomb.body(()).unwrap()).and_then(|mut call| call.head());
    assert!(!told.is_ok_and(|(status, _)| status == 200), "16 KiB are the limit");
    still_answers(&daemon);
    // Frames of a head that never ends.
    let mut raw = TcpStream::connect(grpc_address(&daemon)).unwrap();
    raw.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let frame = |kind: u8, length: usize| {
        let length = u32::try_from(length).unwrap().to_be_bytes();
        [&length[1..], &[kind, 0], &1_u32.to_be_bytes()].concat()
    };
    let piece = [&b"\x00\x03x-a\x7f\x00"[..], &[b'v'; 1000]].concat();
    let before = memory(&daemon);
    let mut is_open = raw.write_all(&[frame(1, piece.len()), piece.clone()].concat()).is_ok();
    for _ in 0..100_000 {
        is_open = is_open && raw.write_all(&[frame(9, piece.len()), piece.clone()].concat()).is_ok();
    }
    assert!(!is_open, "the connection is closed");
    assert!(memory(&daemon) < before + (20 << 20));
    still_answers(&daemon);
}

#[test]
fn streams_without_a_call_give_way_to_newcomers() {
    let daemon = root().set("http.max_connections=4").start();
    let address = grpc_address(&daemon);
    let mut held = Vec::new();
    for _ in 0..4 {
        let client = Box::leak(Box::new(GrpcClient::connect(address)));
        let mut stream = client.open(&method("ModelStreamInfer")).unwrap();
        stream.send_framed(framed(&add("add_sub", 1.0).encode_to_vec()), false).unwrap();
        assert!(stream.next().unwrap().is_some());
        held.push(stream);
    }
    still_answers(&daemon);
}

#[test]
fn a_caller_with_a_window_of_zero_loses_its_connection_and_memory_returns() {
    let daemon = root().set("http.write_timeout_ms=1000").start();
    let attacker = GrpcClient::with(grpc_address(&daemon), |builder| builder.initial_window_size(0));
    let large = InferRequest {
        model_name: "identity_fp32".into(),
        inputs: vec![input("IN", &[1, 1_000_000])],
        raw: vec![floats(&vec![1.0; 1_000_000])],
        ..InferRequest::default()
    };
    let mut call = attacker.open(&method("ModelInfer")).unwrap();
    call.send_framed(framed(&large.encode_to_vec()), true).unwrap();
    assert_eq!(call.head().unwrap().0, 200);
    let next = call.next();
    assert!(next.is_err(), "the connection is closed: {next:?}");
    let held = || {
        let metrics = String::from_utf8(daemon.client().get("/metrics").body).unwrap();
        let line = metrics.lines().find(|line| line.starts_with("ledge_http_body_memory_bytes ")).unwrap().to_owned();
        line.split(' ').nth(1).unwrap().parse::<f64>().unwrap()
    };
    let deadline = Instant::now() + Duration::from_secs(100);
    while held() > 1e6 {
        assert!(Instant::now() < deadline, "{} bytes are held", held());
        std::thread::yield_now();
    }
    still_answers(&daemon);
}

#[test]
fn a_length_that_is_announced_takes_no_memory() {
    let daemon = root().set("http.max_memory_bytes=67108864").start();
    let clients: Vec<_> = (0..10).map(|_| client(&daemon)).collect();
    let mut calls = Vec::new();
    for client in &clients {
        for _ in 0..90 {
            let mut call = client.open(&method("ModelInfer")).unwrap();
            call.send_framed(Bytes::from_static(&[0, 3, 0xff, 0xff, 0xff]), false).unwrap();
            calls.push(call);
        }
    }
    still_answers(&daemon);
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let data = status.lines().find(|line| line.starts_with("VmData:")).unwrap();
    let data: u64 = data.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(data < 2_000_000, "900 announced messages of 64 MiB would be 60 GB: {data} kB");
}
