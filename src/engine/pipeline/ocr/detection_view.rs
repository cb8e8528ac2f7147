//! The view of a page in which lines are found: the whole page first, and a closer or stronger view where that one
//! shows lines badly.

use serde::{Deserialize, Serialize};

use super::detection::TextDetectionSize;
use super::geometry::{Point, Quadrilateral, coordinate, median};
use crate::pipeline::image::Photograph;

/// Lines that are this high in the model's input, or higher, are found on the whole page, too.
const LINE_HEIGHT_MAX: f64 = 20.0;

/// The least gain in scale for which lines are looked for again.
const GAIN_MIN: f64 = 1.3;

/// The border around the lines that were found, in which others may be: a share of the longer side of their area, and
/// heights of a line.
const BORDER: f32 = 0.05;
const BORDER_LINES: f32 = 2.0;

/// The view of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DetectionView {
    /// The part of the page; the whole of it without one.
    pub area: Option<PixelArea>,
    /// Makes faint print dark.
    pub is_strengthened: bool,
}

/// A rectangle of whole pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PixelArea {
    pub left: u32,
    pub top: u32,
    pub width: u32,
    pub height: u32,
}

impl DetectionView {
    /// The view that may show the lines of a page better than this one, by the lines that this one showed; `None` where
    /// none would. Of views that follow each other, there are three at most.
    #[must_use]
    pub fn next(
        self,
        size: TextDetectionSize,
        page: (u32, u32),
        lines: &[Quadrilateral],
        are_faint: bool,
    ) -> Option<Self> {
        if are_faint && !self.is_strengthened {
            return Some(Self { is_strengthened: true, ..self });
        }
        let area = Some(closer_area(size, page, lines).filter(|_| self.area.is_none())?);
        Some(Self { area, ..self })
    }

    /// The part of a page in this view; `None` for a part that the page does not have.
    pub fn of(self, page: &Photograph) -> Option<Photograph> {
        match self.area {
            None => Some(page.clone()),
            Some(PixelArea { left, top, width, height }) => {
                page.image().part(left, top, width, height).map(Photograph::from)
            }
        }
    }

    /// The bytes of a part that is cut out of its page.
    pub fn bytes(self) -> usize {
        self.area.map_or(0, |area| 3 * area.width as usize * area.height as usize)
    }

    /// The upper left corner of the view on its page.
    pub fn origin(self) -> Point {
        let PixelArea { left, top, .. } = self.area.unwrap_or_default();
        Point::new(coordinate(left as usize), coordinate(top as usize))
    }

    /// Width and height of the view of a page of this width and height.
    pub fn size(self, page: (u32, u32)) -> (u32, u32) {
        self.area.map_or(page, |area| (area.width, area.height))
    }
}

/// The part of a page that holds its lines, where the model would see them at least [`GAIN_MIN`] times as large there as
/// on the whole page, on which they are small.
fn closer_area(size: TextDetectionSize, page: (u32, u32), lines: &[Quadrilateral]) -> Option<PixelArea> {
    let (page_scale, height) = (size.scale(page), median(lines.iter().map(Quadrilateral::height))?);
    if f64::from(height) * page_scale >= LINE_HEIGHT_MAX {
        return None;
    }
    let bounds = lines.iter().map(Quadrilateral::bounds).reduce(|one, other| one.joined(&other))?;
    let border = BORDER * bounds.width().max(bounds.height()) + BORDER_LINES * height;
    let [left, right] = [bounds.left - border, bounds.right + border].map(|x| whole(x, page.0));
    let [top, bottom] = [bounds.top - border, bounds.bottom + border].map(|y| whole(y, page.1));
    let area = PixelArea { left, top, width: right - left, height: bottom - top };
    let is_there = area.width > 0 && area.height > 0;
    // A view that is enlarged shows no more than the pixels of the page.
    let scale = size.scale((area.width, area.height)).min(1.0);
    (is_there && scale >= GAIN_MIN * page_scale).then_some(area)
}

/// A coordinate as whole pixels on a side of this length.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates, NaN is 0")]
fn whole(coordinate: f32, side: u32) -> u32 {
    (coordinate as u32).min(side)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pipeline::ocr::geometry::PageArea;

    const SIZE: TextDetectionSize = TextDetectionSize { shorter_side_min: 736, longer_side_max: 1280 };
    const PHOTOGRAPH: (u32, u32) = (4000, 3000);
    const WHOLE: DetectionView = DetectionView { area: None, is_strengthened: false };

    fn line(left: f32, top: f32, width: f32, height: f32) -> Quadrilateral {
        Quadrilateral::upright(PageArea { left, top, right: left + width, bottom: top + height })
    }

    /// Lines of this height on a receipt in a photograph.
    fn receipt(height: f32) -> Vec<Quadrilateral> {
        [400.0, 900.0, 1400.0].map(|top| line(1000.0, top, 800.0, height)).to_vec()
    }

    #[test]
    fn small_lines_in_a_part_of_a_photograph_are_seen_closer_once() {
        let closer = WHOLE.next(SIZE, PHOTOGRAPH, &receipt(50.0), false).unwrap();
        // Around 1000 to 1800 and 400 to 1450: 5 % of 1050, and twice 50.
        assert_eq!(closer.area, Some(PixelArea { left: 847, top: 247, width: 1105, height: 1355 }));
        assert_eq!((closer.size(PHOTOGRAPH), closer.origin()), ((1105, 1355), Point::new(847.0, 247.0)));
        assert_eq!(closer.next(SIZE, PHOTOGRAPH, &receipt(50.0), false), None);
    }

    #[test]
    fn a_page_that_shows_its_lines_is_seen_once() {
        assert_eq!(WHOLE.next(SIZE, PHOTOGRAPH, &receipt(70.0), false), None, "20 pixels are 63 of the photograph");
        assert_eq!(WHOLE.next(SIZE, (1000, 1000), &[line(400.0, 400.0, 100.0, 9.0)], false), None, "all is seen");
        let full = [line(100.0, 100.0, 3000.0, 50.0), line(100.0, 2800.0, 3000.0, 50.0)];
        assert_eq!(WHOLE.next(SIZE, PHOTOGRAPH, &full, false), None, "they cover the page");
        assert_eq!(WHOLE.next(SIZE, PHOTOGRAPH, &[], false), None);
    }

    #[test]
    fn faint_lines_are_strengthened_before_they_are_seen_closer() {
        let strengthened = WHOLE.next(SIZE, PHOTOGRAPH, &[], true).unwrap();
        assert_eq!(strengthened, DetectionView { is_strengthened: true, ..WHOLE });
        assert_eq!(strengthened.next(SIZE, PHOTOGRAPH, &[], true), None);
        let closer = strengthened.next(SIZE, PHOTOGRAPH, &receipt(50.0), true).unwrap();
        assert!(closer.is_strengthened && closer.area.is_some());
        assert_eq!(closer.next(SIZE, PHOTOGRAPH, &receipt(50.0), true), None);
    }

    proptest! {
        #[test]
        fn a_closer_view_is_a_part_of_its_page(
            corners in proptest::collection::vec(proptest::array::uniform4((-9e3_f32..9e3, -9e3_f32..9e3)), 0..5),
            page in (1_u32..6000, 1_u32..6000),
        ) {
            let lines: Vec<_> =
                corners.into_iter().map(|line| Quadrilateral(line.map(|(x, y)| Point::new(x, y)))).collect();
            if let Some(PixelArea { left, top, width, height }) =
                WHOLE.next(SIZE, page, &lines, false).and_then(|view| view.area)
            {
                prop_assert!(width > 0 && height > 0 && left + width <= page.0 && top + height <= page.1);
            }
        }
    }
}
