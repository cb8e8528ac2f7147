//! Reads the segments before the scan of a plain JPEG (ITU-T T.81, annex B).

use super::huffman::{CoefficientKind, HuffmanTable, JpegComponent};
use super::transform::ZIGZAG;

/// A picture as its headers describe it.
pub(super) struct JpegFrame {
    pub(super) width: u32,
    pub(super) height: u32,
    /// Gray, or luma and two colours.
    pub(super) components: Vec<JpegComponent>,
    /// The number of MCUs between two restart markers; 0 for no markers.
    pub(super) restart_interval: u32,
}

impl JpegFrame {
    /// The blocks of an MCU of the component that has the most: in each line, and the lines.
    pub(super) fn blocks_of_mcu(&self) -> (usize, usize) {
        self.components.first().map_or((1, 1), |luma| (luma.across, luma.down))
    }

    /// The number of MCUs across and down.
    pub(super) fn mcus(&self) -> (usize, usize) {
        let (across, down) = self.blocks_of_mcu();
        ((self.width as usize).div_ceil(8 * across), (self.height as usize).div_ceil(8 * down))
    }
}

/// Reads all segments up to the scan; returns the frame and the bytes behind them. `None` where a file is not plain.
pub(super) fn read(file: &[u8]) -> Option<(JpegFrame, &[u8])> {
    let (mut tables, mut start, mut restart_interval) = (JpegTables::default(), None, 0);
    let mut rest = file.strip_prefix(b"\xFF\xD8")?;
    loop {
        let (code, body, behind) = segment(rest)?;
        match code {
            0xC0 | 0xC1 if start.is_none() => start = Some(JpegFrameHeader::read(body)?),
            0xC4 => tables.read_huffman(body)?,
            0xDB => tables.read_quantization(body)?,
            0xDD => restart_interval = u32::from(u16::from_be_bytes(body.try_into().ok()?)),
            0xDA => {
                let JpegFrameHeader { width, height, components } = start?;
                let components = tables.read_scan(body, &components)?;
                return Some((JpegFrame { width, height, components, restart_interval }, behind));
            }
            // Adobe's segment names the colours; 1 is YCbCr.
            0xEE if body.starts_with(b"Adobe") && body.get(11) != Some(&1) => return None,
            0xE0..=0xEF | 0xFE => {}
            _ => return None,
        }
        rest = behind;
    }
}

/// The code of the first marker, the body of its segment, and the bytes behind it.
fn segment(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[0xFF, code, high, low], _) = bytes.split_first_chunk()? else { return None };
    let length = usize::from(u16::from_be_bytes([high, low]));
    Some((code, bytes.get(4..2 + length)?, bytes.get(2 + length..)?))
}

/// The header of the frame.
struct JpegFrameHeader {
    width: u32,
    height: u32,
    /// The id, the sampling factors and the number of the quantization table of each component.
    components: Vec<[u8; 3]>,
}

impl JpegFrameHeader {
    fn read(body: &[u8]) -> Option<Self> {
        let (&[8, h1, h0, w1, w0, count], rest) = body.split_first_chunk()? else { return None };
        let (components, []) = rest.as_chunks::<3>() else { return None };
        let (width, height) = (u16::from_be_bytes([w1, w0]), u16::from_be_bytes([h1, h0]));
        let is_plain = match components {
            [_] => true,
            // By these ids of components, some encoders mark RGB.
            [[b'R', ..], [b'G', ..], [b'B', ..]] => false,
            [[_, luma, _], [_, 0x11, _], [_, 0x11, _]] => matches!(luma, 0x11 | 0x21 | 0x22),
            _ => false,
        };
        let is_plain = is_plain && components.len() == usize::from(count) && width > 0 && height > 0;
        is_plain.then(|| Self { width: width.into(), height: height.into(), components: components.to_vec() })
    }
}

/// The tables that segments have defined so far. They are built when a scan selects them: a file may define any number.
#[derive(Default)]
struct JpegTables<'f> {
    quantization: [Option<&'f [u8; 64]>; 4],
    dc: [Option<HuffmanCodes<'f>>; 4],
    ac: [Option<HuffmanCodes<'f>>; 4],
}

/// The number of codes of each length, and their symbols.
type HuffmanCodes<'f> = (&'f [u8; 16], &'f [u8]);

impl<'f> JpegTables<'f> {
    fn read_quantization(&mut self, body: &'f [u8]) -> Option<()> {
        // Tables of 16 bits have a number from 16 on.
        let (tables, []) = body.as_chunks::<65>() else { return None };
        for [number, steps @ ..] in tables {
            *self.quantization.get_mut(usize::from(*number))? = Some(steps);
        }
        Some(())
    }

    fn read_huffman(&mut self, mut body: &'f [u8]) -> Option<()> {
        while let Some(([class_and_number, counts @ ..], rest)) = body.split_first_chunk::<17>() {
            let (symbols, rest) = rest.split_at_checked(counts.iter().map(|count| usize::from(*count)).sum())?;
            let tables = match class_and_number >> 4 {
                0 => &mut self.dc,
                1 => &mut self.ac,
                _ => return None,
            };
            *tables.get_mut(usize::from(class_and_number & 0x0F))? = Some((counts, symbols));
            body = rest;
        }
        body.is_empty().then_some(())
    }

    /// The components of a scan that has all of them, in the frame's order.
    fn read_scan(&self, body: &[u8], components: &[[u8; 3]]) -> Option<Vec<JpegComponent>> {
        let (count, rest) = body.split_first()?;
        let (selectors, [0, 63, 0]) = rest.split_at_checked(2 * components.len())? else { return None };
        if usize::from(*count) != components.len() {
            return None;
        }
        let component = |(&[id, sampling, quantization], &[selected, tables]): (&[u8; 3], &[u8; 2])| {
            // The only component of a scan has one block an MCU.
            let sampling = if components.len() == 1 { 0x11 } else { sampling };
            let quantization = (*self.quantization.get(usize::from(quantization))?)?;
            let table = |of_kind: &[Option<HuffmanCodes<'_>>; 4], kind: CoefficientKind, number: u8| {
                let (counts, symbols) = (*of_kind.get(usize::from(number))?)?;
                HuffmanTable::new(kind, counts, symbols)
            };
            (selected == id && !quantization.contains(&0)).then_some(JpegComponent {
                across: usize::from(sampling >> 4),
                down: usize::from(sampling & 0x0F),
                steps: steps(quantization),
                dc: table(&self.dc, CoefficientKind::Dc, tables >> 4)?,
                ac: table(&self.ac, CoefficientKind::Ac, tables & 0x0F)?,
            })
        };
        components.iter().zip(selectors.as_chunks().0).map(component).collect()
    }
}

/// The place and the step of each coefficient.
fn steps(quantization: &[u8; 64]) -> [(u8, i32); 64] {
    let mut steps = ZIGZAG.map(|place| (place, 0));
    for ((_, step), quantization) in steps.iter_mut().zip(quantization) {
        *step = i32::from(*quantization);
    }
    steps
}
