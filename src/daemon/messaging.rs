//! MQTT as a part of the daemon: the gateway, and the report that it passes on.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ledge_audit::status::AuditState;
use ledge_base::clock;
use ledge_base::telemetry::machine::MachineMonitor;
use ledge_base::telemetry::messages::MqttStatistics;
use ledge_egress::Egress;
use ledge_identity::authentication::Authenticator;
use ledge_identity::device::DeviceIdentity;
use ledge_models::serving::Serving;
use ledge_mqtt::config::MqttConfig;
use ledge_mqtt::gateway::{FormerBindings, Gateway};
use ledge_mqtt::publisher::{Publisher, TopicListener};
use ledge_mqtt::topics::DeviceTopics;
use ledge_service::readiness::Readiness;
use ledge_service::shutdown::Shutdown;
use ledge_updates::Updates;
use ledge_updates::report::{self, BoxInventory, CertificateReader, DeviceSnapshot};
use ledge_updates::status::{SubjectProgress, UpdatesStatus};
use tokio::sync::watch;

/// The parts that MQTT connects.
pub struct Messaging {
    /// The section `[mqtt]`.
    pub config: MqttConfig,
    pub device: DeviceIdentity,
    pub egress: Egress,
    pub serving: Serving,
    pub authenticator: Authenticator,
    pub statistics: MqttStatistics,
    /// The messages of other parts.
    pub publisher: Publisher,
    /// The topics that other parts hear.
    pub listeners: Vec<TopicListener>,
    /// Signed updates, if a platform manages this box.
    pub updates: Option<Updates>,
    pub audit: AuditState,
    /// The state folder.
    pub state: PathBuf,
    /// The certificate of the membership, for the report.
    pub certificate: CertificateReader,
    /// The bindings of the last start.
    pub former: FormerBindings,
}

impl Messaging {
    /// Answers over MQTT once it is known which models there are: calls wait for those that are being loaded, and rows
    /// for none. The first report follows when the box is ready.
    pub fn spawn(self, models_listed: &Arc<Readiness>, readiness: &Arc<Readiness>, shutdown: &Shutdown) {
        let Self { config, device, egress, serving, authenticator, statistics, publisher, listeners, .. } = self;
        let Self { updates, audit, state, certificate, former, .. } = self;
        let (report, reported) = watch::channel(Bytes::new());
        let (id, group) = (device.id.clone(), device.group.clone());
        let topics = DeviceTopics { device: id, group, has_platform: updates.is_some() };
        let status_reporter = DeviceReporter {
            device,
            serving: serving.clone(),
            updates: updates.clone(),
            audit,
            state,
            certificate,
            interval: config.report_interval(),
            report,
        };

        let gateway = Gateway {
            config,
            topics,
            egress,
            serving,
            authenticator,
            statistics,
            reported,
            publisher,
            listeners,
            updates,
            former,
        };
        let (listed, stop) = (models_listed.clone(), shutdown.clone());
        shutdown.spawn_essential("mqtt", async move {
            tokio::select! {
                () = listed.wait() => Box::pin(gateway.run(stop)).await,
                () = stop.requested() => Ok(()),
            }
        });

        let (ready, stop) = (readiness.clone(), shutdown.clone());
        shutdown.spawn(async move {
            tokio::select! {
                () = async {
                    ready.wait().await;
                    status_reporter.run().await;
                } => {}
                () = stop.requested() => {}
            }
        });
    }
}

/// Writes the report on the software and the state of this box, at each interval and after each change of updates.
struct DeviceReporter {
    device: DeviceIdentity,
    serving: Serving,
    updates: Option<Updates>,
    audit: AuditState,
    state: PathBuf,
    certificate: CertificateReader,
    interval: Duration,
    report: watch::Sender<Bytes>,
}

impl DeviceReporter {
    async fn run(self) {
        let machine = Arc::new(MachineMonitor::default());
        let started_ms = clock::unix_millis();
        let (state, certificate) = (self.state.clone(), self.certificate.clone());
        let inventory = tokio::task::spawn_blocking(move || {
            let program = std::env::current_exe().unwrap_or_default();
            Arc::new(BoxInventory::read(Path::new("/"), &program, &state, certificate))
        });
        let Ok(inventory) = inventory.await else { return };
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut reported = Vec::new();
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.milestones_changed(&reported) => {}
            }

            let status = self.updates.as_ref().map(Updates::status);
            reported = status.as_ref().map(UpdatesStatus::milestones).unwrap_or_default();
            let (device, repository, machine, audit) =
                (self.device.clone(), self.serving.repository().clone(), machine.clone(), self.audit.clone());
            let inventory = inventory.clone();
            // Reading the sensors of the machine may take long.
            let document = tokio::task::spawn_blocking(move || {
                report::document(&DeviceSnapshot::gather(
                    &device,
                    started_ms,
                    &repository,
                    &machine,
                    status,
                    &audit,
                    &inventory,
                ))
            });
            if let Ok(document) = document.await {
                self.report.send_replace(document.into());
            }
        }
    }

    /// Waits until the milestones of updates differ from the reported ones, so that the platform learns of it at once.
    async fn milestones_changed(&self, reported: &[SubjectProgress]) {
        let Some(updates) = &self.updates else { return std::future::pending().await };
        let mut changes = updates.watch();
        while updates.status().milestones() == reported {
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}
