//! The console: a page in the browser that shows what the box does, tries models and manages them. The page speaks only
//! the public HTTP API. What it needs beyond the other parts is here: who the caller is, findings, what leaves the box, and
//! API keys.
//!
//! Files, in reading order:
//! * `config.rs` - `[console]`
//! * `part.rs` - the console as a part of the daemon
//! * `http.rs` - `ROUTES`, the table of the routes of this crate; `state.rs` has the state of their handlers
//! * `page.rs`, `page/` - the files of the page, in the binary, and the headers that confine them. The fleet page in
//!   `packaging/platform/` uses `console.css`, `dom.js`, `plot.js`, `table.js` and `icon.svg`
//! * `access.rs` - the identity and the permissions of a caller
//! * `roles.rs` - what each role may
//! * `models.rs` - every model with its state and its statistics, in one answer
//! * `keys.rs` - API keys: all of them, a new one, the end of one; with the table of their routes
//! * `sign_in.rs` - people who sign in: codes, sessions, and their end
//! * `findings.rs` - the findings about this box, kept for a minute
//! * `egress.rs` - what can leave this box, and how much did
//!
//! Invariants:
//! * The page is the same for every caller and has nothing of the box in it. It names no address: everything that it
//!   loads comes from where it came from.
//! * A new key, a code or the halves of a session are in one answer, which no cache may keep, and in no log.
//! * The page never stores a key or what was tried, and runs no code and no style but that of its own files.
//! * The crate opens no connection.
#![forbid(unsafe_code)]

mod access;
pub mod config;
mod egress;
mod findings;
pub mod http;
pub mod keys;
mod models;
mod page;
pub mod part;
mod roles;
pub mod sign_in;
mod state;

pub use state::EgressSource;
