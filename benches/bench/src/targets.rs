//! The targets to measure: the inputs of the model, the requests, and a target for each endpoint.

use std::time::Duration;

use super::connection::RawConnection;
use anyhow::{Context, bail};
use ledge_base::tensor::DataType;
use ledge_engine::backend::ModelPort;
use ledge_models::serving::Serving;
use ledge_protocol::decode;
use serde_json::Value;
use tokio::runtime::Runtime;

use super::BenchArgs;
use super::drive::Target;
use super::http::{self, Http};
use super::in_process::InProcess;
use super::inputs::{self, Payload};
use super::mqtt::{Broker, Mqtt, Route};
use super::random::Random;
use super::request::{Body, Encoding, Request};

/// The number of random requests that are sent in turns, if they fit into [`POOL_BYTES_MAX`].
const POOL_REQUESTS: usize = 8;

/// The most memory of the requests that are sent in turns, in bytes.
const POOL_BYTES_MAX: usize = 64 << 20;

/// The endpoints where the model can be measured.
#[derive(Debug, Clone, Copy)]
pub struct Endpoints<'a> {
    pub serving: Option<&'a Serving>,
    /// Set if `serving` is measured. Otherwise it only provides the inputs of the model.
    pub in_process: bool,
    /// The URL of a server, and its process id if known.
    pub server: Option<(&'a str, Option<u32>)>,
    /// A broker with the box behind it.
    pub broker: Option<&'a Broker>,
}

/// The model as its endpoint describes it, and the inputs of the requests.
#[derive(Debug)]
pub struct ModelInfo {
    pub ports: Vec<ModelPort>,
    pub version: String,
    pub runtime: String,
    /// A description of the inputs.
    pub input: String,
}

/// The parts that targets are built from.
#[derive(Debug)]
pub struct Targets<'a> {
    runtime: &'a Runtime,
    args: &'a BenchArgs,
    endpoints: Endpoints<'a>,
    pub model: ModelInfo,
    payloads: Vec<Payload>,
    bodies: Vec<Body>,
}

impl<'a> Targets<'a> {
    /// Reads the inputs of the model, and makes the requests.
    pub fn new(runtime: &'a Runtime, args: &'a BenchArgs, endpoints: Endpoints<'a>) -> anyhow::Result<Self> {
        let model = model(args);
        let (ports, version, model_runtime) = match (endpoints.server, endpoints.serving) {
            (_, Some(serving)) => {
                let pinned = serving.repository().pin(&model.model, model.version)?;
                (pinned.signature.inputs.clone(), pinned.version.to_string(), pinned.runtime().to_string())
            }
            (Some((url, _)), None) => described(&http::get(url, &path(&model))?)?,
            // The file of --input has the inputs.
            (None, None) if args.input.is_some() => (Vec::new(), "unknown".to_owned(), "unknown".to_owned()),
            (None, None) => bail!("there is nothing to measure"),
        };
        let payloads = payloads(args, &ports)?;
        let bodies = payloads.iter().filter(|_| endpoints.broker.is_some());
        let bodies =
            bodies.map(|payload| Body::new(payload, encoding(args), args.unique)).collect::<anyhow::Result<_>>()?;
        let input = payloads.first().map(Payload::describe).unwrap_or_default();
        let model = ModelInfo { ports, version, runtime: model_runtime, input };
        Ok(Self { runtime, args, endpoints, model, payloads, bodies })
    }

    /// The targets, in the order of the report. The others are compared with the first one.
    pub fn build(&self) -> anyhow::Result<Vec<Box<dyn Target + '_>>> {
        let Self { runtime, args, endpoints, payloads, bodies, .. } = self;
        let (model, unique) = (model(args), args.unique);
        let mut targets: Vec<Box<dyn Target + '_>> = Vec::new();
        if let Some(serving) = endpoints.serving.filter(|_| endpoints.in_process) {
            targets.push(Box::new(InProcess { runtime, serving, target: model.clone(), payloads, unique }));
        }
        if let Some((url, pid)) = endpoints.server {
            let host = RawConnection::open(url, Duration::from_secs(10))?.host().to_owned();
            let path = format!("{}/infer", path(&model));
            let request = |payload| Request::new(&host, &path, payload, encoding(args), unique);
            let requests = payloads.iter().map(request).collect::<anyhow::Result<_>>()?;
            targets.push(Box::new(Http { url: url.to_owned(), pid, requests, unique }));
        }

        let Some(broker) = endpoints.broker else { return Ok(targets) };
        let pid = args.pid.or_else(|| endpoints.server?.1);
        let to_box = args.device.as_ref().map(|device| Route::to(device, &model)).transpose()?;
        for route in to_box.into_iter().chain(args.echo.then_some(Route::Echo)) {
            for qos in args.qos.iter().copied() {
                targets.push(Box::new(Mqtt { broker, route: route.clone(), qos, pid, bodies, unique }));
            }
        }
        Ok(targets)
    }
}

fn model(args: &BenchArgs) -> decode::ModelTarget {
    decode::ModelTarget { model: args.subject.model.clone(), version: args.subject.version }
}

/// The path of the model on a server.
fn path(model: &decode::ModelTarget) -> String {
    let version = model.version.map(|version| format!("/versions/{version}")).unwrap_or_default();
    format!("/v2/models/{}{version}", model.model)
}

fn encoding(args: &BenchArgs) -> Encoding {
    if args.json_tensors { Encoding::Json } else { Encoding::Binary }
}

/// The inputs, version and platform in the metadata of a server.
fn described(metadata: &Value) -> anyhow::Result<(Vec<ModelPort>, String, String)> {
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let port = |input: &Value| {
        Some(ModelPort {
            name: text(input, "name")?,
            datatype: DataType::from_name(&text(input, "datatype")?)?,
            shape: input.get("shape")?.as_array()?.iter().map(Value::as_i64).collect::<Option<_>>()?,
        })
    };
    let inputs = metadata.get("inputs").and_then(Value::as_array).into_iter().flatten();
    let ports = inputs
        .map(port)
        .collect::<Option<_>>()
        .context("the metadata of the server have no valid inputs of the model")?;
    let versions = metadata.get("versions").and_then(Value::as_array);
    let version = versions.and_then(|all| all.last()?.as_str().map(str::to_owned)).unwrap_or_default();
    Ok((ports, version, text(metadata, "platform").unwrap_or_default()))
}

/// The requests that are sent in turns.
fn payloads(args: &BenchArgs, ports: &[ModelPort]) -> anyhow::Result<Vec<Payload>> {
    if let Some(path) = &args.input {
        if args.batch > 1 || !args.shape.is_empty() {
            bail!("--batch and --shape apply only to random inputs; {} has its own shape", path.display());
        }
        return Ok(vec![inputs::file(&args.subject.model, path)?]);
    }
    let batched = ports.iter().all(|port| port.shape.first() == Some(&-1));
    let shapes = inputs::shapes(ports, batched, usize::from(args.batch), &args.shape)?;
    // The same seed each time, so that two measurements send the same requests.
    let mut random = Random::seeded(1);
    let first = inputs::random(ports, &shapes, &mut random)?;
    let size = match &first {
        Payload::Tensors(tensors) => tensors.iter().map(|(_, tensor)| tensor.data().len()).sum(),
        Payload::Photo(photo) => photo.len(),
    };
    let count = if args.unique { 1 } else { POOL_REQUESTS.min(POOL_BYTES_MAX / size.max(1)).max(1) };
    let more = (1..count).map(|_| inputs::random(ports, &shapes, &mut random));
    std::iter::once(Ok(first)).chain(more).collect()
}
