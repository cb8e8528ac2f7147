//! The proof that one record is in a log (C2SP tlog-proof): the record, the hashes from it to the root, and the signed
//! head.
//!
//! The verifier key is all that is needed to check it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tlog_tiles::{Hash, HashReader, check_record, prove_record, record_hash, split_stored_hash_index};

use super::files::{AuditFilesError, AuditLogFiles, hashes_of, tile_of};
use super::key::{CheckpointError, SignedCheckpoint};
use super::layout::{TILE_WIDTH, TileKind, whole_entries};
use super::record::{AuditRecord, InvalidAuditRecord, RECORD_BYTES_MAX};
use super::verify::RECORDS_MAX;
use super::verify::tree::subtree;

/// The first line.
const HEADER: &str = "c2sp.org/tlog-proof@v1";

/// The most hashes in a proof: no tree is higher.
const HASHES_MAX: usize = 63;

/// A proof.
#[derive(Debug, Clone, PartialEq)]
pub struct InclusionProof {
    pub record: Vec<u8>,
    /// Its sequence number.
    pub index: u64,
    /// The hashes next to the path from the record to the root, from the record's sibling up.
    pub hashes: Vec<Hash>,
    /// The signed head, as it is published.
    pub checkpoint: Vec<u8>,
}

/// Reasons why something is not a proof, or does not prove the record.
#[derive(Debug, thiserror::Error)]
pub enum ProofError {
    #[error("not a proof in the form of C2SP tlog-proof: expected {expected}")]
    Malformed { expected: &'static str },
    #[error("the checkpoint is not valid: {0}")]
    Checkpoint(#[from] CheckpointError),
    /// The head is of another log than the key.
    #[error("the checkpoint is that of the log {origin}, but the key is that of {key}")]
    Origin {
        /// The first line of the checkpoint.
        origin: String,
        /// The name of the key.
        key: String,
    },
    #[error("the record is not in the log: the hashes of the record and of the proof do not lead to the signed root")]
    NotIncluded,
    #[error(transparent)]
    Record(#[from] InvalidAuditRecord),
    #[error("cannot prove record {seq}: {reason}")]
    NotThere { seq: u64, reason: String },
    #[error(transparent)]
    Files(#[from] AuditFilesError),
}

impl InclusionProof {
    /// The text of the proof.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut text = format!("{HEADER}\nextra {}\nindex {}\n", STANDARD.encode(&self.record), self.index);
        for hash in &self.hashes {
            let _ = writeln!(text, "{hash}");
        }
        text.push('\n');
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(&self.checkpoint);
        bytes
    }

    /// Reads a proof. [`Self::check`] checks it.
    pub fn parse(bytes: &[u8]) -> Result<Self, ProofError> {
        let malformed = |expected| ProofError::Malformed { expected };
        let end = bytes
            .windows(2)
            .position(|pair| pair == b"\n\n")
            .ok_or(malformed("an empty line before the checkpoint"))?;
        let (head, checkpoint) = bytes.split_at_checked(end + 2).ok_or(malformed("a checkpoint"))?;
        let head = std::str::from_utf8(head).map_err(|_| malformed("text"))?;
        let mut lines = head.lines();
        if lines.next() != Some(HEADER) {
            return Err(malformed("the first line c2sp.org/tlog-proof@v1"));
        }

        let record = lines.next().and_then(|line| line.strip_prefix("extra "));
        let record =
            record.and_then(|text| STANDARD.decode(text).ok()).filter(|record| record.len() <= RECORD_BYTES_MAX);
        let record = record.ok_or(malformed("a line with \"extra\" and the record in base64"))?;

        let index = lines.next().and_then(|line| line.strip_prefix("index ")).and_then(|text| {
            // No sign and no leading zero: a number has one form.
            text.parse::<u64>().ok().filter(|index| index.to_string() == text)
        });
        let index = index.ok_or(malformed("a line with \"index\" and a number"))?;

        let mut hashes = Vec::new();
        for line in lines.take_while(|line| !line.is_empty()) {
            if hashes.len() == HASHES_MAX {
                return Err(malformed("63 hashes at most"));
            }
            hashes.push(Hash::parse_hash(line).map_err(|_| malformed("lines with a hash in base64"))?);
        }
        Ok(Self { record, index, hashes, checkpoint: checkpoint.to_vec() })
    }

    /// Checks that the record is in the log of the key, in its place.
    pub fn check(&self, verifier_key: &str) -> Result<(SignedCheckpoint, AuditRecord), ProofError> {
        let checkpoint = SignedCheckpoint::open(&self.checkpoint, verifier_key)?;
        let key = verifier_key.split('+').next().unwrap_or_default();
        if checkpoint.origin.strip_prefix(key).is_none_or(|rest| !rest.starts_with('/')) {
            return Err(ProofError::Origin { origin: checkpoint.origin, key: key.to_owned() });
        }
        self.is_included(&checkpoint)?;
        let record = AuditRecord::parse(&self.record)?;
        if record.seq != self.index {
            return Err(ProofError::NotIncluded);
        }
        Ok((checkpoint, record))
    }

    fn is_included(&self, checkpoint: &SignedCheckpoint) -> Result<(), ProofError> {
        if checkpoint.size > RECORDS_MAX {
            return Err(ProofError::NotIncluded);
        }
        let leaf = record_hash(&self.record);
        check_record(&self.hashes, checkpoint.size, checkpoint.root, self.index, leaf)
            .map_err(|_| ProofError::NotIncluded)
    }

    /// Makes the proof of a record from the files of its log. `checkpoint` is the head of that log.
    pub async fn make(files: &AuditLogFiles, checkpoint: &SignedCheckpoint, seq: u64) -> Result<Self, ProofError> {
        let size = checkpoint.size;
        let not_there = |reason: String| ProofError::NotThere { seq, reason };
        if seq >= size || size > RECORDS_MAX {
            return Err(not_there(format!("only {size} records are signed so far")));
        }

        let tile = tile_of(TileKind::Entries, seq / TILE_WIDTH, size);
        let bundle = files.tile(tile).await?.ok_or_else(|| not_there(format!("{} is missing", tile.path())))?;
        let at = usize::try_from(seq % TILE_WIDTH).unwrap_or(usize::MAX);
        let record = whole_entries(&bundle).0.get(at).copied();
        let record = record.ok_or_else(|| not_there(format!("{} is damaged", tile.path())))?.to_vec();

        // Only `prove_record` knows which hashes it needs: the first call collects them.
        let known = ProofHashReader::default();
        let _ = prove_record(size, seq, &known);
        for index in known.wanted.take() {
            let hash = stored(files, size, index).await?;
            let hash = hash.ok_or_else(|| not_there("hashes that lead to it are missing".to_owned()))?;
            known.hashes.borrow_mut().insert(index, hash);
        }

        let hashes = prove_record(size, seq, &known).map_err(|error| not_there(error.to_string()))?;
        let proof = Self { record, index: seq, hashes, checkpoint: checkpoint.note.clone() };
        proof.is_included(checkpoint)?;
        Ok(proof)
    }
}

/// The hashes that were read, by index, and the indexes that were asked for.
#[derive(Default)]
struct ProofHashReader {
    hashes: RefCell<BTreeMap<u64, Hash>>,
    wanted: RefCell<Vec<u64>>,
}

impl HashReader for ProofHashReader {
    fn read_hashes(&self, indexes: &[u64]) -> Result<Vec<Hash>, tlog_tiles::Error> {
        self.wanted.borrow_mut().extend_from_slice(indexes);
        let hashes = self.hashes.borrow();
        Ok(indexes.iter().map(|index| hashes.get(index).copied().unwrap_or_default()).collect())
    }
}

/// The hash of a subtree, from the tile that has it, or computed from the hashes below it.
async fn stored(files: &AuditLogFiles, size: u64, index: u64) -> Result<Option<Hash>, AuditFilesError> {
    let (level, number) = split_stored_hash_index(index);
    let (tile_level, height) = (level / 8, level % 8);
    let first = number << height;
    let tile = tile_of(TileKind::Hashes(tile_level), first / TILE_WIDTH, size);
    let Some(hashes) = files.tile(tile).await?.and_then(|bytes| hashes_of(&bytes, tile)) else { return Ok(None) };
    let start = usize::try_from(first % TILE_WIDTH).unwrap_or(usize::MAX);
    Ok(hashes.get(start..start.saturating_add(1 << height)).map(subtree))
}
