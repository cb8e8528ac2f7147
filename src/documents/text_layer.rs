//! Lines of text from characters and their places, in pixels of a page.

use hayro::kurbo::{Point, Vec2};

use crate::order::TextLine;

/// The gap between two characters of one word at most, as a share of their height.
const WORD_GAP_MAX: f64 = 0.15;
/// The gap between two words of one line at most; a larger one divides columns.
const LINE_GAP_MAX: f64 = 1.2;
/// The greatest overlap of a character with the one before it.
const OVERLAP_MAX: f64 = 0.5;
/// The greatest distance between two baselines of one line.
const BASELINE_DISTANCE_MAX: f64 = 0.3;
/// The part of a line above its baseline, as a share of the height; the rest lies below.
const ASCENT: f64 = 0.8;
/// The share of characters that must be known, and stand upright, in a layer that is taken for the page.
const PLAIN_SHARE: f64 = 0.9;

/// A character, or a few that are drawn as one.
#[derive(Debug, Clone)]
pub(crate) struct Glyph {
    /// `None` where the file does not say.
    pub text: Option<String>,
    /// Where it begins on the baseline, and where the next one would.
    pub start: Point,
    pub end: Point,
    /// The height of the font as a vector that points up from the baseline. Its length includes the part below it.
    pub up: Vec2,
    pub is_visible: bool,
}

impl Glyph {
    fn height(&self) -> f64 {
        self.up.hypot()
    }

    /// Set when it is read from left to right.
    fn is_upright(&self) -> bool {
        let along = self.end - self.start;
        along.x >= 0.0 && along.y.abs() <= 0.1 * along.x.max(self.height()) && self.up.y < 0.0
    }

    fn is_finite(&self) -> bool {
        [self.start.x, self.start.y, self.end.x, self.end.y, self.up.x, self.up.y].into_iter().all(f64::is_finite)
    }
}

/// Set when the text of nearly all characters is known, and they stand upright.
pub(crate) fn is_plain<'g>(glyphs: impl Iterator<Item = &'g Glyph>) -> bool {
    let (mut all, mut plain) = (0_u32, 0_u32);
    for glyph in glyphs {
        all += 1;
        plain += u32::from(glyph.text.is_some() && glyph.is_upright());
    }
    f64::from(plain) >= PLAIN_SHARE * f64::from(all)
}

/// A part of a line while the line is put together.
struct LinePiece {
    text: String,
    left: f64,
    right: f64,
    baseline: f64,
    height: f64,
}

/// The lines of these characters, those outside of the page left out. Parts of a line with a wide gap between them,
/// such as the columns of a table, are separate lines.
pub(crate) fn lines<'g>(glyphs: impl Iterator<Item = &'g Glyph>, (width, height): (u32, u32)) -> Vec<TextLine> {
    let (width, height) = (f64::from(width), f64::from(height));
    let mut pieces: Vec<LinePiece> = Vec::new();
    let mut is_open = false;
    for glyph in glyphs.filter(|glyph| glyph.is_finite() && glyph.height() > 0.0) {
        let middle = glyph.start.midpoint(glyph.end) + glyph.up / 2.0;
        let is_on_page = (0.0..=width).contains(&middle.x) && (0.0..=height).contains(&middle.y);
        let text = plain_text(glyph.text.as_deref().unwrap_or("\u{fffd}"));
        if !is_on_page || text.is_empty() {
            continue;
        }
        // A gap shows where a space is, whether or not one is written.
        if text.trim().is_empty() {
            continue;
        }
        let (left, right) = (glyph.start.x.min(glyph.end.x), glyph.start.x.max(glyph.end.x));
        let piece = LinePiece { text, left, right, baseline: glyph.start.y, height: glyph.height() };
        match pieces.last_mut().filter(|_| is_open) {
            Some(last) if last.continues_with(&piece) => last.append(&piece),
            _ => pieces.push(piece),
        }
        is_open = true;
    }
    join(pieces).into_iter().map(|piece| piece.line(width, height)).collect()
}

/// Joins the pieces that lie next to each other: a file may draw its words in any order.
fn join(mut pieces: Vec<LinePiece>) -> Vec<LinePiece> {
    pieces.sort_by(|a, b| a.baseline.total_cmp(&b.baseline));
    let mut joined: Vec<LinePiece> = Vec::new();
    let mut rest = pieces.into_iter().peekable();
    while let Some(first) = rest.next() {
        let (baseline, height) = (first.baseline, first.height);
        let mut row = vec![first];
        while let Some(next) =
            rest.next_if(|next| next.baseline - baseline <= BASELINE_DISTANCE_MAX * height.min(next.height))
        {
            row.push(next);
        }
        row.sort_by(|a, b| a.left.total_cmp(&b.left));
        let mut is_open = false;
        for piece in row {
            match joined.last_mut().filter(|_| is_open) {
                // A text that was drawn twice with a small offset, to look bold.
                Some(last) if last.text == piece.text && piece.left - last.left < 0.3 * last.height => {}
                Some(last) if last.continues_with(&piece) => last.append(&piece),
                _ => joined.push(piece),
            }
            is_open = true;
        }
    }
    joined
}

impl LinePiece {
    fn continues_with(&self, next: &Self) -> bool {
        let height = self.height.min(next.height);
        let gap = next.left - self.right;
        (next.baseline - self.baseline).abs() <= BASELINE_DISTANCE_MAX * height
            && (-OVERLAP_MAX * height..=LINE_GAP_MAX * height).contains(&gap)
    }

    fn append(&mut self, next: &Self) {
        if next.left - self.right > WORD_GAP_MAX * self.height.min(next.height) {
            self.text.push(' ');
        }
        self.text.push_str(&next.text);
        self.right = self.right.max(next.right);
        self.height = self.height.max(next.height);
    }

    fn line(self, width: f64, height: f64) -> TextLine {
        let (top, bottom) = (self.baseline - ASCENT * self.height, self.baseline + (1.0 - ASCENT) * self.height);
        let pixel = |value: f64, most: f64| {
            #[expect(clippy::cast_possible_truncation, reason = "a place on a page")]
            let pixel = value.clamp(0.0, most) as f32;
            pixel
        };
        let (left, right) = (pixel(self.left, width), pixel(self.right, width));
        TextLine { text: self.text, left, top: pixel(top, height), right, bottom: pixel(bottom, height) }
    }
}

/// The letters of a text, without those that are drawn as one and without control characters.
fn plain_text(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\u{fb00}' => plain.push_str("ff"),
            '\u{fb01}' => plain.push_str("fi"),
            '\u{fb02}' => plain.push_str("fl"),
            '\u{fb03}' => plain.push_str("ffi"),
            '\u{fb04}' => plain.push_str("ffl"),
            '\u{fb05}' | '\u{fb06}' => plain.push_str("st"),
            '\u{ad}' => plain.push('-'),
            character if character.is_whitespace() => plain.push(' '),
            character if character.is_control() || character == '\u{feff}' => {}
            character => plain.push(character),
        }
    }
    plain
}

/// Makes lines of characters at any places; true when there is a line. The lines lie on the page, and have the
/// characters that were given, but for spaces. The folder `fuzz/` and `tests/it/fuzz.rs` feed it.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_text_layer(data: &[u8]) -> bool {
    let number = |bytes: &[u8]| bytes.iter().fold(0.0, |sum, byte| sum * 16.0 + f64::from(*byte) - 100.0);
    let glyphs: Vec<_> = data
        .chunks_exact(8)
        .map(|chunk| {
            let (place, more) = chunk.split_at(4);
            let start = Point::new(number(place.get(..2).unwrap_or(place)), number(place.get(2..).unwrap_or(place)));
            let letter = more.first().map(|byte| char::from(*byte).to_string());
            let advance = more.get(1).map_or(0.0, |byte| f64::from(*byte) - 20.0);
            let size = more.get(2).map_or(0.0, |byte| f64::from(*byte));
            let end = start + Vec2::new(advance, more.get(3).map_or(0.0, |byte| f64::from(*byte % 3)));
            Glyph { text: letter, start, end, up: Vec2::new(0.0, -size), is_visible: true }
        })
        .collect();
    let lines = lines(glyphs.iter(), (1000, 800));
    let _ = is_plain(glyphs.iter());
    let letters: usize = lines.iter().map(|line| line.text.chars().filter(|c| *c != ' ').count()).sum();
    assert!(letters <= glyphs.len());
    for TextLine { text, left, top, right, bottom } in &lines {
        let (left, top, right, bottom) = (*left, *top, *right, *bottom);
        assert!(0.0 <= left && left <= right && right <= 1000.0 && 0.0 <= top && top <= bottom && bottom <= 800.0);
        assert!(!text.trim().is_empty());
    }
    !lines.is_empty()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Characters of 10 pixels width and 20 height, from a place on.
    fn word(text: &str, left: f64, baseline: f64) -> Vec<Glyph> {
        let glyph = |(index, letter): (usize, char)| {
            let start = Point::new(left + 10.0 * f64::from(u32::try_from(index).unwrap()), baseline);
            let (end, up) = (start + Vec2::new(10.0, 0.0), Vec2::new(0.0, -20.0));
            Glyph { text: Some(letter.to_string()), start, end, up, is_visible: true }
        };
        text.chars().enumerate().map(glyph).collect()
    }

    fn texts(glyphs: &[Glyph]) -> Vec<String> {
        lines(glyphs.iter(), (1000, 1000)).into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn words_drawn_in_any_order_become_lines_and_columns_stay_apart() {
        let glyphs = [
            word("19.90", 500.0, 100.0),
            word("big", 160.0, 101.0),
            word("Total", 100.0, 100.0),
            word("x", 100.0, 140.0),
        ];
        assert_eq!(texts(&glyphs.concat()), ["Total big", "19.90", "x"]);
    }

    #[test]
    fn a_space_is_a_gap_whether_or_not_it_is_written() {
        assert_eq!(texts(&word("net  due", 0.0, 50.0)), ["net due"]);
        assert_eq!(texts(&word("net     due", 0.0, 50.0)), ["net", "due"]);
    }

    #[test]
    fn letters_drawn_twice_or_as_one_are_read_once_and_apart() {
        let bold = [word("Total", 100.0, 100.0), word("Total", 101.0, 100.0)].concat();
        assert_eq!(texts(&bold), ["Total"]);
        assert_eq!(plain_text("o\u{fb03}ce\u{a0}\u{7}"), "office ");
    }

    #[test]
    fn what_lies_outside_of_the_page_or_on_its_side_is_no_plain_layer() {
        assert!(texts(&word("away", 2000.0, 100.0)).is_empty());
        let upright = word("Total", 100.0, 100.0);
        assert!(is_plain(upright.iter()));
        let sideways = upright.iter().map(|glyph| Glyph {
            end: glyph.start + Vec2::new(0.0, 10.0),
            up: Vec2::new(20.0, 0.0),
            ..glyph.clone()
        });
        assert!(!is_plain(sideways.collect::<Vec<_>>().iter()));
    }

    proptest! {
        #[test]
        fn any_places_give_lines_on_the_page(data in proptest::collection::vec(any::<u8>(), 0..800)) {
            fuzz_text_layer(&data);
        }
    }
}
