//! What is worth proving later: the closed list of audit events, and the sink that takes them.
//!
//! Everybody may record an event. Recording never blocks and never fails the caller; what could not be taken is counted.
//! Today the sink writes to the log; the durable audit log takes its place behind the same handle.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

use crate::names::{ModelName, ModelVersion};
use crate::principal::Principal;

/// How many events may wait for the sink. One is under 200 bytes.
const QUEUE: usize = 8192;

/// An event of the audit log. No payloads, no free text from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditEvent {
    /// The daemon started.
    Started {
        /// The version of Ledge.
        version: &'static str,
    },
    /// The daemon stops in order.
    Stopped,
    /// A version of a model went live.
    ModelLoaded {
        /// The model.
        model: ModelName,
        /// Its version.
        version: ModelVersion,
        /// BLAKE3 of the model's files.
        digest: String,
        /// Who asked for it.
        principal: Principal,
    },
    /// A version of a model could not be loaded.
    ModelRefused {
        /// The model.
        model: ModelName,
        /// Its version.
        version: ModelVersion,
        /// Who asked for it.
        principal: Principal,
    },
    /// A version of a model was taken out of service.
    ModelUnloaded {
        /// The model.
        model: ModelName,
        /// Its version.
        version: ModelVersion,
        /// Who asked for it.
        principal: Principal,
    },
    /// An inference call was answered or refused.
    Inference {
        /// The model.
        model: ModelName,
        /// The version that answered; `None` when none did.
        version: Option<ModelVersion>,
        /// Who called.
        principal: Principal,
        /// Whether the call succeeded.
        ok: bool,
    },
    /// Files of the feature store were found damaged. The log says which.
    FeatureStoreDamaged,
    /// A backup took the place of everything in the feature store.
    FeatureStoreRestored {
        /// How many records it has.
        records: u64,
        /// Who asked for it.
        principal: Principal,
    },
    /// Rows of the feature store were handed out as a backup.
    FeatureStoreBackedUp {
        /// The one feature view that was asked for; `None` is all of them.
        feature_view: Option<String>,
        /// Who asked for it.
        principal: Principal,
    },
    /// Signed metadata was accepted: what is trusted has changed.
    MetadataAccepted {
        /// The role.
        role: String,
        /// Its version.
        version: u64,
    },
    /// Metadata of the update repository was refused. The log says why.
    MetadataRefused {
        /// In which way.
        cause: &'static str,
    },
    /// The trusted metadata on this box was found damaged, or gone.
    MetadataDamaged,
    /// The trusted metadata was given up: what is trusted begins anew with the root file.
    TrustReset {
        /// Who asked for it.
        principal: Principal,
    },
    /// An update reached another stage, was committed, or rolled back.
    UpdateMoved {
        /// What is updated, such as `models/minilm`.
        subject: String,
        /// The version on its way.
        version: ModelVersion,
        /// The rollout.
        rollout: String,
        /// What was reached.
        stage: &'static str,
        /// What stopped it, if it was rolled back.
        cause: Option<&'static str>,
    },
    /// The administrator of this box stepped into an update.
    UpdateOrdered {
        /// What is updated.
        subject: String,
        /// What was asked for: `pin`, `unpin`, `rollback` or `cancel`.
        order: &'static str,
        /// Who asked for it.
        principal: Principal,
    },
    /// A connection out of this box was opened.
    ConnectionOpened {
        /// `HOST:PORT`, as configured.
        destination: String,
        /// Where it is.
        region: String,
        /// What for.
        purpose: &'static str,
    },
    /// A connection out of this box was asked for and is not allowed.
    ConnectionRefused {
        /// `HOST:PORT`, as configured.
        destination: String,
        /// What for.
        purpose: &'static str,
    },
}

/// A handle to record events with. Clones share one queue.
#[derive(Debug, Clone)]
pub struct AuditSink {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    queue: mpsc::Sender<AuditEvent>,
    recorded: AtomicU64,
    lost: AtomicU64,
}

impl AuditSink {
    /// A sink and the receiving end of its queue.
    pub fn channel() -> (Self, mpsc::Receiver<AuditEvent>) {
        let (queue, receiver) = mpsc::channel(QUEUE);
        (Self { shared: Arc::new(Shared { queue, recorded: AtomicU64::new(0), lost: AtomicU64::new(0) }) }, receiver)
    }

    /// Records an event. Never blocks; an event that finds the queue full is counted as lost.
    pub fn record(&self, event: AuditEvent) {
        let counter = match self.shared.queue.try_send(event) {
            Ok(()) => &self.shared.recorded,
            Err(_) => &self.shared.lost,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Events taken since the start.
    pub fn recorded(&self) -> u64 {
        self.shared.recorded.load(Ordering::Relaxed)
    }

    /// Events that found the queue full since the start.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

/// Writes events to the log until every sink is gone.
pub async fn write_to_log(mut events: mpsc::Receiver<AuditEvent>) {
    while let Some(event) = events.recv().await {
        write(&event);
    }
}

fn write(event: &AuditEvent) {
    if matches!(event, AuditEvent::Inference { .. }) {
        // One line a call would be the log's whole content on a busy box.
        tracing::debug!(target: "audit", ?event);
    } else {
        tracing::info!(target: "audit", ?event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_queue_loses_events_counted_and_never_blocks() {
        let (sink, mut events) = AuditSink::channel();
        for _ in 0..QUEUE + 3 {
            sink.record(AuditEvent::Stopped);
        }
        assert_eq!((sink.recorded(), sink.lost()), (QUEUE as u64, 3));
        assert_eq!(events.recv().await, Some(AuditEvent::Stopped));
    }
}
