//! Paragraphs, headings and tables of a page, by the places of its lines.
//!
//! The reader knows lines and rows alone. A heading is a line with larger letters than most of its page; a table is some
//! rows that have several lines each, which stand in the same columns.

use super::reading::ReadPage;

/// Rows that make a table at least.
const TABLE_ROWS_MIN: usize = 2;

/// The height of a heading, as a share of the median height of lines.
const HEADING_HEIGHT: f64 = 1.4;

/// The most words of a heading.
const HEADING_WORDS_MAX: usize = 12;

/// The space above a row that begins a paragraph, as a share of the median height of lines.
const PARAGRAPH_GAP: f64 = 0.9;

/// A part of a page. Lines are positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Block {
    Heading(Vec<usize>),
    /// Rows of lines.
    Paragraph(Vec<Vec<usize>>),
    Table(Table),
}

/// Cells in rows and columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    pub columns: usize,
    /// Each cell as its column, from 0, and its line.
    pub rows: Vec<Vec<(usize, usize)>>,
}

/// The place of a line on the page as it stands upright.
#[derive(Debug, Clone, Copy)]
struct Place {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

impl Place {
    fn height(self) -> f64 {
        self.bottom - self.top
    }
}

/// The blocks of a page, in reading order.
pub(super) fn blocks(page: &ReadPage) -> Vec<Block> {
    let places: Vec<_> = page
        .lines
        .iter()
        .map(|line| {
            let [left, top, right, bottom] = page.upright(&line.corners);
            Place { left, top, right, bottom }
        })
        .collect();
    let rows = page.rows();
    let median = median(places.iter().map(|place| place.height()));
    let mut blocks: Vec<Block> = Vec::new();
    let (mut rest, mut lower) = (rows.as_slice(), f64::NEG_INFINITY);
    while let Some((row, behind)) = rest.split_first() {
        let place = |line: &usize| places.get(*line).copied();
        let top = row.iter().filter_map(place).map(|place| place.top).fold(f64::INFINITY, f64::min);
        if let Some(table) = table(rest, &places) {
            let (taken, behind) = rest.split_at_checked(table.rows.len()).unwrap_or((rest, &[]));
            lower = bottom(taken.iter().flatten().filter_map(place));
            blocks.push(Block::Table(table));
            rest = behind;
            continue;
        }
        let height = row.iter().filter_map(place).map(Place::height).fold(0.0, f64::max);
        let words: usize = row.iter().filter_map(|line| page.lines.get(*line)).map(|line| line.words.len()).sum();
        let is_heading = row.len() == 1 && height >= HEADING_HEIGHT * median && words <= HEADING_WORDS_MAX;
        match blocks.last_mut() {
            _ if is_heading => blocks.push(Block::Heading(row.clone())),
            Some(Block::Paragraph(rows)) if top - lower < PARAGRAPH_GAP * median => rows.push(row.clone()),
            _ => blocks.push(Block::Paragraph(vec![row.clone()])),
        }
        lower = bottom(row.iter().filter_map(place));
        rest = behind;
    }
    blocks
}

fn bottom(places: impl Iterator<Item = Place>) -> f64 {
    places.map(|place| place.bottom).fold(f64::NEG_INFINITY, f64::max)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// The table at the start of these rows: as many as stand in the same columns.
fn table(rows: &[Vec<usize>], places: &[Place]) -> Option<Table> {
    let several = rows.iter().take_while(|row| row.len() > 1).count();
    let fits = |count: &usize| rows.get(..*count).and_then(|rows| in_columns(rows, places));
    // Columns merge as rows are added, so the first number of rows that fits no more is the end.
    (TABLE_ROWS_MIN..=several).map_while(|count| fits(&count)).last()
}

/// These rows as a table, unless two lines of a row stand in the same column.
fn in_columns(rows: &[Vec<usize>], places: &[Place]) -> Option<Table> {
    let place = |line: &usize| places.get(*line);
    let mut spans: Vec<_> = rows.iter().flatten().filter_map(place).map(|place| (place.left, place.right)).collect();
    spans.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut columns: Vec<(f64, f64)> = Vec::new();
    for (left, right) in spans {
        match columns.last_mut() {
            Some(column) if left < column.1 => column.1 = column.1.max(right),
            _ => columns.push((left, right)),
        }
    }
    let row = |row: &Vec<usize>| {
        let mut cells = Vec::new();
        for line in row {
            let column = columns.iter().position(|column| place(line).is_some_and(|place| place.left < column.1))?;
            if cells.iter().any(|(taken, _)| *taken == column) {
                return None;
            }
            cells.push((column, *line));
        }
        cells.sort_unstable();
        Some(cells)
    };
    let rows: Option<Vec<_>> = rows.iter().map(row).collect();
    rows.filter(|_| columns.len() > 1).map(|rows| Table { columns: columns.len(), rows })
}

#[cfg(test)]
mod tests {
    use super::super::reading::{ReadLine, ReadWord};
    use super::*;

    /// A page of rows, each line with its text, left edge and height; letters are half as wide as high.
    fn page(rows: &[&[(&str, f64, f64)]]) -> ReadPage {
        let (mut lines, mut text, mut top) = (Vec::new(), String::new(), 0.0);
        for row in rows {
            let row_text: Vec<_> = row.iter().map(|(text, ..)| *text).collect();
            text.push_str(&(row_text.join(" ") + "\n"));
            for (text, left, height) in *row {
                #[expect(clippy::cast_precision_loss, reason = "a few letters")]
                let right = left + text.len() as f64 * height / 2.0;
                let corners = [[*left, top], [right, top], [right, top + height], [*left, top + height]];
                let word = |text: &str| ReadWord { text: text.to_owned(), corners, confidence: 1.0 };
                let words = text.split(' ').map(word).collect();
                lines.push(ReadLine { text: (*text).to_owned(), corners, words });
            }
            top += row.iter().map(|(.., height)| *height).fold(0.0, f64::max) + 4.0;
        }
        ReadPage { number: 1, width: 400, height: 400, turned: 0, lines, text }
    }

    #[test]
    fn a_receipt_has_a_heading_a_paragraph_and_a_table() {
        let page = page(&[
            &[("RECEIPT", 10.0, 30.0)],
            &[("Corner Bar", 10.0, 16.0)],
            &[("1 Main Street", 10.0, 16.0)],
            &[("2 Coffee", 10.0, 16.0), ("6.40", 300.0, 16.0)],
            &[("Total", 10.0, 16.0), ("EUR", 200.0, 16.0), ("6.40", 300.0, 16.0)],
            &[("Thank you", 10.0, 16.0)],
        ]);
        let table = Table { columns: 3, rows: vec![vec![(0, 3), (2, 4)], vec![(0, 5), (1, 6), (2, 7)]] };
        let paragraph = |lines: &[usize]| Block::Paragraph(lines.iter().map(|line| vec![*line]).collect());
        let expected = [Block::Heading(vec![0]), paragraph(&[1, 2]), Block::Table(table), paragraph(&[8])];
        assert_eq!(blocks(&page), expected);
    }

    #[test]
    fn rows_with_lines_in_one_column_are_no_table() {
        let page = page(&[
            &[("a long text of", 0.0, 16.0), ("two columns", 150.0, 16.0)],
            &[("short", 0.0, 16.0), ("x", 60.0, 16.0)],
        ]);
        assert!(matches!(&blocks(&page)[..], [Block::Paragraph(rows)] if rows.len() == 2));
    }
}
