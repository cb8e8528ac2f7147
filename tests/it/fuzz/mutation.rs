//! Changes to inputs, the same for the same number.

/// Pieces that turn one kind of request into another.
const PIECES: &[&[u8]] = &[
    b"null",
    b"true",
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b":",
    b"\"",
    b"\\",
    b"\\u0000",
    b"-",
    b"1e39",
    b"0",
    b"-0",
    b"256",
    b"1.0",
    b"18446744073709551616",
    b"[[1,2],[3,4]]",
    b"\"data\":[1],",
    b"\"shape\":[2,2],",
    b"\"datatype\":\"FP32\",",
    b"\"inputs\":[],",
    b"\"name\":\"a\",",
    b"\"parameters\":{\"binary_data_size\":4},",
    b"FP64",
    b"BYTES",
    b"INT8",
    b"\xff",
    b"\0\0\xc0\x7f",
    b" ",
    b"\n",
    b"/",
    b"+",
    b"#",
    b"$",
    b"{1}",
    b"'",
    b"[0]",
];

/// One member of `corpus` with a few random changes, the same for the same seed.
pub fn mutate(seed: u64, corpus: &[&[u8]]) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut data = corpus[random.below(corpus.len())].to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(data.len() + 1);
        let end = (at + random.below(16)).min(data.len());
        match random.below(8) {
            0 if at < data.len() => data[at] ^= 1 << random.below(8),
            1 => drop(data.drain(at..end)),
            2 => drop(data.splice(at..end, PIECES[random.below(PIECES.len())].iter().copied())),
            3 => {
                let copy = data[at..end].to_vec();
                let to = random.below(data.len() + 1);
                data.splice(to..to, copy);
            }
            4 => {
                let other = corpus[random.below(corpus.len())];
                data.truncate(at);
                data.extend_from_slice(&other[random.below(other.len() + 1)..]);
            }
            // A number that is still a number gets past the JSON parser.
            5 | 6 => {
                if let Some(digit) = data.iter_mut().skip(at).find(|byte| byte.is_ascii_digit()) {
                    *digit = b"0123456789-.e"[random.below(13)];
                }
            }
            _ => drop(data.splice(at..at, PIECES[random.below(PIECES.len())].iter().copied())),
        }
    }
    data
}

/// Marsaglia's xorshift64.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        // Neighbouring seeds start far apart, and none starts at zero.
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`; 0 for a bound of 0.
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap().checked_rem(bound).unwrap_or(0)
    }
}

#[test]
fn a_mutation_is_the_same_for_the_same_seed() {
    let corpus: &[&[u8]] = &[br#"{"a":[1,2]}"#, b"another"];
    assert_eq!(mutate(7, corpus), mutate(7, corpus));
    assert!((0..100).filter(|seed| mutate(*seed, corpus) != mutate(seed + 1, corpus)).count() > 90);
}
