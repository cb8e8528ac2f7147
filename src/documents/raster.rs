//! Pages that are pictures in their file: the limit on their pixels, and the size at which they are drawn.

use crate::order::{DocumentDefect, DocumentLimits};
use crate::pdf::DrawnPage;

/// The most pixels of a page in the file: A3 at 600 dpi has 70 million.
pub(crate) const PIXELS_MAX: u64 = 100_000_000;

/// Refuses a page with too many pixels, before memory is taken for them.
pub(crate) fn check_size(page: usize, (width, height): (u32, u32), most: u64) -> Result<(), DocumentDefect> {
    if u64::from(width) * u64::from(height) <= most {
        return Ok(());
    }
    Err(DocumentDefect::Image { page, width, height, most: most / 1_000_000 })
}

/// Draws a page of this size, smaller where it has too many pixels. `rgb` has the colour of a pixel; `None` where it has
/// one that is not read.
pub(crate) fn drawn(
    (width, height): (usize, usize),
    limits: DocumentLimits,
    rgb: impl Fn(usize, usize) -> Option<[u8; 3]>,
) -> Option<DrawnPage> {
    let most = usize::try_from(limits.pixels_max).unwrap_or(usize::MAX);
    let shrunk = |factor: usize| ((width / factor).max(1), (height / factor).max(1));
    let is_small = |(wide, high): (usize, usize)| wide * high <= most;
    let factor = (1..width.max(height)).find(|factor| is_small(shrunk(*factor))).unwrap_or(1);
    let (wide, high) = shrunk(factor);
    let mut pixels = Vec::with_capacity(3 * wide * high);
    for row in 0..high {
        for column in 0..wide {
            // The mean of a square of pixels.
            let (mut sums, mut count) = ([0_u32; 3], 0);
            for y in (row * factor..(row + 1) * factor).take_while(|y| *y < height) {
                for x in (column * factor..(column + 1) * factor).take_while(|x| *x < width) {
                    sums.iter_mut().zip(rgb(x, y)?).for_each(|(sum, value)| *sum += u32::from(value));
                    count += 1;
                }
            }
            pixels.extend(sums.map(|sum| u8::try_from(sum / count.max(1)).unwrap_or(u8::MAX)));
        }
    }
    let side = |pixels: usize| u32::try_from(pixels).unwrap_or(u32::MAX);
    Some(DrawnPage::Picture { width: side(wide), height: side(high), pixels })
}
