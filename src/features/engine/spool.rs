//! A backup on its way in, in a file that nobody can read: encrypted piece by piece, under a key that no file has.
//!
//! Each piece is its length in four bytes, little-endian, and what [`Sealer::seal`] makes of it. The number of the piece, and
//! whether it is the last one, are authenticated with it: a file that was cut off or changed does not open.

use std::io::{self, Read, Write};

use ledge_identity::sealing::{KEY, OVERHEAD, SealPurpose, Sealer};
use zeroize::Zeroizing;

/// The longest piece, in bytes: what is written at a time is far below.
const PIECE_MAX: usize = 16 << 20;

/// A key for one file, lost with this value.
#[derive(Debug, Clone)]
pub struct SpoolKey(Sealer);

impl SpoolKey {
    /// Makes a key.
    pub fn new() -> io::Result<Self> {
        let mut secret = Zeroizing::new([0; KEY]);
        getrandom::fill(secret.as_mut_slice()).map_err(io::Error::other)?;
        Ok(Self(Sealer::with_keys(&[*secret])))
    }

    fn associated(index: u64, is_last: bool) -> [u8; 9] {
        let mut bytes = [u8::from(is_last); 9];
        bytes.iter_mut().zip(index.to_le_bytes()).for_each(|(to, from)| *to = from);
        bytes
    }
}

/// Writes pieces.
#[derive(Debug)]
pub struct SpoolWriter<W> {
    key: SpoolKey,
    output: W,
    index: u64,
}

impl<W: Write> SpoolWriter<W> {
    /// Writes into `output`, which is empty.
    pub fn new(key: SpoolKey, output: W) -> Self {
        Self { key, output, index: 0 }
    }

    /// Writes a piece of at most 16 MiB. After the last one nothing may follow.
    pub fn write(&mut self, piece: &[u8], is_last: bool) -> io::Result<()> {
        let associated = SpoolKey::associated(self.index, is_last);
        let sealed = self.key.0.seal(SealPurpose::FeatureStore, &associated, piece).map_err(io::Error::other)?;
        let length = u32::try_from(sealed.len()).map_err(io::Error::other)?;
        self.index += 1;
        self.output.write_all(&length.to_le_bytes())?;
        self.output.write_all(&sealed)
    }

    /// What was written into.
    pub fn into_inner(self) -> W {
        self.output
    }
}

/// Reads what a [`SpoolWriter`] wrote. The end is an error when the last piece is not there.
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
    /// Reads from the beginning of `input`.
    pub fn new(key: SpoolKey, input: R) -> Self {
        Self { key, input, index: 0, piece: Vec::new(), taken: 0, is_at_end: false }
    }

    fn next_piece(&mut self) -> io::Result<()> {
        let changed = || io::Error::new(io::ErrorKind::InvalidData, "the received file was changed or cut off");
        let mut length = [0; 4];
        self.input.read_exact(&mut length).map_err(|_| changed())?;
        let length = u32::from_le_bytes(length) as usize;
        if length > PIECE_MAX + OVERHEAD {
            return Err(changed());
        }
        let mut sealed = vec![0; length];
        self.input.read_exact(&mut sealed).map_err(|_| changed())?;
        let open =
            |is_last| self.key.0.open(SealPurpose::FeatureStore, &SpoolKey::associated(self.index, is_last), &sealed);
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
