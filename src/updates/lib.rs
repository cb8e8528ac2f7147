//! Signed updates: fetches releases that a central platform authorised, tries them, and commits or rolls them back.
//! One task owns the state. `rollout/` reads the signed rollout manifest, `report/` reports the state of this box.
//!
//! Files, in reading order:
//! * `artifact.rs` - a model, configuration, runtime or package that can be updated, and the names of its signed targets
//! * `package.rs` - the signed description of a release
//! * `plan.rs` - the desired states of the platform for this box, as plain data
//! * `state.rs` - the state of one subject, and every step that it can take
//! * `state/` - parts of that state:
//!   * `subject.rs` - the state of one subject, as it is kept on the disk
//!   * `installed.rs`, `phase.rs` - a release in the update store, and the progress of a trial
//!   * `trial.rs` - a release on its way
//!   * `fault.rs`, `delays.rs` - faults of the server, the link or the disk, and the deadlines for the delays of a
//!     trial
//!   * `reason.rs` - reasons why a release was stopped
//!   * `superseded.rs` - rollouts that later ones replaced
//!   * `tests.rs`, `tests/` - every rule, by example and at random
//! * `persisted.rs` - the states of all subjects on disk, in two files that are written alternately
//! * `sha256.rs` - SHA-256 of files and metadata
//! * `trust/` - trust in the platform by TUF:
//!   * `mod.rs` - refreshes metadata, finds a target through the role that must sign it, audits
//!   * `engine.rs` - the client workflow over `sigstore-tuf`, with limits on lengths, roles and time
//!   * `store.rs`, `store/` - the trusted metadata on disk
//!   * `snapshot_versions.rs` - refuses a snapshot with a lower version than the last accepted one
//!   * `time.rs` - the time by which expiry is judged
//!   * `roles.rs` - the trusted roles, for display
//!   * `error.rs` - reasons why something is not trusted
//!   * `plain.rs` - a plain client for the public conformance suite: `ledge update tuf`
//!   * `fuzz.rs` - properties that hold for any bytes in place of metadata
//!   * `tests.rs`, `tests/` - tests against repositories that are signed there
//! * `source.rs`, `source/` - a web server or, in `folder.rs`, a folder as a repository; `error.rs` has its errors
//! * `platform.rs` - trust and source together, shared by the poller and the updater
//! * `download.rs`, `download/` - one file into the store: resumed, bounded, and taken only if its hash is right;
//!   `rate.rs` limits its rate and requires a minimum, `error.rs` has the reasons of failure
//! * `store.rs` - the update store: files by their hashes, and releases made of them
//! * `store/` - parts of the store:
//!   * `layout.rs`, `error.rs` - its names and files on the disk, and its errors
//!   * `part.rs`, `sealed_part.rs` - a file on its way, plain or encrypted, fsynced after each 512 KiB
//!   * `release.rs` - folders of hard links to files
//!   * `garbage.rs` - removal of files that no release needs
//!   * `sealed.rs`, `sealed/` - encryption of the files again under another master key
//!   * `survey.rs` - the master keys that the files need
//!   * `tests.rs` - tests
//! * `preflight/` - the trial run of a release in a process of its own, before it is loaded next to the live version:
//!   * `mod.rs` - the preflight of each kind of artifact
//!   * `settings.rs`, `limits.rs` - the settings of every preflight on this box, and the memory and time of one
//!   * `order.rs`, `error.rs` - the order to the process, its report, and why a preflight is not passed
//!   * `trial.rs` - a model, or the models of a library: load, golden inputs, measurement, in a sealed process
//!   * `watch.rs`, `child.rs` - the process that reads settings, from outside and from inside
//!   * `requirements.rs` - compares this box with the requirements of a release
//! * `gates.rs` - limits that a new version must keep while it sees requests
//! * `updater/` - the one task that owns the state:
//!   * `mod.rs` - an event to a state, the state to disk, then the box to the state
//!   * `boot.rs` - the start, before any model is loaded
//!   * `jobs.rs`, `job_outcome.rs` - the job of each action, and its outcome
//!   * `download_job.rs`, `load_jobs.rs` - the jobs: a download, a preflight, a load next to the live version
//!   * `verdict.rs` - passes, continues or fails a stage that sees requests
//!   * `paces.rs` - measures a version again before it counts as too slow
//!   * `serving.rs` - the versions that requests see
//!   * `trial_runtime.rs`, `pauses.rs` - state in memory only: jobs under way, pauses after faults
//!   * `orders.rs` - orders of the administrator
//!   * `publish.rs` - reports to the log, the audit log and the status
//! * `handle.rs` - `Updates`, the handle of all other parts: desired states and orders in, status out
//! * `status.rs`, `status_report.rs` - the status as plain data, and its one form for HTTP, MQTT and the command line
//! * `rollout/` - the rollout manifest and the checks for a new one; its `mod.rs` has the map
//! * `report.rs` - the document that reports this box to its platform, over MQTT
//! * `report/` - its parts: `excerpt.rs` shortens reasons, `inventory.rs`, `updates.rs`, and `audit.rs` with the head of
//!   the audit log
//! * `upgrade/` - upgrades of Ledge itself, with a service of root; its `mod.rs` has the map
//! * `configuration.rs` - signed settings from a closed set, read at the start
//! * `runtime_dirs.rs` - runtime libraries that came as releases, read at the start
//! * `catalogue/` - models that a person adds: the signed list and the download (`mod.rs`), the folders (`folder.rs`),
//!   uploads (`upload.rs`), the part of the daemon (`part.rs`), its routes (`api.rs`) and `[catalogue]` (`config.rs`)
//! * `config.rs` - `[updates]`
//! * `part.rs` - updates as a part of the daemon; `http.rs`, `metrics.rs` and `doctor.rs` are their routes, metrics and
//!   findings
//! * `status_example.rs` - a status for tests
//!
//! Invariants:
//! * Nothing of a release is loaded that the role `models` did not sign, and no package is installed that the role
//!   `packages` did not sign, whatever `fleet` states. A target counts
//!   only through the one role that must sign it.
//! * The state is on disk before the box acts on it. One exception: a model falls back to its previous version even
//!   when the state cannot be written.
//! * The next action of a box follows from its state only (`SubjectState::next_action`), so a power cut at any point
//!   does no harm.
//! * No failure here takes a running version away, and no answer of the platform does. Only a signed revocation does.
//! * A name without a dot in the update store appears by a rename, after everything behind it was fsynced.
//! * Time never runs behind the build and the accepted metadata. The system's clock is never stored.
//! * Damage to the trusted metadata is an alarm, never "none yet".
//! * Rolling back and pinning need no network.
//! * `state.rs`, `gates.rs` and `download/rate.rs` are pure: no clock, no disk, no network.
//! * Only `trust/` knows `sigstore-tuf`.
//!
//! # Where it is decided
//!
//! * The steps of a trial, restarts included: `state.rs` (`next_action`, `started`); the work that a start finds under
//!   way: `models/repository/trial_mark.rs`
//! * The expiry of metadata: `refresh` in `trust/engine.rs` for a check, `DelegationSearch::check_chain` there before
//!   a target is taken; the time that they compare with: `trust/time.rs`
//! * A replay of old metadata: `trust/snapshot_versions.rs`, remembered in `tuf/trusted.json`
#![forbid(unsafe_code)]

pub mod catalogue;
pub mod config;
pub mod configuration;
mod doctor;
pub mod download;
pub mod gates;
pub mod handle;
pub mod http;
mod metrics;
pub mod package;
pub mod part;
pub mod persisted;
pub mod plan;
pub mod platform;
pub mod preflight;
pub mod report;
pub mod rollout;
pub mod runtime_dirs;
pub mod sha256;
pub mod source;
pub mod state;
pub mod status;
#[cfg(test)]
mod status_example;
pub mod status_report;
pub mod store;
pub mod artifact;
pub mod trust;
pub mod updater;
pub mod upgrade;

// Lets `status_example.rs` name its types as other crates do.
#[cfg(test)]
extern crate self as ledge_updates;

pub use handle::Updates;
