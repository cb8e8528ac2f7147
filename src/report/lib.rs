//! The report of a month: what this box did, for its owner and for an auditor, as a page to print and as JSON.
//!
//! It is made of the audit log on the disk, which is verified while it is read. Each number names the records that it was
//! made of, so that `ledge audit show` finds them and `ledge audit prove` proves them. The box's own figures, such as
//! accounts, are not signed: they are in sections of their own, and each row names its file and the command that prints it.
//!
//! Files, in reading order:
//! * `evidence.rs` - the records that a number was made of
//! * `document.rs` - the report, as it is written in JSON
//! * `collector.rs` - records to the report, one after the other
//! * `collector/` - parts of that:
//!   * `calls.rs` - calls and feature calls, by caller
//!   * `models.rs` - the times that versions of models served
//!   * `egress.rs` - what left the box
//!   * `events.rs` - events that are listed one by one, by section
//!   * `findings.rs` - findings that began and ended, and drift
//! * `annex.rs`, `annexes/` - duties of laws, with what this box does for each: data, no code
//! * `read.rs` - reads and verifies the logs of a box, and makes the report
//! * `page.rs`, `page/` - the report as a page: `html.rs` writes elements, `style.css` is for A4
//! * `http.rs`, `part.rs` - the route of the report, as a part of the daemon
//!
//! Invariants:
//! * One pass over the logs, in memory that does not grow with them: each list has a limit, and counts what is beyond.
//! * No number without evidence or source. A section without a source is absent.
//! * The page has no script and loads nothing. Every text in it is escaped by `page/html.rs`.
//! * The crate claims no compliance with any law: an annex says what the box does and what remains with the owner.
//!
//! # Where it is decided
//!
//! * The section that an event is listed in: `collector/events.rs`
//! * The duties of an annex: `annexes/*.toml`
//! * The settings that a report shows: the caller of `read.rs`, from the keys of `annex::settings`
#![forbid(unsafe_code)]

pub mod annex;
mod collector;
pub mod document;
mod evidence;
pub mod http;
pub mod page;
pub mod part;
pub mod read;

pub use document::Report;
