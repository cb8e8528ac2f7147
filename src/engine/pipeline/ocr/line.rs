//! A line that was read, with the places of its characters.

use std::ops::Range;

use super::ctc::DecodedText;
use super::geometry::Quadrilateral;

/// A line of text on a page.
#[derive(Debug, Clone, PartialEq)]
pub struct OcrLine {
    text: String,
    area: Quadrilateral,
    confidence: f32,
    /// The middle of each `char`, as a share of the width.
    places: Vec<f32>,
    /// How surely each `char` was read.
    scores: Vec<f32>,
}

/// A word of a line.
#[derive(Debug, Clone, PartialEq)]
pub struct OcrWord<'l> {
    pub text: &'l str,
    pub area: Quadrilateral,
    /// That of its least sure character.
    pub confidence: f32,
}

impl OcrLine {
    /// A line with the places of its characters. Spaces at its ends are left out.
    pub fn new(reading: DecodedText, area: Quadrilateral) -> Self {
        let DecodedText { text, confidence, mut places, mut scores } = reading;
        let kept = text.trim();
        let before = text.chars().count() - text.trim_start().chars().count();
        for of_chars in [&mut places, &mut scores] {
            of_chars.truncate(before + kept.chars().count());
            of_chars.drain(..before.min(of_chars.len()));
        }
        Self { text: kept.to_owned(), area, confidence, places, scores }
    }

    /// A line with characters of equal width, for a text layer without widths.
    pub fn even(text: &str, area: Quadrilateral, confidence: f32) -> Self {
        let count = text.chars().count().max(1);
        let share = |index: usize| (super::geometry::coordinate(index) + 0.5) / super::geometry::coordinate(count);
        let places = (0..count).map(share).collect();
        let scores = vec![confidence; count];
        Self::new(DecodedText { text: text.to_owned(), confidence, places, scores }, area)
    }

    /// The same line with these confidences of its words, in their order.
    #[must_use]
    pub fn with_words(mut self, confidences: &[f32]) -> Self {
        let mut word = 0;
        for (char, score) in self.text.chars().zip(&mut self.scores) {
            match confidences.get(word) {
                Some(confidence) if char != ' ' => *score = *confidence,
                _ => word += usize::from(char == ' '),
            }
        }
        self
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn area(&self) -> Quadrilateral {
        self.area
    }

    pub fn confidence(&self) -> f32 {
        self.confidence
    }

    /// That of the least sure of some characters, counted in `char`s. Without any, that of the line.
    pub fn confidence_of(&self, chars: Range<usize>) -> f32 {
        self.scores.get(chars).and_then(|scores| scores.iter().copied().reduce(f32::min)).unwrap_or(self.confidence)
    }

    /// The place of some characters, counted in `char`s: from halfway to the one before to halfway to the one behind.
    pub fn area_of(&self, chars: Range<usize>) -> Quadrilateral {
        let between = |index: usize| {
            let before = index.checked_sub(1).and_then(|before| self.places.get(before));
            match (before, self.places.get(index)) {
                (None, _) => 0.0,
                (_, None) => 1.0,
                (Some(before), Some(behind)) => f32::midpoint(*before, *behind),
            }
        };
        self.area.part(between(chars.start), between(chars.end))
    }

    /// The words between spaces, each with its place.
    pub fn words(&self) -> impl Iterator<Item = OcrWord<'_>> {
        let mut start = 0;
        self.text.split(' ').filter_map(move |text| {
            let chars = start..start + text.chars().count();
            start = chars.end + 1;
            let confidence = self.confidence_of(chars.clone());
            (!text.is_empty()).then(|| OcrWord { text, area: self.area_of(chars), confidence })
        })
    }

    /// The same line at another place, such as on the page before it was turned.
    #[must_use]
    pub fn at(self, area: Quadrilateral) -> Self {
        Self { area, ..self }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::geometry::PageArea;
    use super::*;

    const AREA: PageArea = PageArea { left: 100.0, top: 10.0, right: 200.0, bottom: 30.0 };

    #[test]
    fn words_lie_between_their_spaces() {
        let line = OcrLine::even(" ab cde f", Quadrilateral::upright(AREA), 0.9);
        let words: Vec<_> = line.words().map(|word| (word.text, word.area.bounds())).collect();
        let texts: Vec<_> = words.iter().map(|(text, _)| *text).collect();
        assert_eq!(texts, ["ab", "cde", "f"]);
        // Nine places of 11.1 pixels, the first of them a space that was left out.
        let lefts: Vec<f32> = words.iter().map(|(_, area)| area.left.round()).collect();
        let rights: Vec<f32> = words.iter().map(|(_, area)| area.right.round()).collect();
        assert_eq!((lefts, rights), (vec![100.0, 144.0, 189.0], vec![133.0, 178.0, 200.0]));
    }

    proptest! {
        #[test]
        fn words_are_those_of_the_text_in_order(text in "[a-zé ]{0,30}") {
            let line = OcrLine::even(&text, Quadrilateral::upright(AREA), 1.0);
            let words: Vec<_> = line.words().collect();
            prop_assert_eq!(words.iter().map(|word| word.text).collect::<Vec<_>>(), text.split_whitespace().collect::<Vec<_>>());
            let edges: Vec<f32> = words.iter().flat_map(|word| [word.area.bounds().left, word.area.bounds().right]).collect();
            prop_assert!(edges.is_sorted(), "{edges:?}");
            prop_assert!(edges.iter().all(|edge| (100.0..=200.0).contains(edge)));
        }
    }
}
