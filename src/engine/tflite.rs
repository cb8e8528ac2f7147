//! Reads the quantization of inputs and outputs from a TensorFlow Lite file. The runtime returns integers without it.
//!
//! Only the needed parts are read, by the field numbers of `schema.fbs`. Every offset in the file is checked before it
//! is followed. An input or output with a bad offset has no known quantization; the runtime finds other errors of the
//! file.

use std::collections::HashMap;

use crate::pipeline::quantization::Quantization;

/// The most inputs, and the most outputs, that are read.
const PORTS_MAX: usize = 256;

/// The longest name that is read, in bytes.
const NAME_MAX: usize = 1024;

/// The quantization of the inputs and outputs of the model in `bytes`, by name. Floats have none.
pub fn quantization(bytes: &[u8]) -> HashMap<String, Quantization> {
    let Some(graph) = main_graph(bytes) else { return HashMap::new() };
    // The fields of SubGraph: the indices of its inputs, and of its outputs.
    let ports = [1, 2].into_iter().filter_map(|field| graph.vector(field));
    let indices = ports.flat_map(|(start, length)| (0..length.min(PORTS_MAX)).map(move |number| start + 4 * number));
    indices.filter_map(|at| port(&graph, u32_at(bytes, at)?)).collect()
}

fn main_graph(bytes: &[u8]) -> Option<Table<'_>> {
    let model = Table { bytes, at: follow_offset(bytes, 0)? };
    model.table_of(2, 0)
}

/// The name and the quantization of a tensor.
fn port(graph: &Table<'_>, index: u32) -> Option<(String, Quantization)> {
    let tensor = graph.table_of(0, usize::try_from(index).ok()?)?;
    let (start, length) = tensor.vector(3)?;
    let name = tensor.bytes.get(start..start.checked_add(length.min(NAME_MAX + 1))?)?;
    let name = str::from_utf8(name).ok().filter(|name| name.len() <= NAME_MAX)?;

    let parameters = tensor.table(4)?;
    let (scales, zero_points) = (parameters.vector(2)?, parameters.vector(3)?);
    // Several would be one for each channel, which no input and no output has.
    if (scales.1, zero_points.1) != (1, 1) {
        return None;
    }
    let scale = f32::from_bits(u32_at(tensor.bytes, scales.0)?);
    let zero_point = bytes_at(tensor.bytes, zero_points.0).map(i64::from_le_bytes)?;
    let quantization = Quantization { scale, zero_point: i32::try_from(zero_point).ok()? };
    quantization.is_valid().then(|| (name.to_owned(), quantization))
}

/// A table of a `FlatBuffer`.
struct Table<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Table<'_> {
    /// The position of a field; `None` if the table does not have it.
    fn field(&self, number: usize) -> Option<usize> {
        let back = bytes_at(self.bytes, self.at).map(i32::from_le_bytes)?;
        let layout = self.at.checked_add_signed(isize::try_from(back).ok()?.checked_neg()?)?;
        let place = number.checked_mul(2)?.checked_add(4)?;
        if place.checked_add(2)? > u16_at(self.bytes, layout)? {
            return None;
        }
        match u16_at(self.bytes, layout.checked_add(place)?)? {
            0 => None,
            distance => self.at.checked_add(distance),
        }
    }

    fn table(&self, number: usize) -> Option<Self> {
        Some(Self { bytes: self.bytes, at: follow_offset(self.bytes, self.field(number)?)? })
    }

    /// The start of a vector's elements, and their number.
    fn vector(&self, number: usize) -> Option<(usize, usize)> {
        let at = follow_offset(self.bytes, self.field(number)?)?;
        Some((at.checked_add(4)?, usize::try_from(u32_at(self.bytes, at)?).ok()?))
    }

    /// The table at an index of a vector.
    fn table_of(&self, number: usize, index: usize) -> Option<Self> {
        let (start, length) = self.vector(number)?;
        let slot = start.checked_add(index.checked_mul(4)?)?;
        (index < length).then_some(())?;
        Some(Self { bytes: self.bytes, at: follow_offset(self.bytes, slot)? })
    }
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    bytes_at(bytes, at).map(|bytes| usize::from(u16::from_le_bytes(bytes)))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes_at(bytes, at).map(u32::from_le_bytes)
}

/// The target of the offset at `at`.
fn follow_offset(bytes: &[u8], at: usize) -> Option<usize> {
    at.checked_add(usize::try_from(u32_at(bytes, at)?).ok()?)
}

/// Reads a model for the fuzzers; true if an input or an output is quantized. Names and numbers are within their
/// bounds.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_tflite(data: &[u8]) -> bool {
    let found = quantization(data);
    assert!(found.len() <= 2 * PORTS_MAX);
    assert!(found.iter().all(|(name, quantization)| name.len() <= NAME_MAX && quantization.is_valid()));
    !found.is_empty()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(bytes: Vec<u8>, words in prop::collection::vec(0_u32..64, 0..64)) {
            let near: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            fuzz_tflite(&bytes);
            fuzz_tflite(&near);
        }
    }
}
