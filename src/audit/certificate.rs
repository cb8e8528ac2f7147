//! The certificate of an erasure, which the person concerned gets: the statement of what was erased, the proof that the
//! record of the erasure is in the log (C2SP tlog-proof), and the verifier key.
//!
//! Nothing is signed besides the head of the log. The record has the SHA-256 of the statement, the hashes of the proof
//! lead from the record to the root of the tree, and the box signed the root: so the signature covers every byte of the
//! statement. The verifier key is all that is needed to check it, and any program for Ed25519 and SHA-256 can.
//!
//! ```json
//! {
//!   "form": "ledge.erasure-certificate/1",
//!   "statement": "{\"form\":\"ledge.erasure/1\",...}",
//!   "proof": "c2sp.org/tlog-proof@v1\n...",
//!   "verifier_key": "ledge.audit/box-1+0a1b2c3d+A..."
//! }
//! ```

use ledge_service::audit_event::AuditEvent;
use ledge_service::audit_event::erasure::{ErasureStatement, InvalidStatement};
use serde::{Deserialize, Serialize};

use super::files::{AuditFilesError, AuditLogFiles, tile_of};
use super::key::SignedCheckpoint;
use super::layout::{TILE_WIDTH, TileKind, whole_entries};
use super::proof::{InclusionProof, ProofError};
use super::record::AuditRecord;

/// The form of a certificate.
pub const CERTIFICATE_FORM: &str = "ledge.erasure-certificate/1";

/// The largest certificate, in bytes: a record, its proof, and a statement with all feature views.
pub const CERTIFICATE_BYTES_MAX: usize = 4 << 20;

/// A certificate. [`Self::check`] checks it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErasureCertificate {
    /// [`CERTIFICATE_FORM`].
    form: String,
    statement: String,
    /// The text of an [`InclusionProof`].
    proof: String,
    verifier_key: String,
}

/// The content of a certificate that was checked.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedErasure {
    pub statement: ErasureStatement,
    /// The record of the erasure.
    pub record: AuditRecord,
    pub checkpoint: SignedCheckpoint,
}

/// Reasons why something is not a certificate, or is not valid.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("not a certificate of erasure: {reason}")]
    Malformed { reason: String },
    #[error("the certificate is of another box: its verifier key is {key}")]
    OtherKey { key: String },
    #[error(transparent)]
    Proof(#[from] ProofError),
    #[error("record {seq} is not that of this erasure: {reason}")]
    OtherRecord { seq: u64, reason: &'static str },
    #[error(transparent)]
    Statement(#[from] InvalidStatement),
}

impl ErasureCertificate {
    /// The certificate of a statement, with the proof of its record.
    pub fn new(statement: String, proof: String, verifier_key: String) -> Self {
        Self { form: CERTIFICATE_FORM.to_owned(), statement, proof, verifier_key }
    }

    /// The text of the certificate.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Only texts, so serialization cannot fail.
        let mut bytes = serde_json::to_vec_pretty(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// Reads the output of [`Self::to_bytes`], and no other text: a certificate has one form only.
    pub fn parse(bytes: &[u8]) -> Result<Self, CertificateError> {
        let malformed = |reason: String| CertificateError::Malformed { reason };
        if bytes.len() > CERTIFICATE_BYTES_MAX {
            return Err(malformed(format!("it is longer than {CERTIFICATE_BYTES_MAX} bytes")));
        }
        let certificate: Self = serde_json::from_slice(bytes).map_err(|error| malformed(error.to_string()))?;
        if certificate.form != CERTIFICATE_FORM {
            return Err(malformed(format!("its form is not {CERTIFICATE_FORM}")));
        }
        if certificate.to_bytes() != bytes {
            return Err(malformed("it is not in the form in which Ledge writes it".to_owned()));
        }
        Ok(certificate)
    }

    /// Checks the certificate with the verifier key of the box.
    pub fn check(&self, verifier_key: &str) -> Result<CheckedErasure, CertificateError> {
        if self.verifier_key != verifier_key {
            return Err(CertificateError::OtherKey { key: self.verifier_key.clone() });
        }
        let (checkpoint, record) = InclusionProof::parse(self.proof.as_bytes())?.check(verifier_key)?;
        let other = |reason| CertificateError::OtherRecord { seq: record.seq, reason };
        let AuditEvent::FeatureEntityErased { records, views, statement: Some(hash) } = &record.event else {
            return Err(other("it does not have the hash of a statement"));
        };
        if *hash != ErasureStatement::hash_of(&self.statement) {
            return Err(other("it has the hash of another statement"));
        }
        let statement = ErasureStatement::parse(&self.statement)?;
        if (*records, *views) != (statement.records, statement.feature_views.len() as u64) {
            return Err(other("it has other counts than the statement"));
        }
        Ok(CheckedErasure { statement, record, checkpoint })
    }
}

/// Finds the record of the erasure with this hash of a statement, the newest first, among the records from `from` on of a
/// log of `size` records; `None` if there is none. It takes one bundle at a time, back to the oldest that exists.
pub async fn record_of(
    files: &AuditLogFiles,
    from: u64,
    size: u64,
    hash: &str,
) -> Result<Option<u64>, AuditFilesError> {
    for index in (from / TILE_WIDTH..size.div_ceil(TILE_WIDTH)).rev() {
        let Some(bundle) = files.tile(tile_of(TileKind::Entries, index, size)).await? else { return Ok(None) };
        let records = (index * TILE_WIDTH..).zip(whole_entries(&bundle).0);
        for (seq, line) in records {
            // Most records are no erasures, and need not be read.
            if memmem(line, hash.as_bytes())
                && let Ok(AuditRecord { event: AuditEvent::FeatureEntityErased { statement: Some(found), .. }, .. }) =
                    AuditRecord::parse(line)
                && found == hash
            {
                return Ok(Some(seq));
            }
        }
    }
    Ok(None)
}

fn memmem(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len().max(1)).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use ledge_base::principal::Principal;
    use ledge_service::audit_event::erasure::{EntityNaming, ErasedView};
    use serde_json::json;
    use tlog_tiles::record_hash;

    use super::*;
    use crate::key::{AuditKey, origin};
    use crate::record::{Actor, Timestamp, VERSION};

    fn statement(naming: EntityNaming) -> String {
        let (earliest, latest) = ("2026-01-01T00:00:00Z".to_owned(), "2026-02-01T00:00:00Z".to_owned());
        let view = ErasedView { name: "spend".into(), records: 1, earliest, latest };
        let entity = [("customer_id".to_owned(), json!("anna"))].into();
        ErasureStatement::new(entity, naming, [3; 32], vec![view]).to_text()
    }

    fn record(seq: u64, event: AuditEvent) -> Vec<u8> {
        let actor = Actor::of(&Principal::Local, None);
        AuditRecord { v: VERSION, seq, ts: Timestamp(1_800_000_000_000), actor, event }.to_line()
    }

    fn erased(statement: &str) -> AuditEvent {
        let hash = Some(ErasureStatement::hash_of(statement));
        AuditEvent::FeatureEntityErased { records: 1, views: 1, statement: hash }
    }

    /// The certificate of a log with a single record.
    fn certificate(key: &AuditKey, statement: String, event: AuditEvent) -> ErasureCertificate {
        let record = record(0, event);
        let device = "box-1".parse().unwrap();
        let checkpoint = key.sign(&origin(&device, 1), 1, record_hash(&record)).unwrap().note;
        let proof = InclusionProof { record, index: 0, hashes: Vec::new(), checkpoint }.to_bytes();
        ErasureCertificate::new(statement, String::from_utf8(proof).unwrap(), key.verifier_key().to_owned())
    }

    fn key(seed: u8) -> AuditKey {
        AuditKey::new("ledge.audit/box-1", &[seed; 32])
    }

    #[test]
    fn a_certificate_is_valid_and_with_any_bit_of_it_flipped_it_is_not() {
        for naming in [EntityNaming::Hashed, EntityNaming::Named] {
            let text = statement(naming);
            let whole = certificate(&key(1), text.clone(), erased(&text)).to_bytes();
            let checked = ErasureCertificate::parse(&whole).unwrap().check(key(1).verifier_key()).unwrap();
            assert!(checked.record.seq == 0 && checked.statement.to_text() == text);
            for at in 0..whole.len() * 8 {
                let mut flipped = whole.clone();
                flipped[at / 8] ^= 1 << (at % 8);
                let valid = ErasureCertificate::parse(&flipped).is_ok_and(|it| it.check(key(1).verifier_key()).is_ok());
                assert!(!valid, "bit {at}: {}", String::from_utf8_lossy(&flipped));
            }
        }
    }

    #[test]
    fn a_certificate_of_another_key_record_or_statement_is_refused() {
        let text = statement(EntityNaming::Hashed);
        let (ours, theirs) = (key(1), key(2));
        let forged = certificate(&theirs, text.clone(), erased(&text));
        assert!(matches!(forged.check(ours.verifier_key()), Err(CertificateError::OtherKey { .. })));
        // A forger names the right key next to a head that another key signed.
        let forged = ErasureCertificate { verifier_key: ours.verifier_key().to_owned(), ..forged };
        assert!(matches!(forged.check(ours.verifier_key()), Err(CertificateError::Proof(ProofError::Checkpoint(_)))));
        for event in [
            AuditEvent::Stopped,
            AuditEvent::FeatureEntityErased { records: 1, views: 1, statement: None },
            erased(&statement(EntityNaming::Named)),
            AuditEvent::FeatureEntityErased { records: 2, views: 1, statement: Some(ErasureStatement::hash_of(&text)) },
        ] {
            let other = certificate(&ours, text.clone(), event);
            assert!(matches!(other.check(ours.verifier_key()), Err(CertificateError::OtherRecord { .. })));
        }
        // The record has the hash of something that is no statement.
        let other = certificate(&ours, "{}".into(), erased("{}"));
        assert!(matches!(other.check(ours.verifier_key()), Err(CertificateError::Statement(_))));
    }

    #[test]
    fn a_certificate_has_one_form_only() {
        let text = statement(EntityNaming::Hashed);
        let whole = String::from_utf8(certificate(&key(1), text.clone(), erased(&text)).to_bytes()).unwrap();
        assert!(ErasureCertificate::parse(whole.as_bytes()).is_ok());
        for other in [
            whole.trim_end().to_owned(),
            whole.replace("\n  ", "\n "),
            whole.replace("erasure-certificate/1", "erasure-certificate/2"),
            whole.replacen("\"form\"", "\"extra\": 1, \"form\"", 1),
            whole.replacen("ledge.erasure/1", "ledge\\u002eerasure/1", 1),
        ] {
            assert!(matches!(ErasureCertificate::parse(other.as_bytes()), Err(CertificateError::Malformed { .. })));
        }
    }
}
