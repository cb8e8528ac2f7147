//! The order of reading: lines on the same height are a row, rows go from top to bottom, and columns of running text one
//! after the other.

use super::geometry::{Area, Point, Quadrilateral};
use super::line::Line;

/// The lines of one row, as positions in the list of lines, from left to right.
pub type Row = Vec<usize>;

/// The share of the lower one's height that two lines on the same height have in common.
const ROW_OVERLAP: f32 = 0.5;

/// Columns are divided by a gap of this many line heights.
const GUTTER_HEIGHTS: f32 = 1.0;

/// The least lines and the least mean width, in line heights, of a column of running text. Prices beside articles are
/// shorter, and belong to the row.
const COLUMN_LINES_MIN: usize = 4;
const COLUMN_WIDTH_MIN: f32 = 9.0;

/// How deep columns are looked for within columns.
const DEPTH_MAX: u8 = 6;

/// Puts lines in rows, in the order of reading. Each position occurs once.
pub fn rows(areas: &[Quadrilateral]) -> Vec<Row> {
    let level = Level::of(areas);
    let mut places: Vec<Place> =
        areas.iter().enumerate().map(|(index, area)| Place { index, area: level.area(area) }).collect();
    let mut rows = Vec::new();
    order(&mut places, DEPTH_MAX, &mut rows);
    rows
}

/// The text of a page: lines of a row joined by spaces, and a row a line.
pub fn plain_text(rows: &[Row], lines: &[Line]) -> String {
    let row = |row: &Row| {
        let texts = row.iter().filter_map(|index| lines.get(*index)).map(Line::text).filter(|text| !text.is_empty());
        texts.collect::<Vec<_>>().join(" ")
    };
    let mut text = String::new();
    for row in rows.iter().map(row).filter(|row| !row.is_empty()) {
        text.push_str(&row);
        text.push('\n');
    }
    text
}

/// A line on a page whose lines are level.
#[derive(Debug, Clone, Copy)]
struct Place {
    index: usize,
    area: Area,
}

/// Turns a page that was photographed at an angle, so that its lines are level.
struct Level {
    sine: f32,
    cosine: f32,
}

impl Level {
    /// By the median angle of the lines, of which long ones know it best.
    fn of(areas: &[Quadrilateral]) -> Self {
        let mut angles: Vec<(f32, f32)> = areas
            .iter()
            .map(|area| (area.angle(), area.width()))
            .filter(|(angle, width)| angle.abs() < std::f32::consts::FRAC_PI_4 && *width > 0.0)
            .collect();
        angles.sort_by(|one, other| one.0.total_cmp(&other.0));
        let half = angles.iter().map(|(_, width)| width).sum::<f32>() / 2.0;
        let mut before = 0.0;
        let median = angles.iter().find(|(_, width)| {
            before += width;
            before >= half
        });
        let (sine, cosine) = median.map_or(0.0, |(angle, _)| *angle).sin_cos();
        Self { sine, cosine }
    }

    /// The place of a line on the level page: its height is that of the line, not of the rectangle around it.
    fn area(&self, area: &Quadrilateral) -> Area {
        let turned =
            |Point { x, y }: Point| Point::new(x * self.cosine + y * self.sine, y * self.cosine - x * self.sine);
        Quadrilateral(area.0.map(turned)).bounds()
    }
}

/// Orders places: columns beside each other if there are any, else rows from the top.
fn order(places: &mut Vec<Place>, depth: u8, rows: &mut Vec<Row>) {
    if depth > 0 {
        if let Some((mut left, mut right)) = columns(places) {
            order(&mut left, depth - 1, rows);
            order(&mut right, depth - 1, rows);
            return;
        }
        // A heading across the page hides the columns below it: what is above a gap is read first.
        if let Some((mut upper, mut lower)) = bands(places) {
            order(&mut upper, depth - 1, rows);
            order(&mut lower, depth - 1, rows);
            return;
        }
    }
    rows.extend(rows_of(places));
}

/// Divides places at a gap from top to bottom, if running text is on both sides of it.
fn columns(places: &[Place]) -> Option<(Vec<Place>, Vec<Place>)> {
    let height = median_height(places)?;
    let mut sorted: Vec<&Place> = places.iter().collect();
    sorted.sort_by(|one, other| one.area.left.total_cmp(&other.area.left));
    let mut right = f32::MIN;
    for place in sorted {
        if right > f32::MIN && place.area.left - right >= GUTTER_HEIGHTS * height {
            let (left, right) = divided(places, |area| area.centre().x < f32::midpoint(right, place.area.left));
            if is_running_text(&left) && is_running_text(&right) {
                return Some((left, right));
            }
        }
        right = right.max(place.area.right);
    }
    None
}

/// Divides places at a gap from left to right, if there are columns above or below it.
fn bands(places: &[Place]) -> Option<(Vec<Place>, Vec<Place>)> {
    let mut sorted: Vec<&Place> = places.iter().collect();
    sorted.sort_by(|one, other| one.area.top.total_cmp(&other.area.top));
    let mut bottom = f32::MIN;
    for place in sorted {
        if bottom > f32::MIN && place.area.top >= bottom {
            let (upper, lower) = divided(places, |area| area.centre().y < f32::midpoint(bottom, place.area.top));
            if columns(&upper).is_some() || columns(&lower).is_some() {
                return Some((upper, lower));
            }
        }
        bottom = bottom.max(place.area.bottom);
    }
    None
}

fn divided(places: &[Place], is_first: impl Fn(&Area) -> bool) -> (Vec<Place>, Vec<Place>) {
    places.iter().copied().partition(|place| is_first(&place.area))
}

fn is_running_text(places: &[Place]) -> bool {
    let wide = |place: &&Place| place.area.width() >= COLUMN_WIDTH_MIN * place.area.height();
    places.len() >= COLUMN_LINES_MIN && places.iter().filter(wide).count() * 2 > places.len()
}

fn median_height(places: &[Place]) -> Option<f32> {
    let mut heights: Vec<f32> = places.iter().map(|place| place.area.height()).collect();
    heights.sort_by(f32::total_cmp);
    heights.get(heights.len() / 2).copied()
}

/// The rows of places without columns. A line joins the row whose last line it stands next to.
fn rows_of(places: &mut [Place]) -> Vec<Row> {
    places.sort_by(|one, other| one.area.centre().y.total_cmp(&other.area.centre().y));
    let mut rows: Vec<Vec<Place>> = Vec::new();
    for place in places.iter() {
        let is_level = |row: &Vec<Place>| {
            let fits = |other: &Place| {
                let lower = place.area.height().min(other.area.height());
                place.area.overlap_down(&other.area) > ROW_OVERLAP * lower
                    && place.area.overlap_across(&other.area) < ROW_OVERLAP * place.area.width().min(other.area.width())
            };
            // Beside every line of the row: otherwise a row would creep down a page that is bent.
            row.iter().all(fits)
        };
        // Only the last rows can be on this height.
        match rows.iter_mut().rev().take(4).find(|row| is_level(row)) {
            Some(row) => row.push(*place),
            None => rows.push(vec![*place]),
        }
    }
    let top = |row: &Vec<Place>| {
        row.iter().map(|place| place.area.centre().y).sum::<f32>() / super::geometry::coordinate(row.len())
    };
    rows.sort_by(|one, other| top(one).total_cmp(&top(other)));
    rows.iter_mut()
        .map(|row| {
            row.sort_by(|one, other| one.area.left.total_cmp(&other.area.left));
            row.iter().map(|place| place.index).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A line: left, top, width; all are 20 high.
    fn line(left: f32, top: f32, width: f32) -> Quadrilateral {
        Quadrilateral::upright(Area { left, top, right: left + width, bottom: top + 20.0 })
    }

    /// The page turned by some degrees.
    fn turned(areas: &[Quadrilateral], degrees: f32) -> Vec<Quadrilateral> {
        let (sine, cosine) = degrees.to_radians().sin_cos();
        let turn = |Point { x, y }: Point| Point::new(x * cosine - y * sine, x * sine + y * cosine);
        areas.iter().map(|area| Quadrilateral(area.0.map(turn))).collect()
    }

    fn receipt() -> Vec<Quadrilateral> {
        // Prices at the right of articles; listed in a mixed order.
        let rows = (0..8_u8).map(f32::from).map(|row| 100.0 + row * 30.0);
        let articles = rows.clone().map(|top| line(50.0, top, 200.0));
        let prices = rows.map(|top| line(500.0, top + 4.0, 60.0));
        prices.chain(articles).collect()
    }

    #[test]
    fn a_price_is_read_behind_its_article() {
        let expected: Vec<Row> = (0..8).map(|row| vec![row + 8, row]).collect();
        for degrees in [0.0, 5.0, -8.0] {
            assert_eq!(rows(&turned(&receipt(), degrees)), expected, "{degrees}");
        }
    }

    #[test]
    fn columns_of_running_text_are_read_one_after_the_other_below_their_heading() {
        let tops = || (0..6_u8).map(f32::from).map(|row| 100.0 + row * 30.0);
        let left = tops().map(|top| line(50.0, top, 300.0));
        let right = tops().map(|top| line(400.0, top, 300.0));
        let heading = [line(50.0, 20.0, 640.0)];
        let areas: Vec<_> = left.zip(right).flat_map(|(left, right)| [left, right]).chain(heading).collect();
        let expected: Vec<Row> = [12, 0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11].map(|index| vec![index]).to_vec();
        for degrees in [0.0, 1.0] {
            assert_eq!(rows(&turned(&areas, degrees)), expected, "{degrees}");
        }
    }

    #[test]
    fn the_text_has_a_line_for_each_row() {
        let areas = [line(0.0, 0.0, 50.0), line(80.0, 2.0, 50.0), line(0.0, 40.0, 50.0)];
        let lines: Vec<Line> =
            ["Total", "1.00", ""].iter().zip(areas).map(|(text, area)| Line::even(text, area, 1.0)).collect();
        assert_eq!(plain_text(&rows(&areas), &lines), "Total 1.00\n");
        assert_eq!(rows(&[]), Vec::<Row>::new());
    }

    proptest! {
        #[test]
        fn each_line_is_in_one_row(
            lines in proptest::collection::vec((0.0_f32..900.0, 0.0_f32..900.0, 0.0_f32..400.0), 0..60),
            degrees in -30.0_f32..30.0,
        ) {
            let areas: Vec<_> = lines.iter().map(|(left, top, width)| line(*left, *top, *width)).collect();
            let mut all: Vec<usize> = rows(&turned(&areas, degrees)).into_iter().flatten().collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..areas.len()).collect::<Vec<_>>());
        }
    }
}
