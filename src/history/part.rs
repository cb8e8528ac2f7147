//! The figures as a part of the daemon.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ledge_base::clock;
use ledge_identity::access::CallerAccess;
use ledge_identity::authentication::Authenticator;
use ledge_models::serving::Serving;
use ledge_part::check::Finding;
use ledge_part::handler_context::HandlerContext;
use ledge_part::metrics;
use ledge_part::route::{BoundRoute, bind};
use ledge_part::{PartEnvironment, Subsystem};
use ledge_service::audit_event::AuditSink;
use ledge_service::off_thread::blocking;
use ledge_service::shutdown::Shutdown;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::config::HistoryConfig;
use crate::figures::{FigureHistory, HOUR_INTERVAL};
use crate::http::ROUTES;
use crate::live::EventStreamLimiter;
use crate::readings::{FigureReader, FigureReading};
use crate::recorder::HistoryRecorder;
use crate::store::HistoryStore;
use crate::unusual::UnusualWatch;
use crate::unusual::message::UnusualMessage;

/// The figures of the last day in memory, and the history on the disk. Clones share them.
#[derive(Debug, Clone)]
pub struct History {
    pub(crate) figures: FigureHistory,
    store: Arc<Mutex<HistoryStore>>,
    unusual: Arc<Mutex<UnusualWatch>>,
}

impl History {
    /// Opens the history. It reads files.
    pub fn open(config: &HistoryConfig) -> Self {
        let store = if config.enabled { HistoryStore::open(&config.path) } else { HistoryStore::disabled() };
        let figures = FigureHistory::default();
        store.restore(&figures, clock::unix_millis());
        let unusual = UnusualWatch::open(config);
        Self { figures, store: Arc::new(Mutex::new(store)), unusual: Arc::new(Mutex::new(unusual)) }
    }

    /// The events that are unusual, now and whenever they change.
    pub fn unusual_messages(&self) -> watch::Receiver<UnusualMessage> {
        self.unusual().messages()
    }

    /// The watch on what is unusual. Whoever takes it may wait for the disk.
    pub(crate) fn unusual(&self) -> MutexGuard<'_, UnusualWatch> {
        // Nothing panics under this lock.
        self.unusual.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store. Whoever takes it may wait for the disk.
    pub(crate) fn store(&self) -> MutexGuard<'_, HistoryStore> {
        // Nothing panics under this lock.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the records of intervals that began before a time, in milliseconds since the Unix epoch. Returns their
    /// number, and that of the series that could not be written. It waits for the disk.
    pub fn forget_before(&self, limit_ms: u64) -> (u64, u64) {
        self.store().forget_before(limit_ms)
    }

    /// The findings: a store that is not written, and what is unusual.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = self.unusual().findings();
        findings.extend(self.problem());
        findings
    }

    fn problem(&self) -> Option<Finding> {
        let status = self.store().status().clone();
        let advice = "free disk space, or repair the folder history.path; figures of the last day are in memory";
        status.problem.map(|problem| {
            let detail =
                format!("the history of the figures cannot be written ({problem}); {} records are lost", status.lost);
            Finding::warn("history", detail, advice)
        })
    }
}

/// The state of the routes.
#[derive(Debug, Clone)]
pub struct HistoryHttpState {
    pub(crate) history: History,
    pub(crate) authenticator: Authenticator,
    pub(crate) listeners: EventStreamLimiter,
    pub(crate) shutdown: Shutdown,
    pub(crate) audit: AuditSink,
}

/// The part.
#[derive(Debug)]
pub struct HistoryPart {
    state: HistoryHttpState,
    serving: Serving,
    config: HistoryConfig,
}

impl HistoryPart {
    pub fn new(
        history: History,
        config: HistoryConfig,
        serving: Serving,
        authenticator: Authenticator,
        environment: &PartEnvironment,
    ) -> Self {
        let PartEnvironment { shutdown, audit, .. } = environment;
        let (shutdown, audit) = (shutdown.clone(), audit.clone());
        let state =
            HistoryHttpState { history, authenticator, listeners: EventStreamLimiter::default(), shutdown, audit };
        Self { state, serving, config }
    }
}

impl Subsystem for HistoryPart {
    fn name(&self) -> &'static str {
        "history"
    }

    fn routes(&self, _context: &HandlerContext) -> Vec<BoundRoute> {
        bind(ROUTES, &self.state)
    }

    fn metrics(&self, encoder: &mut DescriptorEncoder<'_>, _access: &CallerAccess) -> fmt::Result {
        let lost = self.state.history.store().status().lost;
        let help = "Records of figures that could not be written to the history";
        metrics::single(encoder, "history_lost_records", help, &ConstCounter::new(lost))
    }

    fn problem(&self, _is_starting: bool) -> Option<String> {
        self.state.history.store().status().problem.clone().map(|problem| format!("history: {problem}"))
    }

    /// Starts the task that keeps the figures.
    fn spawn(&self, environment: &PartEnvironment) -> Result<(), String> {
        let folder = if self.config.path.exists() { self.config.path.clone() } else { environment.state.clone() };
        let reader = FigureReader::new(self.serving.clone(), folder);
        let audit = environment.audit.clone();
        let keeping = keep(self.state.history.clone(), reader, audit, environment.shutdown.clone());
        environment.shutdown.spawn(keeping);
        Ok(())
    }
}

/// Keeps the figures until the shutdown.
async fn keep(history: History, mut reader: FigureReader, audit: AuditSink, shutdown: Shutdown) {
    let mut recorder = HistoryRecorder::new(&FigureReading::at_start(), clock::unix_millis());
    let mut ticks = tokio::time::interval(HOUR_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    // The first tick comes at once. The use of callers is counted from here on.
    ticks.tick().await;
    loop {
        let is_last = tokio::select! {
            _ = ticks.tick() => false,
            () = shutdown.requested() => true,
        };
        let (of, audit) = (history.clone(), audit.clone());
        let kept = blocking(move || {
            let (reading, interval) = reader.read(clock::unix_millis());
            let mut store = of.store();
            if is_last {
                recorder.finish(&reading, &interval, &mut store);
                // The error is in the log.
                let _ = of.unusual().write();
                return None;
            }
            let minute = recorder.take(&reading, &interval, &of.figures, &mut store);
            drop(store);
            if let Some(minute) = minute {
                let records = of.unusual().take(interval.end_ms, &minute);
                for record in records {
                    audit.record_own(record);
                }
            }
            Some((reader, recorder))
        });
        match kept.await {
            Some(kept) => (reader, recorder) = kept,
            None => return,
        }
    }
}
