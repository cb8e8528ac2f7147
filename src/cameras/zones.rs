//! Zones: polygons in a camera's picture, and the foot point of a box, which says in which zone an object stands.
//!
//! Pure. Coordinates are shares of the picture, so that a zone stays in place when the camera's resolution changes.

use std::fmt;

use ledge_engine::pipeline::detection::DetectionBox;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// The most corners of a polygon.
pub const CORNERS_MAX: usize = 64;

/// A number from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct UnitFraction(f64);

// Never NaN.
impl Eq for UnitFraction {}

impl UnitFraction {
    pub const ZERO: Self = Self(0.0);
    pub const THOUSANDTH: Self = Self(0.001);

    /// `None` outside of 0 to 1.
    pub fn new(value: f64) -> Option<Self> {
        (0.0..=1.0).contains(&value).then_some(Self(value))
    }

    pub fn get(self) -> f64 {
        self.0
    }
}

impl<'de> Deserialize<'de> for UnitFraction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct UnitFractionVisitor;

        impl Visitor<'_> for UnitFractionVisitor {
            type Value = UnitFraction;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number from 0 to 1")
            }

            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<UnitFraction, E> {
                UnitFraction::new(value)
                    .ok_or_else(|| E::custom(format_args!("expected a number from 0 to 1, got {value}")))
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<UnitFraction, E> {
                match value {
                    0 => Ok(UnitFraction(0.0)),
                    1 => Ok(UnitFraction(1.0)),
                    _ => Err(E::custom(format_args!("expected a number from 0 to 1, got {value}"))),
                }
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<UnitFraction, E> {
                self.visit_i64(i64::try_from(value).unwrap_or(i64::MAX))
            }
        }

        deserializer.deserialize_f64(UnitFractionVisitor)
    }
}

/// A place in a picture, from its upper left corner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZonePoint(pub UnitFraction, pub UnitFraction);

impl ZonePoint {
    /// The place where an object stands: the middle of the lower edge of its box.
    pub fn foot_of(area: DetectionBox, (width, height): (u32, u32)) -> Self {
        let share = |at: f64, side: u32| UnitFraction((at / f64::from(side.max(1))).clamp(0.0, 1.0));
        Self(share(area.x + area.width / 2.0, width), share(area.y + area.height, height))
    }

    /// The place in pixels.
    #[expect(clippy::cast_possible_truncation, reason = "a place within a picture")]
    pub fn pixels(self, (width, height): (u32, u32)) -> [f32; 2] {
        [(self.x() * f64::from(width)) as f32, (self.y() * f64::from(height)) as f32]
    }

    fn x(self) -> f64 {
        self.0.get()
    }

    fn y(self) -> f64 {
        self.1.get()
    }
}

/// A polygon without crossing edges, and with an area.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Polygon(Vec<ZonePoint>);

/// Corners that make no polygon. People count them from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPolygon {
    #[error("expected 3 to {CORNERS_MAX} corners, got {0}")]
    Corners(usize),
    #[error("the corners {} and {} are at the same place", .0 + 1, .1 + 1)]
    Equal(usize, usize),
    #[error(
        "the edges after the corners {} and {} cross or touch: give the corners in their order around the zone",
        .0 + 1,
        .1 + 1
    )]
    Crossing(usize, usize),
    #[error("all corners are on one line")]
    Flat,
}

impl Polygon {
    /// A polygon from its corners, in either direction.
    pub fn new(corners: Vec<ZonePoint>) -> Result<Self, InvalidPolygon> {
        let count = corners.len();
        if !(3..=CORNERS_MAX).contains(&count) {
            return Err(InvalidPolygon::Corners(count));
        }
        for (one, corner) in corners.iter().enumerate() {
            if let Some(other) = corners.iter().skip(one + 1).position(|other| other == corner) {
                return Err(InvalidPolygon::Equal(one, one + 1 + other));
            }
        }

        let polygon = Self(corners);
        if polygon.edges().all(|(_, end)| polygon.edges().next().is_none_or(|(a, b)| side(a, b, end) == 0.0)) {
            return Err(InvalidPolygon::Flat);
        }
        for (one, edge) in polygon.edges().enumerate() {
            for (other, next) in polygon.edges().enumerate().skip(one + 1) {
                // Neighbours share a corner; they must not overlap.
                let are_neighbours = other == one + 1 || (one == 0 && other == count - 1);
                let is_bad = if are_neighbours { folds_back(edge, next) } else { touch(edge, next) };
                if is_bad {
                    return Err(InvalidPolygon::Crossing(one, other));
                }
            }
        }
        Ok(polygon)
    }

    pub fn corners(&self) -> &[ZonePoint] {
        &self.0
    }

    /// True if a point is inside or on an edge.
    pub fn contains(&self, point: ZonePoint) -> bool {
        let mut is_inside = false;
        for (from, to) in self.edges() {
            if is_between(from, to, point) {
                return true;
            }
            // Count the edges to the right of the point; an end belongs to one of its two edges.
            if (from.y() > point.y()) != (to.y() > point.y()) {
                let x = from.x() + (point.y() - from.y()) / (to.y() - from.y()) * (to.x() - from.x());
                is_inside ^= point.x() < x;
            }
        }
        is_inside
    }

    fn edges(&self) -> impl Iterator<Item = (ZonePoint, ZonePoint)> {
        self.0.iter().copied().zip(self.0.iter().copied().cycle().skip(1))
    }
}

/// The side of the line from `from` to `to` on which a point is: positive, negative, or 0 on the line.
fn side(from: ZonePoint, to: ZonePoint, point: ZonePoint) -> f64 {
    (to.x() - from.x()) * (point.y() - from.y()) - (to.y() - from.y()) * (point.x() - from.x())
}

/// True if a point is on the edge from `from` to `to`.
fn is_between(from: ZonePoint, to: ZonePoint, point: ZonePoint) -> bool {
    let within = |one: f64, other: f64, at: f64| at >= one.min(other) && at <= one.max(other);
    side(from, to, point) == 0.0 && within(from.x(), to.x(), point.x()) && within(from.y(), to.y(), point.y())
}

/// True if two edges have a point in common.
fn touch((a, b): (ZonePoint, ZonePoint), (c, d): (ZonePoint, ZonePoint)) -> bool {
    let crosses = |from, to, one, other| {
        let (one, other) = (side(from, to, one), side(from, to, other));
        (one > 0.0 && other < 0.0) || (one < 0.0 && other > 0.0)
    };
    (crosses(a, b, c, d) && crosses(c, d, a, b))
        || is_between(a, b, c)
        || is_between(a, b, d)
        || is_between(c, d, a)
        || is_between(c, d, b)
}

/// True if two edges that share one corner have more than it in common.
fn folds_back(one: (ZonePoint, ZonePoint), other: (ZonePoint, ZonePoint)) -> bool {
    let (a, b, c, d) = (one.0, one.1, other.0, other.1);
    if b == c { is_between(a, b, d) || is_between(c, d, a) } else { is_between(a, b, c) || is_between(c, d, b) }
}

impl<'de> Deserialize<'de> for Polygon {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PolygonVisitor;

        impl<'de> Visitor<'de> for PolygonVisitor {
            type Value = Polygon;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of corners [X, Y]")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut corners: A) -> Result<Polygon, A::Error> {
                let mut found = Vec::new();
                while let Some(corner) = corners.next_element()? {
                    found.push(corner);
                }
                Polygon::new(found).map_err(A::Error::custom)
            }
        }

        deserializer.deserialize_seq(PolygonVisitor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn point((x, y): (f64, f64)) -> ZonePoint {
        ZonePoint(UnitFraction::new(x).unwrap(), UnitFraction::new(y).unwrap())
    }

    fn polygon(corners: &[(f64, f64)]) -> Result<Polygon, InvalidPolygon> {
        Polygon::new(corners.iter().copied().map(point).collect())
    }

    #[test]
    fn corners_that_enclose_nothing_or_cross_are_refused() {
        for (corners, error) in [
            (&[(0.0, 0.0), (1.0, 1.0)][..], InvalidPolygon::Corners(2)),
            (&[(0.0, 0.0), (1.0, 1.0), (0.0, 0.0)], InvalidPolygon::Equal(0, 2)),
            (&[(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)], InvalidPolygon::Flat),
            (&[(0.0, 0.0), (1.0, 1.0), (1.0, 0.0), (0.0, 1.0)], InvalidPolygon::Crossing(0, 2)),
            (&[(0.0, 0.0), (1.0, 0.0), (0.5, 0.0), (0.5, 1.0)], InvalidPolygon::Crossing(0, 1)),
            (&[(0.0, 0.0), (1.0, 0.0), (0.5, 1.0), (0.5, 0.0)], InvalidPolygon::Crossing(0, 2)),
        ] {
            assert_eq!(polygon(corners), Err(error), "{corners:?}");
        }
    }

    #[test]
    fn a_hollow_corner_is_outside_and_an_edge_inside() {
        // An L: the upper right quarter is missing.
        let zone = polygon(&[(0.0, 0.0), (0.5, 0.0), (0.5, 0.5), (1.0, 0.5), (1.0, 1.0), (0.0, 1.0)]).unwrap();
        for inside in [(0.25, 0.25), (0.75, 0.75), (0.0, 0.0), (0.5, 0.25), (0.75, 0.5), (1.0, 1.0), (0.3, 1.0)] {
            assert!(zone.contains(point(inside)), "{inside:?}");
        }
        for outside in [(0.75, 0.25), (0.51, 0.49), (1.0, 0.0), (0.51, 0.0)] {
            assert!(!zone.contains(point(outside)), "{outside:?}");
        }
    }

    #[test]
    fn an_object_stands_in_the_middle_of_the_lower_edge_of_its_box() {
        let area = DetectionBox { x: 100.0, y: 50.0, width: 50.0, height: 150.0 };
        assert_eq!(ZonePoint::foot_of(area, (500, 400)), point((0.25, 0.5)));
        // The lower edge of the picture belongs to a zone that reaches it.
        let area = DetectionBox { x: 0.0, y: 0.0, width: 500.0, height: 400.0 };
        let lower = polygon(&[(0.0, 0.9), (1.0, 0.9), (1.0, 1.0), (0.0, 1.0)]).unwrap();
        assert!(lower.contains(ZonePoint::foot_of(area, (500, 400))));
    }

    #[test]
    fn mistakes_in_a_polygon_are_reported_where_they_are() {
        let read = |text: &str| toml::from_str::<std::collections::BTreeMap<String, Polygon>>(text);
        assert!(read("z = [[0, 0], [1, 0.5], [0, 1]]").is_ok());
        for (text, reason) in [
            ("z = [[0, 0], [2, 0.5], [0, 1]]", "expected a number from 0 to 1, got 2"),
            ("z = [[0, 0], [nan, 0.5], [0, 1]]", "expected a number from 0 to 1, got NaN"),
            ("z = [[0, 0], [1, 0.5]]", "expected 3 to 64 corners, got 2"),
        ] {
            assert!(read(text).unwrap_err().to_string().contains(reason), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_star_shaped_polygon_contains_its_points_and_no_others(
            radii in prop::collection::vec(0.05..0.45_f64, 3..20),
            at in (0.0..1.0_f64, 0.0..1.0_f64),
            reversed: bool,
        ) {
            // Corners around the middle, at equal angles.
            let step = std::f64::consts::TAU / f64::from(u32::try_from(radii.len()).unwrap());
            let angle = |index: usize| f64::from(u32::try_from(index).unwrap()) * step;
            let corner = |(index, radius): (usize, &f64)| {
                (0.5 + radius * angle(index).cos(), 0.5 + radius * angle(index).sin())
            };
            let mut corners: Vec<_> = radii.iter().enumerate().map(corner).collect();
            let (x, y) = (at.0 - 0.5, at.1 - 0.5);
            let turned = y.atan2(x).rem_euclid(std::f64::consts::TAU);

            // The point is inside if it is nearer than the edge in its direction.
            let index = (0..radii.len()).rev().find(|index| angle(*index) <= turned).unwrap();
            let (from, to) = (corners[index], corners[(index + 1) % corners.len()]);
            let cross = |a: (f64, f64), b: (f64, f64)| (b.0 - a.0) * (at.1 - a.1) - (b.1 - a.1) * (at.0 - a.0);
            let is_inside = cross(from, to) > 0.0;
            prop_assume!(cross(from, to).abs() > 1e-9);
            // With three corners a sector may have more than half a turn.
            prop_assume!(radii.len() > 3);

            if reversed {
                corners.reverse();
            }
            let zone = polygon(&corners).unwrap();
            prop_assert_eq!(zone.contains(point(at)), is_inside);
        }

        #[test]
        fn any_corners_are_refused_or_make_a_polygon_that_is_read_as_it_is_written(
            corners in prop::collection::vec((0.0..=1.0_f64, 0.0..=1.0_f64), 0..8),
        ) {
            if let Ok(zone) = polygon(&corners) {
                prop_assert!(corners.iter().all(|corner| zone.contains(point(*corner))));
                let written = serde_json::to_string(&zone).unwrap();
                prop_assert_eq!(serde_json::from_str::<Polygon>(&written).unwrap(), zone);
            }
        }
    }
}
