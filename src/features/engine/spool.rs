//! A temporary file for a backup that is being received: encrypted piece by piece, under a key that is in no file.
//!
//! Each piece is its length in four bytes, little-endian, and the output of [`Sealer::seal`]. The number of the piece,
//! and whether it is the last one, are authenticated with it, so a file that was cut off or changed does not decrypt.

use std::io::{self, Read, Write};
use std::path::PathBuf;

use ledge_identity::sealing::{EncryptionPurpose, MASTER_KEY_BYTES, OVERHEAD_BYTES, Sealer};
use zeroize::Zeroizing;

/// The longest piece, in bytes: bounds the memory that a reader allocates for a piece.
const PIECE_BYTES_MAX: usize = 16 << 20;

/// A key for one file. It exists only in memory.
#[derive(Debug, Clone)]
pub struct SpoolKey(Sealer);

impl SpoolKey {
    /// Generates a key.
    pub fn new() -> io::Result<Self> {
        let mut secret = Zeroizing::new([0; MASTER_KEY_BYTES]);
        getrandom::fill(secret.as_mut_slice()).map_err(io::Error::other)?;
        Ok(Self(Sealer::with_keys(&[*secret])))
    }

    /// The associated data of a piece: its number, and if it is the last one.
    fn associated(index: u64, is_last: bool) -> [u8; 9] {
        let [b0, b1, b2, b3, b4, b5, b6, b7] = index.to_le_bytes();
        [b0, b1, b2, b3, b4, b5, b6, b7, u8::from(is_last)]
    }
}

/// Writes encrypted pieces.
#[derive(Debug)]
pub struct SpoolWriter<W> {
    key: SpoolKey,
    output: W,
    index: u64,
}

impl<W: Write> SpoolWriter<W> {
    /// Creates a writer for `output`, which must be empty.
    pub fn new(key: SpoolKey, output: W) -> Self {
        Self { key, output, index: 0 }
    }

    /// Writes bytes, as one piece, or as several when they are longer than a piece may be. After the last bytes nothing
    /// may follow.
    pub fn write(&mut self, bytes: &[u8], is_last: bool) -> io::Result<()> {
        let mut rest = bytes;
        loop {
            let (piece, after) = rest.split_at(rest.len().min(PIECE_BYTES_MAX));
            self.write_piece(piece, is_last && after.is_empty())?;
            if after.is_empty() {
                return Ok(());
            }
            rest = after;
        }
    }

    fn write_piece(&mut self, piece: &[u8], is_last: bool) -> io::Result<()> {
        let associated = SpoolKey::associated(self.index, is_last);
        let sealed = self.key.0.seal(EncryptionPurpose::FeatureStore, &associated, piece).map_err(io::Error::other)?;
        let length = u32::try_from(sealed.len()).map_err(io::Error::other)?;
        self.index += 1;
        self.output.write_all(&length.to_le_bytes())?;
        self.output.write_all(&sealed)
    }

    /// Returns the output.
    pub fn into_inner(self) -> W {
        self.output
    }
}

/// Reads the file of a [`SpoolWriter`]. A missing last piece is an error.
#[derive(Debug)]
pub struct SpoolReader<R> {
    key: SpoolKey,
    input: R,
    index: u64,
    piece: Vec<u8>,
    taken: usize,
    is_at_end: bool,
}

impl<R: Read> SpoolReader<R> {
    /// Creates a reader at the beginning of `input`.
    pub fn new(key: SpoolKey, input: R) -> Self {
        Self { key, input, index: 0, piece: Vec::new(), taken: 0, is_at_end: false }
    }

    fn next_piece(&mut self) -> io::Result<()> {
        let changed = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "the temporary file of the received backup was changed or cut off",
            )
        };
        let mut length = [0; 4];
        self.input.read_exact(&mut length).map_err(|_| changed())?;
        let length = u32::from_le_bytes(length) as usize;
        if length > PIECE_BYTES_MAX + OVERHEAD_BYTES {
            return Err(changed());
        }
        let mut sealed = vec![0; length];
        self.input.read_exact(&mut sealed).map_err(|_| changed())?;
        let open = |is_last| {
            self.key.0.open(EncryptionPurpose::FeatureStore, &SpoolKey::associated(self.index, is_last), &sealed)
        };
        let (piece, is_last) = match open(false) {
            Ok(piece) => (piece, false),
            Err(_) => (open(true).map_err(|_| changed())?, true),
        };
        (self.piece, self.taken, self.is_at_end) = (piece, 0, is_last);
        self.index += 1;
        Ok(())
    }
}

impl<R: Read> Read for SpoolReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.taken == self.piece.len() {
            if self.is_at_end {
                return Ok(0);
            }
            self.next_piece()?;
        }
        let read = self.piece.get(self.taken..).unwrap_or_default().read(buffer)?;
        self.taken += read;
        Ok(read)
    }
}

/// A backup that was received to its end.
#[derive(Debug)]
pub struct ReceivedBackup {
    pub path: PathBuf,
    pub(super) key: Option<SpoolKey>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(key: &SpoolKey, pieces: &[Vec<u8>]) -> Vec<u8> {
        let mut writer = SpoolWriter::new(key.clone(), Vec::new());
        for (index, piece) in pieces.iter().enumerate() {
            writer.write(piece, index + 1 == pieces.len()).unwrap();
        }
        writer.into_inner()
    }

    fn read(key: &SpoolKey, file: &[u8]) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        SpoolReader::new(key.clone(), file).read_to_end(&mut content).map(|_| content)
    }

    #[test]
    fn an_input_longer_than_a_piece_is_cut_into_pieces_that_the_reader_takes() {
        let key = SpoolKey::new().unwrap();
        for (length, pieces) in [(PIECE_BYTES_MAX, 1), (PIECE_BYTES_MAX + 1, 2), (2 * PIECE_BYTES_MAX + 7, 3)] {
            let input: Vec<u8> = [2, 3, 5, 7, 11, 13].into_iter().cycle().take(length).collect();
            let file = written(&key, &[vec![1; 90], input.clone(), Vec::new()]);
            assert_eq!(file.len(), 90 + length + (pieces + 2) * (4 + OVERHEAD_BYTES));
            assert!(read(&key, &file).unwrap() == [vec![1; 90], input].concat(), "{length}");
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_and_nothing_of_it_lies_there_plain(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 1..6),
        ) {
            let key = SpoolKey::new().unwrap();
            let file = written(&key, &pieces);
            prop_assert_eq!(read(&key, &file).unwrap(), pieces.concat());
            for piece in pieces.iter().filter(|piece| piece.len() > 16) {
                prop_assert!(!file.windows(piece.len()).any(|window| window == piece));
            }
            prop_assert!(read(&SpoolKey::new().unwrap(), &file).is_err());
        }

        #[test]
        fn a_file_that_was_cut_off_or_changed_does_not_open(at in 0_usize..400, bit in 0_u8..8) {
            let key = SpoolKey::new().unwrap();
            let mut file = written(&key, &[vec![1; 90], vec![2; 90], Vec::new()]);
            let at = at % file.len();
            prop_assert!(read(&key, file.get(..at).unwrap()).is_err());
            file[at] ^= 1 << bit;
            prop_assert!(read(&key, &file).is_err());
        }
    }
}
