//! The command line: one file a verb. The doc comments of arguments are their help texts.

#![expect(clippy::doc_markdown, reason = "a help text has no backticks and no angle brackets")]

pub mod assets;
pub mod audit;
pub mod checks;
pub mod config;
pub mod doctor;
pub mod encryption;
pub mod features;
pub mod infer;
mod internal;
pub mod keys;
pub mod models;
pub mod mqtt;
mod output;
mod owner;
mod progress;
pub mod serve;
mod server;
mod stop_signals;
pub mod tls;
pub mod top;
pub mod tune;
pub mod update;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
pub use ledge_base::toml_check::BadConfiguration;
use ledge_base::{names, sys};
use ledge_features::registry::Registry;
use ledge_identity::sealing::MasterKeyError;
use ledge_service::off_thread::block_on;

use crate::config::{Config, LoadedConfig, Sources};
use crate::daemon::formats::LaterVersion;
pub use internal::InternalCli;
pub use output::Output;

/// Runs quantized models on a server without a GPU, and answers inference calls over local HTTP and MQTT.
///
/// Ledge loads the models of a model repository in ONNX Runtime or OpenVINO and serves them on 127.0.0.1:8000, with the
/// Open Inference Protocol of Triton and KServe. The input data never leaves the box.
#[derive(Debug, Parser)]
#[command(name = "ledge", version, after_help = EXAMPLES, after_long_help = EXAMPLES, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    pub globals: Globals,
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  ledge doctor                                  check this machine: what is missing, what to do
  ledge serve --root .ledge                     serve the models in .ledge/models
  ledge serve --set http.listen=127.0.0.1:9000  use another address, for this start only
  ledge infer efficientnet_lite0 coffee.png     run a model on a file, without a server
  ledge top                                     show the activity of a running server
  ledge models list                             list the models and their versions
  ledge models evaluate my_model photos/        measure the accuracy on photographs whose classes are known
  ledge features list                           list the feature views with their row counts
  ledge mqtt try cameras/door coffee.png        show what a message would cause
  ledge mqtt check                              check that the broker grants what Ledge needs
  ledge keys create till --role infer           create an API key for a caller
  ledge audit verify                            verify that the audit log is complete and unchanged
  ledge tls show                                show the certificate for https://
  ledge config show                             show the settings in effect and where they were set

Exit codes:
  0 done   1 failed   2 wrong usage   78 wrong configuration   130 interrupted
  also of `audit verify` and `audit check`: 3 something is missing   4 two histories of one log   5 tampered with";

/// The options of every verb.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Configuration")]
pub struct Globals {
    /// The folder of everything: ledge.toml, models, runtimes and the state of this box.
    ///
    /// Relative paths in the configuration are relative to it. Without --root and --config, the paths of the installed
    /// package are used: /etc/ledge/ledge.toml, /var/lib/ledge and /usr/lib/ledge/runtimes.
    #[arg(long, global = true, value_name = "DIR", env = "LEDGE_ROOT")]
    pub root: Option<PathBuf>,
    /// The configuration file [default: ledge.toml in the root, if it exists].
    ///
    /// Without --root, the folder of this file is the root.
    #[arg(long, global = true, value_name = "FILE", env = "LEDGE_CONFIG")]
    pub config: Option<PathBuf>,
    /// Set one key, which overrides the file and the environment. Can be repeated.
    ///
    /// The value is TOML; plain text needs no quotes: --set log.level=debug. LEDGE_LOG_LEVEL=debug in the environment
    /// does the same.
    #[arg(long, global = true, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the models of the repository over HTTP until stopped.
    ///
    /// Listens on 127.0.0.1:8000 and a Unix socket unless the configuration says otherwise. A model that does not load
    /// is listed with its reason, and the others serve. Ctrl-C or SIGTERM stops the server after it has answered the
    /// calls in flight; SIGHUP reloads the models.
    Serve(serve::ServeArgs),
    /// Run a model on files, here or at a running server.
    ///
    /// Loads the model from the repository and runs it in a sealed process, so no server is needed. With --url, a running
    /// server is asked instead. The model decides which files it takes: photographs (JPEG, PNG, WebP), or the JSON of
    /// an inference request.
    Infer(infer::InferArgs),
    /// Show the activity of a running server: requests, latencies, queues, the cache and the cores, refreshed each
    /// second.
    ///
    /// Latencies are estimated from the server's histograms, as in Prometheus.
    Top(top::TopArgs),
    /// List, show, check, compare and evaluate the models of the repository.
    Models(models::ModelsArgs),
    /// Use the feature store of a running server: read and push features, back it up, restore, export, import.
    Features(features::FeaturesArgs),
    /// Inspect MQTT on this box: list the bindings, try a message, check the broker.
    Mqtt(mqtt::MqttArgs),
    /// Show and control signed updates.
    Update(update::UpdateArgs),
    /// Read the audit log: show it, verify it, prove that a record is in it.
    Audit(audit::AuditArgs),
    /// Show the certificate that callers over https:// see.
    Tls(tls::TlsArgs),
    /// Create and change master keys, and show what is encrypted with which.
    Encryption(encryption::EncryptionArgs),
    /// Create, list and revoke API keys.
    ///
    /// A key admits its holder over HTTP and MQTT, with the roles and for the models it was created for. The server
    /// applies a change within a second.
    Keys(keys::KeysArgs),
    /// Measure how a model runs best on this machine, and store the result.
    ///
    /// Tries runtimes, threads, instances and batch sizes for a goal, and stores the best in `profiles` in the state
    /// folder, where the server reads it. A combination that fails the model's golden inputs is discarded.
    Tune(tune::TuneArgs),
    /// Check the configuration, or show the settings in effect.
    ///
    /// Settings come from four places, of which the later win: defaults, the file, the environment (LEDGE_HTTP_LISTEN),
    /// --set.
    Config(config::ConfigArgs),
    /// Report what this machine offers, what is missing and what to do about it.
    ///
    /// Checks the configuration, the CPU and the limits on it, memory, disk, the runtimes, TLS and the MQTT broker, and
    /// tries every model in each runtime. Nothing is changed. The exit code is 1 when something must be done before
    /// Ledge can work.
    Doctor(doctor::DoctorArgs),
}

/// Prepares this process, which must have only one thread yet.
pub fn prepare_process() {
    sys::switch_runtime_telemetry_off();
    sys::share_memory_arenas();
    sys::keep_files_private();
    sys::close_other_files_on_exec();
    // Before Linux 6.4 the kernel tells this only by a file, which a process that has closed its memory to others cannot open.
    // Read once, rustix keeps it; read too late, it panics.
    let _ = rustix::param::page_size();
}

/// Runs the command line of this process.
pub fn run(out: &mut Output) -> anyhow::Result<Exit> {
    ledge_isolation::spawner::end_with_spawner()?;
    match InternalCli::of_process() {
        Some(internal) => internal.run(out),
        None => Cli::parse().run(out),
    }
}

impl Cli {
    /// Runs the verb.
    pub fn run(self, out: &mut Output) -> anyhow::Result<Exit> {
        let globals = &self.globals;
        match self.command {
            Command::Serve(args) => serve::run(globals, &args, out),
            Command::Infer(args) => infer::run(globals, &args, out),
            Command::Top(args) => top::run(globals, &args, out),
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
        }
    }
}

impl Globals {
    /// The sources of the configuration.
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

    /// The configuration and the source of each setting, or its mistakes as a [`BadConfiguration`].
    pub fn load(&self) -> anyhow::Result<LoadedConfig> {
        Ok(self.sources().load().map_err(BadConfiguration)?)
    }

    /// The configuration for a verb that needs only `section`.
    pub fn load_section(&self, section: &str) -> anyhow::Result<Config> {
        Ok(self.sources().load_section(section).map_err(BadConfiguration)?)
    }

    /// The configuration, or its mistakes as a [`BadConfiguration`].
    pub fn load_config(&self) -> anyhow::Result<Config> {
        Ok(self.load()?.config)
    }
}

/// The feature views that a configuration declares, or their mistakes as a [`BadConfiguration`].
fn load_registry(config: &Config) -> Result<Registry, BadConfiguration> {
    Registry::load(&config.features.views, &config.features.path).map_err(BadConfiguration)
}

/// The outcome of the process, as its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Success,
    /// The verb failed, or something needs attention.
    Failure,
    /// A part of an audit log is missing.
    Gap,
    /// There are two histories of one audit log.
    Fork,
    /// An audit log differs from what was signed.
    Tampered,
    /// The configuration is wrong, or a later version wrote the stores. A restart does not help, so the unit has
    /// `RestartPreventExitStatus=78`.
    Configuration,
    /// A signal ended the verb before it was done, as 128 + SIGINT in a shell.
    Interrupted,
}

impl Exit {
    /// Reports on standard error why a verb failed, and returns the exit code for it.
    ///
    /// A reader that closed the pipe, such as `head`, has what it needs: that is a success, without a message.
    pub fn of(error: &anyhow::Error) -> Self {
        use std::io::Write as _;
        if output::is_output_closed(error) {
            return Self::Success;
        }
        // Standard error may be closed too; then the message is lost.
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
            Exit::Interrupted => Self::from(130),
        }
    }
}

#[cfg(test)]
mod tests;
