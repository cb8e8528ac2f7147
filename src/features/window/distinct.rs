//! Counts of distinct values: exact while there are few, a `HyperLogLog` estimate beyond.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "positions in 64 bits, numbers of registers, and a count that is not negative"
)]

use super::super::wire::{ByteReader, put_varint};
use super::DamagedWindow;

/// The most hashes that are kept exactly: as many as take the space of the registers.
pub const EXACT_HASHES_MAX: usize = 24;

/// The bits of a hash that select its register, and the number of registers.
const PRECISION_BITS: u32 = 8;
const REGISTER_COUNT: usize = 1 << PRECISION_BITS;

/// The largest value of a register: the position of the first one bit in the other bits of a hash, none being there.
const REGISTER_MAX: u8 = (64 - PRECISION_BITS + 1) as u8;

/// The most bytes that [`DistinctValues::encode`] appends: a register takes six bits.
pub const ENCODED_BYTES_MAX: usize = 1 + REGISTER_COUNT / 4 * 3;

/// The distinct values of one bucket, as hashes.
#[derive(Debug, Clone, PartialEq)]
pub enum DistinctValues {
    /// The hashes themselves, ascending; at least one and at most [`EXACT_HASHES_MAX`].
    Exact(Vec<u64>),
    /// For each register, the highest position of the first one bit.
    Estimate(Box<HyperLogLogRegisters>),
}

/// The registers of a `HyperLogLog`.
#[derive(Debug, Clone, PartialEq)]
pub struct HyperLogLogRegisters([u8; REGISTER_COUNT]);

impl DistinctValues {
    /// Creates a set of one value.
    pub fn of(hash: u64) -> Self {
        Self::Exact(vec![hash])
    }

    /// Adds a value.
    pub fn add(&mut self, hash: u64) {
        match self {
            Self::Exact(hashes) => {
                let Err(at) = hashes.binary_search(&hash) else { return };
                if hashes.len() < EXACT_HASHES_MAX {
                    hashes.insert(at, hash);
                } else {
                    let mut registers = Box::new(HyperLogLogRegisters([0; REGISTER_COUNT]));
                    for &hash in hashes.iter().chain([&hash]) {
                        registers.add(hash);
                    }
                    *self = Self::Estimate(registers);
                }
            }
            Self::Estimate(registers) => registers.add(hash),
        }
    }

    /// The number of distinct values that several buckets have together.
    pub fn count<'d>(parts: impl Iterator<Item = &'d Self>) -> u64 {
        let mut all = Vec::new();
        let mut union: Option<HyperLogLogRegisters> = None;
        for part in parts {
            match part {
                Self::Exact(hashes) => all.extend_from_slice(hashes),
                Self::Estimate(registers) => match &mut union {
                    Some(union) => union.merge(registers),
                    None => union = Some((**registers).clone()),
                },
            }
        }
        if let Some(mut union) = union {
            for hash in all {
                union.add(hash);
            }
            union.estimate()
        } else {
            all.sort_unstable();
            all.dedup();
            all.len() as u64
        }
    }

    /// Appends its bytes: the number of hashes and the hashes, or 0 and the registers, four in three bytes.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Exact(hashes) => {
                put_varint(bytes, hashes.len() as u64);
                bytes.extend(hashes.iter().flat_map(|hash| hash.to_le_bytes()));
            }
            Self::Estimate(registers) => {
                bytes.push(0);
                let (quads, _) = registers.0.as_chunks::<4>();
                for &[a, b, c, d] in quads {
                    bytes.extend_from_slice(&[a | b << 6, b >> 2 | c << 4, c >> 4 | d << 2]);
                }
            }
        }
    }

    /// Reads the output of [`Self::encode`].
    pub fn read(reader: &mut ByteReader<'_>) -> Result<Self, DamagedWindow> {
        let count = reader.count(8)?;
        if count > EXACT_HASHES_MAX {
            return Err(DamagedWindow);
        }
        if count > 0 {
            let hashes = (0..count).map(|_| Ok(u64::from_le_bytes(reader.array()?)));
            let hashes = hashes.collect::<Result<Vec<_>, DamagedWindow>>()?;
            return if hashes.is_sorted_by(|a, b| a < b) { Ok(Self::Exact(hashes)) } else { Err(DamagedWindow) };
        }
        let packed = reader.array::<{ REGISTER_COUNT / 4 * 3 }>()?;
        let mut registers = Box::new(HyperLogLogRegisters([0; REGISTER_COUNT]));
        let (quads, _) = registers.0.as_chunks_mut::<4>();
        let (triples, _) = packed.as_chunks::<3>();
        for (quad, &[a, b, c]) in quads.iter_mut().zip(triples) {
            *quad = [a & 63, (a >> 6 | b << 2) & 63, (b >> 4 | c << 4) & 63, c >> 2];
        }
        if registers.0.iter().any(|register| *register > REGISTER_MAX) {
            return Err(DamagedWindow);
        }
        Ok(Self::Estimate(registers))
    }
}

impl HyperLogLogRegisters {
    fn add(&mut self, hash: u64) {
        // The additional bit ends the count when the rest of the hash is all zeros.
        let position = ((hash << PRECISION_BITS) | 1 << (PRECISION_BITS - 1)).leading_zeros() as u8 + 1;
        let at = (hash >> (64 - PRECISION_BITS)) as usize;
        if let Some(register) = self.0.get_mut(at) {
            *register = position.max(*register);
        }
    }

    fn merge(&mut self, other: &Self) {
        for (register, other) in self.0.iter_mut().zip(&other.0) {
            *register = (*other).max(*register);
        }
    }

    /// Otmar Ertl's improved estimator ("New cardinality estimation algorithms for `HyperLogLog` sketches", 2017,
    /// algorithm 6), which needs no correction for few values or for many.
    fn estimate(&self) -> u64 {
        let mut histogram = [0.0; REGISTER_MAX as usize + 1];
        for register in &self.0 {
            if let Some(count) = histogram.get_mut(usize::from(*register)) {
                *count += 1.0;
            }
        }
        let [none, between @ .., full] = histogram;
        let registers = REGISTER_COUNT as f64;
        let mut sum = registers * tau(1.0 - full / registers);
        for count in between.iter().rev() {
            sum = 0.5 * (sum + count);
        }
        sum += registers * sigma(none / registers);
        (registers * registers / (2.0 * std::f64::consts::LN_2 * sum)).round() as u64
    }
}

/// The term of the registers that are still zero: `x + Σ x^(2^k) 2^(k-1)`.
#[expect(clippy::float_cmp, reason = "the series has converged when a term changes nothing")]
fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut power, mut sum) = (1.0, x);
    loop {
        let before = sum;
        x *= x;
        sum += x * power;
        power += power;
        if sum == before {
            return sum;
        }
    }
}

/// The term of the registers that are full: `(1 - x - Σ (1 - x^(2^-k))² 2^-k) / 3`.
#[expect(clippy::float_cmp, reason = "the series has converged when a term changes nothing")]
fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut power, mut sum) = (1.0, 1.0 - x);
    loop {
        let before = sum;
        x = x.sqrt();
        power *= 0.5;
        sum -= (1.0 - x).powi(2) * power;
        if sum == before {
            return sum / 3.0;
        }
    }
}

pub(super) fn hash(bytes: &[u8]) -> u64 {
    blake3::hash(bytes).as_bytes().first_chunk().map_or(0, |first| u64::from_le_bytes(*first))
}
