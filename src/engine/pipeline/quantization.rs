//! Integers that stand for real numbers, as quantized models take and give them.

use serde::{Deserialize, Serialize};

/// What an integer is worth: `scale * (integer - zero_point)`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quantization {
    /// The worth of one step.
    pub scale: f32,
    /// The integer that is worth 0.
    pub zero_point: i32,
}

impl Quantization {
    /// Whether integers mean anything by it.
    pub fn is_valid(self) -> bool {
        self.scale.is_normal() && self.scale > 0.0
    }

    /// What `integer` is worth.
    #[expect(clippy::cast_possible_truncation, reason = "a score needs no more than an f32")]
    pub fn real(self, integer: f64) -> f32 {
        (f64::from(self.scale) * (integer - f64::from(self.zero_point))) as f32
    }

    /// The number between integers that is worth `real`.
    #[expect(clippy::cast_possible_truncation, reason = "rounded to an integer of 8 bits afterwards")]
    pub fn integer(self, real: f32) -> f32 {
        (f64::from(real) / f64::from(self.scale) + f64::from(self.zero_point)) as f32
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_integer_is_found_again_by_its_worth(scale in 1e-6_f32..10.0, zero_point in -128..256, integer in -128..256) {
            let quantization = Quantization { scale, zero_point };
            let found = quantization.integer(quantization.real(f64::from(integer)));
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
