//! Quantization: integers that stand for real numbers, in the inputs and outputs of quantized models.

use serde::{Deserialize, Serialize};

/// The real number of an integer is `scale * (integer - zero_point)`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quantization {
    /// The difference between two neighbouring integers.
    pub scale: f32,
    /// The integer that stands for 0.
    pub zero_point: i32,
}

impl Quantization {
    /// Returns true if the scale is a positive, normal number.
    pub fn is_valid(self) -> bool {
        self.scale.is_normal() && self.scale > 0.0
    }

    /// The real number that `integer` stands for.
    #[expect(clippy::cast_possible_truncation, reason = "a score needs no more than an f32")]
    pub fn dequantize(self, integer: f64) -> f32 {
        (f64::from(self.scale) * (integer - f64::from(self.zero_point))) as f32
    }

    /// The integer that stands for `real`, before it is rounded.
    #[expect(clippy::cast_possible_truncation, reason = "rounded to an integer of 8 bits afterwards")]
    pub fn quantize(self, real: f32) -> f32 {
        (f64::from(real) / f64::from(self.scale) + f64::from(self.zero_point)) as f32
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_dequantized_integer_is_quantized_to_itself(
            scale in 1e-6_f32..10.0, zero_point in -128..256, integer in -128..256,
        ) {
            let quantization = Quantization { scale, zero_point };
            let found = quantization.quantize(quantization.dequantize(f64::from(integer)));
            prop_assert!(quantization.is_valid());
            prop_assert!((f64::from(found) - f64::from(integer)).abs() < 0.01, "{found}");
        }
    }

    #[test]
    fn a_scale_that_says_nothing_is_not_valid() {
        for scale in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-40] {
            assert!(!Quantization { scale, zero_point: 0 }.is_valid(), "{scale}");
        }
    }
}
