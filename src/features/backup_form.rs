//! The form of a backup file: plain, or an age file (age-encryption.org/v1).

use std::io::{self, BufRead};

/// The first bytes of an age file.
const AGE_MAGIC: &[u8] = b"age-encryption.org/v1\n";

/// True for an encrypted backup. Consumes nothing of the stream.
pub fn is_encrypted(stream: &mut impl BufRead) -> io::Result<bool> {
    Ok(stream.fill_buf()?.starts_with(AGE_MAGIC))
}
