//! Ledge turns a CPU-only server into an inference appliance. This crate connects the parts: the command line, the
//! daemon and its configuration. Every other part is a separate crate below `src/`; `ARCHITECTURE.md` has the map.
//!
//! Files, in reading order:
//! * `main.rs`, `cli/` - the command line, one file a verb; `scratch.rs` a folder for temporary files
//! * `config.rs`, `config/` - the list of all sections, read from all sources, and the mistakes in them
//! * `daemon.rs`, `daemon/` - builds the parts, spawns, waits and drains; `daemon.rs` has the map
//! * `findings.rs`, `findings/` - what is wrong with this box, for `ledge doctor` and the console
//! * `egress_report.rs`, `egress_report/` - what can leave this box
//! * `own_audit_logs.rs` - the audit logs of this box; `monthly_report.rs` - the input of reports made of them,
//!   with `own_figures.rs`
//!
//! Invariants:
//! * The crate holds no logic of a part.
//! * The configuration is valid once it is loaded. The mistakes of all sources are reported together: unknown keys,
//!   wrong values, and the problems of each section without a wrong value. Sections are compared with one another once
//!   all can be read.
//!
//! # Where it is decided
//!
//! * The exit code of a verb: `cli/exit.rs` (`Exit::of`); 78 for a wrong configuration, stores of a later version and a
//!   wrong master key
//! * The stores are encrypted under a new master key: `daemon/rekey.rs`
#![forbid(unsafe_code)]

/// The command line: one file a verb.
pub mod cli;
/// The composition root. The only file that sees every part.
pub mod daemon;
/// A folder for temporary files.
mod scratch;
/// The contents that can leave this box, with the bytes that did, for `ledge audit egress` and the console.
pub mod egress_report;
/// The audit logs of this box, for commands and for reports.
mod own_audit_logs;
mod own_figures;
/// The input of the report of a month.
mod monthly_report;
/// The findings about this box that `ledge doctor` and the daemon share.
pub mod findings;
/// The configuration: a value that needs no further check, or the mistakes of all sources.
pub mod config;

pub use ledge_accounts as accounts;
pub use ledge_alerts as alerts;
pub use ledge_anomaly as anomaly;
pub use ledge_audit as audit;
pub use ledge_base::{clock, durable, memory_budget, names, principal, secret, sys, telemetry, tensor, token_bucket};
pub use ledge_cameras as cameras;
pub use ledge_capacity as capacity;
pub use ledge_console as console;
pub use ledge_documents as documents;
pub use ledge_drift as drift;
pub use ledge_egress as egress;
pub use ledge_engine as engine;
pub use ledge_engine::pipeline;
pub use ledge_features as features;
pub use ledge_grpc as grpc;
pub use ledge_history as history;
pub use ledge_http as http;
pub use ledge_identity as identity;
pub use ledge_inbox as inbox;
pub use ledge_isolation as isolation;
pub use ledge_jobs as jobs;
pub use ledge_listener as listener;
pub use ledge_membership as membership;
pub use ledge_models::{repository, scheduling, serving};
pub use ledge_mqtt as mqtt;
pub use ledge_part as part;
pub use ledge_protocol as protocol;
pub use ledge_report as report;
pub use ledge_service::{audit_event, shutdown};
pub use ledge_updates as updates;
pub use ledge_updates::rollout;
