//! A decimal number with six places, for prices and shares.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The largest number.
const MAX: f64 = 1e9;

const PLACES: f64 = 1e6;

/// A number from 0 to a billion, in millionths: equal numbers of a configuration are equal values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Decimal(u64);

impl Decimal {
    pub const fn millionths(millionths: u64) -> Self {
        Self(millionths)
    }

    pub fn new(number: f64) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked")]
        (0.0..=MAX).contains(&number).then(|| Self((number * PLACES).round() as u64))
    }

    #[expect(clippy::cast_precision_loss, reason = "at most 10^15, which is exact")]
    pub fn get(self) -> f64 {
        self.0 as f64 / PLACES
    }

    pub fn in_millionths(self) -> u64 {
        self.0
    }

    pub fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.get())
    }
}

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(deserializer)?;
        Self::new(number)
            .ok_or_else(|| serde::de::Error::custom(format_args!("expected a number from 0 to 1e9, got {number}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_kept_to_six_places() {
        assert_eq!(Decimal::new(99.9), Some(Decimal::millionths(99_900_000)));
        assert_eq!((Decimal::new(0.1).unwrap().get(), Decimal::new(1e9).unwrap().get()), (0.1, 1e9));
        for wrong in [-0.1, 1.1e9, f64::NAN, f64::INFINITY] {
            assert_eq!(Decimal::new(wrong), None, "{wrong}");
        }
    }
}
