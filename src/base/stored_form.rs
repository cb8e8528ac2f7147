//! The stored form of a small file: a head that names its kind and version, a checksum, and the content in postcard's
//! encoding. Who keeps such a file chooses the head, and raises its end when an earlier version could no longer read it.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A reason why bytes are no such file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StoredFormError {
    #[error("it is a file of another kind, or of another version of Ledge")]
    Head,
    #[error("its checksum is wrong")]
    Checksum,
    #[error("its content is damaged")]
    Content,
}

/// The file of a content: only numbers, texts, lists and maps of them, whose encoding does not fail.
pub fn encode(head: &[u8], content: &impl Serialize) -> Vec<u8> {
    framed(head, &postcard::to_stdvec(content).unwrap_or_default())
}

/// The file of an encoded content, for fuzzers, which would seldom find the checksum.
pub fn framed(head: &[u8], content: &[u8]) -> Vec<u8> {
    [head, &crc32fast::hash(content).to_le_bytes(), content].concat()
}

/// Reads the content of a file. The caller checks what it says.
pub fn decode<T: DeserializeOwned>(head: &[u8], file: &[u8]) -> Result<T, StoredFormError> {
    let rest = file.strip_prefix(head).ok_or(StoredFormError::Head)?;
    let (checksum, content) = rest.split_first_chunk::<4>().ok_or(StoredFormError::Checksum)?;
    if *checksum != crc32fast::hash(content).to_le_bytes() {
        return Err(StoredFormError::Checksum);
    }
    match postcard::take_from_bytes(content) {
        Ok((content, [])) => Ok(content),
        _ => Err(StoredFormError::Content),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEAD: &[u8] = b"TST1";

    proptest! {
        #[test]
        fn a_content_is_read_as_it_was_written_and_no_other(
            content: (u64, String, Vec<u32>),
            place: prop::sample::Index,
            bit in 0..8_u32,
        ) {
            let mut file = encode(HEAD, &content);
            prop_assert_eq!(decode(HEAD, &file), Ok(content));
            prop_assert_eq!(decode::<(u64, String, Vec<u32>)>(b"TST2", &file), Err(StoredFormError::Head));
            let place = place.index(file.len());
            file[place] ^= 1 << bit;
            prop_assert!(decode::<(u64, String, Vec<u32>)>(HEAD, &file).is_err());
        }
    }

    #[test]
    fn a_head_alone_and_more_than_a_content_are_no_file() {
        assert_eq!(decode::<u8>(HEAD, HEAD), Err(StoredFormError::Checksum));
        assert_eq!(decode::<u8>(HEAD, &framed(HEAD, &[1, 2])), Err(StoredFormError::Content));
    }
}
