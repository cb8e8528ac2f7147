//! The cost of the steps of every request: parsing and writing the protocol, hashing, decoding pictures, the queue.
//!
//! `cargo bench --bench hot_paths -- --quick`, or with a part of a name: `cargo bench --bench hot_paths -- wire`.

#![expect(clippy::unwrap_used, reason = "a benchmark that panics says where")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ledge::audit_event::AuditSink;
use ledge::engine::backend::Runtime;
use ledge::engine::batch::{concat, split};
use ledge::features::value::{ScalarType, Value, ValueType};
use ledge::features::view::{AggregateFunction, WindowKind};
use ledge::features::view::{Aggregation, FeatureView, FieldId, PushSource, ViewField, ViewId};
use ledge::features::window::WindowState;
use ledge::identity::access::{Permission, Role};
use ledge::identity::access_config::AccessConfig;
use ledge::identity::authentication::{Authenticator, Peer};
use ledge::identity::keys::{ApiKeyStore, NewApiKey};
use ledge::names::ModelName;
use ledge::pipeline::image::{self, DecodeLimits, Photograph};
use ledge::pipeline::preparation::{ChannelOrder, ImagePreparation, PictureFit, TensorLayout};
use ledge::principal::Principal;
use ledge::protocol::decode::{ReplyFormat, decode_request};
use ledge::protocol::encode::encode_response;
use ledge::scheduling::queue::{InferJob, JobInputs, JobQueue, QueueLimits};
use ledge::scheduling::terms::{Priority, RunTerms};
use ledge::serving::request::{InferResponse, Timings};
use ledge::tensor::{DataType, Tensor};
use ledge::token_bucket::CallRate;
use tokio::sync::oneshot;

/// The elements of one 224x224 RGB picture: 602,112 bytes as FP32.
const PICTURE_ELEMENTS: usize = 3 * 224 * 224;

/// FP32 elements with about 218 kB of JSON, eleven characters each with the comma.
const JSON_ELEMENTS: usize = 20_000;

/// Numbers like the normalized pixels of a camera: from -1 to 1, with many digits.
fn pixels(count: usize) -> Vec<f32> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from(u16::try_from(state >> 16).unwrap()) / 32_768.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn model() -> ModelName {
    "model".parse().unwrap()
}

/// The JSON body of one FP32 input.
fn json_body(elements: &[f32]) -> Bytes {
    let data = elements.iter().map(f32::to_string).collect::<Vec<_>>().join(",");
    let count = elements.len();
    format!(r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":[1,{count}],"data":[{data}]}}]}}"#).into()
}

/// The binary body of one picture, and the length of its JSON.
fn binary_body() -> (Bytes, usize) {
    let elements = pixels(PICTURE_ELEMENTS);
    let data: &[u8] = bytemuck::cast_slice(&elements);
    let mut body = format!(
        r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":[1,3,224,224],"parameters":{{"binary_data_size":{}}}}}]}}"#,
        data.len()
    )
    .into_bytes();
    let length = body.len();
    body.extend_from_slice(data);
    (body.into(), length)
}

fn wire(c: &mut Criterion) {
    let mut group = c.benchmark_group("wire parse");
    let (binary, header) = binary_body();
    for (name, body, header) in [
        ("json 16 numbers", json_body(&pixels(16)), None),
        ("json 218 kB", json_body(&pixels(JSON_ELEMENTS)), None),
        ("binary 602 kB", binary, Some(header)),
    ] {
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function(name, |b| {
            b.iter(|| decode_request(&model(), black_box(body.clone()), header, Instant::now()).unwrap());
        });
    }
    group.finish();

    let mut group = c.benchmark_group("wire write");
    for (name, count, format) in [
        ("json 1000 scores", 1000, ReplyFormat::JSON),
        ("json 218 kB", JSON_ELEMENTS, ReplyFormat::JSON),
        ("binary 602 kB", PICTURE_ELEMENTS, ReplyFormat::BINARY),
    ] {
        let response = InferResponse {
            model: "model".parse().unwrap(),
            version: 1.try_into().unwrap(),
            runtime: Runtime::OnnxRuntime,
            outputs: vec![("y".to_owned(), Tensor::from_vec(vec![1, count], pixels(count)).unwrap())],
            timings: Timings::default(),
            cache: None,
            features: Vec::new(),
            result: None,
            memory: ledge::memory_budget::MemoryAccount::unlimited().hold(),
        };
        let length = encode_response(&response, None, &format).unwrap().content_length();
        group.throughput(Throughput::Bytes(length as u64));
        group.bench_function(name, |b| {
            b.iter(|| encode_response(black_box(&response), None, &format).unwrap().into_bytes().unwrap());
        });
    }
    group.finish();
}

fn hash(c: &mut Criterion) {
    let mut group = c.benchmark_group("blake3");
    let bytes: Vec<u8> = bytemuck::cast_slice(&pixels(PICTURE_ELEMENTS)).to_vec();
    for size in [256, 110_000, 602_112] {
        group.throughput(Throughput::Bytes(size));
        let part = bytes.get(..usize::try_from(size).unwrap()).unwrap();
        group.bench_with_input(BenchmarkId::from_parameter(size), part, |b, part| b.iter(|| blake3::hash(part)));
    }
    group.finish();
}

fn picture(c: &mut Criterion) {
    let photo = include_bytes!("data/chelsea_640x480.jpg");
    let limits = DecodeLimits { max_pixels: 1 << 24 };
    let decoded = Photograph::from(image::decode(photo, limits).unwrap());
    let preparation = ImagePreparation {
        fit: PictureFit::Crop { shorter_side: 256 },
        size: [224, 224],
        mean: [127.0; 3],
        std: [128.0; 3],
        layout: TensorLayout::Nchw,
        color: ChannelOrder::Rgb,
    };
    let mut group = c.benchmark_group("picture 640x480");
    group.bench_function("decode jpeg", |b| b.iter(|| image::decode(black_box(photo), limits).unwrap()));
    group.bench_function("resize and scale", |b| {
        b.iter(|| preparation.prepare(black_box(&decoded), DataType::Fp32, None).unwrap());
    });
    group.finish();
}

fn queue(c: &mut Criterion) {
    let mut group = c.benchmark_group("queue take and offer");
    for waiting in [1, 1000] {
        let now = Instant::now();
        let mut queue = JobQueue::new(QueueLimits { jobs: waiting, bytes: 1 << 30 });
        // The callers must stay: a job without its caller is only dropped.
        let callers: Vec<_> = (0..waiting)
            .map(|_| {
                let (reply, caller) = oneshot::channel();
                let inputs = vec![Tensor::from_vec(vec![1, 16], pixels(16)).unwrap()];
                let deadline = now + Duration::from_hours(1);
                let terms = RunTerms { deadline, priority: Priority::Interactive, principal: Principal::Local };
                let inputs = JobInputs::Tensors(inputs);
                queue.offer(InferJob {
                    inputs,
                    outputs: vec![0],
                    rows: 1,
                    terms,
                    queued: now,
                    is_second_try: false,
                    unexplained_ends: 0,
                    reply,
                });
                caller
            })
            .collect();
        group.bench_function(BenchmarkId::from_parameter(waiting), |b| {
            b.iter(|| {
                for job in queue.take(Priority::Interactive, None, now) {
                    queue.offer(job);
                }
            });
        });
        drop(callers);
    }
    group.finish();
}

/// Batching requests of one row, and splitting the answer again.
fn batch(c: &mut Criterion) {
    let mut group = c.benchmark_group("batch put together and cut up");
    for (name, rows, width) in [("16 rows of 13 numbers", 16, 13), ("4 rows of 150,528 numbers", 4, 150_528)] {
        let requests: Vec<Vec<Tensor>> =
            (0..rows).map(|_| vec![Tensor::from_vec(vec![1, width], pixels(width)).unwrap()]).collect();
        let parts: Vec<&[Tensor]> = requests.iter().map(Vec::as_slice).collect();
        let each = vec![1; rows];
        group.bench_function(name, |b| b.iter(|| split(&concat(&parts).unwrap(), &each).unwrap()));
    }
    group.finish();
}

/// A feature view with the count, mean and maximum of the last hour in steps of a minute.
fn hourly() -> FeatureView {
    let aggregation = |function| Aggregation {
        name: format!("{function:?}").as_str().into(),
        column: 0,
        function,
        time_window: Duration::from_hours(1),
        slide_interval: Duration::from_mins(1),
        kind: WindowKind::Sliding,
        value_type: ValueType::Scalar(ScalarType::Float64),
    };
    FeatureView {
        id: ViewId(0),
        name: "view".into(),
        description: String::new(),
        entities: Vec::new(),
        join_keys: Vec::new(),
        fields: vec![ViewField {
            id: FieldId(0),
            name: "value".into(),
            value_type: ValueType::Scalar(ScalarType::Float64),
            optional: false,
            description: String::new(),
        }],
        aggregations: [AggregateFunction::Count, AggregateFunction::Mean, AggregateFunction::Max]
            .map(aggregation)
            .into(),
        ttl: None,
        lateness: Duration::from_mins(1),
        source: PushSource { name: "source".into(), timestamp_field: "event_timestamp".into() },
        unusual: None,
    }
}

/// The aggregates of an entity, decoded from and encoded to bytes as in every push and read.
fn windows(c: &mut Criterion) {
    let view = hourly();
    let mut state = WindowState::default();
    let values = |event: i32| vec![(FieldId(0), Value::Float64(f64::from(event) / 7.0))];
    // An event a second for an hour and a half: 61 buckets, and 60 identities.
    let (events, second) = (5400, 1_000_000);
    for event in 0..events {
        state.add(&view, i64::from(event) * second, &values(event));
    }
    let mut bytes = Vec::new();
    state.encode(&mut bytes);
    let now_us = i64::from(events) * second;
    let mut group = c.benchmark_group("window of 60 steps");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("add", |b| {
        b.iter(|| {
            let mut state = WindowState::decode(black_box(&bytes)).unwrap();
            state.add(&view, now_us, &values(events));
            let mut into = Vec::with_capacity(bytes.len() + 16);
            state.encode(&mut into);
            into
        });
    });
    group.bench_function("evaluate three", |b| {
        b.iter(|| {
            let state = WindowState::decode(black_box(&bytes)).unwrap();
            [0, 1, 2].map(|at| state.evaluate(&view, at, now_us))
        });
    });
    group.finish();
}

/// The cost of authenticating and authorizing a caller.
fn access(c: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let new = |number: usize| NewApiKey {
        name: format!("till-{number}").parse().unwrap(),
        roles: vec![Role::Infer],
        models: Some(vec!["model".parse().unwrap()]),
        feature_views: None,
        expires_ms: Some(u64::MAX),
        max_rate: CallRate::default(), // No limit: the benchmark would exceed any.
        max_concurrent: 1000,
    };
    let store = ApiKeyStore::new(folder.path());
    let keys: Vec<_> = (0..100).map(|number| store.create(&new(number), 1).unwrap().0.reveal()).collect();
    let authenticator = Authenticator::open(&AccessConfig::default(), folder.path(), AuditSink::channel().0);
    let (peer, model) = (Peer::address([127, 0, 0, 1].into()), "model".parse().unwrap());
    let ask = |key: Option<&String>| {
        let caller = authenticator.caller(black_box(&peer), key.map(String::as_bytes)).unwrap();
        assert_eq!(caller.lacks(&[Permission::Infer], Some(&model)), None);
        caller.enter(Instant::now()).unwrap()
    };
    let mut group = c.benchmark_group("access");
    group.bench_function("without a key", |b| b.iter(|| ask(None)));
    group.bench_function("with one of 100 keys", |b| b.iter(|| ask(keys.last())));
    group.finish();
}

criterion_group!(benches, wire, hash, picture, queue, batch, windows, access);
criterion_main!(benches);
