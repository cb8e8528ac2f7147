//! The audit log as a part of the daemon: its writer, and those that copy it.

use std::time::Duration;

use anyhow::Context;
use ledge_audit::config::AuditConfig;
use ledge_audit::live;
use ledge_audit::status::AuditState;
use ledge_audit::sync::{self, SyncSettings};
use ledge_audit::writer::Writer;
use ledge_base::names::DeviceName;
use ledge_egress::Egress;
use ledge_identity::device;
use ledge_identity::sealing::Sealer;
use ledge_part::Environment;
use ledge_service::audit_event::{AuditEvent, AuditQueue, AuditSink};
use ledge_service::shutdown::Shutdown;
use tokio::sync::oneshot;

use crate::config::Config;

/// Records what a command line did while no daemon has the log.
pub fn record_alone(config: &Config, event: AuditEvent) -> anyhow::Result<()> {
    let device = device::load_or_create(&config.state.path, &config.device)?;
    let sealer = Sealer::load(&config.encryption)?;
    let (sink, queue) = AuditSink::channel();
    sink.record_own(event);
    sink.close();
    let state = AuditState::default();
    Writer::new(&config.audit, &device.id, queue, state.clone(), sealer).run();
    let status = state.status();
    match status.error {
        None if status.lost == (0, 0) => Ok(()),
        None => anyhow::bail!("the audit log does not have it"),
        Some(error) => anyhow::bail!("the audit log does not have it: {error}"),
    }
}

/// The thread that writes the log.
pub struct AuditWriter {
    ended: oneshot::Receiver<()>,
}

impl AuditWriter {
    /// Writes what is recorded from now on, and copies it to where it is to go.
    pub fn spawn(
        config: &AuditConfig,
        queue: AuditQueue,
        state: AuditState,
        environment: &Environment,
    ) -> anyhow::Result<Self> {
        let Environment { device, sealer, egress, shutdown, .. } = environment;
        let device = &device.id;
        let (told, ended) = oneshot::channel();
        // Before the first record is written, so that they get it.
        live::spawn(config, device, egress, &state, shutdown);
        shutdown.spawn(synced(config.clone(), device.clone(), egress.clone(), state.clone(), shutdown.clone()));
        let (config, device, sealer) = (config.clone(), device.clone(), sealer.clone());
        let thread = std::thread::Builder::new().name("audit".to_owned());
        let spawned = thread.spawn(move || {
            let died = Died(state.clone());
            Writer::new(&config, &device, queue, state, sealer).run();
            std::mem::forget(died);
            // Nobody may wait for it any more.
            let _ = told.send(());
        });
        spawned.context("the thread of the audit log does not start")?;
        Ok(Self { ended })
    }

    /// Waits until all that was recorded is written, at most for `limit`.
    pub async fn end(self, limit: Duration) {
        if tokio::time::timeout(limit, self.ended).await.is_err() {
            tracing::warn!("the disk is slow: the last audit records may not have been written");
        }
    }
}

/// Says that the writer ended by a fault of ours: nothing is recorded any more, so nothing that has to be is done.
struct Died(AuditState);

impl Drop for Died {
    fn drop(&mut self) {
        let reason = "its writer ended by a fault of ours: restart the daemon, and report it with its log";
        tracing::error!(reason, "the audit log is not written any more");
        self.0.update(|status| status.error = Some(reason.to_owned()));
    }
}

/// Copies the log to the platform, once there is a head of it.
async fn synced(config: AuditConfig, device: DeviceName, egress: Egress, state: AuditState, shutdown: Shutdown) {
    let mut heads = state.heads();
    let is_there = tokio::select! {
        head = heads.wait_for(Option::is_some) => head.is_ok(),
        () = shutdown.requested() => false,
    };
    if is_there {
        let verifier_key = state.status().verifier_key;
        let settings = SyncSettings { config: config.sync, folder: config.path, device, verifier_key };
        sync::run(settings, egress, state, shutdown).await;
    }
}
