//! How the integers of a TensorFlow Lite model are to be read, by its file: the runtime gives integers and does not say.
//!
//! Only the parts that Ledge needs are read, by the field numbers of `schema.fbs`. Every offset in the file is checked before
//! it is followed; where one leads nowhere, nothing is known of that input or output, and what is wrong with the file
//! otherwise is for the runtime to find.

use std::collections::HashMap;

use crate::pipeline::quantization::Quantization;

/// The most inputs, and the most outputs, that are looked at.
const PORTS_MAX: usize = 256;

/// The longest name that is looked at, in bytes.
const NAME_MAX: usize = 1024;

/// The quantization of the inputs and outputs of the model in `bytes`, by their names; those of floats have none.
pub fn quantization(bytes: &[u8]) -> HashMap<String, Quantization> {
    let Some(graph) = main_graph(bytes) else { return HashMap::new() };
    // The fields of SubGraph: the indices of its inputs, and of its outputs.
    let ports = [1, 2].into_iter().filter_map(|field| graph.vector(field));
    let indices = ports.flat_map(|(start, length)| (0..length.min(PORTS_MAX)).map(move |number| start + 4 * number));
    indices.filter_map(|at| port(&graph, word(bytes, at)?)).collect()
}

fn main_graph(bytes: &[u8]) -> Option<Table<'_>> {
    let model = Table { bytes, at: offset(bytes, 0)? };
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
    // Of several each would be for one channel, which no input and no output has.
    if (scales.1, zero_points.1) != (1, 1) {
        return None;
    }
    let scale = f32::from_bits(word(tensor.bytes, scales.0)?);
    let zero_point = array(tensor.bytes, zero_points.0).map(i64::from_le_bytes)?;
    let quantization = Quantization { scale, zero_point: i32::try_from(zero_point).ok()? };
    quantization.is_valid().then(|| (name.to_owned(), quantization))
}

/// A table of a `FlatBuffer`.
struct Table<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Table<'_> {
    /// The position of a field; `None` when the table lacks it.
    fn field(&self, number: usize) -> Option<usize> {
        let back = array(self.bytes, self.at).map(i32::from_le_bytes)?;
        let layout = self.at.checked_add_signed(isize::try_from(back).ok()?.checked_neg()?)?;
        let place = number.checked_mul(2)?.checked_add(4)?;
        if place.checked_add(2)? > half_word(self.bytes, layout)? {
            return None;
        }
        match half_word(self.bytes, layout.checked_add(place)?)? {
            0 => None,
            distance => self.at.checked_add(distance),
        }
    }

    fn table(&self, number: usize) -> Option<Self> {
        Some(Self { bytes: self.bytes, at: offset(self.bytes, self.field(number)?)? })
    }

    /// The start and the number of the elements of a vector.
    fn vector(&self, number: usize) -> Option<(usize, usize)> {
        let at = offset(self.bytes, self.field(number)?)?;
        Some((at.checked_add(4)?, usize::try_from(word(self.bytes, at)?).ok()?))
    }

    /// The table at a place in a vector.
    fn table_of(&self, number: usize, place: usize) -> Option<Self> {
        let (start, length) = self.vector(number)?;
        let slot = start.checked_add(place.checked_mul(4)?)?;
        (place < length).then_some(())?;
        Some(Self { bytes: self.bytes, at: offset(self.bytes, slot)? })
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn half_word(bytes: &[u8], at: usize) -> Option<usize> {
    array(bytes, at).map(|bytes| usize::from(u16::from_le_bytes(bytes)))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

/// Where the offset at `at` leads.
fn offset(bytes: &[u8], at: usize) -> Option<usize> {
    at.checked_add(usize::try_from(word(bytes, at)?).ok()?)
}

/// Reads a model for the fuzzers; true when it says how an input or an output is quantized. The names and the numbers are
/// within their bounds.
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
