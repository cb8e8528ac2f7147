//! The smallest rectangle around points, at any angle.

use super::geometry::{Point, Quadrilateral};

/// A rectangle at any angle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rectangle {
    centre: Point,
    /// The direction of the width, of length 1; at most 45 degrees away from the right.
    along: Point,
    half_width: f32,
    half_height: f32,
}

impl Rectangle {
    /// The smallest rectangle around points; `None` without any.
    ///
    /// One of its sides lies on an edge of the convex hull (Freeman and Shapira, "Determining the minimum-area encasing
    /// rectangle for an arbitrary closed curve", 1975), so each edge is tried.
    pub(super) fn around(points: Vec<[i32; 2]>) -> Option<Self> {
        let hull: Vec<Point> = convex_hull(points).into_iter().map(point).collect();
        let next = hull.iter().skip(1).chain(hull.first());
        let edges = hull.iter().zip(next).map(|(from, to)| to.minus(*from));
        let candidates = edges.map(|edge| Self::along(&hull, edge));
        candidates.min_by(|one, other| one.area().total_cmp(&other.area()))
    }

    /// The smallest rectangle around points with two sides in this direction, or across it.
    fn along(hull: &[Point], direction: Point) -> Self {
        let length = direction.length();
        let unit = if length > 0.0 { direction.times(length.recip()) } else { Point::new(1.0, 0.0) };
        // Of the four directions of its sides, the one that points to the right.
        let across = Point::new(-unit.y, unit.x);
        let level = if unit.x.abs() >= unit.y.abs() { unit } else { across };
        let along = if level.x < 0.0 { level.times(-1.0) } else { level };
        let down = Point::new(-along.y, along.x);

        let (mut least, mut most) = (Point::new(f32::MAX, f32::MAX), Point::new(f32::MIN, f32::MIN));
        for point in hull {
            let place = Point::new(point.dot(along), point.dot(down));
            least = Point::new(least.x.min(place.x), least.y.min(place.y));
            most = Point::new(most.x.max(place.x), most.y.max(place.y));
        }
        let middle = least.plus(most).times(0.5);
        Self {
            centre: along.times(middle.x).plus(down.times(middle.y)),
            along,
            half_width: (most.x - least.x) / 2.0,
            half_height: (most.y - least.y) / 2.0,
        }
    }

    pub(super) fn area(&self) -> f32 {
        4.0 * self.half_width * self.half_height
    }

    pub(super) fn circumference(&self) -> f32 {
        4.0 * (self.half_width + self.half_height)
    }

    pub(super) fn shorter_side(&self) -> f32 {
        2.0 * self.half_width.min(self.half_height)
    }

    /// The rectangle with each side moved outwards.
    #[must_use]
    pub(super) fn grown(self, by: f32) -> Self {
        Self { half_width: self.half_width + by, half_height: self.half_height + by, ..self }
    }

    /// The corners, clockwise from the upper left one.
    pub(super) fn corners(&self) -> Quadrilateral {
        let along = self.along.times(self.half_width);
        let down = Point::new(-self.along.y, self.along.x).times(self.half_height);
        let (up, left) = (down.times(-1.0), along.times(-1.0));
        Quadrilateral(
            [left.plus(up), along.plus(up), along.plus(down), left.plus(down)].map(|corner| self.centre.plus(corner)),
        )
    }

    /// The part of a line across the page that lies inside, as the coordinates of its ends.
    pub(super) fn span(&self, y: f32) -> Option<(f32, f32)> {
        let down = Point::new(-self.along.y, self.along.x);
        let (mut from, mut to) = (f32::MIN, f32::MAX);
        for (axis, half) in [(self.along, self.half_width), (down, self.half_height)] {
            // |(x - centre.x) * axis.x + (y - centre.y) * axis.y| <= half
            let offset = (y - self.centre.y) * axis.y;
            if axis.x.abs() < 1e-6 {
                if offset.abs() > half {
                    return None;
                }
                continue;
            }
            let ends = [(-half - offset) / axis.x, (half - offset) / axis.x].map(|end| self.centre.x + end);
            from = from.max(ends[0].min(ends[1]));
            to = to.min(ends[0].max(ends[1]));
        }
        (from <= to).then_some((from, to))
    }
}

fn point([x, y]: [i32; 2]) -> Point {
    #[expect(clippy::cast_precision_loss, reason = "pixels of a map are far below 2^24")]
    Point::new(x as f32, y as f32)
}

/// The convex hull of points, by Andrew's monotone chain ("Another efficient algorithm for convex hulls in two
/// dimensions", 1979).
fn convex_hull(mut points: Vec<[i32; 2]>) -> Vec<[i32; 2]> {
    points.sort_unstable();
    points.dedup();
    if points.len() < 3 {
        return points;
    }
    let mut hull = half_hull(points.iter().copied());
    hull.pop();
    let mut back = half_hull(points.iter().rev().copied());
    back.pop();
    hull.extend(back);
    hull
}

fn half_hull(points: impl Iterator<Item = [i32; 2]>) -> Vec<[i32; 2]> {
    let mut hull: Vec<[i32; 2]> = Vec::new();
    for point in points {
        while let [.., before, last] = hull.as_slice()
            && turn(*before, *last, point) <= 0
        {
            hull.pop();
        }
        hull.push(point);
    }
    hull
}

/// Above zero for a rotation from the x axis to the y axis.
fn turn([ax, ay]: [i32; 2], [bx, by]: [i32; 2], [cx, cy]: [i32; 2]) -> i64 {
    let across = |from: i32, to: i32| i64::from(to) - i64::from(from);
    across(ax, bx) * across(ay, cy) - across(ay, by) * across(ax, cx)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The smallest area of rectangles at each tenth of a degree.
    fn area_by_trial(points: &[[i32; 2]]) -> f32 {
        let points: Vec<Point> = points.iter().copied().map(point).collect();
        let tenths = (0_u16..900).map(|tenth| {
            let (sine, cosine) = (f32::from(tenth) / 10.0).to_radians().sin_cos();
            Rectangle::along(&points, Point::new(cosine, sine)).area()
        });
        tenths.fold(f32::MAX, f32::min)
    }

    #[test]
    fn a_tilted_strip_keeps_its_angle_and_sides() {
        let strip: Vec<_> = (0..100).flat_map(|x| [[x, x / 4], [x - 3, x / 4 + 12]]).collect();
        let found = Rectangle::around(strip).unwrap();
        let corners = found.corners();
        assert!((corners.angle().to_degrees() - 14.0).abs() < 1.0, "{found:?}");
        assert!((corners.width() - 102.0).abs() < 2.0 && (corners.height() - 12.4).abs() < 1.0, "{corners:?}");
    }

    #[test]
    fn few_points_have_a_rectangle_too() {
        assert_eq!(Rectangle::around(vec![]), None);
        assert_eq!(Rectangle::around(vec![[3, 4]]).unwrap().corners().centre(), Point::new(3.0, 4.0));
        let line = Rectangle::around(vec![[0, 5], [8, 5], [4, 5]]).unwrap();
        assert_eq!((line.shorter_side(), line.area(), line.circumference()), (0.0, 0.0, 16.0));
    }

    proptest! {
        #[test]
        fn it_holds_every_point_and_none_is_smaller(
            points in proptest::collection::vec([-300_i32..300, -300_i32..300], 1..40),
        ) {
            let found = Rectangle::around(points.clone()).unwrap();
            let roomier = found.grown(0.01);
            for [x, y] in points.iter().copied() {
                let [x, y] = { let Point { x, y } = point([x, y]); [x, y] };
                let (from, to) = roomier.span(y).unwrap();
                prop_assert!(from <= x && x <= to, "{x} {y} not in {found:?}");
            }
            prop_assert!(found.area() <= area_by_trial(&points) * 1.001 + 0.1);
            let is_wide = found.half_width > 1e-3;
            prop_assert!(!is_wide || found.corners().angle().abs() <= std::f32::consts::FRAC_PI_4 + 1e-3);
        }
    }
}
