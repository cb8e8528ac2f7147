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
//! * `question.rs` - a signed question of the platform, verified
//! * `diagnosis.rs` - the answer to `doctor`: checks by their names, without their texts
//! * `folder.rs` - the folder of the membership
//! * `settings.rs` - the settings of a member, as a source of the configuration
//! * `join.rs` - joining: a join file becomes a membership
//! * `member.rs` - the task that asks and renews
//! * `responder.rs` - the task that answers questions, where the owner allows them
//! * `config.rs`, `part.rs`, `doctor.rs` - the membership as a part of the daemon
//! * `tests.rs`, `tests/` - tests
//!
//! Invariants:
//! * A private key is made here, is on the disk before its request is sent, and never leaves the box.
//! * Only a certificate that leads to the root of the join file, for the name and the new key of this box, replaces the
//!   present one.
//! * Nothing that the platform answers removes a certificate that still works.
//! * A question that the platform did not sign, that is for another box, or that was answered before gets no answer.
//! * An answer has only words of closed lists and numbers; its audit record is on the disk before it leaves.
//! * A request needs no client certificate, so a box whose certificate has expired can ask for the next one.
//!
//! # Where it is decided
//!
//! * The time of renewal: `certificates.rs` (`renewal_ms`)
//! * The questions that get no answer: `question.rs` (`QuestionJudge`)
//! * The findings that an answer has: `diagnosis.rs` (`CheckName`)
//! * The settings that a join file may bring: `settings.rs`, by the closed set of `updates/configuration.rs`
#![forbid(unsafe_code)]

mod certificates;
pub mod config;
mod diagnosis;
mod doctor;
mod envelope;
pub mod folder;
pub mod join;
pub mod join_file;
mod member;
pub mod part;
pub mod question;
mod request;
mod responder;
mod settings;

pub use diagnosis::{CheckName, Diagnosis};
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

/// Reads bytes as the file of a question of the platform whose root is in the join file of `tests/data`; `true` when it
/// is one.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_question(data: &[u8]) -> bool {
    let Ok(device) = "box-2".parse() else { return false };
    let allowed = [question::QuestionKind::Doctor];
    // Made by the platform of the join file in `tests/data`, at the time at which its question there is good.
    let ca = include_str!("../../tests/data/membership/question-ca.pem");
    let judge = question::QuestionJudge { device: &device, ca, allowed: &allowed, answered: None };
    judge.judge(data, 1_796_256_000_000).is_ok()
}
