//! The composition root: builds every part, spawns it, waits for a signal, drains. The only file that sees every
//! part.
//!
//! Files of `daemon/`, in reading order:
//! * `formats.rs` - the form of each store, so that an older version refuses the files of a newer one
//! * `configuration_change.rs` - the keys of the settings that differ from those of the last start
//! * `audit.rs` - the audit log as a part of the daemon: its writer and its copies
//! * `updates.rs` - updates as a part of the daemon: boot before any model loads, then a separate thread
//! * `cameras.rs` - cameras as a part of the daemon, connected to MQTT
//! * `findings.rs` - findings about this box, as the daemon itself sees it
//! * `console.rs`, `alerts.rs` - the console and alerts as parts of the daemon, connected to the findings about this
//!   box, and alerts to MQTT
//! * `unusual.rs` - what is unusual of the figures, published over MQTT
//! * `report.rs` - the report of a month as a part of the daemon, connected to the configuration
//! * `daily.rs` - the traffic that left the box, recorded once a day, and the end of data by `[retention]`
//! * `capacity.rs` - capacity as a part of the daemon, connected to the models, the cameras and the disks
//! * `inboxes.rs` - inboxes as a part of the daemon, connected to MQTT
//! * `messaging.rs` - MQTT as a part of the daemon: the gateway, and the report that it passes on
//! * `own_sandbox.rs` - the sandbox of the daemon itself, and the starter of other processes
//! * `rekey.rs` - encryption of every store again, at a start and after a SIGHUP with another key
//! * `serving_core.rs` - the models of the repository, and the engine that runs them
//! * `standalone.rs` - a serving core without a daemon, for commands
//! * `health.rs` - signs of life of every part, for systemd's watchdog and `systemctl status`
//! * `notify.rs` - messages to systemd
//!
//! Invariants:
//! * No part knows another part that it does not use. This file and `daemon/` introduce them to each other, and hold
//!   no logic of a part.
//! * A sign of life goes to the watchdog only after one of every part. A part that waits for others longer than
//!   `WatchdogSec` is not among them.
//! * The updater reads its state before any model loads, and before anything on trial could stop the start.
//! * The writer of the audit log ends last. A model is torn down before the process ends.

mod alerts;
mod audit;
mod cameras;
mod capacity;
mod configuration_change;
mod console;
mod daily;
mod findings;
pub mod formats;
mod health;
mod inboxes;
mod messaging;
mod notify;
pub mod own_sandbox;
mod rekey;
mod report;
mod serving_core;
mod standalone;
mod unusual;
mod updates;

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use ledge_accounts::Accounts;
use ledge_audit::part::AuditPart;
use ledge_audit::status::AuditState;
use ledge_base::principal::Principal;
use ledge_base::telemetry::messages::MqttStatistics;
use ledge_base::telemetry::process;
use ledge_base::telemetry::system::{MachineMemory, StoreFolder};
use ledge_base::{checked_folder, durable, sys};
use ledge_cameras::cameras::Cameras;
use ledge_drift::Drift;
use ledge_egress::{Egress, EgressCountsKeeper};
use ledge_engine::backend::Runtime;
use ledge_features::FeatureStore;
use ledge_features::config::FeaturesConfig;
use ledge_features::registry::Registry;
use ledge_grpc::part::GrpcPart;
use ledge_history::{History, HistoryPart};
use ledge_http as http;
use ledge_identity::authentication::Authenticator;
use ledge_identity::device;
use ledge_identity::sealing::{Sealer, memory_folder, remove_leftovers};
use ledge_isolation::ChildSettings;
use ledge_jobs::part::JobsPart;
use ledge_listener::{ConnectionLimits, Handover, Listeners, ServerTls};
use ledge_membership::config::MembershipConfig;
use ledge_membership::part::MembershipPart;
use ledge_models::repository::load_records::file::LoadRecordFile;
use ledge_models::repository::{Refresh, Repository};
use ledge_models::scheduling::inline;
use ledge_models::serving::Serving;
use ledge_mqtt::bindings;
use ledge_mqtt::part::MqttPart;
use ledge_mqtt::publisher::Publisher;
use ledge_part::{PartEnvironment, Subsystem};
use ledge_service::audit_event::sink::AuditMark;
use ledge_service::audit_event::{AuditEvent, AuditQueue, AuditSink};
use ledge_service::readiness::{Readiness, ReadinessLatch};
use ledge_service::shutdown::Shutdown;
use ledge_updates::report::{CertificateReader, CertificateValidity};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::Config;
use crate::findings::FULL_DISK_BYTES;
use audit::AuditWriterThread;
pub use audit::record_without_daemon;
use configuration_change::ConfigurationChanges;
use health::DaemonHealth;
use messaging::Messaging;
use own_sandbox::DaemonSandbox;
use serving_core::{instances_folder, runtimes, serving};
pub use standalone::Standalone;

/// The most open files besides connections: those of the stores, of models while they load, of logs.
const OTHER_OPEN_FILES_MAX: u64 = 512;

/// Runs the daemon with the feature views of `registry` until it is asked to stop. It listens on the sockets of
/// `handover`, or on new ones. An error is the reason why it could not start or had to stop.
pub fn run(
    config: Config,
    registry: Registry,
    handover: &Handover,
    sandbox: &DaemonSandbox,
) -> anyhow::Result<DaemonEnd> {
    let (limit, needed) = (process::raise_open_files(), config.http.open_files_max() + OTHER_OPEN_FILES_MAX);
    if limit < needed {
        tracing::warn!(
            most = limit,
            needed,
            "the limit of open files is lower than http.max_connections can need: raise LimitNOFILE= in the systemd \
             unit, or lower http.max_connections"
        );
    }
    if let Some(bytes) = MachineMemory::limit_of_process() {
        process::bound_memory(bytes);
    }

    let mut builder = match config.control.threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder
        .enable_all()
        .worker_threads(config.control.threads)
        // For reading files and decompressing bodies. These threads end after ten idle seconds.
        .max_blocking_threads(process::usable_cores() + 4)
        .on_thread_park(inline::thread_sleeps)
        .thread_name("control");
    let runtime = builder.build().context("the async runtime cannot be started")?;

    // Behind a pointer, as in `block_on`: it is large, and tokio compiles it for each kind of runtime.
    let serving: Pin<Box<dyn Future<Output = _>>> = Box::pin(serve(config, registry, handover, sandbox));
    let ended = runtime.block_on(serving);
    // A body that is still being decompressed, or a file system that hangs, must not delay the end.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

async fn serve(
    config: Config,
    registry: Registry,
    handover: &Handover,
    sandbox: &DaemonSandbox,
) -> anyhow::Result<DaemonEnd> {
    let shutdown = Shutdown::default();
    let grace = config.shutdown.grace();
    // Signals first, so that one that arrives while models load stops the daemon in order.
    let mut signals = DaemonSignals::listen()?;
    let app = DaemonApp::build(config, registry, handover, sandbox, &shutdown).await?;
    sandbox.watch(&shutdown);
    let (audit, repository) = (app.environment.audit.clone(), app.serving.repository().clone());
    let (features, counts) = (app.serving.features().clone(), app.counts.clone());
    // The audit writer is not among the other tasks: it writes the events that they record until they end.
    let (audit_writer, health) = app.spawn()?;
    let run = async move {
        let mut is_stop = tokio::select! {
            () = signals.received() => true,
            () = shutdown.requested() => false,
        };
        if shutdown.is_restart() && !is_stop {
            notify::reloading();
        } else {
            notify::stopping(grace + 2 * CLOSING_STEP_TIMEOUT + FEATURES_CLOSE_TIME_MAX + AUDIT_WRITE_TIMEOUT);
        }

        let drained = shutdown.drain(grace).await;
        let _ = tokio::time::timeout(CLOSING_STEP_TIMEOUT, repository.unload_all(&Principal::Local)).await;
        // After the calls in flight, so that their pushes are written.
        let _ = tokio::task::spawn_blocking(move || features.close()).await;
        // Last of the counts: nothing is sent from the box any more.
        let _ = tokio::time::timeout(CLOSING_STEP_TIMEOUT, tokio::task::spawn_blocking(move || counts.write())).await;

        audit.record_own(AuditEvent::Stopped);
        audit.close();
        drop((audit, repository));
        audit_writer.end(AUDIT_WRITE_TIMEOUT).await;
        if !drained {
            tracing::warn!(
                grace_ms = grace.as_millis(),
                "some requests were still running at the end of the grace period (shutdown.grace_ms) and were cut off"
            );
        }

        if shutdown.is_restart() && !is_stop {
            // A stop signal from here on ends the process at once. One that arrived before is read below. None is lost.
            sys::reset_signals();
            is_stop = tokio::time::timeout(SIGNAL_DELIVERY_TIMEOUT, signals.received()).await.is_ok();
        }
        match shutdown.failure() {
            Some(reason) => anyhow::bail!("{reason}"),
            None if shutdown.is_restart() && !is_stop => Ok(DaemonEnd::ToRestart),
            None => Ok(DaemonEnd::Stopped),
        }
    };
    // Health is reported until the end of this process, also while the last calls are answered before a restart.
    tokio::select! {
        ended = run => ended,
        never = health.report() => match never {},
    }
}

/// The way in which the daemon ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DaemonEnd {
    /// It was asked to stop.
    Stopped,
    /// It must start again, to apply settings that are read only at a start.
    ToRestart,
}

/// The longest time from the handler of a signal to the task that waits for it: one turn of the runtime.
const SIGNAL_DELIVERY_TIMEOUT: Duration = Duration::from_millis(10);

/// The longest time for each of two last steps: unloading the models, and writing the counts of egress.
const CLOSING_STEP_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest time that the feature store takes to close.
const FEATURES_CLOSE_TIME_MAX: Duration = Duration::from_secs(8);

/// The longest time for writing the last audit records: a disk can be blocked for a while.
const AUDIT_WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The daemon, built and bound to its sockets, not yet serving.
struct DaemonApp {
    config: Config,
    changes: ConfigurationChanges,
    /// The position before the first event of this start.
    audit_mark: AuditMark,
    audit_queue: AuditQueue,
    serving: Serving,
    authenticator: Authenticator,
    listeners: Listeners,
    tls: Option<ServerTls>,
    counts: EgressCountsKeeper,
    updates: updates::PreparedUpdates,
    sandbox: DaemonSandbox,
    children: ChildSettings,
    environment: PartEnvironment,
}

impl DaemonApp {
    async fn build(
        config: Config,
        registry: Registry,
        handover: &Handover,
        sandbox: &DaemonSandbox,
        shutdown: &Shutdown,
    ) -> anyhow::Result<Self> {
        let device = device::load_or_create(&config.state.path, &config.device)?;
        // Must come before any store is opened.
        formats::claim(&config.state.path)?;
        tracing::info!(
            name: "daemon.started",
            version = env!("CARGO_PKG_VERSION"),
            device = %device.id,
            "ledge starts"
        );
        let sealer = Sealer::load(&config.encryption)?;
        for file in config.encryption.exposed() {
            tracing::warn!(
                %file,
                "other users than the owner may read the file of a master key: chmod it to 600, and chown it to the \
                 user of the service"
            );
        }
        remove_leftovers();
        let endpoints = config.http.endpoints().into_iter().chain(config.grpc.endpoints()).collect();
        let listeners = Listeners::bind(endpoints, config.http.socket_mode, handover).await?;
        let (audit, audit_queue) = AuditSink::with_policy(config.audit.policy());
        let tls = ServerTls::open(config.tls_source(), config.http.max_connections, audit.clone());

        let audit_mark = audit.mark();
        audit.record_own(AuditEvent::Started { version: env!("CARGO_PKG_VERSION").into() });
        let changes = ConfigurationChanges::find(&config, &config.audit.path);
        if !changes.keys.is_empty() {
            audit.record_own(AuditEvent::ConfigurationChanged { keys: changes.keys.clone() });
        }

        for plain in &config.http.local_plain {
            audit.record_own(AuditEvent::ListensUnencrypted {
                address: plain.listen.to_string(),
                networks: plain.peers.iter().map(ToString::to_string).collect(),
            });
        }

        // Settings and runtimes are read before this start is counted, since counting may end their trial. This start
        // uses the values from before.
        let runtimes = runtimes(&config);
        // Must come before anything that settings or libraries on trial could crash, so that a start that they crash is
        // counted.
        let updates = updates::PreparedUpdates::read(&config, &sealer);
        for runtime in Runtime::ALL {
            match runtimes.library(runtime) {
                Ok(library) => tracing::info!(%runtime, library = %library.display(), "runtime found"),
                Err(reason) => {
                    tracing::warn!(%runtime, reason, "runtime not available; models that need it will not load");
                }
            }
        }

        let cache = &config.runtimes.cache;
        match std::fs::create_dir_all(cache) {
            // It is created with the first model that is compiled later.
            Err(error) if durable::is_unwritable(&error) => {
                tracing::warn!(cache = %cache.display(), %error, "the cache folder cannot be created (runtimes.cache)");
            }
            created => created
                .with_context(|| format!("the cache folder {} cannot be created (runtimes.cache)", cache.display()))?,
        }
        if let views @ 1.. = registry.undeclared() {
            tracing::warn!(
                views,
                "some feature views are no longer declared in features.views; their rows are kept until they expire"
            );
        }

        let features = FeatureStore::open(&config.features, registry, audit.clone(), sealer.clone());
        let children = child_settings(&config, sandbox);
        if let Err(error) = checked_folder::close_to_others(cache)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(cache = %cache.display(), %error, "others may read compiled models (runtimes.cache)");
        }
        let serving =
            serving(&config, runtimes, features, audit.clone(), sealer.clone(), Some(cache.clone()), children.clone());
        let egress = Egress::new(&config.egress, audit.clone());
        let counts = EgressCountsKeeper::open(&config.state.path, egress.clone());
        let authenticator = Authenticator::open(&config.access, &config.state.path, audit.clone());

        updates.manage(serving.repository());
        serving.repository().record_loads(LoadRecordFile::open(&config.state.path));

        let environment = PartEnvironment {
            state: config.state.path.clone(),
            device,
            sealer,
            egress,
            audit,
            readiness: Arc::default(),
            shutdown: shutdown.clone(),
        };
        Ok(Self {
            config,
            changes,
            audit_mark,
            audit_queue,
            serving,
            authenticator,
            listeners,
            tls,
            counts,
            updates,
            sandbox: sandbox.clone(),
            children,
            environment,
        })
    }

    /// Every part of the daemon, in the order in which parts build on others.
    fn parts(
        &self,
        audit: &AuditState,
        messages: Option<&MqttStatistics>,
        cameras: &Cameras,
        routers: &findings::OwnRouters,
        publisher: &Publisher,
        history: &History,
    ) -> anyhow::Result<Vec<Arc<dyn Subsystem>>> {
        let PartEnvironment { egress, audit: sink, sealer, .. } = &self.environment;
        let audit = AuditPart::new(&self.config.audit.path, audit.clone(), sink.clone(), sealer.clone());
        let mut parts: Vec<Arc<dyn Subsystem>> = vec![
            Arc::new(self.authenticator.clone()),
            Arc::new(egress.clone()),
            Arc::new(MqttPart { statistics: messages.cloned() }),
            Arc::new(cameras.clone()),
            Arc::new(self.serving.features().clone()),
            Arc::new(self.updates.part(&self.config.updates.path)),
            Arc::new(updates::catalogue(
                &self.config,
                self.serving.repository(),
                &self.authenticator,
                &self.environment,
            )),
            Arc::new(audit),
            Arc::new(self.serving.clone()),
            Arc::new(capacity::capacity(&self.config, &self.serving, cameras)),
        ];
        if !self.config.grpc.listen.is_empty() {
            let (readiness, shutdown) = (self.environment.readiness.clone(), self.environment.shutdown.clone());
            parts.push(Arc::new(GrpcPart { serving: self.serving.clone(), readiness, shutdown }));
        }
        parts.extend(self.tls.clone().map(|tls| Arc::new(tls) as Arc<dyn Subsystem>));
        let (config, repository) = (&self.config, self.serving.repository());
        parts.push(Arc::new(inboxes::inboxes(config, &self.environment, &self.serving, publisher)?));
        let kept = Duration::from_hours(24 * config.retention.jobs_days);
        let jobs = JobsPart::open(&config.jobs, &self.environment, &self.serving, config.http.max_body_bytes, kept);
        parts.extend(jobs.map(|jobs| Arc::new(jobs) as Arc<dyn Subsystem>));
        let drift = self.drift();
        parts.extend(drift.clone().map(|drift| Arc::new(drift) as Arc<dyn Subsystem>));
        let findings =
            findings::source(config, repository, cameras, messages, routers, (&self.sandbox, history, drift));
        let hints = self.updates.handle().map(|updates| updates.hints()).unwrap_or_default();
        let membership = MembershipPart::open(&config.membership, &config.audit.path, findings.clone(), hints);
        parts.extend(membership.map(|part| Arc::new(part) as Arc<dyn Subsystem>));
        parts.push(Arc::new(alerts::alerts(config, &self.environment, findings.clone(), publisher)));
        let accounts =
            Accounts::open(&config.accounts, &config.budget, &config.objective, &self.environment, &self.serving);
        self.serving.usage().give_to(accounts.iter().map(Accounts::sink).collect());
        parts.extend(accounts.map(|accounts| Arc::new(accounts) as Arc<dyn Subsystem>));
        let console = console::console(config, &self.environment, &self.serving, &self.authenticator, findings);
        parts.extend(console.map(|console| Arc::new(console) as Arc<dyn Subsystem>));
        parts.push(Arc::new(HistoryPart::new(
            history.clone(),
            config.history.clone(),
            self.serving.clone(),
            self.authenticator.clone(),
            &self.environment,
        )));
        parts.push(Arc::new(report::report(config)));
        for (name, section) in self.config.sections() {
            let opened = section.open(&self.environment);
            parts.extend(opened.map_err(|error| anyhow::anyhow!("{name}: {error}"))?);
        }
        Ok(parts)
    }

    /// The watch on what models get and give, where the configuration has not turned it off.
    fn drift(&self) -> Option<Drift> {
        let (config, PartEnvironment { state, audit, .. }) = (&self.config.drift, &self.environment);
        let drift = config.enabled.then(|| Drift::open(config, state, self.serving.repository(), audit))?;
        self.serving.observe_calls_by(Arc::new(drift.clone()));
        Some(drift)
    }

    fn spawn(self) -> anyhow::Result<(AuditWriterThread, DaemonHealth)> {
        let messages = self.config.mqtt.broker.is_some().then(MqttStatistics::default);
        let audit_state = AuditState::default();
        let publisher = Publisher::default();
        let watched = cameras::WatchedCameras::new(&self.config, &self.environment, &self.serving, &publisher);
        let own_routers = findings::OwnRouters::default();
        let history = History::open(&self.config.history);
        let parts =
            self.parts(&audit_state, messages.as_ref(), &watched.cameras, &own_routers, &publisher, &history)?;
        let Self { config, changes, audit_mark, audit_queue, serving, authenticator, .. } = self;
        let Self { listeners, tls, counts, updates, children, environment, .. } = self;
        let PartEnvironment { device, sealer, egress, audit, readiness, shutdown, .. } = &environment;

        listeners.announce();
        unusual::spawn(&config, &environment, &history, &publisher);
        let daily = daily::DailyTask::new(&config, &counts, serving.features(), history, audit);
        shutdown.spawn(daily.run(shutdown.clone()));
        shutdown.spawn(counts.run(shutdown.clone()));
        let memory = serving.memory().clone();
        std::thread::Builder::new().name("memory".to_owned()).spawn(move || memory.return_released())?;
        let models_loaded = readiness.latch();
        let models_listed = Arc::<Readiness>::default();
        let model_latches = ModelLatches { listed: models_listed.latch(), loaded: models_loaded };
        let audit_writer = AuditWriterThread::spawn(&config.audit, audit_queue, audit_state.clone(), &environment)?;
        let rekeying = rekey::RekeyTask {
            config: config.encryption.clone(),
            sealer: sealer.clone(),
            stores: parts.iter().rev().filter_map(|part| part.encrypted_store()).collect(),
            updates: config.updates.path.clone(),
            cache: config.runtimes.cache.clone(),
            audit: audit.clone(),
            is_key_change_recorded: AtomicBool::default(),
        };
        rekeying.spawn(readiness, shutdown)?;
        for part in &parts {
            part.spawn(&environment).map_err(|error| anyhow::anyhow!("{}: {error}", part.name()))?;
        }

        let app = http::App::new(http::AppParts {
            serving: serving.clone(),
            authenticator: authenticator.clone(),
            readiness: readiness.clone(),
            audit: audit_state.clone(),
            all: parts.clone(),
            config: config.http.clone(),
            vision: config.vision.clone(),
            openai: config.openai.clone(),
            documents: config.documents.clone(),
            stores: stores(&config),
            shutdown: shutdown.clone(),
        });
        let routers = http::Routers::new(&app);
        let (idle, write) = (config.http.header_timeout(), config.http.write_timeout());
        let services = [http::service(&routers, &config.http), ledge_grpc::service(routers.grpc(), idle, write)];
        let limits = ConnectionLimits { max_connections: config.http.max_connections, write_timeout: write };
        listeners.serve(&services, limits, tls.as_ref(), readiness, shutdown);
        own_routers.keep(routers, shutdown);

        let handle = updates.handle();
        updates.spawn(&config, serving.repository(), &environment, children);
        let listeners = watched.spawn(readiness, shutdown);
        if let Some(statistics) = messages {
            let messaging = Messaging {
                config: config.mqtt.clone(),
                device: device.clone(),
                egress: egress.clone(),
                serving: serving.clone(),
                authenticator,
                statistics,
                publisher,
                listeners,
                updates: handle,
                audit: audit_state,
                state: config.state.path.clone(),
                certificate: certificate_reader(&config.membership),
                former: changes.former_bindings(),
            };
            messaging.spawn(&models_listed, readiness, shutdown);
        }

        let repository = serving.repository().clone();
        shutdown.spawn({
            let (repository, ready, stop) = (repository.clone(), readiness.clone(), shutdown.clone());
            async move {
                let retries = async {
                    ready.wait().await;
                    repository.retry_failed().await;
                };
                tokio::select! {
                    () = retries => {}
                    () = stop.requested() => {}
                }
            }
        });
        let hangup = signal(SignalKind::hangup()).context("the handler of SIGHUP cannot be installed")?;
        shutdown.spawn_essential("model repository", {
            let shutdown = shutdown.clone();
            async move { run_model_repository(&serving, &config, model_latches, hangup, &shutdown).await }
        });

        notify_when_ready(readiness, shutdown);
        shutdown.spawn(store_recorded_settings(changes, audit.clone(), audit_mark));
        let health = DaemonHealth { parts, repository, readiness: readiness.clone(), shutdown: shutdown.clone() };
        Ok((audit_writer, health))
    }
}

/// Tells systemd and the log when the box is ready.
fn notify_when_ready(readiness: &Arc<Readiness>, shutdown: &Shutdown) {
    let (waiting, ready) = (shutdown.clone(), readiness.clone());
    shutdown.spawn(async move {
        tokio::select! {
            () = ready.wait() => {
                tracing::info!(name: "daemon.ready", "ready");
                notify::ready();
            }
            () = waiting.requested() => {}
        }
    });
}

/// Reads the validity of the certificate of the membership, for the report.
fn certificate_reader(config: &MembershipConfig) -> CertificateReader {
    let folder = config.folder().ok();
    Arc::new(move || {
        let facts = folder.as_ref()?.certificate_facts()?;
        Some(CertificateValidity { from_ms: facts.not_before_ms, until_ms: facts.not_after_ms })
    })
}

/// The folders of the stores, and the space that each leaves free.
fn stores(config: &Config) -> Vec<StoreFolder> {
    let store = |store, folder: &Path, reserve_bytes| StoreFolder { store, folder: folder.to_owned(), reserve_bytes };
    vec![
        store("state", &config.state.path, FULL_DISK_BYTES),
        store("audit", &config.audit.path, config.audit.min_free_mb << 20),
        store("features", &config.features.path, config.features.min_free_mb << 20),
        store("updates", &config.updates.path, config.updates.min_free_mb << 20),
        store("jobs", &config.jobs.path, config.jobs.min_free_mb << 20),
    ]
}

/// Stores the settings of this start once the audit log has recorded their changes.
async fn store_recorded_settings(changes: ConfigurationChanges, audit: AuditSink, mark: AuditMark) {
    // Changes that are not recorded yet are recorded by the next start.
    if audit.durable_since(mark).await
        && let Err(error) = changes.store()
    {
        tracing::warn!(
            %error,
            "the settings of this start cannot be stored: the next start will record them as changed again"
        );
    }
}

/// The settings of the processes of models.
fn child_settings(config: &Config, sandbox: &DaemonSandbox) -> ChildSettings {
    let folder = instances_folder(&config.runtimes.cache);
    let memory_folder =
        memory_folder().map(|place| place.join(format!("ledge-models-{}", rustix::process::geteuid().as_raw())));
    std::iter::once(&folder).chain(&memory_folder).for_each(|folder| ledge_isolation::remove_leftovers(folder));
    ChildSettings {
        starter: sandbox.starter(),
        folder,
        memory_folder,
        content_bytes: config.http.counted_memory_bytes(),
        // As the daemon itself, which has limited its memory by now.
        memory_bytes: rustix::process::getrlimit(rustix::process::Resource::Data).current,
        is_yielding: false,
        is_trial: false,
    }
}

/// Held while the models are being found and loaded.
struct ModelLatches {
    /// Until every model is known by its name.
    listed: ReadinessLatch,
    loaded: ReadinessLatch,
}

/// Loads every model; then, at each SIGHUP, the changed feature views and models. No load holds up the end of the
/// start, or the next SIGHUP.
async fn run_model_repository(
    serving: &Serving,
    config: &Config,
    latches: ModelLatches,
    mut hangup: tokio::signal::unix::Signal,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let ModelLatches { listed, loaded } = latches;
    let (mut listed, mut loaded) = (Some(listed), Some(loaded));
    // True once the first reading has settled.
    let has_started = AtomicBool::new(false);
    let mut loading = FuturesUnordered::<BoxFuture<'_, ()>>::new();
    loading.push(Box::pin(keep_cache_small(serving.repository())));
    loop {
        let is_reload = has_started.load(Ordering::Relaxed);
        match serving.repository().begin_refresh(&Principal::Local) {
            Ok(Refresh { loads, settled }) => {
                drop(listed.take());
                loading.push(Box::pin(async {
                    loads.await;
                    serving.warn_of_undeclared_features(None);
                    bindings::warn_of_misfits(&config.mqtt.bindings, serving);
                }));
                let (loaded, has_started) = (loaded.take(), &has_started);
                loading.push(Box::pin(async move {
                    settled.await;
                    if loaded.is_some() {
                        has_started.store(true, Ordering::Relaxed);
                    }
                    if is_reload {
                        notify::ready();
                    }
                }));
            }
            // At a start this ends the daemon. Later the loaded models stay.
            Err(error) if loaded.is_some() => {
                // Kept alive on purpose: dropping them would report ready during the shutdown.
                std::mem::forget((listed, loaded));
                anyhow::bail!("the model repository cannot be read: {error}");
            }
            Err(error) => {
                tracing::error!(%error, "the model repository cannot be read; the loaded models stay");
                if is_reload {
                    notify::ready();
                }
            }
        }

        tokio::select! {
            _ = beside(&mut loading, hangup.recv()) => {
                tracing::info!("SIGHUP: reading the feature views and the model repository again");
            }
            () = shutdown.requested() => return Ok(()),
        }

        if has_started.load(Ordering::Relaxed) {
            notify::reloading();
        }
        // Feature views first: models may need new ones.
        let (store, config) = (serving.features().clone(), config.features.clone());
        let _ = tokio::task::spawn_blocking(move || reload_views(&store, &config)).await;
    }
}

/// Removes unused compiled models ten minutes after the start, when those in use are loaded, and then each day.
async fn keep_cache_small(repository: &Repository) {
    let mut days =
        tokio::time::interval_at(tokio::time::Instant::now() + Duration::from_mins(10), Duration::from_hours(24));
    loop {
        days.tick().await;
        let repository = repository.clone();
        let _ = tokio::task::spawn_blocking(move || repository.remove_unused_compiled()).await;
    }
}

/// Waits for `other` while loads go on.
async fn beside<T>(loading: &mut FuturesUnordered<impl Future<Output = ()>>, other: impl Future<Output = T>) -> T {
    let mut other = std::pin::pin!(other);
    loop {
        tokio::select! {
            done = &mut other => return done,
            Some(()) = loading.next() => {}
        }
    }
}

/// Reads the feature views again. After a mistake, the previous declarations stay.
fn reload_views(store: &FeatureStore, config: &FeaturesConfig) {
    match Registry::load(&config.views, &config.path) {
        Ok(registry) => {
            if let Err(error) = store.reload(registry) {
                tracing::error!(%error, "the feature views cannot be changed; the previous ones stay");
            }
        }
        Err(mistakes) => {
            for mistake in mistakes {
                tracing::error!(%mistake, "the feature views have a mistake; the previous ones stay");
            }
        }
    }
}

/// The signals that stop the daemon.
struct DaemonSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl DaemonSignals {
    fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("the handlers of signals cannot be installed");
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        tracing::info!(name: "daemon.stop_requested", "asked to stop");
    }
}
