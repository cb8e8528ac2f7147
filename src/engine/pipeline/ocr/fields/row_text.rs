//! The characters of a row, with their places on the page.

use std::ops::Range;

use super::super::geometry::Quadrilateral;
use super::super::line::OcrLine;

/// Divides lines of a row. No value reaches over it.
pub(super) const GAP: char = '\t';

/// Returns true if two places of a row have a character in common.
pub(super) fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

/// The lines of a row as one text.
#[derive(Debug)]
pub(super) struct RowText<'p> {
    chars: Vec<char>,
    /// The lines from left to right, each with the position of its first character.
    lines: Vec<(usize, &'p OcrLine)>,
    /// From 0.
    page: usize,
}

impl<'p> RowText<'p> {
    pub(super) fn new(page: usize, row: impl Iterator<Item = &'p OcrLine>) -> Self {
        let (mut chars, mut lines) = (Vec::new(), Vec::new());
        for line in row {
            if !chars.is_empty() {
                chars.push(GAP);
            }
            lines.push((chars.len(), line));
            chars.extend(line.text().chars().map(narrow));
        }
        Self { chars, lines, page }
    }

    pub(super) fn page(&self) -> usize {
        self.page
    }

    pub(super) fn chars(&self) -> &[char] {
        &self.chars
    }

    /// The places of its lines.
    pub(super) fn lines(&self) -> Vec<Range<usize>> {
        let gaps = self.chars.iter().enumerate().filter(|(_, char)| **char == GAP).map(|(index, _)| index);
        let mut start = 0;
        gaps.chain([self.chars.len()]).map(|end| std::mem::replace(&mut start, end + 1)..end).collect()
    }

    pub(super) fn text(&self, chars: &Range<usize>) -> String {
        let chars = self.chars.get(chars.clone()).unwrap_or_default();
        chars.iter().map(|char| if *char == GAP { ' ' } else { *char }).collect()
    }

    /// The place of characters of one line, and its confidence. Characters of several lines have the place of those on
    /// the first one.
    pub(super) fn place(&self, chars: &Range<usize>) -> Option<(Quadrilateral, f32)> {
        let (line, chars) = self.on_line(chars)?;
        Some((line.area_of(chars), line.confidence()))
    }

    /// The confidence of the line of characters, and that of the least sure of them.
    pub(super) fn confidences(&self, chars: &Range<usize>) -> Option<(f32, f32)> {
        let (line, chars) = self.on_line(chars)?;
        Some((line.confidence(), line.confidence_of(chars)))
    }

    /// The line of characters, and which of its own they are.
    fn on_line(&self, chars: &Range<usize>) -> Option<(&'p OcrLine, Range<usize>)> {
        let (start, line) = self.lines.iter().rev().find(|(start, _)| *start <= chars.start)?;
        let within = |index: usize| (index - start).min(line.text().chars().count());
        Some((line, within(chars.start)..within(chars.end.max(chars.start))))
    }
}

/// Models of Chinese text read Latin signs in their wide form.
fn narrow(char: char) -> char {
    match char {
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(u32::from(char) - 0xfee0).unwrap_or(char),
        '。' => '.',
        '、' => ',',
        '￥' => '¥',
        '−' | '–' | '—' => '-',
        '’' | '‘' | '´' | '`' => '\'',
        '\u{a0}' | '\u{3000}' | '\u{202f}' | '\t' => ' ',
        other => other,
    }
}
