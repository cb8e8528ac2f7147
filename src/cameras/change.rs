//! Detects whether a picture differs from an earlier one: a small grey picture of each is compared.
//!
//! Pure, except for the decoder. The comparison is made for cameras that stand still: noise is averaged out within a
//! cell, light that gets brighter or darker as a whole is no change, and a clock in the picture is masked.

use ledge_base::memory_budget::MemoryAccount;
use ledge_engine::pipeline::image::{self, DecodeLimits, ImageError, Rgb8Image};

use crate::zones::{Polygon, UnitFraction, ZonePoint};

/// The cells of a small grey picture in a row, and its rows. A person at the far end of a yard covers some of them.
const COLUMNS: usize = 64;
const ROWS: usize = 48;

/// The size of a picture that is large enough for them: a JPEG is decoded no larger than needed.
const PIXELS_NEEDED: (u32, u32) = (64, 48);

/// The difference of brightness, of 255, from which a cell has changed. Noise of a dark picture is below it, averaged
/// over the pixels of a cell.
const CELL_DIFFERENCE: i32 = 14;

/// The change of brightness of the whole picture, of 255, from which it is a change: the light was turned off.
const WHOLE_DIFFERENCE: i32 = 50;

/// The brightness of cells, by rows from the top: a small copy of a picture of any size.
#[derive(Clone, PartialEq, Eq)]
pub struct GrayPicture {
    cells: Vec<u8>,
    /// Width and height of the picture itself, in pixels.
    pub size: (u32, u32),
}

/// The cells that are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComparisonMask(Vec<bool>);

/// The small grey picture of a photograph, decoded within the memory of `account`. It takes a millisecond or more: not
/// for an async thread.
pub fn gray_thumbnail(
    photograph: &[u8],
    limits: DecodeLimits,
    account: &MemoryAccount,
) -> Result<GrayPicture, ImageError> {
    let picture = image::decode_within(photograph, limits, &|_| PIXELS_NEEDED, &mut account.hold())?;
    Ok(GrayPicture::of(picture.image(), picture.size()))
}

impl GrayPicture {
    /// The small copy of a picture, which may itself be a smaller copy of one of `size`.
    pub fn of(picture: &Rgb8Image, size: (u32, u32)) -> Self {
        let pixels = |length: u32| usize::try_from(length).unwrap_or(usize::MAX).max(1);
        let (width, height) = (pixels(picture.width()), pixels(picture.height()));
        // A picture with fewer pixels than cells lends a pixel to several cells.
        let bounds = |cell: usize, cells: usize, length: usize| {
            let from = cell * length / cells;
            from..((cell + 1) * length / cells).max(from + 1)
        };
        let columns: Vec<_> = (0..COLUMNS).map(|column| bounds(column, COLUMNS, width)).collect();
        let mut cells = Vec::with_capacity(COLUMNS * ROWS);
        for row in 0..ROWS {
            let rows = bounds(row, ROWS, height);
            let pixels_in_rows = rows.len();
            let mut sums = [0_usize; COLUMNS];
            let lines = picture.pixels().chunks_exact(width * 3).skip(rows.start).take(pixels_in_rows);
            for line in lines {
                for (sum, column) in sums.iter_mut().zip(&columns) {
                    let pixels = line.get(column.start * 3..column.end * 3).unwrap_or_default();
                    *sum += pixels.as_chunks().0.iter().copied().map(brightness).sum::<usize>();
                }
            }
            let means = sums.iter().zip(&columns).map(|(sum, column)| sum / (8 * column.len() * pixels_in_rows));
            cells.extend(means.map(|mean| u8::try_from(mean).unwrap_or(u8::MAX)));
        }
        Self { cells, size }
    }

    /// The share of the compared cells that differ from those of an earlier picture, 0 to 1.
    pub fn difference(&self, earlier: &Self, mask: &ComparisonMask) -> f64 {
        let pairs = || {
            let cells = self.cells.iter().zip(&earlier.cells).zip(&mask.0);
            cells
                .filter(|(_, is_compared)| **is_compared)
                .map(|((now, before), _)| (i32::from(*now), i32::from(*before)))
        };
        let count = pairs().count();
        if count == 0 || self.cells.len() != earlier.cells.len() {
            return 1.0;
        }

        // Depending on the camera, a cloud adds to the brightness of all cells or multiplies it. The better explanation
        // of the two is used.
        let (now, before) = (median(pairs().map(|(now, _)| now)), median(pairs().map(|(_, before)| before)));
        if (now - before).abs() >= WHOLE_DIFFERENCE {
            return 1.0;
        }
        let offset = median(pairs().map(|(now, before)| now - before));
        let moved = pairs().filter(|(now, before)| (now - before - offset).abs() >= CELL_DIFFERENCE).count();
        let scaled =
            pairs().filter(|(this, that)| (this - that * now / before.max(1)).abs() >= CELL_DIFFERENCE).count();
        ratio(moved.min(scaled), count)
    }
}

/// Eight times the brightness of a pixel, roughly as ITU-R BT.601 weighs its channels.
fn brightness([red, green, blue]: [u8; 3]) -> usize {
    2 * usize::from(red) + 5 * usize::from(green) + usize::from(blue)
}

/// The middle one of numbers from -255 to 255.
fn median(numbers: impl Iterator<Item = i32>) -> i32 {
    let mut histogram = [0_usize; 511];
    let mut count = 0;
    for number in numbers {
        if let Some(bin) = usize::try_from(number + 255).ok().and_then(|bin| histogram.get_mut(bin)) {
            *bin += 1;
            count += 1;
        }
    }
    let mut left = count / 2;
    for (value, bin) in (-255..).zip(histogram) {
        if left < bin {
            return value;
        }
        left -= bin;
    }
    0
}

fn ratio(part: usize, whole: usize) -> f64 {
    f64::from(u32::try_from(part).unwrap_or(u32::MAX)) / f64::from(u32::try_from(whole).unwrap_or(u32::MAX))
}

impl ComparisonMask {
    /// Compares the cells that have their middle outside all of these polygons.
    pub fn new(hidden: &[Polygon]) -> Self {
        let middle = |cell: usize, cells: usize| UnitFraction::new(ratio(2 * cell + 1, 2 * cells));
        let is_compared = |row: usize, column: usize| {
            let point = middle(column, COLUMNS).zip(middle(row, ROWS)).map(|(x, y)| ZonePoint(x, y));
            point.is_some_and(|point| !hidden.iter().any(|polygon| polygon.contains(point)))
        };
        Self(
            (0..ROWS)
                .flat_map(|row| (0..COLUMNS).map(move |column| (row, column)))
                .map(|(row, column)| is_compared(row, column))
                .collect(),
        )
    }

    /// True if no cell is compared.
    pub fn hides_everything(&self) -> bool {
        !self.0.contains(&true)
    }
}

impl std::fmt::Debug for GrayPicture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GrayPicture({}x{})", self.size.0, self.size.1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: (u32, u32) = (320, 240);

    /// A picture with stripes. `change` computes the brightness at each place from that of the stripes.
    fn picture(change: impl Fn(u32, u32, u8) -> u8) -> GrayPicture {
        let (width, height) = SIZE;
        let pixel = |x: u32, y: u32| change(x, y, u8::try_from(40 + (x / 20) * 9 % 150 + y / 8).unwrap());
        let pixels = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
        let pixels = pixels.flat_map(|(x, y)| [pixel(x, y); 3]).collect();
        GrayPicture::of(&Rgb8Image::new(width, height, pixels).unwrap(), SIZE)
    }

    fn still() -> GrayPicture {
        picture(|_, _, value| value)
    }

    fn everything() -> ComparisonMask {
        ComparisonMask::new(&[])
    }

    #[test]
    fn a_small_object_is_a_change_of_its_share() {
        // 10 by 30 pixels, as a person at the end of a yard.
        let person =
            picture(
                |x, y, value| {
                    if (100..110).contains(&x) && (100..130).contains(&y) { value.wrapping_add(60) } else { value }
                },
            );
        let difference = person.difference(&still(), &everything());
        assert!((0.003..0.006).contains(&difference), "{difference}");
        assert!(still().difference(&still(), &everything()).abs() < f64::EPSILON);
    }

    #[test]
    fn light_that_changes_as_a_whole_is_no_change() {
        let brighter = picture(|_, _, value| value.saturating_add(30));
        let dimmer = picture(|_, _, value| u8::try_from(u32::from(value) * 7 / 10).unwrap());
        for other in [brighter, dimmer] {
            assert!(other.difference(&still(), &everything()) < 0.001, "{}", other.difference(&still(), &everything()));
            assert!(still().difference(&other, &everything()) < 0.001);
        }
    }

    #[test]
    fn a_light_that_is_turned_off_is_a_change() {
        let dark = picture(|_, _, value| value / 4);
        assert!(dark.difference(&still(), &everything()) > 0.9);
    }

    #[test]
    fn a_clock_in_a_mask_is_no_change() {
        let clock = picture(|x, y, value| if x < 100 && y < 20 { 255 - value } else { value });
        assert!(clock.difference(&still(), &everything()) > 0.02);
        let corner: Polygon = serde_json::from_str("[[0, 0], [0.32, 0], [0.32, 0.09], [0, 0.09]]").unwrap();
        assert!(clock.difference(&still(), &ComparisonMask::new(std::slice::from_ref(&corner))) < 0.0001);
        let all: Polygon = serde_json::from_str("[[0, 0], [1, 0], [1, 1], [0, 1]]").unwrap();
        assert!(ComparisonMask::new(&[all]).hides_everything() && !ComparisonMask::new(&[corner]).hides_everything());
    }

    #[test]
    fn a_picture_of_another_size_is_compared_as_a_whole() {
        let half = Rgb8Image::new(1, 1, vec![90; 3]).unwrap();
        let half = GrayPicture::of(&half, (1, 1));
        assert!(half.cells.iter().all(|cell| *cell == 90));
        assert!(half.difference(&still(), &everything()) > 0.5);
    }

    #[test]
    fn photographs_have_a_small_gray_picture() {
        let photograph = include_bytes!("../../tests/data/photos/cows.jpg");
        let gray = gray_thumbnail(photograph, DecodeLimits::default(), &MemoryAccount::unlimited()).unwrap();
        assert!(gray.size.0 > 300 && gray.difference(&gray, &everything()).abs() < f64::EPSILON);
        assert!(gray_thumbnail(b"no picture", DecodeLimits::default(), &MemoryAccount::unlimited()).is_err());
    }

    proptest! {
        #[test]
        fn noise_is_no_change(seed: u32, strength in 1..20_u32) {
            let noise = |salt: u32| move |x: u32, y: u32, value: u8| {
                let mut bits = (x * 7919 + y * 104_729 + salt).wrapping_mul(0x9E37_79B9) ^ seed;
                bits ^= bits >> 15;
                bits = bits.wrapping_mul(0x85EB_CA6B);
                bits ^= bits >> 13;
                let noise = i32::try_from(bits % (2 * strength + 1)).unwrap() - i32::try_from(strength).unwrap();
                u8::try_from((i32::from(value) + noise).clamp(0, 255)).unwrap()
            };
            let (one, other) = (picture(noise(1)), picture(noise(2)));
            prop_assert!(one.difference(&other, &everything()) < 0.001);
        }

        #[test]
        fn a_picture_of_any_size_has_all_cells(width in 1..200_u32, height in 1..200_u32, value: u8) {
            let pixels = vec![value; usize::try_from(width * height * 3).unwrap()];
            let gray = GrayPicture::of(&Rgb8Image::new(width, height, pixels).unwrap(), (width, height));
            prop_assert_eq!(gray.cells, vec![value; COLUMNS * ROWS]);
        }
    }
}
