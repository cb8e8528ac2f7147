//! The walk through a log from its first record to its head.

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use tlog_tiles::{Hash, record_hash};

use super::findings::{LogFindingKind, LogFindings};
use super::summary::LogSummary;
use super::tree::{HashTile, MerkleTree};
use crate::files::{AuditFilesError, AuditLogFiles, hashes_of, tile_of};
use crate::layout::{TILE_WIDTH, TileKind, TilePath, whole_entries};
use crate::record::AuditRecord;

/// The root that a log must have at a size.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ExpectedRootHash {
    pub(super) size: u64,
    pub(super) root: Hash,
    pub(super) evidence: RootHashSource,
}

/// The source of an expected root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RootHashSource {
    Checkpoint,
    /// The first record of the log that follows.
    NextLog,
}

impl RootHashSource {
    fn words(self) -> &'static str {
        match self {
            Self::Checkpoint => "the earlier checkpoint",
            Self::NextLog => "the log that follows",
        }
    }
}

/// Gets each record of a log, and whether it is signed.
pub(super) type EachRecord<'e> = &'e mut (dyn FnMut(&AuditRecord, bool) + Send);

/// A walk through a log.
pub(super) struct LogWalk<'a> {
    files: &'a AuditLogFiles,
    size: u64,
    /// The roots still to be compared, the nearest last.
    points: Vec<ExpectedRootHash>,
    /// `None` once hashes are missing that the root needs.
    tree: Option<MerkleTree>,
    /// The first record of the gap that lasts up to here.
    missing: Option<u64>,
    /// A record differs from its published hash, so the hashes above it differ as well.
    is_changed: bool,
    /// The last tile of level 1 that was read.
    level_1: Option<(u64, Vec<Hash>)>,
    walked: LogWalkResult,
    each: EachRecord<'a>,
}

/// The result of a walk.
#[derive(Debug, Default)]
pub(super) struct LogWalkResult {
    /// The first record that exists.
    pub first: u64,
    /// The number of records after the head.
    pub unsigned: u64,
    /// Set if the root at the size of the earlier checkpoint was right.
    pub contains: bool,
    pub summary: LogSummary,
    pub findings: LogFindings,
}

impl<'a> LogWalk<'a> {
    /// A walk to a head of `size` records.
    pub fn new(
        files: &'a AuditLogFiles,
        size: u64,
        mut points: Vec<ExpectedRootHash>,
        findings: LogFindings,
        each: EachRecord<'a>,
    ) -> Self {
        points.reverse();
        let walked = LogWalkResult { findings, ..LogWalkResult::default() };
        Self {
            files,
            size,
            points,
            tree: Some(MerkleTree::default()),
            missing: None,
            is_changed: false,
            level_1: None,
            walked,
            each,
        }
    }

    /// Reads everything.
    pub async fn finish(mut self, root: Hash) -> Result<LogWalkResult, AuditFilesError> {
        let (files, size) = (self.files, self.size);
        let read = |index| async move {
            let entries = files.tile(tile_of(TileKind::Entries, index, size)).await?;
            let hashes = files.tile(tile_of(TileKind::Hashes(0), index, size)).await?;
            Ok::<_, AuditFilesError>((index, entries, hashes))
        };

        let mut bundles = stream::iter(0..size.div_ceil(TILE_WIDTH)).map(read).buffered(files.parallel());
        self.compare_points();
        let mut barren = 0;
        while let Some(bundle) = bundles.next().await {
            let (index, entries, hashes) = bundle?;
            let is_barren = entries.is_none() && hashes.is_none();
            barren = if is_barren { barren + 1 } else { 0 };
            self.step(index, entries, hashes).await?;
            if self.tree.is_none() && barren >= MISSING_BUNDLES_MAX {
                // A head can have any size: the rest counts as missing.
                break;
            }
        }

        self.end_gap(size);
        for tile in self.tree.iter().flat_map(MerkleTree::partial).collect::<Vec<_>>() {
            self.compare_tile(tile).await?;
        }

        match self.tree.as_ref().map(MerkleTree::root) {
            Some(computed) if computed != root => self.walked.findings.push(LogFindingKind::Tampered, None, || {
                format!("the records have the root {computed}, and {root} is signed")
            }),
            Some(_) => {}
            None => self.walked.findings.push(LogFindingKind::Gap, None, || {
                "the root cannot be computed: the hashes of the missing records are missing as well".to_owned()
            }),
        }

        self.read_unsigned()?;
        Ok(self.walked)
    }

    /// Takes the records of one bundle, and their published hashes.
    async fn step(&mut self, index: u64, entries: Option<Bytes>, hashes: Option<Bytes>) -> Result<(), AuditFilesError> {
        let start = index * TILE_WIDTH;
        let tile = tile_of(TileKind::Hashes(0), index, self.size);
        let is_missing = entries.is_none();
        match (is_missing, self.missing) {
            (true, None) => self.missing = Some(start),
            (false, Some(_)) => self.end_gap(start),
            _ => {}
        }

        let leaves = entries.and_then(|bundle| self.read_bundle(start, tile.width, &bundle));
        let published = hashes.and_then(|bytes| self.read_hashes(tile, &bytes));
        match (&leaves, &published) {
            (Some(leaves), Some(published)) => self.compare(tile, leaves, published),
            (Some(_), None) => self.tile_is_missing(tile),
            (None, _) => {}
        }

        if let Some(leaves) = leaves.or(published) {
            for leaf in leaves {
                let whole = self.tree.as_mut().map(|tree| tree.push(leaf)).unwrap_or_default();
                self.compare_points();
                for tile in whole {
                    self.compare_tile(tile).await?;
                }
            }
        } else if let Some(hash) = self.hash_of_tile(index).await? {
            let whole = self.tree.as_mut().map(|tree| tree.push_tile(hash)).unwrap_or_default();
            self.compare_points();
            for tile in whole {
                self.compare_tile(tile).await?;
            }
        } else {
            self.tree = None;
        }
        Ok(())
    }

    /// The hash over a whole tile of records, from the level above.
    async fn hash_of_tile(&mut self, index: u64) -> Result<Option<Hash>, AuditFilesError> {
        let above = tile_of(TileKind::Hashes(1), index / TILE_WIDTH, self.size);
        if (index + 1) * TILE_WIDTH > self.size || self.tree.is_none() {
            return Ok(None);
        }
        if self.level_1.as_ref().is_none_or(|(index, _)| *index != above.index) {
            let Some(bytes) = self.files.tile(above).await? else { return Ok(None) };
            let Some(hashes) = self.read_hashes(above, &bytes) else { return Ok(None) };
            self.level_1 = Some((above.index, hashes));
        }
        let at = usize::try_from(index % TILE_WIDTH).unwrap_or(usize::MAX);
        Ok(self.level_1.as_ref().and_then(|(_, hashes)| hashes.get(at)).copied())
    }

    /// Reads the records of a bundle; `None` when it is malformed and cannot be used.
    fn read_bundle(&mut self, start: u64, width: u16, bytes: &[u8]) -> Option<Vec<Hash>> {
        let (lines, rest) = whole_entries(bytes);
        let LogWalkResult { findings, summary, .. } = &mut self.walked;
        for (seq, line) in (start..).zip(&lines) {
            if let Some(record) = read_record(seq, line, summary, findings) {
                (self.each)(&record, true);
            }
        }
        let leaves: Vec<_> = lines.into_iter().map(record_hash).collect();
        if !rest.is_empty() {
            let (seq, length) = (start + leaves.len() as u64, rest.len());
            findings
                .push(LogFindingKind::Tampered, seq, || format!("{length} bytes of its entry bundle are not a record"));
            return None;
        }
        if leaves.len() != usize::from(width) {
            let found = leaves.len();
            self.walked.findings.push(LogFindingKind::Tampered, start, || {
                format!("the entry bundle has {found} records and not {width}")
            });
            return None;
        }
        Some(leaves)
    }

    fn read_hashes(&mut self, tile: TilePath, bytes: &[u8]) -> Option<Vec<Hash>> {
        let hashes = hashes_of(bytes, tile);
        if hashes.is_none() {
            self.walked.findings.push(LogFindingKind::Tampered, None, || {
                format!("{} has {} bytes and not {} hashes", tile.path(), bytes.len(), tile.width)
            });
        }
        hashes
    }

    fn compare(&mut self, tile: TilePath, computed: &[Hash], published: &[Hash]) {
        let differs = computed.iter().zip(published).position(|(computed, published)| computed != published);
        let Some(at) = differs else { return };
        let TileKind::Hashes(level) = tile.kind else { return };
        if level > 0 && self.is_changed {
            return;
        }
        self.is_changed |= level == 0;
        let first = (tile.index * TILE_WIDTH + at as u64).checked_shl(8 * u32::from(level)).unwrap_or(u64::MAX);
        self.walked.findings.push(LogFindingKind::Tampered, first, || match level {
            0 => format!("the record does not match its hash in {}", tile.path()),
            _ => format!("the records from here on have another hash than is in {}", tile.path()),
        });
    }

    /// Compares a tile above the hashes of records.
    async fn compare_tile(&mut self, computed: HashTile) -> Result<(), AuditFilesError> {
        // Tiles of level 0 were compared with their records.
        if computed.level == 0 {
            return Ok(());
        }
        let tile = tile_of(TileKind::Hashes(computed.level), computed.index, self.size);
        match self.files.tile(tile).await? {
            Some(bytes) => {
                if let Some(published) = self.read_hashes(tile, &bytes) {
                    self.compare(tile, &computed.hashes, &published);
                }
            }
            None => self.tile_is_missing(tile),
        }
        Ok(())
    }

    fn tile_is_missing(&mut self, tile: TilePath) {
        self.walked.findings.push(LogFindingKind::Gap, None, || format!("{} is missing", tile.path()));
    }

    /// Ends a gap. At the beginning of the log, the records may have been pruned, which is checked at the end. The tile
    /// in which the head ends is never pruned.
    fn end_gap(&mut self, end: u64) {
        match self.missing.take() {
            Some(0) if end < self.size => self.walked.first = end,
            Some(start) => {
                self.walked
                    .findings
                    .push(LogFindingKind::Gap, start, || format!("records {start} to {} are missing", end - 1));
            }
            None => {}
        }
    }

    /// Compares the roots that are due at this size.
    fn compare_points(&mut self) {
        let Some(tree) = &self.tree else { return };
        while let Some(point) = self.points.pop_if(|point| point.size <= tree.size()) {
            let words = point.evidence.words();
            let size = point.size;
            let LogWalkResult { findings, contains, .. } = &mut self.walked;
            if size < tree.size() {
                findings.push(LogFindingKind::Gap, size, || {
                    format!("cannot check {words} against this log: the records around {size} are missing")
                });
            } else if tree.root() == point.root {
                *contains |= point.evidence == RootHashSource::Checkpoint;
            } else {
                findings.push(LogFindingKind::Fork, None, || {
                    format!(
                        "{words} has another root for the first {size} records: there are two histories of this log"
                    )
                });
            }
        }
    }

    /// Reads the records after the head, which only the box itself has. Nothing proves them yet.
    fn read_unsigned(&mut self) -> Result<(), AuditFilesError> {
        let mut seq = self.size;
        while let Some(bytes) = self.files.local_bundle(seq / TILE_WIDTH)? {
            let before = seq;
            let skipped = usize::try_from(seq % TILE_WIDTH).unwrap_or(usize::MAX);
            // The last entry is perhaps incomplete yet.
            for line in whole_entries(&bytes).0.into_iter().skip(skipped) {
                let LogWalkResult { findings, summary, .. } = &mut self.walked;
                if let Some(record) = read_record(seq, line, summary, findings) {
                    (self.each)(&record, false);
                }
                seq += 1;
            }
            if seq == before || !seq.is_multiple_of(TILE_WIDTH) {
                break;
            }
        }
        self.walked.unsigned = seq - self.size;
        Ok(())
    }
}

/// Number of bundles in a row that may be missing, with their hashes, before the rest counts as missing.
const MISSING_BUNDLES_MAX: u64 = 1000;

/// Reads and counts one record; `None` if it is none.
fn read_record(seq: u64, line: &[u8], summary: &mut LogSummary, findings: &mut LogFindings) -> Option<AuditRecord> {
    match AuditRecord::parse(line) {
        Ok(record) => {
            if record.seq != seq {
                findings.push(LogFindingKind::Tampered, seq, || format!("record {} is in its place", record.seq));
            }
            summary.count(&record);
            Some(record)
        }
        Err(error) => {
            findings.push(LogFindingKind::Tampered, seq, || error.to_string());
            None
        }
    }
}
