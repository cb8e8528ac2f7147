//! The online feature store, in Feast's words: keeps on the box the values that models need and callers do not send.
//! The journal is the truth, fsynced before a push is acknowledged. The index answers reads: the newest snapshot, read
//! in place, and over it in sled what changed since. It can be made again from an older snapshot and the journal at any
//! time.
//!
//! Files, in reading order:
//! * `view.rs` - entities, feature views and feature services, valid by construction
//! * `value.rs`, `value/` - values of Feast's types; `json.rs` and `text.rs` convert them
//! * `registry.rs` - `feature_views.d/*.toml`, with the mistakes of all files
//! * `registry/` - `file.rs` reads, `declared.rs`, `view_check.rs` and `unusual_check.rs` check, `duration.rs` parses lengths of time
//! * `catalog.rs` - the number of each view and field
//! * `catalog/` - `translation.rs` converts the numbers of one store to those of another, by names
//! * `store.rs` - `FeatureStore`, the handle of all other crates: its declarations, and the calls that read and write
//! * `opening.rs` - opens the files of the store and starts its threads
//! * `online.rs` - requests, answers and errors of the store, independent of the protocol
//! * `typed.rs`, `typed/` - columns of JSON to rows; event times in all their forms
//! * `incoming.rs` - checks a push against the declared views, and makes its rows for the writer
//! * `caller.rs` - the feature views that a caller may use, and the audit record of a read or push
//! * `wire.rs` - variable-length integers and values as bytes
//! * `record.rs` - rows and records as bytes: a row for the journal, a record for index and snapshots
//! * `record/` - `runs.rs` writes the values of a row, those of one type together
//! * `key.rs` - index keys: the number of the view and a keyed hash of the entity
//! * `seal.rs` - encrypts rows and records under the key of their entity
//! * `entity_keys.rs` - one key for each entity; destroying it erases the entity
//! * `entity_keys/` - `error.rs` says why there are none, `table.rs` holds the keys in memory, `form.rs` and `files.rs`
//!   on disk, each file twice
//! * `protection.rs` - encrypts and decrypts for the store: encrypted, plain, erased and missing values
//! * `merge.rs`, `merge/` - merges a row into a record, or says why not
//! * `window.rs` - aggregates over windows of event time, as bytes in the record of an entity
//! * `window/` - parts of the aggregates:
//!   * `state.rs`, `error.rs` - the aggregates of one entity, and why their bytes cannot be read
//!   * `bucket.rs`, `distinct.rs` - the values of one step, and counts of distinct values
//!   * `encoding.rs`, `limits.rs` - the state as bytes, and its largest size
//!   * `fuzz.rs`, `tests.rs`, `tests/` - properties and tests
//! * `journal.rs` - acknowledged pushes in order: segments of groups, one fsync for each group
//! * `journal/` - parts of the journal:
//!   * `entry.rs` - one entry
//!   * `format.rs` - the bytes of segments, groups and entries
//!   * `scan.rs` - the groups of one segment, whatever bytes it has
//!   * `chain.rs` - the segments of a folder in order; one segment with the damage that its successor shows
//!   * `damage.rs`, `replay.rs` - reports of damage, and reading the whole journal
//!   * `fuzz.rs`, `tests.rs`, `tests/` - properties and tests with damage and faults
//! * `snapshot.rs` - all records in one file or stream that proves that it is complete; a backup has the same bytes
//! * `snapshot/` - `form.rs` has the content of blocks; `write.rs` and `read.rs` a stream, `file.rs` files in a folder;
//!   `table.rs` and `scan.rs` read a file in place; `fuzz.rs` and tests
//! * `mem_table.rs` - what changed since a snapshot, in sled
//! * `index.rs` - the snapshot and the layers over it as one
//! * `engine/` - journal, index and snapshots together:
//!   * `mod.rs` - the state that threads and readers share: opening, ready, rebuilding, restoring, closed
//!   * `files.rs` - the folder of the store, its lock, the record of a clean stop, the reserved disk space
//!   * `manifest.rs` - what the last snapshots had, to count what is lost without them
//!   * `commit_watermark.rs` - the last acknowledged push, in two files next to the journal, to detect a loss
//!   * `applier.rs` - applies entries and records to an index, and counts its records; the folder has tests
//!   * `commands.rs` - commands of the writer thread and jobs of the maintenance thread
//!   * `writer.rs` - the writer thread: journal, index, acknowledgement
//!   * `maintenance.rs` - the maintenance thread: opening, rebuilding, restores
//!   * `recovery.rs` - opens, repairs or rebuilds the index, after any damage
//!   * `snapshots.rs` - snapshots, and the search for damage
//!   * `erasure.rs`, `erasure/`, `tombstones.rs` - erasing an entity, and the tombstones that keep backups from
//!     restoring it
//!   * `disclosure.rs` - everything that the store has on an entity
//!   * `disk_space.rs` - frees space on a full disk
//!   * `backup.rs`, `restore.rs` - a snapshot as a stream; a backup received, checked, renumbered
//!   * `spool.rs` - the encrypted temporary file of a backup that is being received
//! * `backup_form.rs` - the form of a backup file: plain, or an age file
//! * `backup_cipher.rs` - encrypted backups as age files; `backup_cipher_left_out.rs` takes its place in a build
//!   without the feature `age`
//! * `backup_rows.rs` - the rows of one view in a backup, for readers without a store
//! * `encryption.rs` - counts the files of the store by their master keys, and encrypts them again under another one
//! * `profiles.rs`, `profiles/` - what is usual of the rows of each entity: unusual rows, and forecasts
//! * `reading.rs` - reads: names to records to cells; large ones slice by slice
//! * `statistics.rs` - counters
//! * `config.rs` - `[features]`
//! * `part.rs` - the store as a part of the daemon; `http.rs`, `http/unusual.rs`, `metrics.rs` and `doctor.rs` are its routes, metrics and
//!   findings
//! * `status.rs` - the HTTP status of each error
//! * `fuzz.rs` - properties that hold for any bytes
//!
//! The folders `merge/` and `typed/` hold tests, as do `tests.rs` and `tests/` in other folders.
//!
//! Invariants:
//! * A push is acknowledged when it is in the journal, fsynced, and in the index if there is one. The journal always
//!   comes first.
//! * Reads are errors while there is no index. `NOT_FOUND` means that a checked index has no such record.
//! * Every entry has a unique sequence number, and every record has that of its last entry. Any replay makes the same
//!   records.
//! * One index is in use, with one writer. It never changes its parts; another one takes its place.
//! * A snapshot has exactly the entries before its number, and a layer over it those from there on.
//! * Damaged files are set aside, not deleted; the last one of each kind is kept. A snapshot is read back before the
//!   files that it replaces are removed.
//! * One bad place in any file loses no acknowledged push. There are two snapshots or a journal from the beginning;
//!   until then a second snapshot is due as soon as the disk has room. The layer over the snapshot is a second copy of
//!   the journal's end. The exception is the newest entries of the journal, while the layer does not have them yet.
//! * A loss is reported with its numbers, and the store continues. `commit_watermark.rs` is never ahead of the
//!   journal's fsync.
//! * A view and a field keep their numbers for ever, and no number is reused. Rows carry numbers, never names.
//! * A record has at most 64 KiB. The size of aggregates is bounded when they are declared.
//! * `merge.rs` and `window.rs` are pure. The clock is read once for each push and each read.
//! * Without a declared view there is no file and no thread; without `[feature_view.unusual]` no profile, and no thread
//!   for it.
//! * Only `mem_table.rs` knows sled, `seal.rs` the cipher, `backup_cipher.rs` age.
//! * The crate knows no model. Of HTTP it knows its own routes (`http.rs`) and the status of each error (`status.rs`).
//!
//! # Where it is decided
//!
//! * A start without the master key, or without the key files: `opening.rs`, with the errors of `entity_keys/files.rs`.
//!   The daemon serves models without the store, and `store.rs` tries again (`reopen`)
//! * The memory that a read takes: `reading.rs`
//! * The rows that are lost with snapshots: `engine/manifest.rs`, reported by `engine/recovery.rs`
//! * The erasure of an entity: `engine/erasure.rs`; in backups: `engine/tombstones.rs` and `engine/restore.rs`
//!
//! # One push
//!
//! Two threads own the store. **The writer** owns the journal, and only it writes into the index in use; **the
//! maintenance** thread makes indexes and snapshots and hands them over. A third thread only fsyncs the position of the
//! last acknowledged push, once a second. All share `StoreEngine`, whose `StoreState` is swapped as a whole: `Opening`,
//! `Ready` with the index, `Rebuilding`, `Restoring`, `Closed`. From `POST /push` or a binding:
//!
//! 1. `typed.rs` makes rows of the columns, for every view of the push source. A value that does not fit its column
//!    ends the push here, for all rows, with column and row. Each row gets its index key.
//! 2. `FeatureStore::push` hands the rows to the writer's queue of 4096 pushes. Full means `Overloaded` now.
//! 3. The writer takes the waiting pushes, up to some 512 rows or 4 MiB, and checks the free disk space; below
//!    `min_free_mb` all are refused. With a master key each row is encrypted under the key of its entity, for its index
//!    key and its sequence number; new keys are written and fsynced first, in a file of their own, so that a push to
//!    known entities costs no additional fsync.
//! 4. `Journal::append` writes them as one group: one write, one fdatasync. From here on they survive a power cut. When
//!    it fails, none of them counts: the segment is cut back, and after a failed fsync never written to again. The
//!    group states up to when event times are trusted now (`StoreEngine::trusted_until`), so that a replay decides as
//!    the push did. `CommitWatermark::note` overwrites two small files with the next number.
//! 5. `IndexApplier::apply` loads each record, `merge`s the row and writes 128 rows at a time into the top layer:
//!    records, then the number of the last entry. Without an index, or with one that turns out damaged, this step is
//!    skipped: the next index takes the rows from the journal.
//! 6. The caller gets the outcome of `merge` for each row. Then the rows that are due to be judged are handed to the
//!    thread of the profiles (`profiles.rs`), in views that ask for it.
//!
//! A read needs no thread of the store. `FeatureReadPlan` resolves names, then takes the index out of `StoreState`; a
//! record's checksum and its entity are checked. A reader that finds damage swaps the state to `Rebuilding`
//! (`StoreEngine::give_up`, once), and all reads get 503 from then on. A read that is expected to take 100 µs at most,
//! by the usual time of one record, runs on the caller's thread; others run on a blocking thread, as do reads and
//! pushes of more than 1000 values.
//!
//! Snapshots are due when the journal has grown by half of the last one, or when the layer no longer fits sled's cache:
//! sled takes 20 us for a record that is not in it, and never frees space. `StoreWriterCommand::Freeze` makes the
//! writer begin a segment, and a new layer on top; the one before does not change any more. The maintenance thread
//! merges it into the snapshot below, leaves out what expired, reads the new file back, counts and renames it.
//! `StoreWriterCommand::Rebase` makes the index read from it, and the frozen layer is removed. When a snapshot fails,
//! the next attempt takes the same layer. Two snapshots are kept, and the journal from the older one on.
//!
//! # One start of the store
//!
//! The declarations are read first, and the catalog has their numbers on disk before the first row uses them. Then the
//! lock, the hash key, and `Journal::open`: a torn end of the last segment is cut off, any other damage is reported and
//! stays. Pushes get 503 until the index is open, as it is unknown which entries it has; during a rebuild they are
//! accepted. Where the journal ends before the position in `CommitWatermark`, nothing is cut off: its end is damage,
//! the lacking entries are recorded on the disk before a new segment hides the gap, and recovery reports those as lost
//! that index and snapshot lack, too. The others stay recorded until a snapshot has them. The maintenance thread
//! (`recovery.rs`)
//!
//! 1. removes the record of the clean stop, so that any later crash is not taken for a clean stop;
//! 2. opens the newest good snapshot: its end, with the index of its blocks; a block is checked whenever it is read. It
//!    opens the layer over that snapshot, on a thread that may panic or hang, and reads every record of it. A layer
//!    over an older snapshot is removed: the newest snapshot has its values. A layer over a later snapshot shows that
//!    this snapshot is damaged; its values are copied into a new layer. A layer whose hash key is lost counts as
//!    damaged;
//! 3. after a clean stop compares the layer's checksum with the recorded one. Any difference is damage;
//! 4. after any other stop applies the journal from the snapshot on. A record that has an entry in it already is left
//!    alone;
//! 5. on damage sets the layer aside as `index.damaged`, lets the daemon become ready, and fills a new one from the
//!    journal. Entries that the journal lacks raise an alarm, unless the layer is known to have them;
//! 6. hands the index to the writer, which applies the entries that arrived meanwhile and swaps the state;
//! 7. reads journal and snapshots (`scrub`), and replaces damaged files by a new snapshot. Where the index reads from
//!    the damaged one, another index takes its place first, over the snapshot before.
//!
//! A snapshot of an earlier version, or restored from another box, is not sorted as the index needs it: step 2 takes an
//! index of an earlier version as a layer with every record, or fills such a layer from the snapshot, and after step 7
//! a new snapshot takes the place of both.
//!
//! With a master key the key files are read before anything else: `EntityKeys::open` takes whichever of two copies is
//! good. A row or record whose key was destroyed is skipped silently; one whose key number was never given, that does
//! not decrypt, or that is plain where everything is encrypted, raises an alarm. If there are no keys and `hash.key` is
//! encrypted, they are lost and no new ones are made. Keys that an erasure was about to destroy (`erased.json`) are
//! destroyed before anything else; unused keys once a day, after a scan that found every record, in a run that found no
//! damage. Plain values are encrypted after step 7 by two new snapshots, and then the older ones and the journal are
//! removed.
//!
//! An error of the system, such as a full disk or a snapshot that cannot be read now, is not damage: the step is tried
//! again every 10 s, and nothing is set aside or built without the missing part. Nor does an error of sled count as
//! damage while nothing can be written. On a full disk (`disk_space::free_space`) files set aside as damaged are
//! removed first, then the 16 MiB of `reserve`, in which sled can open.
//!
//! A restore works like a start: the backup is received into `restore.upload` and checked to its end, its records get
//! this store's numbers and keys and one sequence number that no entry has, the writer stops accepting pushes, and the
//! rename of the snapshot completes the restore. A layer from before it lies on an older snapshot, which step 2
//! detects.
#![forbid(unsafe_code)]

#[cfg(feature = "age")]
pub mod backup_cipher;
#[cfg(not(feature = "age"))]
#[path = "backup_cipher_left_out.rs"]
pub mod backup_cipher;
pub mod backup_form;
pub mod backup_rows;
mod caller;
pub mod catalog;
pub mod config;
mod doctor;
mod engine;
pub mod entity_keys;
pub mod journal;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod http;
mod incoming;
mod index;
mod key;
mod mem_table;
mod merge;
mod metrics;
pub mod online;
mod opening;
mod part;
pub mod profiles;
mod protection;
mod reading;
mod record;
mod seal;
pub mod encryption;
pub mod registry;
pub mod snapshot;
pub mod statistics;
mod status;
mod store;
mod typed;
pub mod value;
pub mod view;
pub mod window;
mod wire;

pub use caller::FeatureCaller;
pub use engine::backup::BackupPieces;
pub use engine::files::FORMAT_VERSION;
pub use engine::restore::BackupUpload;
pub use online::JoinKeyValues;
pub use reading::LongFeatureRead;
pub use store::FeatureStore;
