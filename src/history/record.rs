//! One record of a series, and its form in a file.
//!
//! ```text
//! slot: u32    the number of the interval since the Unix epoch, little-endian as all numbers
//! covered: u16 the seconds of the interval that were recorded
//! check: u16   the lower half of the CRC-32 of the other bytes
//! figures      an f32 for each column; a figure that is not known is not a number
//! ```

/// The bytes of a record besides its figures.
const HEAD_BYTES: usize = 8;

/// The figures of one interval, as many as the series has columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    pub slot: u32,
    /// The seconds of the interval that were recorded.
    pub covered_s: u16,
    pub figures: Box<[f32]>,
}

/// The content of a file at the place of a record.
#[derive(Debug, PartialEq)]
pub enum StoredRecord {
    /// Nothing was ever written there.
    Empty,
    /// The bytes are not those that were written.
    Damaged,
    Whole(Record),
}

/// The bytes of a record of `columns` figures.
pub const fn record_bytes(columns: usize) -> usize {
    HEAD_BYTES + 4 * columns
}

impl Record {
    pub fn encode(&self, into: &mut Vec<u8>) {
        let begin = into.len();
        into.extend_from_slice(&self.slot.to_le_bytes());
        into.extend_from_slice(&self.covered_s.to_le_bytes());
        into.extend_from_slice(&[0, 0]);
        into.extend(self.figures.iter().flat_map(|figure| figure.to_le_bytes()));
        let record = into.get_mut(begin..).unwrap_or_default();
        let check = check_of(record).to_le_bytes();
        if let Some(place) = record.get_mut(6..HEAD_BYTES) {
            place.copy_from_slice(&check);
        }
    }

    /// Decodes the bytes of one place.
    pub fn decode(bytes: &[u8]) -> StoredRecord {
        if bytes.iter().all(|byte| *byte == 0) {
            return StoredRecord::Empty;
        }
        let Some(([s1, s2, s3, s4, c1, c2, k1, k2], figures)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
            return StoredRecord::Damaged;
        };
        if check_of(bytes) != u16::from_le_bytes([*k1, *k2]) || !figures.len().is_multiple_of(4) {
            return StoredRecord::Damaged;
        }
        let figures = figures.chunks_exact(4).map(|figure| f32::from_le_bytes(figure.try_into().unwrap_or_default()));
        StoredRecord::Whole(Self {
            slot: u32::from_le_bytes([*s1, *s2, *s3, *s4]),
            covered_s: u16::from_le_bytes([*c1, *c2]),
            figures: figures.collect(),
        })
    }

    /// The record of two parts of one interval: means weighted by the seconds that each covers. `p50_s` and `queue_s` are
    /// weighted by calls, and `p99_s` is the larger one, since distributions are not kept. `columns` are their names.
    #[must_use]
    pub fn merged(&self, other: &Self, columns: &[&str]) -> Self {
        let (own, more) = (f32::from(self.covered_s), f32::from(other.covered_s));
        let calls = |record: &Self| {
            let rate = columns.iter().zip(&record.figures).find(|(name, _)| **name == "calls_per_s");
            rate.map_or(0.0, |(_, rate)| if rate.is_finite() { rate * f32::from(record.covered_s) } else { 0.0 })
        };
        let by_calls = (calls(self), calls(other));
        let figures = columns.iter().zip(self.figures.iter().zip(&other.figures)).map(
            |(name, (own_figure, figure))| match *name {
                "p99_s" => own_figure.max(*figure),
                "p50_s" | "queue_s" => mean((*own_figure, by_calls.0), (*figure, by_calls.1)),
                _ => mean((*own_figure, own), (*figure, more)),
            },
        );
        let covered_s = self.covered_s.saturating_add(other.covered_s);
        Self { slot: self.slot, covered_s, figures: figures.collect() }
    }

    /// The sum of the records of two series over one interval: rates are added, and times as in [`Self::merged`].
    #[must_use]
    pub fn added(&self, other: &Self, columns: &[&str]) -> Self {
        let merged = self.merged(other, columns);
        let covered_s = self.covered_s.max(other.covered_s);
        let whole = f32::from(covered_s).max(1.0);
        let rates = columns.iter().zip(merged.figures.iter().zip(self.figures.iter().zip(&other.figures)));
        let figures = rates.map(|(name, (merged, (own, figure)))| match *name {
            "p50_s" | "p99_s" | "queue_s" => *merged,
            _ => (known(*own) * f32::from(self.covered_s) + known(*figure) * f32::from(other.covered_s)) / whole,
        });
        Self { slot: self.slot, covered_s, figures: figures.collect() }
    }
}

fn known(figure: f32) -> f32 {
    if figure.is_finite() { figure } else { 0.0 }
}

/// The mean of two figures with their weights; one that is not known does not count.
fn mean((one, weight): (f32, f32), (other, more): (f32, f32)) -> f32 {
    match (one.is_finite(), other.is_finite()) {
        (true, true) if weight + more > 0.0 => (one * weight + other * more) / (weight + more),
        (true, _) => one,
        (false, _) => other,
    }
}

fn check_of(record: &[u8]) -> u16 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(record.get(..6).unwrap_or_default());
    hasher.update(record.get(HEAD_BYTES..).unwrap_or_default());
    let [low, high, ..] = hasher.finalize().to_le_bytes();
    u16::from_le_bytes([low, high])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const COLUMNS: [&str; 4] = ["calls_per_s", "p50_s", "p99_s", "cores"];

    fn record(covered_s: u16, figures: [f32; 4]) -> Record {
        Record { slot: 7, covered_s, figures: figures.into() }
    }

    #[test]
    fn two_parts_of_an_interval_are_one_record() {
        let both = record(60, [10.0, 0.1, 0.5, 1.0]).merged(&record(20, [2.0, 0.5, 0.9, f32::NAN]), &COLUMNS);
        assert_eq!((both.covered_s, both.slot), (80, 7));
        assert!((both.figures[0] - 8.0).abs() < 1e-6);
        assert!((both.figures[1] - (600.0 * 0.1 + 40.0 * 0.5) / 640.0).abs() < 1e-6);
        assert_eq!(&both.figures[2..], [0.9, 1.0]);
    }

    #[test]
    fn the_sum_of_two_series_has_the_calls_of_both() {
        let both = record(3600, [10.0, 0.1, 0.5, 1.0]).added(&record(1800, [2.0, 0.1, 0.2, 0.5]), &COLUMNS);
        assert_eq!((both.covered_s, &both.figures[..1], &both.figures[2..]), (3600, &[11.0][..], &[0.5, 1.25][..]));
    }

    proptest! {
        #[test]
        fn a_record_reads_as_it_is_written(slot in any::<u32>(), covered_s in any::<u16>(), figures in proptest::collection::vec(any::<f32>(), 0..20)) {
            let record = Record { slot, covered_s, figures: figures.into() };
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            prop_assert_eq!(bytes.len(), record_bytes(record.figures.len()));
            let StoredRecord::Whole(read) = Record::decode(&bytes) else {
                prop_assert!(bytes.iter().all(|byte| *byte == 0));
                return Ok(());
            };
            let bits = |record: &Record| record.figures.iter().map(|figure| figure.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!((read.slot, read.covered_s, bits(&read)), (slot, covered_s, bits(&record)));
        }

        #[test]
        fn a_changed_bit_is_noticed(slot in 1..u32::MAX, figure in any::<f32>(), bit in 0..8 * record_bytes(2)) {
            let record = Record { slot, covered_s: 60, figures: [figure, 1.0].into() };
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Record::decode(&bytes), StoredRecord::Damaged);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Record::decode(&bytes);
        }
    }
}
