//! Encrypted files: chunks that are encrypted one by one, so that no large file is in memory as a whole, and a transfer
//! can be resumed after the last chunk that decrypts.
//!
//! ```text
//! "LSF1"  the name, 32 bytes  the plain length, 8 bytes little-endian
//! chunk 0, chunk 1, …         each as `Sealer::seal` makes it, of CHUNK_BYTES plain bytes; the last one of the rest
//! ```
//! The name is the SHA-256 of the content. Each chunk is authenticated with the name, the length and its index: a chunk
//! that is missing, moved or of another file does not decrypt. The length determines the last chunk. An empty file has
//! one empty chunk.
//!
//! The memory of a chunk is not overwritten afterwards, because decrypted content stays in memory while it is used in
//! any case.

use std::io::{self, Read, Write};

use super::{CipherError, EncryptionPurpose, MasterKeyId, OVERHEAD_BYTES, Sealer};

/// The first bytes of an encrypted file.
const MAGIC: &[u8; 4] = b"LSF1";

/// The number of plain bytes in a chunk.
pub const CHUNK_BYTES: usize = 512 << 10;

/// The header of an encrypted file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncryptedFileHeader {
    /// The SHA-256 of the plain content.
    pub name: [u8; 32],
    /// The plain length in bytes.
    pub length: u64,
}

/// The reason why an encrypted file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum EncryptedFileError {
    #[error(transparent)]
    File(#[from] io::Error),
    #[error(transparent)]
    Open(#[from] CipherError),
}

impl EncryptedFileHeader {
    /// The length of a header, in bytes.
    pub const BYTES: usize = MAGIC.len() + 32 + 8;

    /// The bytes in the file.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let parts = MAGIC.iter().chain(&self.name).copied().chain(self.length.to_le_bytes());
        bytes.iter_mut().zip(parts).for_each(|(to, from)| *to = from);
        bytes
    }

    /// The header of a file that begins with these bytes; `None` when it is not encrypted.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (name, rest) = rest.split_first_chunk::<32>()?;
        let (length, _) = rest.split_first_chunk::<8>()?;
        Some(Self { name: *name, length: u64::from_le_bytes(*length) })
    }

    /// Reads the header of a file, and nothing more; `None` when the file is not encrypted.
    pub fn read(file: &mut impl Read) -> io::Result<Option<Self>> {
        let mut bytes = Vec::with_capacity(Self::BYTES);
        file.by_ref().take(Self::BYTES as u64).read_to_end(&mut bytes)?;
        Ok(Self::parse(&bytes))
    }

    /// The number of chunks.
    pub fn chunks(&self) -> u64 {
        chunks(self.length)
    }

    /// The length of the encrypted file.
    pub fn sealed_length(&self) -> u64 {
        self.length
            .saturating_add(self.chunks().saturating_mul(OVERHEAD_BYTES as u64))
            .saturating_add(Self::BYTES as u64)
    }

    /// The offset of a chunk in the encrypted file.
    pub fn offset(index: u64) -> u64 {
        (Self::BYTES as u64).saturating_add(index.saturating_mul((CHUNK_BYTES + OVERHEAD_BYTES) as u64))
    }

    /// The number of plain bytes in a chunk.
    pub fn chunk_length(&self, index: u64) -> usize {
        let before = index.saturating_mul(CHUNK_BYTES as u64);
        usize::try_from(self.length.saturating_sub(before)).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES)
    }

    /// The data that a chunk is authenticated with. A chunk that is not `whole` still lacks its last bytes.
    fn associated(&self, index: u64, whole: bool) -> Vec<u8> {
        let parts: [&[u8]; 4] = [&self.name, &self.length.to_le_bytes(), &index.to_le_bytes(), &[u8::from(whole)]];
        parts.concat()
    }
}

/// The number of chunks in a file of `length` plain bytes.
pub fn chunks(length: u64) -> u64 {
    length.div_ceil(CHUNK_BYTES as u64).max(1)
}

/// Encrypts a chunk. An incomplete one decrypts only as incomplete, and is replaced later.
pub fn seal_chunk(
    sealer: &Sealer,
    purpose: EncryptionPurpose,
    header: &EncryptedFileHeader,
    index: u64,
    plain: &[u8],
) -> Result<Vec<u8>, CipherError> {
    if !sealer.is_on() {
        return Err(CipherError::Unsealable);
    }
    let whole = plain.len() == header.chunk_length(index);
    sealer.seal(purpose, &header.associated(index, whole), plain)
}

/// Decrypts a chunk, also an incomplete one of [`seal_chunk`].
pub fn open_chunk(
    sealer: &Sealer,
    purpose: EncryptionPurpose,
    header: &EncryptedFileHeader,
    index: u64,
    bytes: &[u8],
) -> Result<Vec<u8>, CipherError> {
    let whole = bytes.len().checked_sub(OVERHEAD_BYTES) == Some(header.chunk_length(index));
    sealer.open(purpose, &header.associated(index, whole), bytes)
}

/// Encrypts `header.length` bytes of `plain` into `target`.
pub fn seal_stream(
    sealer: &Sealer,
    purpose: EncryptionPurpose,
    header: &EncryptedFileHeader,
    plain: &mut impl Read,
    target: &mut impl Write,
) -> Result<(), EncryptedFileError> {
    target.write_all(&header.to_bytes())?;
    let mut chunk = vec![0; CHUNK_BYTES];
    for index in 0..header.chunks() {
        let chunk = chunk.get_mut(..header.chunk_length(index)).unwrap_or_default();
        plain.read_exact(chunk)?;
        target.write_all(&seal_chunk(sealer, purpose, header, index, chunk)?)?;
    }
    Ok(())
}

/// Decrypts a file after its header, and passes its plain bytes to `take` chunk by chunk. Only a return without an
/// error proves that the file is complete.
pub fn open_stream(
    sealer: &Sealer,
    purpose: EncryptionPurpose,
    header: &EncryptedFileHeader,
    source: &mut impl Read,
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), EncryptedFileError> {
    let mut chunk = vec![0; CHUNK_BYTES + OVERHEAD_BYTES];
    for index in 0..header.chunks() {
        let chunk = chunk.get_mut(..header.chunk_length(index) + OVERHEAD_BYTES).unwrap_or_default();
        source.read_exact(chunk).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => EncryptedFileError::Open(CipherError::Forged),
            _ => error.into(),
        })?;
        take(&open_chunk(sealer, purpose, header, index, chunk)?)?;
    }
    match source.read(&mut [0])? {
        0 => Ok(()),
        _ => Err(CipherError::Forged.into()),
    }
}

/// The master keys that the chunks of an encrypted file need, and true if all chunks are there.
pub fn chunk_ids(
    header: &EncryptedFileHeader,
    sealed: &mut (impl Read + io::Seek),
) -> io::Result<(Vec<MasterKeyId>, bool)> {
    let mut ids = Vec::new();
    for index in 0..header.chunks() {
        sealed.seek(io::SeekFrom::Start(EncryptedFileHeader::offset(index)))?;
        let mut start = Vec::with_capacity(OVERHEAD_BYTES);
        sealed.by_ref().take(OVERHEAD_BYTES as u64).read_to_end(&mut start)?;
        let Some(id) = Sealer::key_of(&start) else { return Ok((ids, false)) };
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    let end = sealed.seek(io::SeekFrom::End(0))?;
    Ok((ids, end == header.sealed_length()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::MASTER_KEY_BYTES;
    use super::*;

    const MODEL: EncryptionPurpose = EncryptionPurpose::Model;

    fn sealer() -> Sealer {
        Sealer::with_keys(&[[1; MASTER_KEY_BYTES]])
    }

    fn content(length: usize) -> Vec<u8> {
        (0..length).map(|at| u8::try_from(at % 251).unwrap()).collect()
    }

    fn sealed(name: u8, plain: &[u8]) -> (EncryptedFileHeader, Vec<u8>) {
        let header = EncryptedFileHeader { name: [name; 32], length: plain.len() as u64 };
        let mut bytes = Vec::new();
        seal_stream(&sealer(), MODEL, &header, &mut &*plain, &mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, header.sealed_length());
        (header, bytes)
    }

    fn opened(mut bytes: &[u8]) -> Result<Vec<u8>, EncryptedFileError> {
        let header = EncryptedFileHeader::read(&mut bytes)?.ok_or(CipherError::NotSealed)?;
        let mut plain = Vec::new();
        open_stream(&sealer(), MODEL, &header, &mut bytes, |chunk| {
            plain.extend_from_slice(chunk);
            Ok(())
        })?;
        Ok(plain)
    }

    #[test]
    fn what_was_sealed_opens_whatever_its_length() {
        for length in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES] {
            let plain = content(length);
            assert!(opened(&sealed(7, &plain).1).unwrap() == plain, "{length}");
        }
    }

    #[test]
    fn chunks_that_are_missing_moved_or_of_another_file_are_noticed() {
        let plain = content(3 * CHUNK_BYTES);
        let (header, bytes) = sealed(7, &plain);
        let size = CHUNK_BYTES + OVERHEAD_BYTES;
        let chunk = |index: usize| {
            bytes[EncryptedFileHeader::BYTES + index * size..EncryptedFileHeader::BYTES + (index + 1) * size].to_vec()
        };
        let start = &bytes[..EncryptedFileHeader::BYTES];
        let (_, other) = sealed(8, &plain);
        let of_other = other[EncryptedFileHeader::BYTES..EncryptedFileHeader::BYTES + size].to_vec();
        let shorter = EncryptedFileHeader { length: 2 * CHUNK_BYTES as u64, ..header }.to_bytes();
        for (what, forged) in [
            ("order", [start, &chunk(1), &chunk(0), &chunk(2)].concat()),
            ("twice", [start, &chunk(0), &chunk(0), &chunk(2)].concat()),
            ("cut", [start, &chunk(0), &chunk(1)].concat()),
            ("cut, and the length with it", [&shorter, &chunk(0)[..], &chunk(1)].concat()),
            ("other file", [start, &of_other, &chunk(1), &chunk(2)].concat()),
            ("more", [&bytes, &b"x"[..]].concat()),
            ("less", bytes[..bytes.len() - 1].to_vec()),
            ("other name", [&other[..EncryptedFileHeader::BYTES], &bytes[EncryptedFileHeader::BYTES..]].concat()),
        ] {
            assert!(matches!(opened(&forged), Err(EncryptedFileError::Open(CipherError::Forged))), "{what}");
        }
    }

    #[test]
    fn a_part_of_a_chunk_opens_as_such_and_not_as_the_last_one() {
        let header = EncryptedFileHeader { name: [7; 32], length: 100 };
        let part = seal_chunk(&sealer(), MODEL, &header, 0, b"first").unwrap();
        assert_eq!(*open_chunk(&sealer(), MODEL, &header, 0, &part).unwrap(), *b"first");
        let shorter = EncryptedFileHeader { length: 5, ..header };
        assert_eq!(open_chunk(&sealer(), MODEL, &shorter, 0, &part), Err(CipherError::Forged));
        assert_eq!(seal_chunk(&Sealer::none(), MODEL, &header, 0, b"first"), Err(CipherError::Unsealable));
    }

    #[test]
    fn the_keys_of_all_chunks_are_told() {
        let (header, bytes) = sealed(7, &content(2 * CHUNK_BYTES + 1));
        let both = Sealer::with_keys(&[[2; MASTER_KEY_BYTES], [1; MASTER_KEY_BYTES]]);
        let mut mixed = bytes[..usize::try_from(EncryptedFileHeader::offset(1)).unwrap()].to_vec();
        for index in 1..3 {
            let plain = vec![0; header.chunk_length(index)];
            mixed.extend(seal_chunk(&both, MODEL, &header, index, &plain).unwrap());
        }
        let ids = |bytes: &[u8]| chunk_ids(&header, &mut io::Cursor::new(bytes)).unwrap();
        let (old, new) = (sealer().current().unwrap(), both.current().unwrap());
        assert_eq!(ids(&bytes), (vec![old], true));
        assert_eq!(ids(&mixed), (vec![old, new], true));
        for cut in [1, OVERHEAD_BYTES + 1] {
            assert_eq!(
                ids(&mixed[..mixed.len() - cut]),
                (vec![old, new], false),
                "a chunk is missing, or a part of it"
            );
        }
        assert_eq!(ids(&mixed[..EncryptedFileHeader::BYTES]), (vec![], false));
    }

    proptest! {
        #[test]
        fn a_changed_bit_anywhere_is_noticed(length in 0..2000usize, at: prop::sample::Index, bit in 0..8u32) {
            let (_, mut bytes) = sealed(7, &content(length));
            let at = at.index(bytes.len());
            bytes[at] ^= 1u8 << bit;
            prop_assert!(opened(&bytes).is_err());
        }

        #[test]
        fn any_bytes_are_opened_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut file = EncryptedFileHeader { name: [0; 32], length: u64::MAX }.to_bytes().to_vec();
            let _ = opened(&bytes);
            file.extend(bytes);
            prop_assert!(opened(&file).is_err());
        }
    }
}
