//! The audit log: events on this box, in a form that others can check. Records are the leaves of a Merkle tree in the
//! form of C2SP tlog-tiles. The box signs the heads of the tree and copies the files to the platform as they are.
//! Anybody with the verifier key can find a record that was changed, removed or added.
//!
//! The events and their queue are in the crate `service`, in `audit_event/`.
//!
//! Files, in reading order:
//! * `record.rs` - a record, which is one leaf: canonical JSON of a closed form
//! * `layout.rs` - the files of a log, as C2SP tlog-tiles names them
//! * `key.rs` - the signing key of the box; checkpoints signed and opened
//! * `tags.rs`, `tags/` - the keys for tags, one for each period, and their destruction; `files.rs` is their folder,
//!   `error.rs` why there are none
//! * `log.rs` - the log on the disk: records appended, made durable, signed
//! * `log/` - parts of the log:
//!   * `error.rs` - reasons why the log cannot be written
//!   * `frontier.rs` - the right edge of the tree in memory
//!   * `files.rs` - writes of everything but the checkpoint
//!   * `inspect.rs` - the state of a log found at a start; it writes nothing
//!   * `open.rs` - the start: the last log continues, or another one begins
//!   * `hashes.rs` - hashes read from their files, or computed again from the records
//!   * `prune.rs` - removal of the oldest files, to stay within the quota
//!   * `tests.rs`, `tests/` - tests on a disk, with damage and faults
//! * `restored.rs` - the log of a box that was restored from a backup: another one begins
//! * `local.rs` - the logs of this box for readers, also while another process appends
//! * `status.rs` - shared figures: heads, durable records, the state of the copies
//! * `writer.rs` - the one thread that owns the log: takes events, writes, signs, keeps the quota
//! * `writer/` - parts of that thread:
//!   * `open.rs` - the log that is written: opened, and replaced by another one
//!   * `open_log.rs` - the open log, with its keys
//!   * `entries.rs`, `append.rs` - events to entries, and entries to durable records
//!   * `room.rs` - room within the quota and on the disk
//!   * `losses.rs` - events that never became records, until a record reports them
//!   * `clock_watch.rs` - jumps of the wall clock
//! * `sync.rs` - the copy on the platform: sends files in order and continues where it stopped
//! * `sync/` - parts of that copy:
//!   * `settings.rs` - the log to copy, and its destination
//!   * `tiles.rs` - files of the log, each checked against the signed head before it is sent
//!   * `upload.rs` - brings one log on the platform up to a head: tiles first, then the checkpoint
//!   * `remote.rs`, `s3.rs` - the platform as a WebDAV folder or an S3 bucket
//!   * `hint.rs` - `sync.json`: the state of the platform at the last contact
//!   * `error.rs` - reasons why the copy does not go on
//!   * `tests.rs`, `tests/` - tests against a platform that misbehaves
//! * `live.rs` - live copies of records for monitoring, and the table of them; they may lose records and report it
//! * `live/` - parts of live copies:
//!   * `copy.rs` - the interface of a live copy
//!   * `feed.rs` - the records that wait for one copy, and its status
//!   * `stream.rs`, `requests.rs` - sending on a connection that stays open, and in batches that are acknowledged
//!   * `syslog.rs`, `otlp.rs` - one live copy each: its section of the configuration and its protocol
//! * `files.rs` - the files of a log on this box, in a folder or at an address
//! * `verify.rs` - verification of a whole log in one pass, with the verifier key only
//! * `verify/` - `walk.rs` reads the log, `tree.rs` computes its tree, `findings.rs` and `summary.rs` report
//! * `proof.rs` - proof that one record is in a log
//! * `certificate.rs` - the certificate of an erasure: its statement, with the proof of its record
//! * `sealed.rs` - the keys of the log, encrypted again under another master key
//! * `config.rs` - `[audit]`
//! * `part.rs` - the log as a part of the daemon; `http.rs`, `metrics.rs` and `doctor.rs` are its routes, metrics and
//!   findings
//! * `fuzz.rs` - properties that hold for any bytes in place of a file of a log
//!
//! Invariants:
//! * Recording never waits for the log. The writer ends after all parts that record.
//! * Records are durable before a head over them is signed, and heads of a log only grow. A power cut can leave more
//!   records than the head states, never fewer.
//! * A log found with fewer or other records than its head states is never written again. Another log begins, and its
//!   first record reports it.
//! * Events that could not be recorded are counted. A record reports the count as soon as one can be written.
//! * Data that a caller chose is in a record only as a tag. Names in a record are those that the operator chose.
//! * The checkpoint on the platform is put last, when everything under it is there. Tiles are put once and never
//!   changed.
//! * Live copies are fed from a bounded channel that the writer never waits for.
//! * `verify/tree.rs` shares no code with the tree of `log/`, so that a fault there cannot hide itself.
//! * Only `key.rs` knows `signed_note` and the signature scheme. Only `sync/` knows S3.
//!
//! # Where it is decided
//!
//! * An event is lost, and which kind first: `service/audit_event/sink.rs` for a full queue, `writer/room.rs` for the
//!   quota and the disk
//! * Another log begins: `writer/open.rs`
//!
//! # One record
//!
//! 1. A part calls `AuditSink::record`, which puts the event into the queue and never waits. Inference calls that are
//!    not recorded one by one are counted for a minute.
//! 2. The writer takes all that waits (`AuditLogWriter::turn`). `writer/room.rs` says which entries have room; older
//!    files are removed first where the quota requires it.
//! 3. `append` in `writer/append.rs` makes a record of each entry. Data that a caller chose becomes a tag. A record is
//!    one leaf, added by `AuditLog::append`; `AuditLog::commit` makes all of them durable at once. Live copies get
//!    them.
//! 4. `AuditLog::sign` writes a checkpoint over the durable records when they have waited long enough.
//! 5. Callers that wait in `AuditSink::durable` go on.
//! 6. `sync/` sends tiles and then the checkpoint to the platform.
#![forbid(unsafe_code)]

pub mod certificate;
pub mod config;
mod doctor;
pub mod files;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod http;
pub mod key;
pub mod layout;
pub mod local;
pub mod live;
pub mod log;
mod metrics;
pub mod part;
pub mod proof;
pub mod record;
pub mod restored;
pub mod sealed;
pub mod status;
pub mod sync;
pub mod tags;
pub mod verify;
pub mod writer;
