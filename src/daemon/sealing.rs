//! What is sealed at rest, sealed anew while the daemon runs: at each start what is still plain or under an old master key,
//! and after a SIGHUP that brought another key.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use ledge_identity::sealing::{EncryptionConfig, MasterKeyId, Rekey, Rekeyed, Sealer};
use ledge_service::audit_event::{AuditEvent, AuditSink};
use ledge_service::readiness::Readiness;
use ledge_service::shutdown::Shutdown;
use ledge_updates::store;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What OpenVINO calls the models that it compiled.
const COMPILED: &str = "blob";

/// When what is left to do is tried again.
const AGAIN: &str = "the next start or SIGHUP tries again";

/// The stores with sealed bytes, and what they are sealed with.
pub struct Sealing {
    /// Where the master keys are.
    pub config: EncryptionConfig,
    /// What every store has a clone of.
    pub sealer: Sealer,
    pub stores: Vec<Arc<dyn Rekey>>,
    /// The folder of the update store.
    pub updates: PathBuf,
    /// The folder of compiled models, which hold the weights.
    pub cache: PathBuf,
    pub audit: AuditSink,
    /// Whether the audit log has it that this key came in the place of another.
    pub is_change_told: AtomicBool,
}

/// The update store, where it is there and could not be opened.
pub struct ClosedStore;

impl Rekey for ClosedStore {
    fn what(&self) -> &'static str {
        "models"
    }

    fn rekey(&self, _: &dyn Fn() -> bool, _: &mut Rekeyed) -> Result<(), String> {
        Err("the update store is not open".to_owned())
    }
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
            if let Err(panic) = tokio::task::spawn_blocking(move || own.rekey(&|| stopped.is_requested())).await {
                tracing::error!(%panic, "not everything is sealed anew, by a fault of Ledge; {AGAIN}");
            }
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
                self.tell_change(key);
            }
            Ok(false) => {}
            Err(error) => tracing::error!(%error, "the master keys cannot be read again; those of before stay"),
        }
    }

    fn rekey(&self, stop: &dyn Fn() -> bool) {
        // First: cut off in between, the next start would find no plain model and leave what was compiled of it.
        if store::survey(&self.updates).map_or(true, |found| found.keys.0.contains_key(&None)) {
            self.forget_compiled();
        }
        let mut whole = true;
        for store in &self.stores {
            let (what, mut done) = (store.what(), Rekeyed::default());
            let rekeyed = store.rekey(stop, &mut done);
            self.tell(what, done);
            if let Err(error) = rekeyed {
                whole = false;
                tracing::error!(what, error, "not everything is sealed anew; {AGAIN}");
            }
        }
        let Some(key) = self.sealer.current().filter(|_| whole && !stop()) else { return };
        match store::survey(&self.updates) {
            Ok(found) if found.keys.0.keys().all(|under| *under == Some(key)) => {
                tracing::info!(%key, "everything is sealed under the current master key");
            }
            Ok(_) => {
                tracing::info!(%key, "everything is sealed under the current master key but for what is being fetched, which follows when it is here");
            }
            Err(error) => {
                tracing::error!(what = "models", %error, "nobody can say whether everything is sealed; {AGAIN}");
            }
        }
    }

    fn tell_change(&self, key: MasterKeyId) {
        self.is_change_told.store(true, Ordering::Relaxed);
        self.audit.record_own(AuditEvent::MasterKeyChanged { key: key.to_string() });
    }

    fn tell(&self, what: &'static str, done: Rekeyed) {
        if done.old > 0
            && !self.is_change_told.load(Ordering::Relaxed)
            && let Some(key) = self.sealer.current()
        {
            // It came with a start.
            self.tell_change(key);
        }
        if done.total() > 0 {
            tracing::info!(what, plain = done.plain, old = done.old, "sealed under the current master key");
            self.audit.record_own(AuditEvent::Resealed { what: what.into(), files: done.total() });
        }
    }

    /// What OpenVINO compiled of models while they were plain goes: the cache may be emptied at any time, and what is still
    /// of use is compiled again.
    fn forget_compiled(&self) {
        for entry in std::fs::read_dir(&self.cache).into_iter().flatten().flatten() {
            let path = entry.path();
            let removed = match entry.file_type() {
                // Of one model, whose digest is its name.
                Ok(kind) if kind.is_dir() => std::fs::remove_dir_all(&path),
                // Of an older version, which kept those of all models in one folder.
                Ok(_) if path.extension().is_some_and(|extension| extension == COMPILED) => std::fs::remove_file(&path),
                Ok(_) => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = removed {
                tracing::error!(path = %path.display(), %error, "a compiled model stays on the disk in plain");
            }
        }
    }
}
