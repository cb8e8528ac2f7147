//! The form of a backup file: plain, or an age file (age-encryption.org/v1).

use std::io::{self, BufRead};

/// What an age file begins with.
const AGE_MAGIC: &[u8] = b"age-encryption.org/v1\n";

/// Whether a stream is an encrypted backup, without reading on.
pub fn is_encrypted(stream: &mut impl BufRead) -> io::Result<bool> {
    Ok(stream.fill_buf()?.starts_with(AGE_MAGIC))
}
