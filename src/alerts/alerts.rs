//! The alerts of this box, and the task that looks for findings.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ledge_base::names::DeviceName;
use ledge_egress::{Egress, EgressContent, EgressPurpose, Webhook};
use ledge_part::findings::FindingsSource;
use ledge_service::off_thread::blocking;
use ledge_service::readiness::Readiness;
use tokio::time::MissedTickBehavior;

use crate::config::{AlertConfig, AlertsConfig};
use crate::receiver::{AlertPublisher, AlertReceiver, AlertTransport, SentAlertsKeeper};
use crate::store::{AlertStore, SentAlerts, key};
use crate::tracker::AlertTracker;

/// The time between two searches for findings. A shorter `hold_s` shortens it to that.
const LOOK_INTERVAL: Duration = Duration::from_mins(1);

/// The longest wait for the end of the start: findings while models still load are not reported.
const START_WAIT_MAX: Duration = Duration::from_mins(10);

/// The alerts of this box. Clones share them.
#[derive(Debug, Clone)]
pub struct Alerts(pub(crate) Arc<AlertsState>);

#[derive(Debug)]
pub struct AlertsState {
    pub device: DeviceName,
    pub receivers: Vec<Arc<AlertReceiver>>,
    /// Held while a test message is sent.
    pub testing: tokio::sync::Mutex<()>,
    pub keeper: SentAlertsKeeper,
    findings: FindingsSource,
    look_interval: Duration,
}

/// The services that alerts need.
#[derive(Debug)]
pub struct AlertServices<'a> {
    pub device: DeviceName,
    pub egress: &'a Egress,
    /// The state folder.
    pub state: &'a Path,
    pub findings: FindingsSource,
    /// The way to the broker; `None` without one.
    pub publisher: Option<Arc<dyn AlertPublisher>>,
}

impl Alerts {
    /// The alerts of the configuration. Reads the reports of earlier starts.
    pub fn new(config: &AlertsConfig, services: AlertServices<'_>) -> Self {
        let AlertServices { device, egress, state, findings, publisher } = services;
        let all = config.iter().flat_map(|alert| {
            ways(alert, egress, publisher.as_ref()).into_iter().map(move |(way, to, mark)| (alert, way, to, mark))
        });
        let all: Vec<_> = all.collect();
        // Without receivers nothing is written either.
        let (store, mut told_before) = if all.is_empty() { Default::default() } else { AlertStore::open(state) };
        let mut told = SentAlerts::new();
        let mut receivers = Vec::new();
        for (alert, way, to, mark) in all {
            // Another receiver under this name, or one that wants to hear of other checks, begins with nothing.
            let key = key(&alert.name, way.name(), &mark);
            let before = told_before.remove(&key).unwrap_or_default();
            told.insert(key.clone(), before.clone());
            let tracker = AlertTracker::new(alert.rules(), before);
            receivers.push(Arc::new(AlertReceiver::new(alert.name.clone(), way, to, key, tracker)));
        }
        let holds = config.iter().map(AlertConfig::hold);
        Self(Arc::new(AlertsState {
            device,
            receivers,
            testing: tokio::sync::Mutex::default(),
            keeper: SentAlertsKeeper::new(store, told),
            findings,
            look_interval: holds.fold(LOOK_INTERVAL, Duration::min),
        }))
    }

    /// Looks for findings until it is dropped.
    pub(crate) async fn look(&self, readiness: Arc<Readiness>) {
        // Ended by whichever comes first.
        let _ = tokio::time::timeout(START_WAIT_MAX, readiness.wait()).await;
        let interval = self.0.look_interval;
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut before = Instant::now();
        loop {
            ticks.tick().await;
            let findings = self.0.findings.clone();
            let found = blocking(move || findings.search()).await;
            // A timer that is a little early must not make the hold time an interval longer.
            let elapsed = before.elapsed().max(interval);
            before = Instant::now();
            for receiver in &self.0.receivers {
                receiver.look(&found, elapsed);
            }
        }
    }
}

/// The ways to the receivers of an alert, each with its address or topic, and its mark.
fn ways(
    alert: &AlertConfig,
    egress: &Egress,
    publisher: Option<&Arc<dyn AlertPublisher>>,
) -> Vec<(AlertTransport, String, String)> {
    let webhook = alert.webhook().map(|config| {
        let webhook = Webhook::new(&config, egress, (EgressPurpose::Alert, EgressContent::Alert));
        (AlertTransport::Webhook(webhook), config.url.to_string(), alert.mark(&config.url.whole()))
    });
    let broker = publisher.filter(|_| alert.mqtt).map(|publisher| {
        let topic = publisher.topic(&alert.name);
        let mark = alert.mark(&format!("{} {topic}", publisher.broker()));
        (AlertTransport::Broker(publisher.clone()), topic, mark)
    });
    webhook.into_iter().chain(broker).collect()
}
