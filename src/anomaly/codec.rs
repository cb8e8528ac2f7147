//! The stored form of a state: a format number, then the state in postcard's encoding. Whatever is read is checked, so
//! that a state holds what the code relies on.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Raised when an earlier version could no longer read it.
pub const FORMAT_VERSION: u8 = 2;
/// Bytes of the largest state.
pub const LARGEST_STATE: usize = 64 * 1024;

/// Bytes that are no state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    #[error("the state has format {0}, not {FORMAT_VERSION}")]
    Format(u8),
    #[error("the state is empty or larger than {LARGEST_STATE} bytes")]
    Size,
    #[error("the state is damaged")]
    Damaged,
}

/// A state that says whether it holds what its code relies on.
pub(crate) trait Sound: Serialize + DeserializeOwned {
    fn is_sound(&self) -> bool;
}

pub(crate) fn encode<T: Sound>(state: &T) -> Vec<u8> {
    let start = vec![FORMAT_VERSION];
    // Writing to memory cannot fail, and the states have no type that postcard has not.
    postcard::to_extend(state, start).unwrap_or_default()
}

pub(crate) fn decode<T: Sound>(bytes: &[u8]) -> Result<T, StateError> {
    let Some((format, rest)) = bytes.split_first().filter(|_| bytes.len() <= LARGEST_STATE) else {
        return Err(StateError::Size);
    };
    if *format != FORMAT_VERSION {
        return Err(StateError::Format(*format));
    }
    match postcard::take_from_bytes::<T>(rest) {
        Ok((state, [])) if state.is_sound() => Ok(state),
        _ => Err(StateError::Damaged),
    }
}
