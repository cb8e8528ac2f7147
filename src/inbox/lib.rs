//! Inboxes: folders in which scanners and people put documents. Each document is read once, and its results are written
//! to files and sent to a webhook or over MQTT.
//!
//! Files, in reading order:
//! * `config.rs` - `[[inbox]]`
//! * `watch.rs` - tells which files have stood still
//! * `claim.rs` - a claimed file: its id, and the names of what comes of it
//! * `table.rs` - a document as a row of CSV
//! * `message.rs` - the JSON file of a document, and the message about it
//! * `workspace.rs` - the files of one inbox: claims, results, messages that wait
//! * `inbox.rs` - one inbox: claim, read, finish, or try again later
//! * `deliver.rs` - messages on their way to a receiver
//! * `inboxes.rs` - all inboxes, and their tasks
//! * `retention.rs` - the end of documents that were read
//! * `http.rs`, `metrics.rs`, `doctor.rs` - the state of inboxes
//! * `part.rs` - inboxes as a part of the daemon
//!
//! Invariants:
//! * A file is read once, however often the daemon is killed, and by one of the boxes that watch its folder.
//! * A file is in exactly one place: the watched folder, the folder of claims of one box, that of done files, or that of
//!   failed ones. It leaves the claims when all its results and messages are on the disk.
//! * The name of a file is never a path, and no link is followed within the watched folder.
//! * A message is removed when its receiver has it. The name of a file and its content are in no log.
//! * Files are touched on the thread of their inbox only: a share that hangs delays nothing else.
//! * The crate does not know MQTT: `DocumentPublisher` is passed in.
#![forbid(unsafe_code)]

mod claim;
pub mod config;
pub mod deliver;
mod doctor;
pub mod http;
mod inbox;
pub mod inboxes;
pub mod message;
mod metrics;
mod part;
pub mod retention;
mod table;
mod watch;
mod workspace;
