//! SHA-256 of files and metadata.

use aws_lc_rs::digest::{Context, SHA256, digest};

/// Computes the digest of `bytes`.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut sum = [0; 32];
    sum.copy_from_slice(digest(&SHA256, bytes).as_ref());
    sum
}

/// Computes the digest of `bytes` in hexadecimal, as it is signed.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(sha256(bytes))
}

/// Computes the digest of bytes that come in pieces.
pub struct Sha256Stream(Context);

impl Default for Sha256Stream {
    fn default() -> Self {
        Self(Context::new(&SHA256))
    }
}

impl Sha256Stream {
    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all, in hexadecimal.
    pub fn finish_hex(self) -> String {
        hex::encode(self.0.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_one_of_fips_180() {
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256_hex(b"abc"), digest);
        let mut stream = Sha256Stream::default();
        stream.update(b"a");
        stream.update(b"bc");
        assert_eq!(stream.finish_hex(), digest);
    }
}
