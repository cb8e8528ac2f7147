//! The audit log as a part of the daemon: its writer, and those that copy it.

use std::time::Duration;

use anyhow::Context;
use tokio::sync::oneshot;

use crate::audit::config::AuditConfig;
use crate::audit::status::AuditState;
use crate::audit::writer::Writer;
use crate::audit_event::{AuditEvent, AuditQueue, AuditSink};
use crate::config::Config;
use crate::identity::device;
use crate::names::DeviceName;

/// Records what a command line did while no daemon has the log.
pub fn record_alone(config: &Config, event: AuditEvent) -> anyhow::Result<()> {
    let device = device::load_or_create(&config.state.path, &config.device)?;
    let (sink, queue) = AuditSink::channel();
    sink.record_own(event);
    sink.close();
    let state = AuditState::default();
    Writer::new(&config.audit, &device.id, queue, state.clone()).run();
    match state.status().error {
        None => Ok(()),
        Some(error) => anyhow::bail!("the audit log does not have it: {error}"),
    }
}

/// The thread that writes the log.
pub struct AuditWriter {
    ended: oneshot::Receiver<()>,
    /// What the parts of the log know of each other.
    pub state: AuditState,
}

impl AuditWriter {
    /// Writes what is recorded from now on.
    pub fn spawn(config: &AuditConfig, device: &DeviceName, queue: AuditQueue) -> anyhow::Result<Self> {
        let (told, ended) = oneshot::channel();
        let state = AuditState::default();
        let (config, device, shared) = (config.clone(), device.clone(), state.clone());
        let thread = std::thread::Builder::new().name("audit".to_owned());
        let spawned = thread.spawn(move || {
            Writer::new(&config, &device, queue, shared).run();
            // Nobody may wait for it any more.
            let _ = told.send(());
        });
        spawned.context("the thread of the audit log does not start")?;
        Ok(Self { ended, state })
    }

    /// Waits until all that was recorded is written, at most for `limit`.
    pub async fn end(self, limit: Duration) {
        if tokio::time::timeout(limit, self.ended).await.is_err() {
            tracing::warn!("the disk is slow: the last audit records may not have been written");
        }
    }
}
