//! The console: a page in the browser that shows what the box does, tries models and manages them. The page speaks only
//! the public HTTP API. What it needs beyond the other parts is here: who the caller is, figures of the last day,
//! findings, what leaves the box, and API keys.
//!
//! Files, in reading order:
//! * `config.rs` - `[console]`
//! * `part.rs` - the console as a part of the daemon
//! * `http.rs` - `ROUTES`, the table of the routes of this crate; `state.rs` has the state of their handlers
//! * `page.rs`, `page/` - the files of the page, in the binary, and the headers that confine them. The fleet page in
//!   `packaging/platform/` uses `console.css`, `dom.js`, `plot.js`, `table.js` and `icon.svg`
//! * `access.rs` - the identity and the permissions of a caller
//! * `roles.rs` - what each role may
//! * `models.rs` - every model with its state and its figures, in one answer
//! * `keys.rs` - API keys: all of them, a new one, the end of one; with the table of their routes
//! * `figures.rs` - figures of the last hour and the last day; `ring.rs` the samples of one of these, `readings.rs`
//!   what they are made of
//! * `live.rs` - each new sample as a server-sent event
//! * `findings.rs` - the findings about this box, kept for a minute
//! * `egress.rs` - what can leave this box, and how much did
//!
//! Invariants:
//! * The page is the same for every caller and has nothing of the box in it. It names no address: everything that it
//!   loads comes from where it came from.
//! * A new key is in one answer, which no cache may keep, and in no log.
//! * The page never stores a key or what was tried, and runs no code and no style but that of its own files.
//! * The figures have a bound: so many samples of so many columns, however long the daemon runs.
//! * Counters are those of the parts that own them. Nothing is counted twice.
//! * An answer that lasts ends with the shutdown, and when its caller is no longer admitted.
//! * The crate opens no connection.
//!
//! # Where it is decided
//!
//! * The end of an answer that lasts: `live.rs`, at the shutdown, or when `Authenticator::is_current` denies its caller
#![forbid(unsafe_code)]

mod access;
pub mod config;
mod egress;
mod figures;
mod findings;
pub mod http;
pub mod keys;
mod live;
mod models;
mod page;
pub mod part;
mod readings;
mod ring;
mod roles;
mod state;

pub use state::EgressSource;
