//! What the threads of the store are asked for.

use std::io;
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use ledge_base::principal::Principal;
use tokio::sync::oneshot;

use super::super::journal::Damage;
use super::super::key::IndexKey;
use super::super::online::{Erased, FeatureError, Pushed};
use super::super::record::Row;
use super::super::store::Index;
use super::super::view::FeatureView;
use super::applier::Applier;
use super::erasure::Entity;
use super::restore::Received;

/// What the writer is asked for.
#[derive(Debug)]
pub enum Command {
    /// Rows, all or none.
    Push {
        rows: Vec<Incoming>,
        /// Told when they are durable.
        reply: oneshot::Sender<Result<Pushed, FeatureError>>,
    },
    Purge {
        /// Expiry entries and what they are for.
        expired: Vec<(Vec<u8>, IndexKey)>,
        now_us: i64,
        /// Told when it is done.
        reply: mpsc::Sender<usize>,
    },
    /// The index has every entry before the number that is answered.
    Mark {
        /// Whether a new journal segment begins there, so that those before it can go.
        rotate: bool,
        /// Told the number, and how many records the index has; or why there is no index, or no new segment.
        reply: oneshot::Sender<Result<(u64, u64), FeatureError>>,
    },
    /// Places in the journal where something was found; a new segment begins, and a snapshot will take their place.
    NoteDamage(Vec<Damage>),
    /// The journal before this entry is in a snapshot.
    RemoveBefore {
        seq: u64,
        /// Told when they are gone, or why they are not.
        reply: mpsc::Sender<io::Result<()>>,
    },
    /// Records are removed, and keys forgotten.
    Erase {
        records: Vec<IndexKey>,
        /// The numbers of the keys.
        keys: Vec<u32>,
        /// Told the number of the last entry that removes one, or of the next entry where there was none to remove.
        reply: mpsc::Sender<Result<u64, FeatureError>>,
    },
    /// A census of keys ends.
    EndCensus {
        /// Whether the keys that nothing uses are forgotten.
        forget: bool,
        reply: mpsc::Sender<usize>,
    },
    /// An index that is ready but for the last entries. The one it takes the place of is answered.
    Handover {
        applier: Applier,
        /// Told when it is in use, or why it is not.
        reply: mpsc::Sender<Result<Option<Applier>, String>>,
    },
    /// From now on neither pushes nor reads, until [`Command::EndRestore`]. The next entry's number is answered.
    BeginRestore { reply: mpsc::Sender<u64> },
    /// The backup is in a snapshot of this number, and takes the place of everything; `None`: nothing has changed.
    EndRestore {
        replay_from: Option<u64>,
        /// Told when pushes are taken again: the index that has had its day, if there was one.
        reply: mpsc::Sender<Option<Arc<Index>>>,
    },
    /// Whether the writer is there: answered when what waited before is done.
    Turn { reply: oneshot::Sender<()> },
    /// The end: what waits is written first.
    Close,
}

/// One row on its way in.
#[derive(Debug)]
pub struct Incoming {
    pub view: Arc<FeatureView>,
    pub key: IndexKey,
    pub row: Row,
    /// The row as the journal keeps it.
    pub bytes: Bytes,
}

/// What the upkeep thread is asked for.
#[derive(Debug)]
pub enum Job {
    /// The index is opened, or built.
    Open,
    /// An index was given up, and another one is needed.
    Rebuild {
        index: Arc<Index>,
        /// Whether it is damaged, or the system would not let it be read or written.
        damaged: bool,
    },
    /// Whether a snapshot is due.
    Look,
    /// A snapshot, now.
    Snapshot {
        reply: oneshot::Sender<Result<(), FeatureError>>,
    },
    /// A smaller index, now.
    Compact {
        /// Told the end: bytes before and after.
        reply: oneshot::Sender<Result<(u64, u64), FeatureError>>,
    },
    /// A backup takes the place of everything.
    Restore {
        /// Its file, which is removed.
        received: Received,
        principal: Principal,
        /// Told the end: how many records it has.
        reply: oneshot::Sender<Result<u64, FeatureError>>,
    },
    Erase {
        entities: Vec<Entity>,
        principal: Principal,
        reply: oneshot::Sender<Result<Erased, FeatureError>>,
    },
    /// Keys are sealed under the current master key.
    Reseal {
        /// Told the end: how many.
        reply: oneshot::Sender<Result<u64, FeatureError>>,
    },
    /// So many keys were added that their files are put into order.
    FoldKeys,
    Stop,
}
