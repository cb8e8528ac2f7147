//! The text of all pages, with the places of its parts in it.

use serde::Serialize;
use unicode_segmentation::UnicodeSegmentation;

use super::request::StringIndexType;

/// A place in the content, in the unit that the caller wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Span {
    pub offset: usize,
    pub length: usize,
}

/// A text that grows, and knows its length in the unit of places.
#[derive(Debug, Default)]
pub(super) struct Content {
    pub text: String,
    length: usize,
    index: StringIndexType,
}

impl Content {
    pub fn new(index: StringIndexType) -> Self {
        Self { index, ..Self::default() }
    }

    /// Adds a text.
    pub fn push(&mut self, text: &str) -> Span {
        let span = Span { offset: self.length, length: length(text, self.index) };
        self.text.push_str(text);
        self.length += span.length;
        span
    }

    /// The place from an earlier one to the end.
    pub fn since(&self, offset: usize) -> Span {
        Span { offset, length: self.length - offset }
    }

    /// The place of the next part.
    pub fn offset(&self) -> usize {
        self.length
    }
}

fn length(text: &str, index: StringIndexType) -> usize {
    // But for CR LF, which no part has, an ASCII character is one in each unit.
    if text.is_ascii() {
        return text.len();
    }
    match index {
        StringIndexType::TextElements => text.graphemes(true).count(),
        StringIndexType::UnicodeCodePoint => text.chars().count(),
        StringIndexType::Utf16CodeUnit => text.encode_utf16().count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_in_the_unit_of_the_caller() {
        let flag = "🇩🇪 e\u{301}";
        let lengths =
            [StringIndexType::TextElements, StringIndexType::UnicodeCodePoint, StringIndexType::Utf16CodeUnit];
        assert_eq!(lengths.map(|index| length(flag, index)), [3, 5, 7]);
        let mut content = Content::new(StringIndexType::Utf16CodeUnit);
        content.push(flag);
        assert_eq!(content.push("ab"), Span { offset: 7, length: 2 });
        assert_eq!(content.since(5), Span { offset: 5, length: 4 });
    }
}
