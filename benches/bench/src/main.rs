//! `ledge-bench`: measures the speed of a model in this process, over HTTP and over MQTT in turns. A tool of
//! development: no package has it.
//!
//! The server that it starts for a measurement, and the processes of models, are this program again: it holds all of
//! Ledge.
#![forbid(unsafe_code)]
#![expect(clippy::doc_markdown, reason = "a help text has no backticks and no angle brackets")]

mod child;
mod connection;
mod drive;
mod figures;
mod http;
mod in_process;
mod inputs;
mod load;
mod measure;
mod mqtt;
mod process;
mod random;
mod report;
mod request;
mod subject;
mod targets;
mod url;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use ledge::cli::{self, Exit, GlobalArgs, InternalCli, Output};
use ledge::config::Config;
use ledge::daemon::Standalone;
use ledge::sys;
use ledge_base::names::DeviceName;
use ledge_base::principal::Principal;
use ledge_base::telemetry::process::usable_cores;
use ledge_models::serving::Serving;
use ledge_mqtt::client::packet::Qos;
use ledge_service::audit_event::AuditSink;
use tokio::runtime::Runtime;

use inputs::InputShape;
use load::Load;
use subject::Subject;
use url::Url;

#[global_allocator]
static ALLOCATOR: sys::SpareAllocator = sys::SpareAllocator;

/// Measures how fast a model of Ledge answers, in process and over HTTP or MQTT.
///
/// Calls the model in this process and over HTTP in turns, in one run, under the loads given, and reports latencies,
/// answers per second, CPU time and memory. Without --url it starts its own server on a free port, with only this
/// model, and stops it at the end.
#[derive(Debug, Parser)]
#[command(name = "ledge-bench", version, after_help = EXAMPLES)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct BenchArgs {
    /// The model: the name of its folder in the repository. Optionally with a version and a runtime.
    #[arg(value_name = "MODEL[:VERSION][@RUNTIME]")]
    pub subject: Subject,
    /// Measure this running server, for example http://127.0.0.1:8000 or unix:.ledge/ledge.sock, instead of one that is
    /// started for the measurement. Or measure a server behind a broker: mqtt://HOST[:PORT] or mqtts://HOST[:PORT],
    /// with the user, password and certificates of [mqtt]. Given both, they are measured in turns. The inputs of the
    /// model cannot be read through a broker: without the URL of its server they are read from the repository here, or
    /// given with --input.
    #[arg(long, help_heading = "Targets", conflicts_with = "in_process")]
    pub url: Vec<Url>,
    /// The box or the group of boxes behind the broker.
    #[arg(long, value_name = "NAME", help_heading = "Targets", requires = "url")]
    pub device: Option<DeviceName>,
    /// The QoS of messages to and from the broker: 0, at most once; 1, at least once; or 0,1 for both in turns.
    #[arg(long, value_name = "QOS,...", value_delimiter = ',', value_parser = parse_qos, default_value = "1",
        help_heading = "Targets")]
    pub qos: Vec<Qos>,
    /// Measure the broker without a box, too: each caller publishes the same messages to its own topic and receives
    /// them.
    #[arg(long, help_heading = "Targets", requires = "url")]
    pub echo: bool,
    /// Measure the serving core in this process only, without a server. As in the server, the model has a sandboxed
    /// process.
    #[arg(long, help_heading = "Targets", conflicts_with = "http")]
    pub in_process: bool,
    /// Measure over HTTP only, not in this process. With a broker, this process is never measured.
    #[arg(long, help_heading = "Targets")]
    pub http: bool,
    /// The process id of the running server, for its CPU time and memory. Not needed with a Unix socket.
    #[arg(long, value_name = "PID", help_heading = "Targets", requires = "url")]
    pub pid: Option<u32>,
    /// Closed loop: the number of callers. Each sends its next request after the answer [default: 1,2,4].
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = load::parse_concurrency, help_heading = "Load")]
    pub concurrency: Vec<usize>,
    /// Open loop: the number of requests a second, sent without waiting for answers. Latency is measured from the time
    /// at which a request was due.
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = load::parse_rate, help_heading = "Load")]
    pub rate: Vec<f64>,
    /// Space the requests of an open loop evenly [default: Poisson arrivals, as of independent callers].
    #[arg(long, help_heading = "Load")]
    pub constant: bool,
    /// The number of connections of an open loop, which is the most requests in flight at once.
    #[arg(long, value_name = "N", default_value_t = 64, help_heading = "Load",
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub connections: u16,
    /// The time of each load, for each target and round.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = load::parse_time, help_heading = "Load")]
    pub duration: Duration,
    /// The time of each load before it is measured.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = load::parse_time, help_heading = "Load")]
    pub warmup: Duration,
    /// The number of rounds. In each round the targets take turns, so that figures of the same minutes are compared.
    #[arg(long, value_name = "N", default_value_t = 3, help_heading = "Load",
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
    /// The file to send: a photograph, or the JSON of an inference request [default: random tensors].
    #[arg(long, visible_alias = "photo", value_name = "FILE", help_heading = "Requests")]
    pub input: Option<PathBuf>,
    /// The number of batch elements in each request.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Requests",
        value_parser = clap::value_parser!(u16).range(1..))]
    pub batch: u16,
    /// The shape of an input with variable dimensions, such as data:1,3,224,224. Can be repeated. A variable dimension
    /// that is not given is 1.
    #[arg(long, value_name = "INPUT:DIM,...", help_heading = "Requests")]
    pub shape: Vec<InputShape>,
    /// Make every request different, so that no cache answers. Without it, a few requests are sent in turns.
    #[arg(long, help_heading = "Requests")]
    pub unique: bool,
    /// Send tensors as JSON instead of binary.
    #[arg(long, help_heading = "Requests")]
    pub json_tensors: bool,
    /// Write JSON instead of a table.
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    #[command(flatten)]
    pub globals: GlobalArgs,
}

const EXAMPLES: &str = "\
Examples:
  ledge-bench efficientnet_lite0                             here and over HTTP, one to four callers
  ledge-bench efficientnet_lite0 --photo cat.jpg --rate 20,40,60
  ledge-bench efficientnet_lite0 --url http://127.0.0.1:8000 --http --unique
  ledge-bench efficientnet_lite0 --url mqtt://127.0.0.1 --device box --photo cat.jpg --concurrency 1,8
  ledge-bench wine_mlp --url http://127.0.0.1:8000 --url mqtt://127.0.0.1 --device box --qos 0,1 --echo";

fn main() -> ExitCode {
    cli::prepare_process();
    let out = &mut Output::stdout();
    let is_ledge =
        std::env::args_os().nth(1).is_some_and(|verb| verb == "serve") || InternalCli::of_process().is_some();
    let exit = if is_ledge { cli::run(out) } else { run(&BenchArgs::parse(), out) };
    exit.unwrap_or_else(|error| Exit::of(&error)).into()
}

impl BenchArgs {
    /// The loads of the arguments, or the default ones.
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
        _ => Err("expected 0 or 1; Ledge does not support QoS 2".to_owned()),
    }
}

/// Measures. It fails when a target answered nothing.
fn run(args: &BenchArgs, out: &mut Output) -> anyhow::Result<Exit> {
    let config = args.globals.load_config()?;
    // One thread, besides those of the callers. It drives the timers of the serving core, as the daemon's one thread
    // does.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(1)
        .max_blocking_threads(usable_cores() + 4)
        .build()?;
    let ended = measure::run(&runtime, &config, args, out);
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

/// Loads one model into a serving core over `repository`. Call [`unload`] at the end.
fn load(runtime: &Runtime, config: &Config, repository: PathBuf, subject: &Subject) -> anyhow::Result<Standalone> {
    let mut config = config.clone();
    config.repository.use_only(repository);
    // The events of a command are not recorded.
    let audit = AuditSink::to_nowhere();
    let serving = Standalone::new(&config, audit);
    runtime.block_on(serving.repository().load(&subject.model, &Principal::Local))?;
    Ok(serving)
}

fn unload(runtime: &Runtime, serving: &Serving) {
    runtime.block_on(serving.repository().unload_all(&Principal::Local));
}
