//! Membership of a fleet: how this box joins a platform, and keeps the certificate by which the platform knows it.
//!
//! A join file, which `ledge-platform box add` signs, brings all that a box needs. `ledge join` writes it into the
//! folder of the membership; the daemon makes the keys, asks for a certificate and renews it. Requests are files put to
//! a folder of the platform's web server, answers are files published there.
//!
//! Files, in reading order:
//! * `envelope.rs` - the envelope of signed files (DSSE)
//! * `certificates.rs` - chains of certificates, and when one is renewed
//! * `join_file.rs` - a join file, verified
//! * `request.rs` - a new key, the request for its certificate, and the answer
//! * `folder.rs` - the folder of the membership
//! * `settings.rs` - the settings of a member, as a source of the configuration
//! * `join.rs` - joining: a join file becomes a membership
//! * `member.rs` - the task that asks and renews
//! * `config.rs`, `part.rs`, `doctor.rs` - the membership as a part of the daemon
//! * `tests.rs` - tests
//!
//! Invariants:
//! * A private key is made here, is on the disk before its request is sent, and never leaves the box.
//! * Only a certificate that leads to the root of the join file, for the name and the new key of this box, replaces the
//!   present one.
//! * Nothing that the platform answers removes a certificate that still works.
//! * A request needs no client certificate, so a box whose certificate has expired can ask for the next one.
//!
//! # Where it is decided
//!
//! * The time of renewal: `certificates.rs` (`renewal_ms`)
//! * The settings that a join file may bring: `settings.rs`, by the closed set of `updates/configuration.rs`
#![forbid(unsafe_code)]

mod certificates;
pub mod config;
mod doctor;
mod envelope;
pub mod folder;
pub mod join;
pub mod join_file;
mod member;
pub mod part;
mod request;
mod settings;

pub use request::CertificateRequest;
pub use settings::SCRAPER_NAME;

#[cfg(test)]
mod tests;

/// Reads bytes as a join file and as an answer; `true` when they are either. The folder `fuzz/` contains the harness.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_join_file(data: &[u8]) -> bool {
    // 2026-12-03, when the join file in `tests/data` is good.
    let opened = join_file::JoinFile::open(data, 1_796_256_000_000);
    opened.is_ok() || serde_json::from_slice::<request::Answer>(data).is_ok()
}
