//! The values of a row as runs: values of consecutive fields that have the same type.
//!
//! First the number of all values (varint), then the runs. A run is the distance of its first field from the field
//! behind the last run (varint), the number of its type with [`COUNTED`], [`ALL`] or neither, the count of its values
//! (varint) after [`COUNTED`], and the values.

use super::super::value::Value;
use super::super::view::FieldId;
use super::super::wire::{ByteReader, DamagedBytes, put_body, put_varint, tag};

/// The bits of a run's type. The others are one of the next two flags, or none for a single value.
const TYPE_BITS: u8 = 0x3f;
/// The run has several values, but not all that are left. Their count follows.
const COUNTED: u8 = 0x80;
/// The run has all the values that are left, and those are several.
const ALL: u8 = 0x40;
/// The number of field numbers.
const FIELDS: usize = 1 << 16;

/// Appends the number of values, and the values as runs. Their fields ascend.
pub fn put(bytes: &mut Vec<u8>, values: &[(FieldId, Value)]) {
    put_varint(bytes, values.len() as u64);
    let (mut next, mut left) = (0, values.len());
    let is_next = |(field, value): &(FieldId, Value), (other, after): &(FieldId, Value)| {
        field.0.checked_add(1) == Some(other.0) && tag(value) == tag(after)
    };

    for run in values.chunk_by(is_next) {
        let Some((first, value)) = run.first() else { continue };
        let first = u64::from(first.0);
        debug_assert!(first >= next, "the fields of a row ascend");
        put_varint(bytes, first.wrapping_sub(next));

        match run.len() {
            1 => bytes.push(tag(value)),
            count if count == left => bytes.push(tag(value) | ALL),
            count => {
                bytes.push(tag(value) | COUNTED);
                put_varint(bytes, count as u64);
            }
        }
        for (_, value) in run {
            put_body(bytes, value);
        }

        next = first + run.len() as u64;
        left -= run.len();
    }
}

/// Reads the output of [`put`]. Values that it would have divided into other runs are refused.
pub fn read(reader: &mut ByteReader<'_>) -> Result<Vec<(FieldId, Value)>, DamagedBytes> {
    // A value takes a byte at least.
    let total = Some(reader.count(1)?).filter(|total| *total <= FIELDS).ok_or(DamagedBytes::Malformed)?;
    let mut values = Vec::with_capacity(total);
    let (mut next, mut before) = (0_u64, None);

    while values.len() < total {
        let gap = reader.varint()?;
        let [head] = reader.array()?;
        let (tag, left) = (head & TYPE_BITS, total - values.len());
        let count = match head & !TYPE_BITS {
            0 => 1,
            ALL if left > 1 => left,
            COUNTED => {
                Some(reader.count(1)?).filter(|count| (2..left).contains(count)).ok_or(DamagedBytes::Malformed)?
            }
            _ => return Err(DamagedBytes::Malformed),
        };
        if gap == 0 && before == Some(tag) {
            return Err(DamagedBytes::Malformed);
        }

        let first = next.checked_add(gap).ok_or(DamagedBytes::Malformed)?;
        next = first.checked_add(count as u64).ok_or(DamagedBytes::Malformed)?;
        let field = |number: u64| u16::try_from(number).map_err(|_| DamagedBytes::Malformed);
        let (mut number, _) = (field(first)?, field(next - 1)?);
        reader.values_of(tag, count, |value| {
            values.push((FieldId(number), value));
            number = number.wrapping_add(1);
        })?;
        before = Some(tag);
    }
    Ok(values)
}
