//! The findings about this box, as the daemon itself sees it: for the console and for alerts.

use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ledge_base::telemetry::messages::MqttStatistics;
use ledge_cameras::cameras::Cameras;
use ledge_drift::Drift;
use ledge_history::History;
use ledge_http::Routers;
use ledge_isolation::sandbox_report;
use ledge_models::repository::{ModelIndexEntry, Repository, VersionState};
use ledge_models::runtimes::sandbox;
use ledge_part::check::Finding;
use ledge_part::findings::FindingsSource;
use ledge_sandbox::SandboxReport;
use ledge_service::shutdown::Shutdown;
use serde_json::Value;
use tokio::runtime::Handle;

use super::own_sandbox::DaemonSandbox;
use crate::config::Config;
use crate::findings::{FindingsRunner, findings};

/// The routers of this daemon, while it serves: the findings ask its own routes.
#[derive(Clone, Default)]
pub struct OwnRouters(Arc<Mutex<Option<Routers>>>);

impl OwnRouters {
    /// Keeps the routers until the shutdown. The routers have the console, which has them.
    pub fn keep(&self, routers: Routers, shutdown: &Shutdown) {
        self.set(Some(routers));
        let (own, ending) = (self.clone(), shutdown.clone());
        shutdown.spawn(async move {
            ending.requested().await;
            own.set(None);
        });
    }

    fn set(&self, routers: Option<Routers>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = routers;
    }

    fn get(&self) -> Option<Routers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The search for findings of this daemon.
pub fn source(
    config: &Config,
    repository: &Repository,
    cameras: &Cameras,
    messages: Option<&MqttStatistics>,
    routers: &OwnRouters,
    (sandbox, history, drift): (&DaemonSandbox, &History, Option<Drift>),
) -> FindingsSource {
    let looked_at = FindingsInputs {
        config: config.clone(),
        repository: repository.clone(),
        cameras: cameras.clone(),
        messages: messages.cloned(),
        routers: routers.clone(),
        sandbox: sandbox.clone(),
        history: history.clone(),
        drift,
        expected_sandbox: OnceLock::new(),
        runtime: Handle::current(),
    };
    FindingsSource::new(move || looked_at.findings())
}

/// The parts of the daemon that are searched for findings.
struct FindingsInputs {
    config: Config,
    repository: Repository,
    cameras: Cameras,
    messages: Option<MqttStatistics>,
    routers: OwnRouters,
    sandbox: DaemonSandbox,
    history: History,
    /// The watch on models; `None` where it is off.
    drift: Option<Drift>,
    /// The sandbox of a process that was started only to report it.
    expected_sandbox: OnceLock<SandboxReport>,
    runtime: Handle,
}

impl FindingsInputs {
    /// The findings of `ledge doctor`, as far as they make sense within the daemon:
    /// * the configuration was valid when it started;
    /// * it opens no connections to find something ([`FindingsRunner::Daemon`]), and reports its own connection to the
    ///   broker;
    /// * it has loaded the models, so it reports those that do not serve, that calls
    ///   crash, that fail calls, whose queues are full, whose answers are not finite or whose calls drift, and tries none
    ///   again;
    /// * it watches the cameras, so it reports those that are not online;
    /// * systemd is not asked: the unit forbids what that takes.
    fn findings(&self) -> Vec<Finding> {
        let mut checks = findings(&self.config, FindingsRunner::Daemon, &|path| self.ask(path));
        checks.push(self.sandbox.finding());
        checks.push(sandbox::check(self.sandbox_of_models()));
        checks.extend(self.broker());
        checks.extend(self.models());
        checks.extend(self.repository.misnamed_folders());
        checks.extend(self.repository.full_queues());
        checks.extend(self.repository.crashing_models());
        checks.extend(self.repository.failing_calls());
        checks.extend(self.repository.wrong_values());
        checks.extend(self.drift.iter().flat_map(Drift::findings));
        checks.extend(self.cameras.findings());
        checks.extend(self.history.findings());
        checks
    }

    /// The sandboxes that the processes of models reported. Without a process of a model, another one is started in the
    /// same way to report it: only once, because neither the kernel nor the service manager changes it.
    fn sandbox_of_models(&self) -> io::Result<SandboxReport> {
        if let Some(report) = SandboxReport::weakest(self.repository.engine().children().sandboxes()) {
            return Ok(report);
        }
        if let Some(report) = self.expected_sandbox.get() {
            return Ok(report.clone());
        }
        let report = sandbox_report(&self.sandbox.starter(), &self.config.runtimes.dir)?;
        Ok(self.expected_sandbox.get_or_init(|| report).clone())
    }

    fn ask(&self, path: &str) -> Option<Value> {
        let routers = self.routers.get()?;
        self.runtime.block_on(routers.ask(path))
    }

    fn broker(&self) -> Option<Finding> {
        let (broker, messages) = (self.config.mqtt.broker.as_ref()?, self.messages.as_ref()?);
        let refused = messages.refused_sessions();
        Some(if !messages.snapshot().connected {
            let advice = "run `ledge mqtt check` for details; calls over HTTP do not need the broker";
            Finding::fail("mqtt", format!("no connection to {broker}"), advice)
        } else if refused.is_empty() {
            Finding::ok("mqtt", format!("connected to {broker}"))
        } else {
            let advice = "calls and all other bindings do not need it; see \"Bindings that take the same topics\" in docs/mqtt.md";
            Finding::fail("mqtt", refused.join("\n"), advice)
        })
    }

    fn models(&self) -> Vec<Finding> {
        let rows = self.repository.index();
        if rows.is_empty() {
            let detail = format!("none in {}", self.repository.sources().describe());
            return vec![Finding::warn("models", detail, "put models there, or set repository.path")];
        }
        let stands_in =
            |row: &ModelIndexEntry| self.repository.managed(&row.model).is_some_and(|managed| managed.fault.is_some());
        rows.iter().filter_map(|row| model(row, stands_in(row))).collect()
    }
}

/// The finding about a version of a model; `None` for one that is unloaded or being loaded. `stands_in` is true for a
/// version of the owner that answers because the release does not load.
fn model(row: &ModelIndexEntry, stands_in: bool) -> Option<Finding> {
    let name = format!("model {}", row.model);
    let detail = |text: &str| match row.version {
        Some(version) => format!("version {version}: {text}"),
        None => text.to_owned(),
    };
    match &row.state {
        VersionState::Ready if stands_in => {
            let advice = "see `ledge update status`; calls are answered meanwhile";
            Some(Finding::warn(&name, detail(row.note.as_deref().unwrap_or("stands in for a release")), advice))
        }
        VersionState::Ready => Some(Finding::ok(&name, detail(row.note.as_deref().unwrap_or("serves")))),
        VersionState::Unavailable(reason) if reason.is_failure() => {
            let advice = "see `ledge models check`; the other models serve";
            Some(Finding::warn(&name, detail(&reason.to_string()), advice))
        }
        VersionState::Loading | VersionState::Unloading | VersionState::Unavailable(_) => None,
    }
}
