//! What is sealed at rest, sealed anew while the daemon runs: at each start what is still plain or under an old master key,
//! and after a SIGHUP that brought another key.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::audit_event::{AuditEvent, AuditSink};
use crate::identity::sealing::{EncryptionConfig, Reseal, Resealed, Sealer};
use crate::readiness::Readiness;
use crate::shutdown::Shutdown;

/// What OpenVINO calls the models that it compiled.
const COMPILED: &str = "blob";

/// The stores with sealed bytes, and what they are sealed with.
pub struct Sealing {
    /// Where the master keys are.
    pub config: EncryptionConfig,
    /// What every store has a clone of.
    pub sealer: Sealer,
    /// The stores.
    pub stores: Vec<Arc<dyn Reseal>>,
    /// The folder of compiled models, which hold the weights.
    pub cache: PathBuf,
    /// Where audit events go.
    pub audit: AuditSink,
}

impl Sealing {
    /// Looks after it until the shutdown. Begins when the models are there: serving comes first.
    pub fn spawn(self, readiness: &Arc<Readiness>, shutdown: &Shutdown) -> anyhow::Result<()> {
        if !self.sealer.is_on() {
            return Ok(());
        }
        let hangup = signal(SignalKind::hangup()).context("SIGHUP cannot be received")?;
        let (ready, stop) = (readiness.clone(), shutdown.clone());
        shutdown.spawn(async move {
            tokio::select! {
                () = ready.wait() => {}
                () = stop.requested() => return,
            }
            self.run(hangup, &stop).await;
        });
        Ok(())
    }

    async fn run(self, mut hangup: Signal, stop: &Shutdown) {
        let sealing = Arc::new(self);
        loop {
            let (own, stopped) = (sealing.clone(), stop.clone());
            let _ = tokio::task::spawn_blocking(move || own.reseal(&|| stopped.is_requested())).await;
            tokio::select! {
                _ = hangup.recv() => sealing.reload(),
                () = stop.requested() => return,
            }
        }
    }

    /// Reads the master keys again. With a mistake those of before stay.
    fn reload(&self) {
        match self.sealer.reload(&self.config) {
            Ok(true) => {
                let Some(key) = self.sealer.current() else { return };
                tracing::info!(%key, "another master key seals from now on");
                self.audit.record_own(AuditEvent::MasterKeyChanged { key: key.to_string() });
            }
            Ok(false) => {}
            Err(error) => tracing::error!(%error, "the master keys cannot be read again; those of before stay"),
        }
    }

    fn reseal(&self, stop: &dyn Fn() -> bool) {
        let mut whole = true;
        for store in &self.stores {
            let what = store.what();
            match store.reseal(stop) {
                Ok(done) => self.tell(what, done),
                Err(error) => {
                    whole = false;
                    tracing::error!(what, error, "not everything is sealed anew; the next start or SIGHUP tries again");
                }
            }
        }
        if whole
            && !stop()
            && let Some(key) = self.sealer.current()
        {
            tracing::info!(%key, "everything is sealed under the current master key");
        }
    }

    fn tell(&self, what: &'static str, done: Resealed) {
        if done.total() == 0 {
            return;
        }
        tracing::info!(what, plain = done.plain, old = done.old, "sealed under the current master key");
        self.audit.record_own(AuditEvent::Resealed { what: what.into(), files: done.total() });
        if done.plain > 0 && what == "models" {
            self.forget_compiled();
        }
    }

    /// What OpenVINO compiled of models while they were plain goes: the cache may be emptied at any time, and what is still
    /// of use is compiled again.
    fn forget_compiled(&self) {
        for entry in std::fs::read_dir(&self.cache).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == COMPILED)
                && let Err(error) = std::fs::remove_file(&path)
            {
                tracing::error!(path = %path.display(), %error, "a compiled model stays on the disk in plain");
            }
        }
    }
}
