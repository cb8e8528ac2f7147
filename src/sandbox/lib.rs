//! The sandbox of a process that reads foreign bytes: what it may still do, taken from it once and for all by the
//! kernel.
//!
//! Files, in reading order:
//! * `apply.rs` - `Sandbox`, and the order in which its mechanisms are applied
//! * `report.rs` - the mechanisms, each in force or not, in words for people
//! * `limits.rs` - limits of memory, files and threads
//! * `namespaces.rs` - a user, a network and an IPC namespace of its own; no capabilities
//! * `files.rs` - Landlock: files, TCP, commands to devices, abstract sockets, signals
//! * `system_calls.rs` - the list of allowed system calls, with the reason for each that surprises
//! * `rules.rs` - rules about system calls and their arguments
//! * `filter.rs` - the list as a filter of the kernel
//! * `writable_code.rs` - for the daemon: no memory that is both written and executed
//! * `probe.rs` - attempts of everything that is denied; only with the feature `probe`, for tests
//!
//! The process to be sandboxed calls [`Sandbox::apply`] while it has one thread and has read nothing foreign. It has
//! opened, or inherited, every socket and file that the sandbox would not let it open; threads, `dlopen` and models
//! come after.
//!
//! Invariants:
//! * No unsafe code, no other crate of Ledge, no thread, no file that is written, no connection.
//! * Nothing loosens a sandbox: limits are hard, and no call that would is on the list of system calls.
//! * What is not on the list is denied, with EPERM. A new system call of a new kernel is denied.
//! * No mechanism is skipped in silence: each is in the report, with the reason where it is not in force.
//!
//! The sandbox stops a process that an attacker controls from: opening any file but those named and [`SYSTEM_FILES`];
//! making a socket, a process or a program; reading, signalling or tracing another process; changing a file's mode,
//! owner or times; taking more memory, files, disk for one file or threads than allowed; leaving a core file; gaining a
//! privilege.
//!
//! It does not stop:
//! * wrong answers, and anything that the process may write on the socket that it has: the daemon must distrust both;
//! * a hole in a system call that is allowed: there is one kernel for both processes;
//! * use of CPU time and memory bandwidth, and what timing tells of other processes on the same cores;
//! * a full disk by many files in a folder to write, and anything written there that a later process trusts;
//! * `stat`: names, sizes and times of files that it cannot open, where it guesses the path, for Landlock has no right
//!   for it;
//! * an open file of its own through `/proc/self/fd` with other access: shared memory that it may only read must be
//!   sealed against writing (`F_SEAL_WRITE`, `F_SEAL_FUTURE_WRITE`), not only be passed as a read-only descriptor;
//! * a change of the size of shared memory that it has: sealed against that too (`F_SEAL_SHRINK`, `F_SEAL_GROW`), or
//!   the daemon gets a SIGBUS where it reads what is cut off.
#![forbid(unsafe_code)]

mod apply;
mod report;
mod rules;
mod limits;
mod namespaces;
mod files;
mod system_calls;
mod filter;
mod writable_code;
#[cfg(feature = "probe")]
pub mod probe;

pub use apply::Sandbox;
pub use files::SYSTEM_FILES;
pub use limits::SandboxLimits;
pub use report::{Mechanism, MechanismReport, MechanismState, SandboxReport};
pub use system_calls::BACKGROUND_NICENESS;
pub use writable_code::deny_writable_code;
