//! The names of the files of a log, below its folder or address (C2SP tlog-tiles).
//!
//! `checkpoint`, `tile/<L>/<N>[.p/<W>]` for hashes, `tile/entries/<N>[.p/<W>]` for records. On this box the file of a
//! partial tile has no suffix, and grows up to 256 hashes or records.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The form of the folder of a log. 2: its keys may be encrypted, and a version that
/// cannot decrypt them cannot sign.
pub const FORMAT_VERSION: u32 = 2;

/// The number of entries, or hashes, in a whole tile.
pub const TILE_WIDTH: u64 = 256;

/// The height of a tile: 2^8 is [`TILE_WIDTH`].
pub const TILE_HEIGHT: u8 = 8;

/// [`TILE_WIDTH`] as a [`TilePath`] has it.
pub const FULL_WIDTH: u16 = 1 << TILE_HEIGHT;

/// The name of the signed tree head.
pub const CHECKPOINT: &str = "checkpoint";

/// A file of a log other than its checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TilePath {
    /// Hashes of a level, or records.
    pub kind: TileKind,
    /// The number of the tile in its level, from 0.
    pub index: u64,
    /// The number of hashes or records, from 1 to 256.
    pub width: u16,
}

/// The content of a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TileKind {
    /// Records, each after its length in two bytes, big-endian.
    Entries,
    /// Hashes of 32 bytes: on level 0 those of records, on the others those of whole tiles of the level below.
    Hashes(u8),
}

impl TilePath {
    /// The path relative to the folder of the log.
    pub fn path(&self) -> String {
        let mut path = match self.kind {
            TileKind::Entries => "tile/entries/".to_owned(),
            TileKind::Hashes(level) => format!("tile/{level}/"),
        };
        push_index(&mut path, self.index);
        if u64::from(self.width) < TILE_WIDTH {
            let _ = write!(path, ".p/{}", self.width);
        }
        path
    }

    /// Returns true if a log of `size` records has all of the tile.
    pub fn is_within(&self, size: u64) -> bool {
        let level = match self.kind {
            TileKind::Entries => 0,
            TileKind::Hashes(level) => level,
        };
        let of_level = size.checked_shr(u32::from(level) * u32::from(TILE_HEIGHT)).unwrap_or(0);
        let end = self.index.checked_mul(TILE_WIDTH).and_then(|start| start.checked_add(self.width.into()));
        end.is_some_and(|end| end <= of_level)
    }

    /// Reads the text that [`Self::path`] writes, and no other.
    pub fn parse(path: &str) -> Option<Self> {
        let (kind, rest) = path.strip_prefix("tile/")?.split_once('/')?;
        let kind = if kind == "entries" { TileKind::Entries } else { TileKind::Hashes(kind.parse().ok()?) };
        let (number, width) = match rest.split_once(".p/") {
            Some((number, width)) => (number, width.parse().ok()?),
            None => (rest, FULL_WIDTH),
        };
        let mut index: u64 = 0;
        for element in number.split('/') {
            let digits = element.strip_prefix('x').unwrap_or(element);
            index = index.checked_mul(1000)?.checked_add(digits.parse().ok()?)?;
        }
        let tile = Self { kind, index, width };
        (width > 0 && tile.path() == path).then_some(tile)
    }

    /// The file on this box, which has no suffix.
    pub fn local(&self, log: &Path) -> PathBuf {
        log.join(Self { width: FULL_WIDTH, ..*self }.path())
    }
}

/// Reasons why bytes are not an entry bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEntryBundle {
    #[error("it ends within entry {index}")]
    Torn {
        /// The number of the entry, from 0.
        index: usize,
    },
    #[error("it has more than {TILE_WIDTH} entries")]
    TooMany,
}

/// The entries of a bundle.
pub fn entries(bundle: &[u8]) -> Result<Vec<&[u8]>, InvalidEntryBundle> {
    let (entries, rest) = whole_entries(bundle);
    if rest.is_empty() {
        return Ok(entries);
    }
    Err(if entries.len() < ENTRIES_MAX {
        InvalidEntryBundle::Torn { index: entries.len() }
    } else {
        InvalidEntryBundle::TooMany
    })
}

/// The entries that are whole, 256 at most, and the bytes after them.
pub fn whole_entries(bundle: &[u8]) -> (Vec<&[u8]>, &[u8]) {
    let (mut entries, mut rest) = (Vec::new(), bundle);
    while entries.len() < ENTRIES_MAX
        && let Some((length, behind)) = rest.split_first_chunk()
        && let Some((entry, behind)) = behind.split_at_checked(u16::from_be_bytes(*length).into())
    {
        entries.push(entry);
        rest = behind;
    }
    (entries, rest)
}

/// [`TILE_WIDTH`] as a number of things in memory.
const ENTRIES_MAX: usize = 1 << TILE_HEIGHT;

/// Appends an entry to a bundle; `None` when it is longer than 65,535 bytes.
pub fn push_entry(bundle: &mut Vec<u8>, entry: &[u8]) -> Option<()> {
    let length = u16::try_from(entry.len()).ok()?;
    bundle.extend_from_slice(&length.to_be_bytes());
    bundle.extend_from_slice(entry);
    Some(())
}

/// Writes three digits for each element, with an `x` before all but the last.
fn push_index(path: &mut String, index: u64) {
    let mut groups = Vec::new();
    let mut rest = index;
    loop {
        groups.push(rest % 1000);
        rest /= 1000;
        if rest == 0 {
            break;
        }
    }
    while let Some(group) = groups.pop() {
        let _ = if groups.is_empty() { write!(path, "{group:03}") } else { write!(path, "x{group:03}/") };
    }
}

/// The tiles to publish when a log of `old` records has grown to `new`: those that changed, the lowest level first, and
/// each tile of records before the tile of their hashes.
pub fn changed(old: u64, new: u64) -> Vec<TilePath> {
    let mut changed = Vec::new();
    let (mut old, mut new, mut level) = (old, new, 0);
    while new > 0 {
        if old != new {
            for index in old / TILE_WIDTH..new.div_ceil(TILE_WIDTH) {
                let width = u16::try_from((new - index * TILE_WIDTH).min(TILE_WIDTH)).unwrap_or(0);
                if level == 0 {
                    changed.push(TilePath { kind: TileKind::Entries, index, width });
                }
                changed.push(TilePath { kind: TileKind::Hashes(level), index, width });
            }
        }
        (old, new, level) = (old / TILE_WIDTH, new / TILE_WIDTH, level + 1);
    }
    changed
}

/// The folder of a log. A log that cannot be continued is followed by another one.
pub fn log_folder(audit: &Path, generation: u32) -> PathBuf {
    audit.join("logs").join(generation.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_log_has_the_tiles_that_it_publishes_and_none_beyond(size in 1..200_000_u64) {
            for tile in changed(0, size) {
                prop_assert!(tile.is_within(size), "{}", tile.path());
                if u64::from(tile.width) < TILE_WIDTH {
                    let wider = TilePath { width: tile.width + 1, ..tile };
                    prop_assert!(!wider.is_within(size), "{}", wider.path());
                }
                let beyond = TilePath { index: tile.index + 1_000_000, ..tile };
                prop_assert!(!beyond.is_within(size), "{}", beyond.path());
            }
        }
    }

    #[test]
    fn what_is_no_path_of_a_tile_is_none() {
        let wrong = [
            "",
            "checkpoint",
            "tile/",
            "tile/entries/",
            "tile/entries/0",
            "tile/entries/0000",
            "tile/entries/x000/001",
            "tile/entries/001/x002",
            "tile/entries/001.p/0",
            "tile/entries/001.p/256",
            "tile/entries/001.p/07",
            "tile/entries/001.p/",
            "tile/00/001",
            "tile/256/001",
            "tile/-1/001",
            "tile/+1/001",
            "tile/0/+01",
            "tile/0/../../key",
            "tile/0/001/",
            "/tile/0/001",
            "tile/0/x999/x999/x999/x999/x999/x999/x999/999",
        ];
        for path in wrong {
            assert!(TilePath::parse(path).is_none(), "{path}");
        }
    }

    #[test]
    fn an_index_has_three_digits_an_element() {
        let path = |index| TilePath { kind: TileKind::Entries, index, width: 256 }.path();
        assert_eq!(path(0), "tile/entries/000");
        assert_eq!(path(999), "tile/entries/999");
        assert_eq!(path(1_234_067), "tile/entries/x001/x234/067");
        assert_eq!(TilePath { kind: TileKind::Hashes(2), index: 7, width: 3 }.path(), "tile/2/007.p/3");
    }

    #[test]
    fn a_log_of_70000_records_has_the_tiles_of_the_specification() {
        let all = changed(0, 70_000);
        let count = |kind: TileKind, whole: bool| {
            all.iter().filter(|tile| tile.kind == kind && (tile.width == 256) == whole).count()
        };
        assert_eq!((count(TileKind::Hashes(0), true), count(TileKind::Entries, true)), (273, 273));
        let partial: Vec<_> = all.iter().filter(|tile| tile.width < 256).map(TilePath::path).collect();
        assert_eq!(partial, ["tile/entries/273.p/112", "tile/0/273.p/112", "tile/1/001.p/17", "tile/2/000.p/1"]);
        assert_eq!(count(TileKind::Hashes(1), true), 1);
        let edge: Vec<_> = changed(255, 256).iter().map(TilePath::path).collect();
        assert_eq!(edge, ["tile/entries/000", "tile/0/000", "tile/1/000.p/1"]);
        assert_eq!(changed(256, 256), []);
    }

    #[test]
    fn a_bundle_that_is_cut_has_the_entries_that_are_whole() {
        let mut bundle = Vec::new();
        for entry in [b"a".as_slice(), b"", b"ccc"] {
            push_entry(&mut bundle, entry).unwrap();
        }
        assert_eq!(entries(&bundle).unwrap(), [b"a".as_slice(), b"", b"ccc"]);
        assert_eq!(entries(&bundle[..bundle.len() - 1]), Err(InvalidEntryBundle::Torn { index: 2 }));
        assert_eq!(whole_entries(&bundle[..6]), (vec![b"a".as_slice(), b""], &bundle[5..6]));
        assert_eq!(entries(b""), Ok(Vec::new()));
        let most = [0; 2 * ENTRIES_MAX];
        assert_eq!(entries(&most).unwrap().len(), ENTRIES_MAX);
        assert_eq!(entries(&[0; 2 * ENTRIES_MAX + 2]), Err(InvalidEntryBundle::TooMany));
        assert_eq!(push_entry(&mut bundle, &vec![0; 65_536]), None);
    }

    proptest! {
        #[test]
        fn what_is_put_in_a_bundle_comes_out(all in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..400), 0..256), cut in any::<prop::sample::Index>()) {
            let mut bundle = Vec::new();
            for entry in &all {
                push_entry(&mut bundle, entry).unwrap();
            }
            prop_assert_eq!(entries(&bundle).unwrap(), all.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let cut = &bundle[..cut.index(bundle.len() + 1)];
            let (whole, rest) = whole_entries(cut);
            prop_assert!(whole.iter().zip(&all).all(|(found, put)| found == put));
            prop_assert_eq!(whole.iter().map(|entry| entry.len() + 2).sum::<usize>() + rest.len(), cut.len());
        }

        #[test]
        fn bytes_that_are_no_bundle_are_refused_and_others_are_the_same_when_put_together(bytes in prop::collection::vec(0..3_u8, 0..900)) {
            if let Ok(found) = entries(&bytes) {
                let mut again = Vec::new();
                for entry in found {
                    push_entry(&mut again, entry).unwrap();
                }
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
