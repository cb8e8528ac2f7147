//! The writer of an encrypted part: chunk by chunk, each of one step. The bytes of a partial chunk are in memory. A
//! transfer that ends in order encrypts and writes them as they are, so that they are not fetched again; a process that
//! is killed loses them.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use ledge_identity::sealing::{
    CHUNK_BYTES, EncryptedFileHeader, EncryptionPurpose, OVERHEAD_BYTES, Sealer, open_chunk, seal_chunk,
};

/// The chunks of a part.
pub(super) struct EncryptedChunks {
    sealer: Sealer,
    header: EncryptedFileHeader,
    /// The number of whole chunks that are written.
    whole: u64,
    /// The bytes of the next chunk that are here.
    rest: Vec<u8>,
}

impl EncryptedChunks {
    pub fn new(sealer: Sealer, header: EncryptedFileHeader) -> Self {
        Self { sealer, header, whole: 0, rest: Vec::with_capacity(CHUNK_BYTES) }
    }

    /// Begins an empty file.
    pub fn begin(&mut self, file: &mut File) -> io::Result<()> {
        self.whole = 0;
        self.rest.clear();
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&self.header.to_bytes())
    }

    /// Takes the next bytes, which must not extend beyond the current chunk.
    pub fn write(&mut self, file: &mut File, plain: &[u8]) -> io::Result<()> {
        self.rest.extend_from_slice(plain);
        if self.rest.len() >= self.header.chunk_length(self.whole) {
            self.write_rest(file)?;
            self.whole += 1;
            self.rest.clear();
        }
        Ok(())
    }

    /// Writes the partial chunk, if there is one.
    pub fn write_rest(&mut self, file: &mut File) -> io::Result<()> {
        if self.rest.is_empty() {
            return Ok(());
        }
        self.write_chunk(file)
    }

    /// Writes the one empty chunk of an empty file.
    pub fn finish(&mut self, file: &mut File) -> io::Result<()> {
        if self.header.length == 0 { self.write_chunk(file) } else { Ok(()) }
    }

    fn write_chunk(&self, file: &mut File) -> io::Result<()> {
        let sealed = seal_chunk(&self.sealer, EncryptionPurpose::Model, &self.header, self.whole, &self.rest);
        file.seek(SeekFrom::Start(EncryptedFileHeader::offset(self.whole)))?;
        file.write_all(&sealed.map_err(io::Error::other)?)
    }

    /// Decrypts the valid chunks of a file, and cuts off the rest; returns the number of plain bytes. `None`: it is a
    /// part of another file.
    pub fn resume(&mut self, file: &mut File, mut take: impl FnMut(&[u8])) -> io::Result<Option<u64>> {
        file.seek(SeekFrom::Start(0))?;
        if EncryptedFileHeader::read(file)? != Some(self.header) {
            return Ok(None);
        }
        let mut length = 0;
        while length < self.header.length {
            let whole = self.header.chunk_length(self.whole);
            let mut sealed = Vec::with_capacity(whole + OVERHEAD_BYTES);
            Read::by_ref(file).take((whole + OVERHEAD_BYTES) as u64).read_to_end(&mut sealed)?;
            let opened = open_chunk(&self.sealer, EncryptionPurpose::Model, &self.header, self.whole, &sealed);
            let Ok(plain) = opened else { break };
            take(&plain);
            length += plain.len() as u64;
            if plain.len() < whole {
                self.rest.extend_from_slice(&plain);
                break;
            }
            self.whole += 1;
        }
        let rest = if self.rest.is_empty() { 0 } else { (self.rest.len() + OVERHEAD_BYTES) as u64 };
        file.set_len(EncryptedFileHeader::offset(self.whole).min(self.header.sealed_length()) + rest)?;
        Ok(Some(length))
    }
}
