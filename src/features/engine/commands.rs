//! The commands of the writer thread and the jobs of the maintenance thread.

use std::io;
use std::sync::{Arc, mpsc};

use ledge_base::principal::Principal;
use ledge_service::audit_event::erasure::EntityNaming;
use tokio::sync::oneshot;

use super::super::incoming::IncomingRow;
use super::super::index::{EntityIndex, MemTable};
use super::super::journal::JournalDamage;
use super::super::key::IndexKey;
use super::super::online::{Disclosure, ErasureResult, FeatureError, JoinKeyValues, PushCounts};
use super::super::snapshot::SortedTable;
use super::applier::IndexApplier;
use super::spool::ReceivedBackup;

/// A command for the writer thread.
#[derive(Debug)]
pub enum StoreWriterCommand {
    /// Writes rows, all or none.
    Push {
        rows: Vec<IncomingRow>,
        /// Receives the outcome when the rows are durable.
        reply: oneshot::Sender<Result<PushCounts, FeatureError>>,
    },
    /// Takes pushes although the index is still being opened: it has no entry from this one on.
    TakePushes { from: u64 },
    /// Asks for the sequence number before which the index has every entry, and how many records it has; or why there
    /// is no index.
    Position { reply: oneshot::Sender<Result<(u64, u64), FeatureError>> },
    /// Begins a journal segment, and a layer for its changes, so that a snapshot of everything before can be written.
    Freeze {
        /// A new layer.
        layer: MemTable,
        /// The least number of the snapshot.
        least: u64,
        /// Receives the index now in use, or the error.
        reply: oneshot::Sender<Result<Arc<EntityIndex>, FeatureError>>,
    },
    /// Reads everything below the top layer from this snapshot from now on.
    Rebase {
        /// The index with the layer that the snapshot was written from.
        index: Arc<EntityIndex>,
        snapshot: Arc<SortedTable>,
        /// True when it is in use.
        reply: mpsc::Sender<bool>,
    },
    /// Damaged places found in the journal. A new segment begins, and a snapshot will replace them.
    NoteDamage(Vec<JournalDamage>),
    /// Removes the journal before this entry, which is in a snapshot.
    RemoveBefore {
        seq: u64,
        /// Receives the result of the removal.
        reply: mpsc::Sender<io::Result<()>>,
    },
    /// Removes records, and drops keys.
    Erase {
        records: Vec<IndexKey>,
        /// The numbers of the keys.
        keys: Vec<u32>,
        /// Receives the number of the last entry that removes a record, or without a record to remove, the number of
        /// the next entry.
        reply: mpsc::Sender<Result<u64, FeatureError>>,
    },
    /// Ends a census of keys.
    EndCensus {
        /// Drops the keys that no record uses.
        forget: bool,
        reply: mpsc::Sender<usize>,
    },
    /// Hands over an index that is ready except for the last entries. The reply has the index that it replaces.
    Handover {
        applier: Box<IndexApplier>,
        /// Receives the replaced index when the new one is in use, or why it is not.
        reply: mpsc::Sender<Result<Option<IndexApplier>, String>>,
    },
    /// Stops pushes and reads until [`StoreWriterCommand::EndRestore`]. The reply has the next entry's number.
    BeginRestore { reply: mpsc::Sender<u64> },
    /// Ends a restore. The backup is in the snapshot of this number and replaces everything; `None`: nothing has
    /// changed.
    EndRestore {
        replay_from: Option<u64>,
        /// Receives the index that is no longer used, if there was one, when pushes are accepted again.
        reply: mpsc::Sender<Option<Arc<EntityIndex>>>,
    },
    /// A liveness check: answered when all commands before it are done.
    Ping { reply: oneshot::Sender<()> },
    /// Closes the store after all commands before it.
    Close,
}

/// A job for the maintenance thread.
#[derive(Debug)]
pub enum MaintenanceJob {
    /// Opens the index, or builds one.
    Open,
    /// Replaces an index that was given up.
    Rebuild {
        index: Arc<EntityIndex>,
        /// True when it is damaged; false when the system refused to read or write it.
        damaged: bool,
    },
    /// Takes a snapshot if one is due, and does the other periodic work.
    RunPeriodic,
    /// Takes a snapshot now.
    Snapshot {
        reply: oneshot::Sender<Result<(), FeatureError>>,
    },
    /// Compacts the index now.
    Compact {
        /// Receives the bytes before and after.
        reply: oneshot::Sender<Result<(u64, u64), FeatureError>>,
    },
    /// Replaces everything by a backup.
    Restore {
        /// Its file, which is removed.
        received: ReceivedBackup,
        principal: Principal,
        /// Receives how many records it has.
        reply: oneshot::Sender<Result<u64, FeatureError>>,
    },
    Erase {
        entities: Vec<JoinKeyValues>,
        /// Makes the statements for certificates.
        naming: Option<EntityNaming>,
        principal: Principal,
        reply: oneshot::Sender<Result<ErasureResult, FeatureError>>,
    },
    /// Collects everything on an entity. Here, because this thread removes files that it reads.
    Disclose {
        entity: JoinKeyValues,
        principal: Principal,
        reply: oneshot::Sender<Result<Disclosure, FeatureError>>,
    },
    /// Encrypts the keys again under the current master key.
    Rekey {
        /// Receives how many keys there are.
        reply: oneshot::Sender<Result<u64, FeatureError>>,
    },
    /// Folds the files of added keys into the shards.
    FoldKeys,
    Stop,
}
