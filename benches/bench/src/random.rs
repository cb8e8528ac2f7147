//! Random numbers for inputs and arrivals: fast and repeatable, not for secrets.

/// `SplitMix64` (Steele, Lea, Flood 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The same numbers for the same seed.
    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// Other numbers each time, so that no cache has seen requests made of them.
    pub fn fresh() -> Self {
        Self(getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id())))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in 0 (included) to 1 (excluded).
    pub fn unit(&mut self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
        let unit = (self.bits() >> 11) as f64 / (1_u64 << 53) as f64;
        unit
    }

    /// Uniform in 0 (included) to `limit` (excluded), but for a bias too small to matter here. `limit` is at most 256.
    pub fn below(&mut self, limit: u16) -> u8 {
        ((self.bits() >> 48) % u64::from(limit.clamp(1, 256))).to_le_bytes().first().copied().unwrap_or_default()
    }

    /// A lower-case letter.
    pub fn letter(&mut self) -> u8 {
        b'a' + self.below(26)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_its_authors_numbers() {
        // The first three of seed 1234567, from the reference implementation of Java's SplittableRandom.
        let mut random = Random::seeded(1_234_567);
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([random.bits(), random.bits(), random.bits()], expected);
    }

    #[test]
    fn numbers_stay_in_their_range() {
        let mut random = Random::fresh();
        for _ in 0..10_000 {
            assert!((0.0..1.0).contains(&random.unit()));
            assert!(random.below(10) < 10);
            assert!(random.letter().is_ascii_lowercase());
        }
    }
}
