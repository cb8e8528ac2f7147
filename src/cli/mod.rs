//! The command line: one file a verb. The doc comments of arguments are their help texts.

#![expect(clippy::doc_markdown, reason = "a help text has no backticks and no angle brackets")]

pub mod assets;
pub mod audit;
pub mod bench;
pub mod checks;
pub mod config;
pub mod doctor;
pub mod encryption;
pub mod features;
pub mod infer;
pub mod keys;
pub mod models;
pub mod mqtt;
mod output;
pub mod serve;
mod server;
pub mod tls;
pub mod top;
pub mod tune;
pub mod update;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use ledge_base::names;
pub use ledge_base::toml_check::BadConfiguration;
use ledge_features::registry::Registry;
use ledge_identity::sealing::MasterKeyError;
use ledge_service::off_thread::block_on;

use crate::config::{Config, Loaded, Sources};
use crate::daemon::formats::LaterVersion;
pub use output::Output;

/// Runs quantized models on a box without a GPU, and answers over local HTTP.
///
/// Ledge loads the models of a model repository in ONNX Runtime or OpenVINO and serves them on 127.0.0.1:8000, with the
/// Open Inference Protocol that Triton and KServe speak. What is inferred on never leaves the box.
#[derive(Debug, Parser)]
#[command(name = "ledge", version, after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub struct Cli {
    /// What holds for every verb.
    #[command(flatten)]
    pub globals: Globals,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  ledge doctor                                  what is missing here, what to do
  ledge serve --root .ledge                     serve the models in .ledge/models
  ledge serve --set http.listen=127.0.0.1:9000  elsewhere, for once
  ledge infer efficientnet_lite0 coffee.png     ask a model, no server needed
  ledge top                                     what a running server does
  ledge bench efficientnet_lite0                how fast it answers, here and over HTTP
  ledge models list                             which there are, and which load
  ledge features list                           the feature views, and how many rows they have
  ledge mqtt try cameras/door coffee.png        what a message would lead to
  ledge mqtt check                              whether the broker grants what is needed
  ledge keys create till --role infer           an API key for a caller
  ledge audit verify                            whether the audit log is whole
  ledge tls show                                the certificate for https://
  ledge config show                             what is set, and where

Exit codes:
  0 done   1 failed   2 wrong usage   78 wrong configuration
  of `audit verify` and `audit check` also: 3 something is missing   4 two histories of one log   5 tampered with";

/// What holds for every verb.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Configuration")]
pub struct Globals {
    /// The folder that holds everything: ledge.toml, models, runtimes and what the box remembers.
    ///
    /// Relative paths in the configuration are relative to it. Without --root and --config, the places of the installed
    /// package are used: /etc/ledge/ledge.toml, /var/lib/ledge and /usr/lib/ledge/runtimes.
    #[arg(long, global = true, value_name = "DIR", env = "LEDGE_ROOT")]
    pub root: Option<PathBuf>,
    /// The configuration file [default: ledge.toml in the root, if there is one].
    ///
    /// Without --root, the folder of this file is the root.
    #[arg(long, global = true, value_name = "FILE", env = "LEDGE_CONFIG")]
    pub config: Option<PathBuf>,
    /// Sets one key, whatever the file and the environment say. Can be repeated.
    ///
    /// The value is TOML; a plain text needs no quotes: --set log.level=debug. LEDGE_LOG_LEVEL=debug in the environment does
    /// the same.
    #[arg(long, global = true, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the models of the repository over HTTP until told to stop.
    ///
    /// Listens on 127.0.0.1:8000 and a Unix socket unless the configuration says otherwise. Models that do not load are
    /// listed with their reason, and the others serve. Ctrl-C or SIGTERM stops it after the calls in flight; SIGHUP loads
    /// models anew.
    Serve(serve::ServeArgs),
    /// Ask a model about files, here or at a running server.
    ///
    /// Loads the model of the repository and runs it in this process, so no server is needed; with --url it asks one. What
    /// a file may be depends on the model: a photograph (JPEG, PNG, WebP), or the JSON of an inference request.
    Infer(infer::InferArgs),
    /// Watch what a running server does: requests, latencies, queues, the cache and the cores, refreshed each second.
    ///
    /// Latencies are estimated from the server's histograms, as Prometheus does it.
    Top(top::TopArgs),
    /// Measure how fast a model answers, here and over HTTP, or how right it is.
    ///
    /// Asks it in this process and over HTTP by turns, in one run, under the loads given, and writes latencies, answers a
    /// second, CPU time and memory. Without --url it starts a server of its own on a free port, with this model alone, and
    /// stops it at the end. With --images it counts right answers instead, or compares two models, versions or runtimes.
    Bench(Box<bench::BenchArgs>),
    /// Look at the models of the repository.
    Models(models::ModelsArgs),
    /// Look at the feature store of a running server: read and push features, back it up, restore, export, import.
    Features(features::FeaturesArgs),
    /// Look at what this box does over MQTT: its bindings, a message tried out, the broker.
    Mqtt(mqtt::MqttArgs),
    /// Look at signed updates.
    Update(update::UpdateArgs),
    /// Look at the audit log: show it, verify it, prove a record of it.
    Audit(audit::AuditArgs),
    /// Look at the certificate that callers over https:// see.
    Tls(tls::TlsArgs),
    /// Make master keys, change them, and say what is sealed under which.
    Encryption(encryption::EncryptionArgs),
    /// Make, list and revoke API keys.
    ///
    /// A key lets its holder in over HTTP and MQTT, with the roles and for the models that it is made for. The server takes
    /// up a change within a second.
    Keys(keys::KeysArgs),
    /// Measure how a model runs best on this machine, and remember it.
    ///
    /// Tries runtimes, threads, instances and batch sizes for a goal, and keeps the best in `profiles` in the state folder,
    /// where the server looks. A way that fails the model's golden inputs is out.
    Tune(tune::TuneArgs),
    /// Check the configuration, or show what is in effect.
    ///
    /// It comes from four places, of which the later win: defaults, the file, the environment (LEDGE_HTTP_LISTEN), --set.
    Config(config::ConfigArgs),
    /// Say what this machine offers, what is missing and what to do about it.
    ///
    /// Looks at the configuration, the CPU and the limits on it, memory, disk, the runtimes, TLS and the MQTT broker, and tries
    /// every model in each runtime. Nothing is changed. The exit code is 1 when something must be done before Ledge can work.
    Doctor(doctor::DoctorArgs),
    /// Write the manual pages and the shell completions of this program, for a package of it.
    #[command(hide = true)]
    GenerateAssets(assets::AssetsArgs),
}

impl Cli {
    /// Does what was asked for.
    pub fn run(self, out: &mut Output) -> anyhow::Result<Exit> {
        let globals = &self.globals;
        match self.command {
            Command::Serve(args) => serve::run(globals, &args, out),
            Command::Infer(args) => infer::run(globals, &args, out),
            Command::Top(args) => top::run(globals, &args, out),
            Command::Bench(args) => bench::run(globals, &args, out),
            Command::Models(args) => models::run(globals, &args, out),
            Command::Features(args) => features::run(globals, &args, out),
            Command::Mqtt(args) => mqtt::run(globals, &args, out),
            Command::Update(args) => update::run(globals, &args, out),
            Command::Audit(args) => audit::run(globals, &args, out),
            Command::Tls(args) => tls::run(globals, &args, out),
            Command::Encryption(args) => encryption::run(globals, &args, out),
            Command::Keys(args) => keys::run(globals, &args, out),
            Command::Tune(args) => tune::run(globals, &args, out),
            Command::Config(args) => config::run(globals, &args, out),
            Command::Doctor(args) => doctor::run(globals, &args, out),
            Command::GenerateAssets(args) => assets::run(&args, out),
        }
    }
}

impl Globals {
    /// Where the configuration is read from.
    pub fn sources(&self) -> Sources {
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, _)| names::is_setting(name))
            .map(|(name, value)| (name, value.to_string_lossy().into_owned()));
        Sources {
            root: self.root.clone(),
            file: self.config.clone(),
            environment: environment.collect(),
            set: self.set.clone(),
        }
    }

    /// The configuration and where it came from; every mistake in it is a [`BadConfiguration`].
    pub fn load(&self) -> anyhow::Result<Loaded> {
        Ok(self.sources().load().map_err(BadConfiguration)?)
    }

    /// The configuration for a verb that needs `section` alone.
    pub fn load_section(&self, section: &str) -> anyhow::Result<Config> {
        Ok(self.sources().load_section(section).map_err(BadConfiguration)?)
    }

    /// The configuration; every mistake in it is a [`BadConfiguration`].
    pub fn load_config(&self) -> anyhow::Result<Config> {
        Ok(self.load()?.config)
    }
}

/// The feature views that a configuration leads to; every mistake in them is a [`BadConfiguration`].
fn load_registry(config: &Config) -> Result<Registry, BadConfiguration> {
    Registry::load(&config.features.views, &config.features.path).map_err(BadConfiguration)
}

/// How the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Success,
    /// Not done, or something needs attention.
    Failure,
    /// Something of an audit log is missing.
    Gap,
    /// There are two histories of one audit log.
    Fork,
    /// What is in an audit log is not what was signed.
    Tampered,
    /// The configuration is wrong, or a later version wrote the stores; systemd need not try again (`RestartPreventExitStatus=78`).
    Configuration,
}

impl Exit {
    /// Says on standard error why a verb failed, and how the process ends for it.
    ///
    /// A reader that closed the pipe, as `head` does, has what it wanted: that is said to nobody.
    pub fn of(error: &anyhow::Error) -> Self {
        use std::io::Write as _;
        if output::is_closed(error) {
            return Self::Success;
        }
        // Standard error may be closed too, and then there is nobody left to tell.
        let _ = writeln!(std::io::stderr(), "ledge: {error:#}");
        let is_configuration =
            error.is::<BadConfiguration>() || error.is::<LaterVersion>() || error.is::<MasterKeyError>();
        if is_configuration { Self::Configuration } else { Self::Failure }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Success => Self::SUCCESS,
            Exit::Failure => Self::from(1),
            Exit::Gap => Self::from(3),
            Exit::Fork => Self::from(4),
            Exit::Tampered => Self::from(5),
            // EX_CONFIG of sysexits.h.
            Exit::Configuration => Self::from(78),
        }
    }
}

#[cfg(test)]
mod tests;
