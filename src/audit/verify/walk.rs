//! The way through a log from its first record to its head, and what is found on it.

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use tlog_tiles::{Hash, record_hash};

use super::findings::{Findings, Wrong};
use super::summary::Summary;
use super::tree::{HashTile, Tree};
use super::{Evidence, Point};
use crate::files::{FilesError, LogFiles, hashes_of, tile_of};
use crate::layout::{TileKind, TilePath, WIDTH, whole_entries};
use crate::record::AuditRecord;

/// A walk through a log that is under way.
pub(super) struct Walk<'a> {
    files: &'a LogFiles,
    size: u64,
    /// The roots to be compared that are ahead, the nearest last.
    points: Vec<Point>,
    /// `None` once something is missing without which no root can be computed.
    tree: Option<Tree>,
    /// The first of the records that are missing up to here.
    missing: Option<u64>,
    /// A record was found that is not the one whose hash is published: the hashes above differ for that alone.
    is_changed: bool,
    /// The tile of level 1 that was needed last.
    level_1: Option<(u64, Vec<Hash>)>,
    walked: Walked,
}

/// What a walk found.
#[derive(Debug, Default)]
pub(super) struct Walked {
    /// The first record that is there.
    pub first: u64,
    /// How many records follow the head.
    pub unsigned: u64,
    /// Whether the root at the earlier checkpoint's size was right.
    pub contains: bool,
    pub summary: Summary,
    pub findings: Findings,
}

impl<'a> Walk<'a> {
    /// A walk to a head of `size` records.
    pub fn new(files: &'a LogFiles, size: u64, mut points: Vec<Point>, findings: Findings) -> Self {
        points.reverse();
        let walked = Walked { findings, ..Walked::default() };
        Self {
            files,
            size,
            points,
            tree: Some(Tree::default()),
            missing: None,
            is_changed: false,
            level_1: None,
            walked,
        }
    }

    /// Reads everything.
    pub async fn finish(mut self, root: Hash) -> Result<Walked, FilesError> {
        let (files, size) = (self.files, self.size);
        let read = |index| async move {
            let entries = files.tile(tile_of(TileKind::Entries, index, size)).await?;
            let hashes = files.tile(tile_of(TileKind::Hashes(0), index, size)).await?;
            Ok::<_, FilesError>((index, entries, hashes))
        };
        let mut bundles = stream::iter(0..size.div_ceil(WIDTH)).map(read).buffered(files.parallel());
        self.compare_points();
        let mut barren = 0;
        while let Some(bundle) = bundles.next().await {
            let (index, entries, hashes) = bundle?;
            let is_barren = entries.is_none() && hashes.is_none();
            barren = if is_barren { barren + 1 } else { 0 };
            self.step(index, entries, hashes).await?;
            if self.tree.is_none() && barren >= MOST_BARREN {
                // A head can say any size: nothing is found by asking for all of it.
                break;
            }
        }
        self.end_gap(size);
        for tile in self.tree.iter().flat_map(Tree::partial).collect::<Vec<_>>() {
            self.compare_tile(tile).await?;
        }
        match self.tree.as_ref().map(Tree::root) {
            Some(computed) if computed != root => self
                .walked
                .findings
                .push(Wrong::Tampered, None, || format!("the records have the root {computed}, and {root} is signed")),
            Some(_) => {}
            None => self.walked.findings.push(Wrong::Gap, None, || {
                "the root cannot be computed: the hashes of what is missing are missing too".to_owned()
            }),
        }
        self.read_unsigned()?;
        Ok(self.walked)
    }

    /// The records of one bundle, and the hashes that are published of them.
    async fn step(&mut self, index: u64, entries: Option<Bytes>, hashes: Option<Bytes>) -> Result<(), FilesError> {
        let start = index * WIDTH;
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
    async fn hash_of_tile(&mut self, index: u64) -> Result<Option<Hash>, FilesError> {
        let above = tile_of(TileKind::Hashes(1), index / WIDTH, self.size);
        if (index + 1) * WIDTH > self.size || self.tree.is_none() {
            return Ok(None);
        }
        if self.level_1.as_ref().is_none_or(|(index, _)| *index != above.index) {
            let Some(bytes) = self.files.tile(above).await? else { return Ok(None) };
            let Some(hashes) = self.read_hashes(above, &bytes) else { return Ok(None) };
            self.level_1 = Some((above.index, hashes));
        }
        let at = usize::try_from(index % WIDTH).unwrap_or(usize::MAX);
        Ok(self.level_1.as_ref().and_then(|(_, hashes)| hashes.get(at)).copied())
    }

    /// Reads the records of a bundle; `None` when it is none, and its hashes count for nothing.
    fn read_bundle(&mut self, start: u64, width: u16, bytes: &[u8]) -> Option<Vec<Hash>> {
        let (lines, rest) = whole_entries(bytes);
        let Walked { findings, summary, .. } = &mut self.walked;
        for (seq, line) in (start..).zip(&lines) {
            read_record(seq, line, summary, findings);
        }
        let leaves: Vec<_> = lines.into_iter().map(record_hash).collect();
        if !rest.is_empty() {
            let (seq, length) = (start + leaves.len() as u64, rest.len());
            findings.push(Wrong::Tampered, seq, || format!("{length} bytes of its entry bundle are no record"));
            return None;
        }
        if leaves.len() != usize::from(width) {
            let found = leaves.len();
            self.walked
                .findings
                .push(Wrong::Tampered, start, || format!("the entry bundle has {found} records and not {width}"));
            return None;
        }
        Some(leaves)
    }

    fn read_hashes(&mut self, tile: TilePath, bytes: &[u8]) -> Option<Vec<Hash>> {
        let hashes = hashes_of(bytes, tile);
        if hashes.is_none() {
            self.walked.findings.push(Wrong::Tampered, None, || {
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
        let first = (tile.index * WIDTH + at as u64).checked_shl(8 * u32::from(level)).unwrap_or(u64::MAX);
        self.walked.findings.push(Wrong::Tampered, first, || match level {
            0 => format!("the record is not the one whose hash is in {}", tile.path()),
            _ => format!("the records from here on have another hash than is in {}", tile.path()),
        });
    }

    /// Compares a tile above the hashes of records.
    async fn compare_tile(&mut self, computed: HashTile) -> Result<(), FilesError> {
        // Those of level 0 came with their records.
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
        self.walked.findings.push(Wrong::Gap, None, || format!("{} is missing", tile.path()));
    }

    /// What was missing up to here is over. The first records may have been pruned, which is told apart at the end; those
    /// in which the head ends never are.
    fn end_gap(&mut self, end: u64) {
        match self.missing.take() {
            Some(0) if end < self.size => self.walked.first = end,
            Some(start) => {
                self.walked.findings.push(Wrong::Gap, start, || format!("records {start} to {} are missing", end - 1));
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
            let Walked { findings, contains, .. } = &mut self.walked;
            if size < tree.size() {
                findings.push(Wrong::Gap, size, || {
                    format!("whether {words} is of this log cannot be told: the records around {size} are missing")
                });
            } else if tree.root() == point.root {
                *contains |= point.evidence == Evidence::Checkpoint;
            } else {
                findings.push(Wrong::Fork, None, || {
                    format!(
                        "{words} has another root for the first {size} records: there are two histories of this log"
                    )
                });
            }
        }
    }

    /// Records of this box that no head stands for yet: there is nothing but themselves to check them by.
    fn read_unsigned(&mut self) -> Result<(), FilesError> {
        let mut seq = self.size;
        while let Some(bytes) = self.files.local_bundle(seq / WIDTH)? {
            let before = seq;
            let skipped = usize::try_from(seq % WIDTH).unwrap_or(usize::MAX);
            // The last one may be on its way to the disk.
            for line in whole_entries(&bytes).0.into_iter().skip(skipped) {
                let Walked { findings, summary, .. } = &mut self.walked;
                read_record(seq, line, summary, findings);
                seq += 1;
            }
            if seq == before || !seq.is_multiple_of(WIDTH) {
                break;
            }
        }
        self.walked.unsigned = seq - self.size;
        Ok(())
    }
}

/// How many bundles in a row may be missing, with all that stands for them, before the rest is taken for missing as well.
const MOST_BARREN: u64 = 1000;

/// Reads and counts one record.
fn read_record(seq: u64, line: &[u8], summary: &mut Summary, findings: &mut Findings) {
    match AuditRecord::parse(line) {
        Ok(record) => {
            if record.seq != seq {
                findings.push(Wrong::Tampered, seq, || format!("in its place is record {}", record.seq));
            }
            summary.count(&record);
        }
        Err(error) => findings.push(Wrong::Tampered, seq, || error.to_string()),
    }
}
