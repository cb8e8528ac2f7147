//! Reads the codes of a scan (ITU-T T.81, annexes C and F): blocks of frequencies.

use super::transform::CoefficientBlock;

/// The bits by which a code is looked up. Few codes are longer.
const LOOKUP_BITS: u32 = 10;

/// The bits by which codes are looked up that are only passed by.
const RUN_BITS: u32 = 12;

/// Passed by the code that ends a block: more than any other code, and all other codes of a block together.
const END_OF_BLOCK: u8 = 64;

/// The codes of means (DC) or of the other coefficients of a block (AC).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CoefficientKind {
    Dc,
    Ac,
}

/// A code and its meaning.
#[derive(Debug, Clone, Copy, Default)]
// One load of 4 bytes in place of three: 7 % of the time.
#[repr(align(4))]
struct HuffmanCode {
    /// The length of the code with the number that follows it, in bits; 0 for no code.
    bits: u8,
    /// The length of the number.
    number_bits: u8,
    /// The number of coefficients up to the one that gets the number.
    passed: u8,
}

impl HuffmanCode {
    /// The meaning of `symbol`; `None` for one that a baseline picture of 8 bits has no use for.
    fn new(kind: CoefficientKind, length: u8, symbol: u8) -> Option<Self> {
        let (number_bits, passed) = match (kind, symbol >> 4, symbol & 0x0F) {
            (CoefficientKind::Dc, 0, size @ 0..=11) => (size, 1),
            (CoefficientKind::Ac, 0, 0) => (0, END_OF_BLOCK),
            (CoefficientKind::Ac, 15, 0) => (0, 16),
            (CoefficientKind::Ac, zeros, size @ 1..=10) => (size, zeros + 1),
            _ => return None,
        };
        Some(Self { bits: length + number_bits, number_bits, passed })
    }
}

/// A Huffman table.
pub(super) struct HuffmanTable {
    /// For each value of `LOOKUP_BITS` bits, the code at its beginning.
    short: Box<[HuffmanCode; 1 << LOOKUP_BITS]>,
    /// The codes that are longer, in the order of their bits: the first 16 bits behind each, and the code.
    long: Vec<(u32, HuffmanCode)>,
    /// For each value of `RUN_BITS` bits, as many whole codes with their numbers as fit.
    runs: Box<[HuffmanCodeRun; 1 << RUN_BITS]>,
}

/// Codes that follow each other in one block.
#[derive(Debug, Clone, Copy, Default)]
struct HuffmanCodeRun {
    /// The length of all, in bits.
    bits: u8,
    /// The number of coefficients that they pass.
    passed: u8,
}

impl HuffmanTable {
    /// A table from the number of codes of each length, and their symbols.
    pub(super) fn new(kind: CoefficientKind, counts: &[u8; 16], symbols: &[u8]) -> Option<Self> {
        let (mut short, mut long) = (Box::new([HuffmanCode::default(); 1 << LOOKUP_BITS]), Vec::new());
        let mut symbols = symbols.iter();
        // Codes follow each other without gaps: the end of one, as 16 bits, is the start of the next one.
        let mut end = 0_u32;
        for (length, count) in (1..).zip(counts) {
            for _ in 0..*count {
                let code = HuffmanCode::new(kind, length, *symbols.next()?)?;
                let start = end;
                end += 1 << (16 - length);
                // A code of only 1-bits is reserved, and no code can follow it.
                if end >= 1 << 16 {
                    return None;
                }
                let index = |bits: u32| (bits >> (16 - LOOKUP_BITS)) as usize;
                if u32::from(length) <= LOOKUP_BITS {
                    short.get_mut(index(start)..index(end))?.fill(code);
                } else {
                    long.push((end, code));
                }
            }
        }
        let mut table = Self { short, long, runs: Box::new([HuffmanCodeRun::default(); 1 << RUN_BITS]) };
        if kind == CoefficientKind::Ac {
            table.runs = Box::new(std::array::from_fn(|bits| table.run((bits as u64) << (64 - RUN_BITS))));
        }
        Some(table)
    }

    /// The codes at the beginning of these bits, up to the end of a block.
    fn run(&self, bits: u64) -> HuffmanCodeRun {
        let mut run = HuffmanCodeRun::default();
        while run.passed < END_OF_BLOCK
            && let Some(code) = self.code(bits << run.bits)
            && u32::from(run.bits + code.bits) <= RUN_BITS
            && run.passed + code.passed % END_OF_BLOCK < END_OF_BLOCK
        {
            run = HuffmanCodeRun { bits: run.bits + code.bits, passed: run.passed + code.passed };
        }
        run
    }

    /// The code at the beginning of these bits.
    #[inline]
    fn code(&self, bits: u64) -> Option<HuffmanCode> {
        let short = self.short.get((bits >> (64 - LOOKUP_BITS)) as usize)?;
        if short.bits > 0 { Some(*short) } else { self.long_code(bits) }
    }

    #[cold]
    fn long_code(&self, bits: u64) -> Option<HuffmanCode> {
        let at = self.long.partition_point(|(end, _)| u64::from(*end) <= bits >> 48);
        self.long.get(at).map(|(_, code)| *code)
    }
}

/// Reads the bits of an interval of a scan.
pub(super) struct ScanBitReader<'a> {
    /// The bytes that are not in `buffer` yet.
    rest: &'a [u8],
    /// The next bits, from the highest bit on.
    buffer: u64,
    /// The number of bits in `buffer`.
    count: u32,
    /// The number of bits that were invented because the interval ended.
    invented: u32,
}

impl<'a> ScanBitReader<'a> {
    pub(super) fn new(rest: &'a [u8]) -> Self {
        Self { rest, buffer: 0, count: 0, invented: 0 }
    }

    /// `None` if more bits were read than there are.
    pub(super) fn check(&self) -> Option<()> {
        (self.count >= self.invented).then_some(())
    }

    /// The bytes from the next marker on; `None` if the interval has more bytes than were read.
    pub(super) fn end(&mut self) -> Option<&'a [u8]> {
        self.fill();
        (self.invented..self.invented + 8).contains(&self.count).then_some(self.rest)
    }

    /// Reads a block: its mean, the coefficients up to the one of index `last`, and no more than the lengths of the
    /// others.
    #[inline]
    pub(super) fn read_block(
        &mut self,
        component: &JpegComponent,
        last: usize,
        prediction: &mut i32,
        block: &mut CoefficientBlock,
    ) -> Option<()> {
        let mean = self.take(&component.dc)?;
        *prediction += mean.number;
        block.set(*component.steps.first()?, *prediction)?;

        // The index of the next coefficient.
        let mut at = 1;
        while at <= last {
            let DecodedCoefficient { passed, number } = self.take(&component.ac)?;
            if passed == END_OF_BLOCK {
                return Some(());
            }
            at += usize::from(passed);
            block.set(*component.steps.get(at - 1)?, number)?;
            block.reach = at - 1;
        }
        while at < 64 {
            self.fill();
            let table = &component.ac;
            let mut run = *table.runs.get((self.buffer >> (64 - RUN_BITS)) as usize)?;
            if run.bits == 0 || at + usize::from(run.passed % END_OF_BLOCK) > 63 {
                let code = table.code(self.buffer)?;
                run = HuffmanCodeRun { bits: code.bits, passed: code.passed };
            }
            self.pass(run.bits);
            if run.passed >= END_OF_BLOCK {
                return Some(());
            }
            at += usize::from(run.passed);
        }
        (at == 64).then_some(())
    }

    /// Takes a code and its number.
    #[expect(clippy::inline_always, reason = "a tenth of the time")]
    #[inline(always)]
    fn take(&mut self, table: &HuffmanTable) -> Option<DecodedCoefficient> {
        self.fill();
        let code = table.code(self.buffer)?;
        let number = self.buffer << (code.bits - code.number_bits);
        self.pass(code.bits);
        Some(DecodedCoefficient { passed: code.passed, number: signed(number, code.number_bits) })
    }

    #[inline]
    fn pass(&mut self, bits: u8) {
        self.buffer <<= bits;
        self.count -= u32::from(bits);
    }

    /// Fills the buffer up to 32 bits at least: a code and its number have at most 16 and 11.
    #[inline]
    fn fill(&mut self) {
        if self.count >= 32 {
            return;
        }
        let next = self.rest.first_chunk().map(|next| u64::from_be_bytes(*next));
        match next.filter(|next| !has_ff(*next)) {
            Some(next) => {
                // Bits of a byte that does not fit as a whole come again with the next fill, in the same place.
                self.buffer |= next >> self.count;
                let bytes = (64 - self.count) / 8;
                self.rest = self.rest.get(bytes as usize..).unwrap_or_default();
                self.count += bytes * 8;
            }
            None => self.fill_bytewise(),
        }
    }

    #[cold]
    fn fill_bytewise(&mut self) {
        while self.count <= 56 {
            let (byte, rest) = match self.rest {
                // The zero is stuffed: without it, the byte begins a marker.
                [0xFF, 0, rest @ ..] => (0xFF, rest),
                [] | [0xFF, ..] => {
                    self.invented += 8;
                    (0, self.rest)
                }
                [byte, rest @ ..] => (*byte, rest),
            };
            self.rest = rest;
            self.buffer |= u64::from(byte) << (56 - self.count);
            self.count += 8;
        }
    }
}

/// A code that was read.
struct DecodedCoefficient {
    /// The number of coefficients up to the one that gets the number.
    passed: u8,
    number: i32,
}

/// Returns true if a byte is 0xFF.
fn has_ff(bytes: u64) -> bool {
    (!bytes).wrapping_sub(0x0101_0101_0101_0101) & bytes & 0x8080_8080_8080_8080 != 0
}

/// The number in the highest bits: a positive one begins with 1, a negative one has all bits of its amount inverted.
#[expect(clippy::cast_possible_truncation, reason = "at most 11 bits are left")]
fn signed(bits: u64, count: u8) -> i32 {
    let number = (bits >> 1 >> (63 - count)) as i32;
    if bits >> 63 == 1 { number } else { number - ((1 << count) - 1) }
}

/// A component with all that its blocks need.
pub(super) struct JpegComponent {
    /// The blocks of an MCU: in each line, and the lines.
    pub(super) across: usize,
    pub(super) down: usize,
    /// For each coefficient in the order of the scan: its place in the block, and the step of its quantization.
    pub(super) steps: [(u8, i32); 64],
    pub(super) dc: HuffmanTable,
    pub(super) ac: HuffmanTable,
}
