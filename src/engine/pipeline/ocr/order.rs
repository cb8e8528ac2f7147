//! The order of reading: lines on the same height are a row, rows go from top to bottom, and columns of running text
//! one after the other.

use super::geometry::{PageArea, Point, Quadrilateral, coordinate, median};
use super::line::OcrLine;

/// The lines of one row, as positions in the list of lines, from left to right.
pub type RowOfLines = Vec<usize>;

/// The share of the lower one's height that two lines on the same height have in common.
const ROW_OVERLAP: f32 = 0.5;

/// Columns are divided by a gap of this many line heights. It is narrow on the page as well, since a line that was
/// found is larger than its letters.
const GUTTER_HEIGHTS: f32 = 0.4;

/// The least lines and the least mean width, in line heights, of a column of running text. Prices next to articles are
/// shorter, and belong to the row.
const COLUMN_LINES_MIN: usize = 4;
const COLUMN_WIDTH_MIN: f32 = 9.0;

/// A heading below columns has a gap of this many line heights above it, and at most this many rows.
const HEADING_GAP: f32 = 0.3;
const HEADING_ROWS: usize = 2;

/// The depth to which columns are searched within columns.
const DEPTH_MAX: u8 = 6;

/// Puts lines in rows, in the order of reading. Each position occurs once.
pub fn rows(areas: &[Quadrilateral]) -> Vec<RowOfLines> {
    let level = PageLeveling::of(areas);
    let mut places: Vec<LevelLine> =
        areas.iter().enumerate().map(|(index, area)| LevelLine { index, area: level.area(area) }).collect();
    let mut rows = Vec::new();
    order(&mut places, DEPTH_MAX, &mut rows);
    rows
}

/// The text of a page: lines of a row joined by spaces, and a row a line.
pub fn plain_text(rows: &[RowOfLines], lines: &[OcrLine]) -> String {
    let row = |row: &RowOfLines| {
        let texts = row.iter().filter_map(|index| lines.get(*index)).map(OcrLine::text).filter(|text| !text.is_empty());
        texts.collect::<Vec<_>>().join(" ")
    };
    let mut text = String::new();
    for row in rows.iter().map(row).filter(|row| !row.is_empty()) {
        text.push_str(&row);
        text.push('\n');
    }
    text
}

/// A line on a page with level lines.
#[derive(Debug, Clone, Copy)]
struct LevelLine {
    index: usize,
    area: PageArea,
}

/// Turns a page that was photographed at an angle, so that its lines are level.
struct PageLeveling {
    sine: f32,
    cosine: f32,
}

impl PageLeveling {
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
    fn area(&self, area: &Quadrilateral) -> PageArea {
        let turned =
            |Point { x, y }: Point| Point::new(x * self.cosine + y * self.sine, y * self.cosine - x * self.sine);
        Quadrilateral(area.0.map(turned)).bounds()
    }
}

/// Orders places: row by row from the top, but where several rows have a gap in common with running text on both sides
/// of it, the part left of the gap comes first.
fn order(places: &mut [LevelLine], depth: u8, ordered: &mut Vec<RowOfLines>) {
    let rows = rows_of(places);
    let height = median_height(places).unwrap_or_default();
    let mut rest = rows.as_slice();
    while let [first, others @ ..] = rest {
        let columns = if depth > 0 { TwoColumns::at_start(rest, height) } else { None };
        if let Some(TwoColumns { mut left, mut right, rows }) = columns {
            order(&mut left, depth - 1, ordered);
            order(&mut right, depth - 1, ordered);
            rest = rest.get(rows..).unwrap_or_default();
        } else {
            ordered.push(first.iter().map(|place| place.index).collect());
            rest = others;
        }
    }
}

/// Two columns of running text.
struct TwoColumns {
    left: Vec<LevelLine>,
    right: Vec<LevelLine>,
    /// The number of rows that they take.
    rows: usize,
}

impl TwoColumns {
    /// The columns that begin in the first of these rows: as many rows as have a gap in common.
    fn at_start(rows: &[Vec<LevelLine>], height: f32) -> Option<Self> {
        let mut taken: Vec<(f32, f32)> = Vec::new();
        let (mut count, mut gutter) = (0, None);
        for row in rows {
            for LevelLine { area, .. } in row {
                take(&mut taken, (area.left, area.right));
            }
            let widest = taken.windows(2).filter_map(|two| match two {
                [(_, from), (to, _)] => Some((to - from, f32::midpoint(*from, *to))),
                _ => None,
            });
            let widest = widest.max_by(|one, other| one.0.total_cmp(&other.0));
            let Some((_, middle)) = widest.filter(|(width, _)| *width >= GUTTER_HEIGHTS * height) else { break };
            gutter = Some(middle);
            count += 1;
        }
        let gutter = gutter?;
        let is_left = |place: &LevelLine| place.area.centre().x < gutter;
        // A heading below the columns stands at one side of the gap, too.
        let gap_above = |index: usize| {
            let bottom = |row: &Vec<LevelLine>| row.iter().map(|place| place.area.bottom).fold(f32::MIN, f32::max);
            let above = rows.get(..index)?.iter().map(bottom).fold(f32::MIN, f32::max);
            let top = rows.get(index)?.iter().map(|place| place.area.top).fold(f32::MAX, f32::min);
            Some(top - above)
        };
        let is_alone = |row: &Vec<LevelLine>| row.iter().all(is_left) || !row.iter().any(is_left);
        let is_heading = |index: &usize| {
            rows.get(*index..count).is_some_and(|rows| rows.iter().all(is_alone))
                && gap_above(*index).is_some_and(|gap| gap >= HEADING_GAP * height)
        };
        let count = (count.saturating_sub(HEADING_ROWS)..count).find(is_heading).unwrap_or(count);

        let places = rows.get(..count)?.iter().flatten().copied();
        let (left, right): (Vec<LevelLine>, Vec<LevelLine>) = places.partition(is_left);
        (is_running_text(&left) && is_running_text(&right)).then_some(Self { left, right, rows: count })
    }
}

/// Adds a span to spans that are apart and sorted.
fn take(taken: &mut Vec<(f32, f32)>, (mut left, mut right): (f32, f32)) {
    taken.retain(|(from, to)| {
        let is_apart = *to < left || *from > right;
        if !is_apart {
            (left, right) = (left.min(*from), right.max(*to));
        }
        is_apart
    });
    let place = taken.partition_point(|(from, _)| *from < left);
    taken.insert(place, (left, right));
}

fn is_running_text(places: &[LevelLine]) -> bool {
    let wide = |place: &&LevelLine| place.area.width() >= COLUMN_WIDTH_MIN * place.area.height();
    places.len() >= COLUMN_LINES_MIN && places.iter().filter(wide).count() * 2 > places.len()
}

fn median_height(places: &[LevelLine]) -> Option<f32> {
    median(places.iter().map(|place| place.area.height()))
}

/// The rows from the top. A line joins the row that it stands next to.
fn rows_of(places: &mut [LevelLine]) -> Vec<Vec<LevelLine>> {
    places.sort_by(|one, other| one.area.centre().y.total_cmp(&other.area.centre().y));
    let mut rows: Vec<Vec<LevelLine>> = Vec::new();
    for place in places.iter() {
        let is_level = |row: &Vec<LevelLine>| {
            let fits = |other: &LevelLine| {
                let lower = place.area.height().min(other.area.height());
                let narrower = place.area.width().min(other.area.width());
                place.area.overlap_down(&other.area) > ROW_OVERLAP * lower
                    && place.area.overlap_across(&other.area) < ROW_OVERLAP * narrower
            };
            // Next to every line of the row: otherwise a row would creep down a page that is bent.
            row.iter().all(fits)
        };
        // Only the last rows can be on this height.
        match rows.iter_mut().rev().take(4).find(|row| is_level(row)) {
            Some(row) => row.push(*place),
            None => rows.push(vec![*place]),
        }
    }
    for row in &mut rows {
        row.sort_by(|one, other| one.area.left.total_cmp(&other.area.left));
    }
    let middle =
        |row: &Vec<LevelLine>| row.iter().map(|place| place.area.centre().y).sum::<f32>() / coordinate(row.len());
    rows.sort_by(|one, other| middle(one).total_cmp(&middle(other)));
    rows
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A line: left, top, width; all are 20 high.
    fn line(left: f32, top: f32, width: f32) -> Quadrilateral {
        Quadrilateral::upright(PageArea { left, top, right: left + width, bottom: top + 20.0 })
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
        let expected: Vec<RowOfLines> = (0..8).map(|row| vec![row + 8, row]).collect();
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
        let expected: Vec<RowOfLines> = [12, 0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11].map(|index| vec![index]).to_vec();
        for degrees in [0.0, 1.0] {
            assert_eq!(rows(&turned(&areas, degrees)), expected, "{degrees}");
        }
    }

    #[test]
    fn the_text_has_a_line_for_each_row() {
        let areas = [line(0.0, 0.0, 50.0), line(80.0, 2.0, 50.0), line(0.0, 40.0, 50.0)];
        let lines: Vec<OcrLine> =
            ["Total", "1.00", ""].iter().zip(areas).map(|(text, area)| OcrLine::even(text, area, 1.0)).collect();
        assert_eq!(plain_text(&rows(&areas), &lines), "Total 1.00\n");
        assert_eq!(rows(&[]), Vec::<RowOfLines>::new());
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
