//! Points, quadrilaterals and upright rectangles of a page, in its pixels from the upper left corner.

use serde::{Deserialize, Serialize};

/// A point of a page.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Point {
    pub x: f32,
    pub y: f32,
}

impl Point {
    pub const fn new(x: f32, y: f32) -> Self {
        Self { x, y }
    }

    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self::new(self.x + other.x, self.y + other.y)
    }

    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self::new(self.x - other.x, self.y - other.y)
    }

    #[must_use]
    pub fn times(self, factor: f32) -> Self {
        Self::new(self.x * factor, self.y * factor)
    }

    pub fn dot(self, other: Self) -> f32 {
        self.x * other.x + self.y * other.y
    }

    pub fn length(self) -> f32 {
        self.x.hypot(self.y)
    }

    /// The point at `share` of the way to `other`.
    #[must_use]
    pub fn towards(self, other: Self, share: f32) -> Self {
        self.plus(other.minus(self).times(share))
    }
}

/// The corners around a text, clockwise from where its first letter begins at the top: upper left, upper right, lower
/// right, lower left as the text is read, however it stands on the page.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Quadrilateral(pub [Point; 4]);

impl Quadrilateral {
    /// An upright one.
    pub fn upright(PageArea { left, top, right, bottom }: PageArea) -> Self {
        Self([Point::new(left, top), Point::new(right, top), Point::new(right, bottom), Point::new(left, bottom)])
    }

    /// The same corners, for a text that stands a quarter clockwise more.
    #[must_use]
    pub fn quarter_turned(self) -> Self {
        let Self([a, b, c, d]) = self;
        Self([b, c, d, a])
    }

    /// The same corners, for a text that stands upside down.
    #[must_use]
    pub fn half_turned(self) -> Self {
        self.quarter_turned().quarter_turned()
    }

    /// The length of the text: the mean of the upper and the lower edge.
    pub fn width(&self) -> f32 {
        let [a, b, c, d] = self.0;
        f32::midpoint(b.minus(a).length(), c.minus(d).length())
    }

    /// The height of the text: the mean of the left and the right edge.
    pub fn height(&self) -> f32 {
        let [a, b, c, d] = self.0;
        f32::midpoint(d.minus(a).length(), c.minus(b).length())
    }

    pub fn centre(&self) -> Point {
        let [a, b, c, d] = self.0;
        a.plus(b).plus(c).plus(d).times(0.25)
    }

    /// The direction in which the text is read: its angle to the right, clockwise, in radians.
    pub fn angle(&self) -> f32 {
        let [a, b, c, d] = self.0;
        let along = b.minus(a).plus(c.minus(d));
        along.y.atan2(along.x)
    }

    /// The same corners at another place.
    #[must_use]
    pub fn moved(self, by: Point) -> Self {
        Self(self.0.map(|corner| corner.plus(by)))
    }

    /// The part from one share of the width to another.
    #[must_use]
    pub fn part(&self, from: f32, to: f32) -> Self {
        let [a, b, c, d] = self.0;
        Self([a.towards(b, from), a.towards(b, to), d.towards(c, to), d.towards(c, from)])
    }

    /// The upright rectangle around it.
    pub fn bounds(&self) -> PageArea {
        let [first, rest @ ..] = self.0;
        let start = PageArea { left: first.x, top: first.y, right: first.x, bottom: first.y };
        rest.into_iter().fold(start, |area, point| PageArea {
            left: area.left.min(point.x),
            top: area.top.min(point.y),
            right: area.right.max(point.x),
            bottom: area.bottom.max(point.y),
        })
    }

    /// The corners moved onto a page of this width and height.
    #[must_use]
    pub fn within(self, (width, height): (f32, f32)) -> Self {
        Self(self.0.map(|point| Point::new(point.x.clamp(0.0, width), point.y.clamp(0.0, height))))
    }
}

/// An upright rectangle.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PageArea {
    pub left: f32,
    pub top: f32,
    pub right: f32,
    pub bottom: f32,
}

impl PageArea {
    pub fn width(&self) -> f32 {
        self.right - self.left
    }

    pub fn height(&self) -> f32 {
        self.bottom - self.top
    }

    pub fn centre(&self) -> Point {
        Point::new(f32::midpoint(self.left, self.right), f32::midpoint(self.top, self.bottom))
    }

    /// The length that both have in common from left to right; below zero the gap between them.
    pub fn overlap_across(&self, other: &Self) -> f32 {
        self.right.min(other.right) - self.left.max(other.left)
    }

    /// The length that both have in common from top to bottom; below zero the gap between them.
    pub fn overlap_down(&self, other: &Self) -> f32 {
        self.bottom.min(other.bottom) - self.top.max(other.top)
    }

    /// The rectangle around both.
    #[must_use]
    pub fn joined(&self, other: &Self) -> Self {
        Self {
            left: self.left.min(other.left),
            top: self.top.min(other.top),
            right: self.right.max(other.right),
            bottom: self.bottom.max(other.bottom),
        }
    }
}

/// The median of some lengths, the greater one of two.
pub fn median(lengths: impl Iterator<Item = f32>) -> Option<f32> {
    let mut lengths: Vec<f32> = lengths.collect();
    lengths.sort_by(f32::total_cmp);
    lengths.get(lengths.len() / 2).copied()
}

/// A number of pixels as a coordinate.
#[expect(clippy::cast_precision_loss, reason = "sides of pictures are far below 2^24")]
pub fn coordinate(pixels: usize) -> f32 {
    pixels as f32
}

/// A coordinate as a number of pixels, rounded up; at most `most`, and 0 for NaN.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates, NaN is 0")]
pub fn pixels(coordinate: f32, most: usize) -> usize {
    (coordinate.ceil() as usize).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_turned_keeps_its_corners_and_swaps_its_sides() {
        let level = Quadrilateral::upright(PageArea { left: 10.0, top: 20.0, right: 110.0, bottom: 40.0 });
        assert_eq!((level.width(), level.height(), level.angle()), (100.0, 20.0, 0.0));
        let turned = level.quarter_turned();
        assert_eq!((turned.width(), turned.height()), (20.0, 100.0));
        assert!((turned.angle() - std::f32::consts::FRAC_PI_2).abs() < 1e-6, "{}", turned.angle());
        assert_eq!(level.half_turned().half_turned(), level);
        assert_eq!(level.half_turned().bounds(), level.bounds());
    }

    #[test]
    fn a_part_lies_along_the_text() {
        let level = Quadrilateral::upright(PageArea { left: 10.0, top: 20.0, right: 110.0, bottom: 40.0 });
        let expected = PageArea { left: 35.0, top: 20.0, right: 60.0, bottom: 40.0 };
        assert_eq!(level.part(0.25, 0.5).bounds(), expected);
        // Read from the right to the left: the first quarter is the last one of the page.
        let expected = PageArea { left: 60.0, top: 20.0, right: 85.0, bottom: 40.0 };
        assert_eq!(level.half_turned().part(0.25, 0.5).bounds(), expected);
    }
}
