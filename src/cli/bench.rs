//! `ledge bench`: how fast a model answers, in this process, over HTTP and over MQTT side by side, and how right it is.

mod accuracy;
mod agreement;
mod child;
mod drive;
mod figures;
mod http;
mod in_process;
mod inputs;
mod labels;
mod load;
mod measure;
mod mqtt;
mod process;
mod random;
mod report;
mod request;
mod subject;
mod svg;
mod targets;
mod url;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ledge_base::names::DeviceName;
use ledge_base::principal::Principal;
use ledge_base::telemetry::process::usable_cores;
use ledge_models::serving::Serving;
use ledge_mqtt::client::packet::Qos;
use ledge_service::audit_event::AuditSink;
use tokio::runtime::Runtime;

use super::{Exit, Globals, Output};
use crate::config::Config;
use crate::daemon;
use inputs::ShapeOf;
use load::Load;
use subject::Subject;
use url::Url;

/// The arguments of `ledge bench`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct BenchArgs {
    /// The model: the name of its folder in the repository, and if need be one version and one runtime of it.
    #[arg(value_name = "MODEL[:VERSION][@RUNTIME]")]
    pub subject: Subject,
    /// Measure this running server, for example http://127.0.0.1:8000 or unix:.ledge/ledge.sock, instead of one started
    /// for the purpose; or the one behind a broker, mqtt://HOST[:PORT] or mqtts://HOST[:PORT], with the user, password and
    /// certificates of [mqtt]. Both together are measured by turns. A broker does not tell what a model takes: without
    /// the other URL it is read from the repository here, or --input says it.
    #[arg(long, help_heading = "Targets", conflicts_with = "in_process")]
    pub url: Vec<Url>,
    /// The box, or the group of boxes, that is asked over the broker.
    #[arg(long, value_name = "NAME", help_heading = "Targets", requires = "url")]
    pub device: Option<DeviceName>,
    /// How often a message to and from the broker is delivered: 0, at most once; 1, at least once. Both by turns: 0,1.
    #[arg(long, value_name = "QOS,...", value_delimiter = ',', value_parser = parse_qos, default_value = "1",
        help_heading = "Targets")]
    pub qos: Vec<Qos>,
    /// Measure the broker alone, too: each caller publishes the same messages to a topic of its own and gets them back.
    #[arg(long, help_heading = "Targets", requires = "url")]
    pub echo: bool,
    /// Measure in this process only; no server is started or asked.
    #[arg(long, help_heading = "Targets", conflicts_with = "http")]
    pub in_process: bool,
    /// Measure over HTTP only. Over MQTT, nothing is measured in this process anyway.
    #[arg(long, help_heading = "Targets")]
    pub http: bool,
    /// The process of the running server, for its CPU time and memory; known without it behind a Unix socket.
    #[arg(long, value_name = "PID", help_heading = "Targets", requires = "url")]
    pub pid: Option<u32>,
    /// Closed loop: so many callers, each asking again when it is answered [default: 1,2,4].
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = load::parse_concurrency, help_heading = "Load")]
    pub concurrency: Vec<usize>,
    /// Open loop: so many requests a second, whether those before are answered or not. Latency counts from the time a
    /// request was due.
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = load::parse_rate, help_heading = "Load")]
    pub rate: Vec<f64>,
    /// Let the requests of an open loop be evenly spaced [default: Poisson arrivals, as callers that do not know of each
    /// other come].
    #[arg(long, help_heading = "Load")]
    pub constant: bool,
    /// The connections of an open loop: so many requests can be under way at once.
    #[arg(long, value_name = "N", default_value_t = 64, help_heading = "Load",
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub connections: u16,
    /// How long each load lasts, for each target and round.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = load::parse_time, help_heading = "Load")]
    pub duration: Duration,
    /// How long each load lasts before it is measured.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = load::parse_time, help_heading = "Load")]
    pub warmup: Duration,
    /// How often all is measured, the targets taking turns: the ratio of two in one round says more than two numbers
    /// from different minutes.
    #[arg(long, value_name = "N", default_value_t = 3, help_heading = "Load",
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
    /// Ask about this: a photograph, or the JSON of an inference request [default: random tensors].
    #[arg(long, visible_alias = "photo", value_name = "FILE", help_heading = "Requests")]
    pub input: Option<PathBuf>,
    /// Batch elements of each request.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Requests",
        value_parser = clap::value_parser!(u16).range(1..))]
    pub batch: u16,
    /// The shape of an input whose dimensions are variable, such as data:1,3,224,224. Can be repeated; what it leaves
    /// open is 1.
    #[arg(long, value_name = "INPUT:DIM,...", help_heading = "Requests")]
    pub shape: Vec<ShapeOf>,
    /// Make every request another one, so that no cache answers. Without it a few take turns.
    #[arg(long, help_heading = "Requests")]
    pub unique: bool,
    /// Send tensors as JSON instead of binary.
    #[arg(long, help_heading = "Requests")]
    pub json_tensors: bool,
    /// Instead of speed: ask about every file of this folder, and count the right answers. A folder in it for each class
    /// names what its photographs show.
    #[arg(long, value_name = "DIR", help_heading = "Accuracy")]
    pub images: Option<PathBuf>,
    /// What the files show: lines of FILE,LABEL.
    #[arg(long, value_name = "FILE", help_heading = "Accuracy", requires = "images")]
    pub labels: Option<PathBuf>,
    /// Compare the answers with those of another model, version or runtime.
    #[arg(long, value_name = "MODEL[:VERSION][@RUNTIME]", help_heading = "Accuracy", requires = "images")]
    pub against: Option<Subject>,
    /// Write JSON instead of a table.
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Draw latency against load into this file.
    #[arg(long, value_name = "FILE", help_heading = "Output", conflicts_with = "images")]
    pub svg: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  ledge bench efficientnet_lite0                             here and over HTTP, one to four callers
  ledge bench efficientnet_lite0 --photo cat.jpg --rate 20,40,60 --svg latency.svg
  ledge bench efficientnet_lite0 --url http://127.0.0.1:8000 --http --unique
  ledge bench efficientnet_lite0 --url mqtt://127.0.0.1 --device box --photo cat.jpg --concurrency 1,8
  ledge bench wine_mlp --url http://127.0.0.1:8000 --url mqtt://127.0.0.1 --device box --qos 0,1 --echo
  ledge bench efficientnet_lite0 --images photos/ --labels labels.csv
  ledge bench efficientnet_lite0@onnxruntime --images photos/ --against efficientnet_lite0@openvino";

impl BenchArgs {
    /// The loads asked for.
    fn loads(&self) -> Vec<Load> {
        let (closed, open) = (self.concurrency.iter(), self.rate.iter());
        let loads: Vec<_> =
            closed.map(|&callers| Load::Concurrency(callers)).chain(open.map(|&rate| Load::Rate(rate))).collect();
        if loads.is_empty() { [1, 2, 4].map(Load::Concurrency).to_vec() } else { loads }
    }
}

/// `0` or `1`.
fn parse_qos(text: &str) -> Result<Qos, String> {
    match text {
        "0" => Ok(Qos::AtMostOnce),
        "1" => Ok(Qos::AtLeastOnce),
        _ => Err("expected 0 or 1; exactly once is no QoS of Ledge".to_owned()),
    }
}

/// Runs the verb. It fails when nothing was answered.
pub fn run(globals: &Globals, args: &BenchArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let config = globals.load_config()?;
    // Apart from the threads that ask: it drives the timers of the serving core, as the daemon's one thread does.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(1)
        .max_blocking_threads(usable_cores() + 4)
        .build()?;
    let ended = match &args.images {
        Some(images) => accuracy::run(&runtime, &config, args, images, out),
        None => measure::run(&runtime, globals, &config, args, out),
    };
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

/// A serving core over `repository` with one model, in this process. [`unload`] it at the end.
fn load(runtime: &Runtime, config: &Config, repository: PathBuf, subject: &Subject) -> anyhow::Result<Serving> {
    let mut config = config.clone();
    config.repository.path = repository;
    config.repository.packaged.clear();
    // Nobody reads the events of a command line.
    let audit = AuditSink::to_nowhere();
    let serving = daemon::serving_alone(&config, audit);
    runtime.block_on(serving.repository().load(&subject.model, &Principal::Local))?;
    Ok(serving)
}

fn unload(runtime: &Runtime, serving: &Serving) {
    runtime.block_on(serving.repository().unload_all(&Principal::Local));
}
