//! The audit log: what happened on this box, in a form that others can check.
//!
//! Records are the leaves of a Merkle tree in the form of C2SP tlog-tiles, on this box's disk. Its heads are signed by the
//! box, the files are copied to the platform as they are, and anybody with the verifier key can tell whether something was
//! changed, removed or put in.
#![forbid(unsafe_code)]

pub mod config;
pub mod files;
pub mod fuzz;
pub mod key;
pub mod layout;
pub mod local;
pub mod live;
pub mod log;
pub mod proof;
pub mod record;
pub mod sealed;
pub mod status;
pub mod sync;
pub mod tags;
pub mod verify;
pub mod writer;
