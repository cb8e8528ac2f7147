//! Nesting of a tensor's elements in JSON: none, or exactly as the shape.

use std::fmt;

use serde::de::value::UnitDeserializer;
use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer, SeqAccess, Visitor};

/// Takes elements in row-major order.
pub(super) trait ElementSink {
    /// Reads one element, and keeps it unless there are enough already.
    fn push<'de, D: Deserializer<'de>>(&mut self, deserializer: D) -> Result<(), D::Error>;

    /// Elements read so far.
    fn len(&self) -> usize;
}

/// One element of an array that is known to contain elements.
struct ElementSeed<'s, S>(&'s mut S);

impl<'de, S: ElementSink> DeserializeSeed<'de> for ElementSeed<'_, S> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.0.push(deserializer)
    }
}

/// One array of the nest; an array that does not fit the shape leaves (expected, got) entries in `problem`.
pub(super) struct ArrayLevel<'s, S> {
    /// Receives the elements.
    pub sink: &'s mut S,
    /// The dimensions from this array on.
    pub dims: &'s [usize],
    /// Set for the outermost array, which may contain all elements for any shape.
    pub outermost: bool,
    pub problem: &'s mut Option<(usize, usize)>,
}

impl<S: ElementSink> ArrayLevel<'_, S> {
    fn inner<'i>(&'i mut self, dims: &'i [usize]) -> ArrayLevel<'i, S> {
        ArrayLevel { sink: &mut *self.sink, dims, outermost: false, problem: &mut *self.problem }
    }

    fn leaves<'de, A: SeqAccess<'de>>(&mut self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(ElementSeed(&mut *self.sink))?.is_some() {}
        Ok(())
    }

    fn check<E: serde::de::Error>(&mut self, expected: usize, got: usize) -> Result<(), E> {
        if expected == got {
            return Ok(());
        }
        self.problem.get_or_insert((expected, got));
        Err(E::custom("nesting"))
    }
}

impl<'de, S: ElementSink> DeserializeSeed<'de> for ArrayLevel<'_, S> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, S: ElementSink> Visitor<'de> for ArrayLevel<'_, S> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        let (dim, inner) = match self.dims {
            [] => return self.leaves(seq),
            [_] if self.outermost => return self.leaves(seq),
            [dim] => {
                let before = self.sink.len();
                self.leaves(seq)?;
                let got = self.sink.len() - before;
                return self.check(*dim, got);
            }
            [dim, inner @ ..] => (*dim, inner),
        };
        let mut entries = 0;
        if self.outermost {
            match seq.next_element_seed(FirstEntrySeed(self.inner(inner)))? {
                Some(ArrayNesting::Flat) => return self.leaves(seq),
                Some(ArrayNesting::Nested) => entries = 1,
                // Correct if the shape has no elements; the count is checked later.
                None => return Ok(()),
            }
        }
        while seq.next_element_seed(self.inner(inner))?.is_some() {
            entries += 1;
        }
        self.check(dim, entries)
    }
}

/// Nesting of the outermost array.
enum ArrayNesting {
    Flat,
    Nested,
}

/// The first entry of the outermost array of several dimensions: an element, or the first of the inner arrays.
///
/// This one element goes through `f64`, so an `FP32` here is rounded twice. It matters only for decimals closer than
/// 2^-54 to the middle of two floats.
struct FirstEntrySeed<'s, S>(ArrayLevel<'s, S>);

impl<'de, S: ElementSink> DeserializeSeed<'de> for FirstEntrySeed<'_, S> {
    type Value = ArrayNesting;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ArrayNesting, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<S: ElementSink> FirstEntrySeed<'_, S> {
    fn element<'de, D: Deserializer<'de>>(self, deserializer: D) -> Result<ArrayNesting, D::Error> {
        self.0.sink.push(deserializer).map(|()| ArrayNesting::Flat)
    }
}

impl<'de, S: ElementSink> Visitor<'de> for FirstEntrySeed<'_, S> {
    type Value = ArrayNesting;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an element or an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<ArrayNesting, A::Error> {
        self.0.visit_seq(seq).map(|()| ArrayNesting::Nested)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<ArrayNesting, E> {
        self.element(value.into_deserializer())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<ArrayNesting, E> {
        self.element(value.into_deserializer())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<ArrayNesting, E> {
        self.element(value.into_deserializer())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<ArrayNesting, E> {
        self.element(value.into_deserializer())
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<ArrayNesting, E> {
        self.element(value.into_deserializer())
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<ArrayNesting, E> {
        self.element(UnitDeserializer::new())
    }
}
