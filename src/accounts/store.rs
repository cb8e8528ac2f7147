//! The files of accounts: one a month, and one of all objectives, in the folder `accounts` of the state folder.
//!
//! A file is `LACC`, the version of its form, the CRC-32 of the rest, and the content in postcard. It is replaced whole.
//! The files are not among the stores of `daemon/formats.rs`: one that this version cannot read is set aside, and that
//! is no reason not to start.

use std::io;
use std::path::{Path, PathBuf};

use ledge_base::durable;
use ledge_base::month::Month;
use ledge_base::stored_form;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ledger::MonthLedger;
use crate::objective::StoredIndicator;

const FOLDER: &str = "accounts";
const OBJECTIVES: &str = "objectives";
const ENDING: &str = "month";
const MAGIC: [u8; 4] = *b"LACC";

/// The version of the form of both kinds of files.
const FORMAT_VERSION: u16 = 1;

const HEAD: [u8; 6] = {
    let ([l, a, c, d], [low, high]) = (MAGIC, FORMAT_VERSION.to_le_bytes());
    [l, a, c, d, low, high]
};

#[cfg(any(test, feature = "fuzzing"))]
const HEADER_BYTES: usize = 10;

/// The largest file that is read, in bytes: a full month has less.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The months that are kept.
const MONTHS_KEPT: usize = 25;

/// The reason why a file is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableAccounts {
    #[error("it is no file of accounts, or is damaged")]
    Damaged,
    #[error("its form {0} is of a later version of Ledge")]
    Later(u16),
    #[error("it is too large")]
    TooLarge,
}

/// The folder of the files.
#[derive(Debug)]
pub struct AccountStore {
    folder: PathBuf,
}

impl AccountStore {
    pub fn open(state: &Path) -> Self {
        let folder = state.join(FOLDER);
        // Files of a write that a kill ended.
        let _ = durable::remove_leftovers(&folder);
        Self { folder }
    }

    fn month_file(&self, month: Month) -> PathBuf {
        self.folder.with_file_name(Self::file_of(month))
    }

    /// The months with a file, the newest first.
    pub fn months(&self) -> Vec<Month> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let month = |name: &str| name.strip_suffix(ENDING)?.strip_suffix('.')?.parse().ok();
        let mut months: Vec<Month> = entries.filter_map(|entry| month(entry.file_name().to_str()?)).collect();
        months.sort_unstable_by(|a, b| b.cmp(a));
        months
    }

    /// Reads a month. A file that cannot be read is set aside, and counts as missing.
    pub fn month(&self, month: Month) -> Option<MonthLedger> {
        let ledger = read::<MonthLedger>(&self.month_file(month))?;
        if ledger.is_bounded() {
            return Some(ledger);
        }
        set_aside(&self.month_file(month), &UnreadableAccounts::Damaged.to_string());
        None
    }

    /// Reads a month, also one that a running daemon writes. Changes nothing.
    pub fn view(state: &Path, month: Month) -> io::Result<Option<MonthLedger>> {
        let file = state.join(Self::file_of(month));
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
        let ledger: Option<MonthLedger> = content(&file).map_err(|error| named(error.into()))?;
        match ledger {
            Some(ledger) if !ledger.is_bounded() => Err(named(io::Error::other(UnreadableAccounts::Damaged))),
            ledger => Ok(ledger),
        }
    }

    /// The file of a month, in the state folder.
    pub fn file_of(month: Month) -> String {
        format!("{FOLDER}/{month}.{ENDING}")
    }

    pub fn objectives(&self) -> Vec<StoredIndicator> {
        read(&self.folder.join(OBJECTIVES)).unwrap_or_default()
    }

    /// Writes a month: whole and durable, or not at all. Removes the oldest ones beyond those that are kept.
    pub fn write_month(&self, month: Month, content: &[u8]) -> io::Result<()> {
        durable::create_folder(&self.folder)?;
        durable::replace_private(&self.month_file(month), content)?;
        for old in self.months().into_iter().skip(MONTHS_KEPT) {
            std::fs::remove_file(self.month_file(old))?;
        }
        Ok(())
    }

    pub fn write_objectives(&self, content: &[u8]) -> io::Result<()> {
        durable::create_folder(&self.folder)?;
        durable::replace_private(&self.folder.join(OBJECTIVES), content)
    }
}

/// A file that cannot be read.
enum AccountFileError {
    Io(io::Error),
    Unreadable(UnreadableAccounts),
}

impl From<AccountFileError> for io::Error {
    fn from(error: AccountFileError) -> Self {
        match error {
            AccountFileError::Io(error) => error,
            AccountFileError::Unreadable(reason) => Self::other(reason),
        }
    }
}

/// Reads a file; `None` without one. A file that cannot be read is set aside, and counts as missing.
fn read<T: DeserializeOwned>(file: &Path) -> Option<T> {
    match content(file) {
        Ok(content) => content,
        Err(AccountFileError::Unreadable(reason)) => {
            set_aside(file, &reason.to_string());
            None
        }
        Err(AccountFileError::Io(error)) => {
            tracing::warn!(file = %file.display(), %error, "a file of accounts cannot be read");
            None
        }
    }
}

/// The content of a file; `None` without one. Changes nothing.
fn content<T: DeserializeOwned>(file: &Path) -> Result<Option<T>, AccountFileError> {
    let read = std::fs::metadata(file)
        .and_then(|facts| if facts.len() > FILE_BYTES_MAX { Ok(None) } else { std::fs::read(file).map(Some) });
    match read {
        Ok(Some(bytes)) => decode(&bytes).map(Some).map_err(AccountFileError::Unreadable),
        Ok(None) => Err(AccountFileError::Unreadable(UnreadableAccounts::TooLarge)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(AccountFileError::Io(error)),
    }
}

/// The content of a file.
pub fn encode(content: &impl Serialize) -> Vec<u8> {
    stored_form::encode(&HEAD, content)
}

fn decode<T: DeserializeOwned>(file: &[u8]) -> Result<T, UnreadableAccounts> {
    stored_form::decode(&HEAD, file).map_err(|_| {
        match file.strip_prefix(&MAGIC).and_then(|rest| rest.first_chunk::<2>()) {
            Some(version) if *version != FORMAT_VERSION.to_le_bytes() => {
                UnreadableAccounts::Later(u16::from_le_bytes(*version))
            }
            _ => UnreadableAccounts::Damaged,
        }
    })
}

/// Reads all of a content.
#[cfg(any(test, feature = "fuzzing"))]
fn content_of<T: DeserializeOwned>(content: &[u8]) -> Option<T> {
    stored_form::decode(&HEAD, &stored_form::framed(&HEAD, content)).ok()
}

fn set_aside(file: &Path, reason: &str) {
    match durable::set_aside(file) {
        Ok(aside) => {
            tracing::warn!(name: "accounts.set_aside", file = %file.display(), reason, aside = %aside.display(), "a file of accounts cannot be read and is set aside");
        }
        Err(error) => {
            tracing::warn!(name: "accounts.set_aside", file = %file.display(), reason, %error, "a file of accounts can neither be read nor set aside");
        }
    }
}

/// Reads a stored month, which is written as it was read.
///
/// # Panics
/// When it is not.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_stored(file: &[u8]) -> bool {
    // The checksum would stop nearly every changed file.
    let ledger = file.get(HEADER_BYTES..).and_then(content_of::<MonthLedger>).filter(MonthLedger::is_bounded);
    if let Some(ledger) = &ledger {
        assert_eq!(decode::<MonthLedger>(&encode(ledger)).as_ref(), Ok(ledger));
    }
    let indicators: Option<Vec<StoredIndicator>> = file.get(HEADER_BYTES..).and_then(content_of);
    if let Some(indicators) = &indicators {
        assert_eq!(decode::<Vec<StoredIndicator>>(&encode(indicators)).as_ref(), Ok(indicators));
    }
    assert!(decode::<MonthLedger>(file).is_err() || ledger.is_some() || file.len() > HEADER_BYTES);
    ledger.is_some()
}

/// A file, for tests of the form.
#[cfg(any(test, feature = "fuzzing"))]
pub fn stored_example() -> Vec<u8> {
    use crate::ledger::{AccountGap, BudgetStep, RowKey, UseSums};
    let sums =
        UseSums { calls: 300, failed: 2, refused: 1, cpu_ns: 5_000_000, bytes_in: 70_000, bytes_out: 9, energy_uj: 40 };
    let mut ledger =
        MonthLedger { own: sums, estimated_uj: 40, through_ms: 1_800_000_000_000, ..MonthLedger::default() };
    for (caller, model) in [("key:till", "wine"), ("others", "text")] {
        ledger.add(RowKey { caller: caller.into(), model: model.into() }, &sums);
    }
    ledger.add_gap(AccountGap { from_ms: 1_799_999_000_000, to_ms: 1_799_999_500_000 });
    let target = crate::ledger::ObjectiveSums { allowed_ppm: 10_000, time_max_us: 20_000, ..Default::default() };
    ledger.count_objective("fast", crate::objective::IndicatorKind::Latency, target, 297, 3);
    ledger.recorded.insert(("shop".to_owned(), BudgetStep::Whole));
    encode(&ledger)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_month_is_read_as_it_was_written_and_only_25_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let store = AccountStore::open(folder.path());
        let mut month: Month = "2024-11".parse().unwrap();
        for _ in 0..30 {
            store.write_month(month, &stored_example()).unwrap();
            month = month.next();
        }
        let months = store.months();
        assert_eq!(
            (months.len(), months[0].to_string(), months[24].to_string()),
            (25, "2027-04".into(), "2025-04".into())
        );
        assert_eq!(encode(&store.month(months[0]).unwrap()), stored_example());
        assert_eq!(store.month(month), None);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_set_aside_whole() {
        let folder = tempfile::tempdir().unwrap();
        let (store, month) = (AccountStore::open(folder.path()), "2026-12".parse().unwrap());
        let mut later = stored_example();
        later[4] = 9;
        let mut damaged = stored_example();
        *damaged.last_mut().unwrap() ^= 1;
        let files = [later, damaged, Vec::new(), b"LACC".to_vec()];
        for file in &files {
            store.write_month(month, file).unwrap();
            assert_eq!(store.month(month), None);
        }
        for (number, file) in (1..).zip(&files) {
            let aside = folder.path().join(format!("accounts/2026-12.month.set-aside-{number}"));
            assert_eq!(std::fs::read(aside).unwrap(), *file);
        }
        assert_eq!(store.months(), []);
    }

    #[test]
    fn a_file_of_the_first_form_is_read() {
        // Must not change: boxes have files of this form.
        let hex = stored_example().iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        assert_eq!(hex, FIRST_FORM);
    }

    const FIRST_FORM: &str = "\
        4c414343010029ef182d02086b65793a74696c6c0477696e65ac020201c096b102f0a2040928066f74686572730474657874\
        ac020201c096b102f0a2040928ac020201c096b102f0a20409282801c09bb4c2b134e0ddd2c2b13480a0f1c2b13400010466\
        61737400a90203904ea09c01010473686f7001";

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            fuzz_stored(&bytes);
            let _ = decode::<MonthLedger>(&bytes);
        }

        #[test]
        fn a_damaged_byte_is_noticed(place in 0..stored_example().len(), bit in 0_u8..8) {
            let mut file = stored_example();
            file[place] ^= 1 << bit;
            prop_assert!(decode::<MonthLedger>(&file).is_err());
        }
    }
}
