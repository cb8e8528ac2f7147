//! The state as bytes: a version, the watermark, the floor below it, the tracks with their buckets, the identities.
//! Numbers are variable-length, and steps and event times are differences from the one before. No bytes are the state
//! before the first event, so that a record from before there were aggregations has a state, too.

use super::super::view::FieldId;
use super::super::wire::{ByteReader, put_signed, put_value, put_varint};
use super::bucket::{self, CompensatedSum, NewestValue, RunningMoments, WindowBucket};
use super::distinct::DistinctValues;
use super::{BucketTrack, DamagedWindow, WindowState};

/// The version of this form.
const VERSION: u8 = 1;

/// The bits in front of a sum's count, set for each number that is not zero and follows.
const INTEGER_FLAG: u64 = 1;
const FLOAT_FLAG: u64 = 1 << 1;
const LOST_FLAG: u64 = 1 << 2;

/// See [`WindowState::encode`].
pub fn encode(state: &WindowState, bytes: &mut Vec<u8>) {
    let Some(watermark_us) = state.watermark_us else { return };
    bytes.push(VERSION);
    put_signed(bytes, watermark_us);
    put_signed(bytes, state.floor_us.wrapping_sub(watermark_us));
    put_varint(bytes, state.tracks.len() as u64);

    for track in &state.tracks {
        put_varint(bytes, u64::from(track.column.0));
        put_varint(bytes, track.interval_us.unsigned_abs());
        bytes.push(track.parts);
        put_varint(bytes, track.buckets.len() as u64);
        let mut before = None;
        for bucket in &track.buckets {
            match before {
                None => put_signed(bytes, bucket.number),
                Some(before) => put_varint(bytes, bucket.number.abs_diff(before)),
            }
            before = Some(bucket.number);
            put_bucket(bytes, bucket);
        }
    }

    put_varint(bytes, state.identities.len() as u64);
    let mut newer_us = watermark_us;
    for &(event_us, hash) in state.identities.iter().rev() {
        put_varint(bytes, newer_us.abs_diff(event_us));
        bytes.extend_from_slice(&hash.to_le_bytes());
        newer_us = event_us;
    }
}

fn put_bucket(bytes: &mut Vec<u8>, bucket: &WindowBucket) {
    bytes.push(bucket.parts());
    if let Some(count) = bucket.count {
        put_varint(bytes, count);
    }
    if let Some(sum) = &bucket.sum {
        let flag = |has: bool, bit: u64| if has { bit } else { 0 };
        let flags = flag(sum.integer != 0, INTEGER_FLAG)
            | flag(sum.float != 0.0, FLOAT_FLAG)
            | flag(sum.lost != 0.0, LOST_FLAG);
        put_varint(bytes, sum.count.min(u64::MAX >> 3) << 3 | flags);
        if flags & INTEGER_FLAG != 0 {
            put_integer(bytes, sum.integer);
        }
        if flags & FLOAT_FLAG != 0 {
            bytes.extend_from_slice(&sum.float.to_le_bytes());
        }
        if flags & LOST_FLAG != 0 {
            bytes.extend_from_slice(&sum.lost.to_le_bytes());
        }
    }

    if let Some(moments) = &bucket.moments {
        put_varint(bytes, moments.count);
        bytes.extend_from_slice(&moments.mean.to_le_bytes());
        bytes.extend_from_slice(&moments.squares.to_le_bytes());
    }

    for number in [bucket.min, bucket.max].into_iter().flatten() {
        bytes.extend_from_slice(&number.to_le_bytes());
    }

    if let Some(last) = &bucket.last {
        put_varint(bytes, last.offset_us);
        put_value(bytes, &last.value);
    }
    if let Some(distinct) = &bucket.distinct {
        distinct.encode(bytes);
    }
}

/// See [`WindowState::decode`].
pub fn decode(bytes: &[u8]) -> Result<WindowState, DamagedWindow> {
    if bytes.is_empty() {
        return Ok(WindowState::default());
    }
    let mut reader = ByteReader::new(bytes);
    if reader.array()? != [VERSION] {
        return Err(DamagedWindow);
    }
    let watermark_us = reader.signed()?;
    let floor_us = reader.signed()?.wrapping_add(watermark_us);
    // A track has seven bytes at least, a bucket three, and an identity nine, so a count cannot request more memory
    // than there are bytes.
    let count = reader.count(7)?;
    let tracks = (0..count).map(|_| track(&mut reader)).collect::<Result<_, _>>()?;
    let count = reader.count(9)?;
    let mut identities = Vec::with_capacity(count);
    let mut newer_us = watermark_us;
    for _ in 0..count {
        newer_us = newer_us.checked_sub_unsigned(reader.varint()?).ok_or(DamagedWindow)?;
        identities.push((newer_us, u64::from_le_bytes(reader.array()?)));
    }
    identities.reverse();
    if !reader.is_empty() || !identities.is_sorted_by(|a, b| a < b) {
        return Err(DamagedWindow);
    }
    Ok(WindowState { watermark_us: Some(watermark_us), floor_us, identities, tracks })
}

fn track(reader: &mut ByteReader<'_>) -> Result<BucketTrack, DamagedWindow> {
    let column = FieldId(u16::try_from(reader.varint()?).map_err(|_| DamagedWindow)?);
    let interval_us = i64::try_from(reader.varint()?).ok().filter(|interval| *interval > 0).ok_or(DamagedWindow)?;
    let [parts] = reader.array()?;
    let count = Some(reader.count(3)?).filter(|count| *count > 0).ok_or(DamagedWindow)?;
    let mut buckets: Vec<WindowBucket> = Vec::with_capacity(count);
    for _ in 0..count {
        let number = match buckets.last() {
            None => reader.signed()?,
            Some(before) => {
                let step = Some(reader.varint()?).filter(|step| *step > 0).ok_or(DamagedWindow)?;
                before.number.checked_add_unsigned(step).ok_or(DamagedWindow)?
            }
        };
        let bucket = read_bucket(reader, number)?;
        if bucket.parts() & !parts != 0 {
            return Err(DamagedWindow);
        }
        buckets.push(bucket);
    }
    Ok(BucketTrack { column, interval_us, parts, buckets })
}

fn read_bucket(reader: &mut ByteReader<'_>, number: i64) -> Result<WindowBucket, DamagedWindow> {
    let [parts] = reader.array()?;
    if parts == 0 || parts >= bucket::PART_DISTINCT << 1 {
        return Err(DamagedWindow);
    }

    let mut bucket = WindowBucket::new(number);
    if parts & bucket::PART_COUNT != 0 {
        bucket.count = Some(reader.varint()?);
    }

    if parts & bucket::PART_SUM != 0 {
        let head = reader.varint()?;
        bucket.sum = Some(CompensatedSum {
            count: head >> 3,
            integer: if head & INTEGER_FLAG == 0 { 0 } else { integer(reader)? },
            float: if head & FLOAT_FLAG == 0 { 0.0 } else { float(reader)? },
            lost: if head & LOST_FLAG == 0 { 0.0 } else { float(reader)? },
        });
    }

    if parts & bucket::PART_MOMENTS != 0 {
        bucket.moments =
            Some(RunningMoments { count: reader.varint()?, mean: float(reader)?, squares: float(reader)? });
    }
    if parts & bucket::PART_MIN != 0 {
        bucket.min = Some(float(reader)?);
    }
    if parts & bucket::PART_MAX != 0 {
        bucket.max = Some(float(reader)?);
    }

    if parts & bucket::PART_LAST != 0 {
        bucket.last = Some(NewestValue { offset_us: reader.varint()?, value: reader.value()? });
    }
    if parts & bucket::PART_DISTINCT != 0 {
        bucket.distinct = Some(DistinctValues::read(reader)?);
    }
    Ok(bucket)
}

/// The number of significant bytes, then those bytes.
fn put_integer(bytes: &mut Vec<u8>, number: i128) {
    let number = (number << 1 ^ number >> 127).cast_unsigned();
    let length = 16 - number.leading_zeros() / 8;
    put_varint(bytes, length.into());
    bytes.extend(number.to_le_bytes().iter().zip(0..length).map(|(byte, _)| byte));
}

fn integer(reader: &mut ByteReader<'_>) -> Result<i128, DamagedWindow> {
    let length = reader.count(1)?;
    let mut bytes = [0; 16];
    bytes.get_mut(..length).ok_or(DamagedWindow)?.copy_from_slice(reader.take(length)?);
    let number = u128::from_le_bytes(bytes);
    Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
}

fn float(reader: &mut ByteReader<'_>) -> Result<f64, DamagedWindow> {
    Ok(f64::from_le_bytes(reader.array()?))
}
