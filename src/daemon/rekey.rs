//! Encryption of every store again while the daemon runs: at each start, bytes that are still plain or under an old
//! master key; and after a SIGHUP that brought another key.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use ledge_identity::sealing::{EncryptionConfig, MasterKeyId, Rekey, RekeyCounts, Sealer};
use ledge_service::audit_event::{AuditEvent, AuditSink};
use ledge_service::readiness::Readiness;
use ledge_service::shutdown::Shutdown;
use ledge_updates::store;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The file name extension of models that OpenVINO compiled.
const COMPILED_MODEL_EXTENSION: &str = "blob";

/// The end of a message about work that is left to do.
const RETRY_HINT: &str = "the next start or SIGHUP tries again";

/// The stores with encrypted bytes, and their keys.
pub struct RekeyTask {
    /// The setting of the master keys, read again at each SIGHUP.
    pub config: EncryptionConfig,
    /// The keys in use. Every store has a clone.
    pub sealer: Sealer,
    pub stores: Vec<Arc<dyn Rekey>>,
    /// The folder of the update store.
    pub updates: PathBuf,
    /// The folder of compiled models, which hold the weights.
    pub cache: PathBuf,
    pub audit: AuditSink,
    /// Set once the audit log has recorded that this key replaced another.
    pub is_key_change_recorded: AtomicBool,
}

/// An update store that exists and could not be opened.
pub struct UnopenedUpdateStore;

impl Rekey for UnopenedUpdateStore {
    fn what(&self) -> &'static str {
        "models"
    }

    fn rekey(&self, _: &dyn Fn() -> bool, _: &mut RekeyCounts) -> Result<(), String> {
        Err("the update store is not open".to_owned())
    }
}

impl RekeyTask {
    /// Runs until the shutdown. Begins when the models are loaded: serving comes first.
    pub fn spawn(self, readiness: &Arc<Readiness>, shutdown: &Shutdown) -> anyhow::Result<()> {
        if !self.sealer.is_on() {
            return Ok(());
        }
        let hangup = signal(SignalKind::hangup()).context("the handler of SIGHUP cannot be installed")?;
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
        let task = Arc::new(self);
        loop {
            let (own, stopped) = (task.clone(), stop.clone());
            if let Err(panic) = tokio::task::spawn_blocking(move || own.rekey(&|| stopped.is_requested())).await {
                tracing::error!(%panic, "not every store was encrypted again, because of a bug in Ledge; {RETRY_HINT}");
            }
            tokio::select! {
                _ = hangup.recv() => task.reload(),
                () = stop.requested() => return,
            }
        }
    }

    /// Reads the master keys again. After an error, the previous ones stay in use.
    fn reload(&self) {
        match self.sealer.reload(&self.config) {
            Ok(true) => {
                let Some(key) = self.sealer.current() else { return };
                tracing::info!(%key, "the master key has changed; the new key encrypts from now on");
                self.record_key_change(key);
            }
            Ok(false) => {}
            Err(error) => {
                tracing::error!(%error, "the master keys cannot be read again; the previous keys stay in use");
            }
        }
    }

    fn rekey(&self, stop: &dyn Fn() -> bool) {
        // First: after an interruption later on, the next start would find no plain model and keep those compiled of
        // it.
        if store::survey(&self.updates).map_or(true, |found| found.keys.0.contains_key(&None)) {
            self.remove_compiled_models();
        }

        let mut is_complete = true;
        for store in &self.stores {
            let (what, mut done) = (store.what(), RekeyCounts::default());
            let rekeyed = store.rekey(stop, &mut done);
            self.record(what, done);
            if let Err(error) = rekeyed {
                is_complete = false;
                tracing::error!(what, error, "not everything in this store was encrypted again; {RETRY_HINT}");
            }
        }

        let Some(key) = self.sealer.current().filter(|_| is_complete && !stop()) else { return };
        match store::survey(&self.updates) {
            Ok(found) if found.keys.0.keys().all(|under| *under == Some(key)) => {
                tracing::info!(name: "stores.encrypted", %key, "every store is encrypted under the current master key");
            }
            Ok(_) => {
                tracing::info!(
                    %key,
                    "every store is encrypted under the current master key, except downloads, which follow when they \
                     are complete"
                );
            }
            Err(error) => {
                tracing::error!(
                    what = "models",
                    %error,
                    "cannot check that every model is encrypted under the current master key; {RETRY_HINT}"
                );
            }
        }
    }

    fn record_key_change(&self, key: MasterKeyId) {
        self.is_key_change_recorded.store(true, Ordering::Relaxed);
        self.audit.record_own(AuditEvent::MasterKeyChanged { key: key.to_string() });
    }

    fn record(&self, what: &'static str, done: RekeyCounts) {
        if done.old > 0
            && !self.is_key_change_recorded.load(Ordering::Relaxed)
            && let Some(key) = self.sealer.current()
        {
            // The key changed while the daemon did not run.
            self.record_key_change(key);
        }
        if done.total() > 0 {
            tracing::info!(what, plain = done.plain, old = done.old, "encrypted under the current master key");
            self.audit.record_own(AuditEvent::Resealed { what: what.into(), files: done.total() });
        }
    }

    /// Removes the models that OpenVINO compiled while their sources were plain: the cache may be emptied at any time,
    /// and models that are still used are compiled again.
    fn remove_compiled_models(&self) {
        for entry in std::fs::read_dir(&self.cache).into_iter().flatten().flatten() {
            let path = entry.path();
            let removed = match entry.file_type() {
                // The folder of one model, named by its digest.
                Ok(kind) if kind.is_dir() => std::fs::remove_dir_all(&path),
                // Written by an older version, which kept the compiled models in one folder.
                Ok(_) if path.extension().is_some_and(|extension| extension == COMPILED_MODEL_EXTENSION) => {
                    std::fs::remove_file(&path)
                }
                Ok(_) => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = removed {
                tracing::error!(
                    path = %path.display(),
                    %error,
                    "a compiled model cannot be removed and stays unencrypted on the disk; {RETRY_HINT}"
                );
            }
        }
    }
}
