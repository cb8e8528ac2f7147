//! The audit log as a part of the daemon: its writer and its copies.

use std::time::Duration;

use anyhow::Context;
use ledge_audit::config::AuditConfig;
use ledge_audit::live;
use ledge_audit::status::AuditState;
use ledge_audit::sync::{self, AuditSyncSettings};
use ledge_audit::writer::AuditLogWriter;
use ledge_base::names::DeviceName;
use ledge_egress::Egress;
use ledge_identity::device;
use ledge_identity::sealing::Sealer;
use ledge_part::PartEnvironment;
use ledge_service::audit_event::{AuditEvent, AuditQueue, AuditSink};
use ledge_service::shutdown::Shutdown;
use tokio::sync::oneshot;

use crate::config::Config;

/// Records the event of a command that runs while no daemon has the log open.
pub fn record_without_daemon(config: &Config, event: AuditEvent) -> anyhow::Result<()> {
    let device = device::load_or_create(&config.state.path, &config.device)?;
    let sealer = Sealer::load(&config.encryption)?;
    let (sink, queue) = AuditSink::channel();
    sink.record_own(event);
    sink.close();
    let state = AuditState::default();
    AuditLogWriter::new(&config.audit, &device.id, queue, state.clone(), sealer).run();
    let status = state.status();
    match status.error {
        None if status.lost == (0, 0) => Ok(()),
        None => anyhow::bail!("the event was not written to the audit log"),
        Some(error) => anyhow::bail!("the event was not written to the audit log: {error}"),
    }
}

/// The handle of the thread that writes the log.
pub struct AuditWriterThread {
    ended: oneshot::Receiver<()>,
}

impl AuditWriterThread {
    /// Writes the events of the queue, and copies the log to its destinations.
    pub fn spawn(
        config: &AuditConfig,
        queue: AuditQueue,
        state: AuditState,
        environment: &PartEnvironment,
    ) -> anyhow::Result<Self> {
        let PartEnvironment { device, sealer, egress, shutdown, .. } = environment;
        let device = &device.id;
        let (ending, ended) = oneshot::channel();
        // Before the first record is written, so that the live copies receive it.
        live::spawn(config, device, egress, &state, shutdown);
        shutdown.spawn(copy_to_platform(
            config.clone(),
            device.clone(),
            egress.clone(),
            state.clone(),
            shutdown.clone(),
        ));

        let (config, device, sealer) = (config.clone(), device.clone(), sealer.clone());
        let thread = std::thread::Builder::new().name("audit".to_owned());
        let spawned = thread.spawn(move || {
            let guard = AuditPanicGuard(state.clone());
            AuditLogWriter::new(&config, &device, queue, state, sealer).run();
            std::mem::forget(guard);
            // The receiver may have been dropped.
            let _ = ending.send(());
        });
        spawned.context("the thread of the audit log cannot be started")?;
        Ok(Self { ended })
    }

    /// Waits until every recorded event is written, at most for `limit`.
    pub async fn end(self, limit: Duration) {
        if tokio::time::timeout(limit, self.ended).await.is_err() {
            tracing::warn!(
                "the writer of the audit log did not finish in time, because the disk is slow: the last audit records \
                 may be missing"
            );
        }
    }
}

/// Reports a panic of the writer. From then on nothing is recorded, so operations that must be recorded are refused.
struct AuditPanicGuard(AuditState);

impl Drop for AuditPanicGuard {
    fn drop(&mut self) {
        let reason = "its writer ended because of a bug in Ledge: restart the daemon, and report the bug with the log";
        tracing::error!(reason, "the audit log is no longer written");
        self.0.update(|status| status.error = Some(reason.to_owned()));
    }
}

/// Copies the log to the platform, once the log has a signed head.
async fn copy_to_platform(
    config: AuditConfig,
    device: DeviceName,
    egress: Egress,
    state: AuditState,
    shutdown: Shutdown,
) {
    let mut heads = state.heads();
    let has_head = tokio::select! {
        head = heads.wait_for(Option::is_some) => head.is_ok(),
        () = shutdown.requested() => false,
    };
    if has_head {
        let verifier_key = state.status().verifier_key;
        let settings = AuditSyncSettings { config: config.sync, folder: config.path, device, verifier_key };
        sync::run(settings, egress, state, shutdown).await;
    }
}
