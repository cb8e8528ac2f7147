//! The lines of one component that are decoded.

use super::headers::JpegFrame;
use super::huffman::{JpegComponent, ScanBitReader};
use super::scale::JpegScale;
use super::transform;
use super::transform::InverseDct;

/// Where a component's blocks of one row of MCUs are decoded to.
pub(super) struct McuRowBand {
    /// Turns a block into samples. The colours' blocks become larger ones where there are fewer of them.
    pub(super) inverse: InverseDct,
    /// The index of the last coefficient that it uses.
    pub(super) last: usize,
    /// Width and height of a block's samples.
    pub(super) block_size: (usize, usize),
    /// The samples of a line.
    pub(super) stride: usize,
    pub(super) samples: Vec<u8>,
    /// The value that the next block's mean is relative to.
    pub(super) prediction: i32,
}

impl McuRowBand {
    pub(super) fn new(frame: &JpegFrame, component: &JpegComponent, scale: JpegScale, columns: usize) -> Option<Self> {
        let ((across, down), side) = (frame.blocks_of_mcu(), 8 / scale.denominator() as usize);
        let block_size = (side * across / component.across, side * down / component.down);
        let stride = columns * across * side;
        let samples = vec![0; stride * down * side];
        let inverse = InverseDct::to(block_size)?;
        Some(Self { last: inverse.last(), inverse, block_size, stride, samples, prediction: 0 })
    }

    /// Decodes the component's blocks of one MCU.
    pub(super) fn decode(
        &mut self,
        component: &JpegComponent,
        bits: &mut ScanBitReader<'_>,
        column: usize,
    ) -> Option<()> {
        let (width, height) = self.block_size;
        for y in 0..component.down {
            for x in 0..component.across {
                let mut block = transform::CoefficientBlock::default();
                bits.read_block(component, self.last, &mut self.prediction, &mut block)?;
                let start = y * height * self.stride + (column * component.across + x) * width;
                self.inverse.apply(&block, self.samples.get_mut(start..)?, self.stride);
            }
        }
        Some(())
    }

    /// The lines of samples.
    pub(super) fn lines(&self) -> impl Iterator<Item = &[u8]> {
        self.samples.chunks_exact(self.stride)
    }
}
