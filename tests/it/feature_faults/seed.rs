//! Random numbers that come again: each test prints its seed, and `FAULT_SEED` sets it.

/// `SplitMix64`.
pub struct Random(u64);

impl Random {
    /// From `FAULT_SEED`, or from the clock.
    pub fn new(test: &str) -> Self {
        let given = std::env::var("FAULT_SEED").ok().map(|seed| seed.parse().expect("FAULT_SEED is a number"));
        let seed = given.unwrap_or_else(|| {
            let now = std::time::UNIX_EPOCH.elapsed().unwrap();
            now.as_secs() * 1_000_000 + u64::from(now.subsec_micros())
        });
        println!("{test}: FAULT_SEED={seed}");
        Self(seed)
    }

    /// Another one, with different numbers.
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `bound`.
    pub fn below<N: TryFrom<u64> + TryInto<u64>>(&mut self, bound: N) -> N {
        let bound = bound.try_into().ok().filter(|bound| *bound > 0).expect("a bound above 0");
        N::try_from(self.next() % bound).ok().unwrap()
    }

    /// Returns `true` once in this many calls.
    pub fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}
