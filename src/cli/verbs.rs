//! The verbs, with their help texts.

use clap::{Parser, Subcommand};

use super::{
    GlobalArgs, accounts, audit, backup, capacity, config, doctor, encryption, features, health, infer, jobs, join,
    keys, login, models, mqtt, report, restore, serve, sizing, tls, top, tune, unusual, update, upgrade,
};

/// Runs quantized models on a server without a GPU, and answers inference calls over local HTTP and MQTT.
///
/// Ledge loads the models of a model repository in ONNX Runtime or OpenVINO and serves them on 127.0.0.1:8000, with the
/// Open Inference Protocol of Triton and KServe. The input data never leaves the box.
#[derive(Debug, Parser)]
#[command(name = "ledge", version, after_help = EXAMPLES, after_long_help = EXAMPLES, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    pub globals: GlobalArgs,
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
  ledge jobs add /srv/scans --model document_reader --window 22:00-06:00
  ledge capacity                                show how much more work the box can take
  ledge sizing --cameras 12 --documents 300/day tell which box a load needs
  ledge models list                             list the models and their versions
  ledge models evaluate my_model photos/        measure the accuracy on photographs whose classes are known
  ledge features list                           list the feature views with their row counts
  ledge mqtt try cameras/door coffee.png        show what a message would cause
  ledge mqtt check                              check that the broker grants what Ledge needs
  ledge keys create till --role infer           create an API key for a caller
  ledge join shop-7.join                        make this box a member of a platform
  ledge backup /mnt/nas/till-7.ledge            back up the whole box
  ledge audit verify                            verify that the audit log is complete and unchanged
  ledge report --month 2026-11 --out nov.html   write the report of a month, to print
  ledge tls show                                show the certificate for https://
  ledge config show                             show the settings in effect and where they were set

Exit codes:
  0 done   1 failed   2 wrong usage   78 wrong configuration   130 interrupted
  also of `audit verify`, `audit check` and `report`: 3 something is missing   4 two histories of one log   5 tampered with";

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
    /// Loads the model from the repository and runs it in a sandboxed process, so no server is needed. With --url, a
    /// running server is asked instead. The model decides which files it takes: photographs (JPEG, PNG, WebP), or the
    /// JSON of an inference request.
    Infer(infer::InferArgs),
    /// List the jobs of a running server, or add, fetch and remove them: files and tables that a model answers when there is
    /// time.
    ///
    /// A job runs in its window of the day, behind all callers, and goes on after a restart.
    Jobs(jobs::JobsArgs),
    /// Show the activity of a running server: requests, latencies, queues, the cache and the cores, refreshed each
    /// second.
    ///
    /// Latencies are estimated from the server's histograms, as in Prometheus.
    Top(top::TopArgs),
    /// Show what is unusual of the figures of a running server, or say that it was normal.
    Unusual(unusual::UnusualArgs),
    /// Show what callers used in a month: calls, CPU time, bytes, energy and cost, by model.
    Accounts(accounts::AccountsArgs),
    /// Show how much more work the box of a running server can take, and what runs out first.
    ///
    /// By the work of the last minutes: the CPU time that each call, document and camera picture took. Headroom is for more
    /// of one kind next to all other work as it is.
    Capacity(capacity::CapacityArgs),
    /// Tell which box a load needs, before there is one: by figures of a reference processor.
    Sizing(sizing::SizingArgs),
    /// List, show, check, compare and evaluate the models of the repository.
    Models(models::ModelsArgs),
    /// Use the feature store of a running server: read and push features, back it up, restore, export, import.
    Features(features::FeaturesArgs),
    /// Inspect MQTT on this box: list the bindings, try a message, check the broker.
    Mqtt(mqtt::MqttArgs),
    /// Show and control signed updates.
    Update(update::UpdateArgs),
    /// Install the package of Ledge that the platform ordered, and go back if it is not healthy.
    ///
    /// Run by ledge-upgrade.service as root, when the daemon has copied an order. Everything is verified again: the
    /// package must be signed by the platform's offline role, named by a rollout, and newer than the installed one. It
    /// stays when the service is ready, all models answer, and the audit log is whole; else the package before is
    /// installed again.
    Upgrade(upgrade::UpgradeArgs),
    /// Make this box a member of a platform, with a join file.
    ///
    /// Checks the join file and shows the fingerprint of the platform, which you compare with the one that the platform
    /// shows. Then the server makes its keys here, asks the platform for a certificate, and renews it by itself: the
    /// platform sends updates and receives reports and the audit log. Run it as root on an installed package.
    Join(join::JoinArgs),
    /// Back up this box, while the server works or is stopped: into one file, and its private keys into another.
    ///
    /// The backup has the settings, the models of the owner, the updates with their states, the feature store, the hashes
    /// of API keys, and the audit log. Compiled models are left out. Run it as root on an installed package.
    Backup(backup::BackupArgs),
    /// Restore a box from a backup, on the same or on another machine. The server must be stopped.
    ///
    /// The whole backup is checked before anything is changed. Without the file of private keys, the box has a new
    /// identity.
    Restore(restore::RestoreArgs),
    /// Read the audit log: show it, verify it, prove that a record is in it.
    Audit(audit::AuditArgs),
    /// Write the report of a month: what ran, who asked, what left the box, with its evidence in the audit log.
    ///
    /// The audit log of this box is verified while it is read, and each number names its records. Months are in UTC.
    Report(report::ReportArgs),
    /// Show the certificate that callers over https:// see.
    Tls(tls::TlsArgs),
    /// Create and change master keys, and show what is encrypted with which.
    Encryption(encryption::EncryptionArgs),
    /// Show a code with which a person signs in at the page of this box, in a browser.
    ///
    /// The code can be used once, within five minutes. Run it on the box as root, or as the user ledge.
    Login(login::LoginArgs),
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
    /// Check that a running server answers, or with --ready that its models serve.
    ///
    /// For the health check of a container, and for scripts that wait. The exit code is 1 when it does not.
    Health(health::HealthArgs),
    /// Report what this machine offers, what is missing and what to do about it.
    ///
    /// Checks the configuration, the CPU and the limits on it, memory, disk, the runtimes, TLS and the MQTT broker, and
    /// tries every model in each runtime. Nothing is changed. The exit code is 1 when something must be done before
    /// Ledge can work.
    Doctor(doctor::DoctorArgs),
}
