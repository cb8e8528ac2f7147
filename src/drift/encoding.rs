//! The stored form of a watch: a head, a checksum and the state. Decoding checks everything.

use ledge_base::stored_form::{self, StoredFormError};

use crate::column::Column;
use crate::watch::{COLUMNS_MAX, WatchState};

/// The head: raised at its end when an earlier version could no longer read the rest.
pub const MAGIC: &[u8; 4] = b"LDR1";

/// The longest file, in bytes.
pub const FILE_BYTES_MAX: usize = 16 << 10;

/// Encodes a state.
pub fn encode(state: &WatchState) -> Vec<u8> {
    stored_form::encode(MAGIC, state)
}

/// Decodes a state.
pub fn decode(bytes: &[u8]) -> Result<WatchState, StoredFormError> {
    let state: WatchState = stored_form::decode(MAGIC, bytes)?;
    let is_valid = state.columns.len() <= COLUMNS_MAX && state.columns.iter().all(Column::is_valid);
    if is_valid { Ok(state) } else { Err(StoredFormError::Content) }
}

/// Reads a state for the fuzzers; true when it is valid. Content without a head gets one, so that the checks behind the
/// checksum are reached.
///
/// # Panics
///
/// When the state is another one after it was written and read, which is a defect.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_watch(bytes: &[u8]) -> bool {
    let framed = if bytes.starts_with(MAGIC) { bytes.to_vec() } else { stored_form::framed(MAGIC, bytes) };
    let Ok(state) = decode(&framed) else { return false };
    assert_eq!(decode(&encode(&state)).as_ref(), Ok(&state), "it is another one after it was written");
    for column in &state.columns {
        let judged = column.judge(state.columns.len());
        assert!(judged.index.is_finite() && judged.limit.is_finite());
        let _ = column.change();
    }
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::column::{Bins, Reading, Side};
    use crate::watch::ReferenceOrigin;

    fn state(numbers: &[f64], columns: usize) -> WatchState {
        let readings: Vec<_> = numbers.iter().map(|number| Reading::Number(*number)).collect();
        let column = |at: usize| {
            let mut column = Column::new(&format!("column {at}"), Side::Input, Bins::of(&readings).unwrap());
            for reading in &readings {
                column.count(*reading);
            }
            column.learn();
            column
        };
        let columns = (0..columns).map(column).collect();
        WatchState { columns, fixed: Some((7, ReferenceOrigin::Learnt)), ..WatchState::default() }
    }

    #[test]
    fn the_largest_state_is_within_its_bound_and_a_usual_one_within_eight_kilobytes() {
        let numbers: Vec<f64> = (0..1_000).map(f64::from).collect();
        let mut full = state(&numbers, COLUMNS_MAX);
        for column in &mut full.columns {
            column.name = "n".repeat(crate::column::NAME_BYTES_MAX);
            for counts in [&mut column.reference, &mut column.window, &mut column.last] {
                counts.fill(u32::MAX);
            }
        }
        assert!(encode(&full).len() <= FILE_BYTES_MAX, "{}", encode(&full).len());
        assert!(encode(&state(&numbers, 32)).len() <= 8 << 10);
    }

    proptest! {
        #[test]
        fn a_state_is_the_same_after_it_was_stored(numbers in prop::collection::vec(-1e30..1e30_f64, 1..60), columns in 0..5_usize) {
            let state = state(&numbers, columns);
            prop_assert_eq!(decode(&encode(&state)), Ok(state));
        }

        #[test]
        fn damaged_bytes_are_refused(numbers in prop::collection::vec(-1e3..1e3_f64, 1..60), at: prop::sample::Index, bit in 0..8_u32) {
            let mut bytes = encode(&state(&numbers, 2));
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(decode(&bytes).is_err());
            let _ = fuzz_watch(&bytes);
        }

        #[test]
        fn any_content_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = fuzz_watch(&bytes);
        }
    }
}
