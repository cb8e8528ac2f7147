//! Words that name a value, however a model read them: without accents, spaces and signs, and with letters that look
//! alike counted as one.

use std::collections::HashMap;
use std::ops::Range;

use super::row_text::{GAP, RowText, overlap};

/// The fewest letters of a label of which one may be misread: of shorter words one letter makes another word.
const MISREAD_LETTERS: usize = 6;

/// A label in the form in which it is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FieldLabel(Vec<char>);

impl FieldLabel {
    pub(super) fn new(label: &str) -> Self {
        Self(label.chars().flat_map(folded).map(lookalike).collect())
    }

    /// The place of the label if it is these letters, and a word.
    fn place_at(&self, letters: &[(usize, char)], chars: &[char], may_be_joined: bool) -> Option<Range<usize>> {
        let is_equal = letters.iter().map(|(_, letter)| letter).eq(&self.0);
        let place = is_equal.then(|| Some(letters.first()?.0..letters.last()?.0 + 1)).flatten()?;
        // Digits alone are a number, even if they resemble a word: "815" is not "bis".
        let has_letter = chars.get(place.clone())?.iter().any(|char| !char.is_ascii_digit());
        (has_letter && is_word(&place, chars, may_be_joined)).then_some(place)
    }

    /// The place of a long label of which one letter was misread, as in "RECEIFT". The first letter is right.
    fn misread_at(&self, letters: &[(usize, char)], chars: &[char]) -> Option<Range<usize>> {
        if self.0.len() < MISREAD_LETTERS {
            return None;
        }
        let mut others = letters.iter().zip(&self.0).filter(|((_, letter), own)| letter != *own);
        let ((index, _), _) = others.next()?;
        let is_letter = chars.get(*index).is_some_and(|char| char.is_alphabetic());
        let place = letters.first()?.0..letters.last()?.0 + 1;
        (others.next().is_none() && is_letter && is_word(&place, chars, false)).then_some(place)
    }

    /// The labels of a list that have any letter.
    pub(super) fn all(labels: &[String]) -> Vec<Self> {
        labels.iter().map(|label| Self::new(label)).filter(|label| !label.0.is_empty()).collect()
    }
}

/// Labels with what they stand for, by their first letter.
#[derive(Debug)]
pub(super) struct LabelIndex<T>(HashMap<char, Vec<(FieldLabel, T)>>);

impl<T: Copy> LabelIndex<T> {
    pub(super) fn new<'l>(labels: impl Iterator<Item = (&'l str, T)>) -> Self {
        let mut index: HashMap<char, Vec<(FieldLabel, T)>> = HashMap::new();
        for (label, meaning) in labels {
            let label = FieldLabel::new(label);
            if let Some(first) = label.0.first() {
                index.entry(*first).or_default().push((label, meaning));
            }
        }
        Self(index)
    }

    /// The places of labels in a row, from left to right: where several overlap, the longest. A misread label counts
    /// where no other one is.
    pub(super) fn longest(&self, row: &RowText<'_>) -> Vec<(Range<usize>, T)> {
        let letters = letters(row);
        let mut found = longest(row, self.places(&letters, |label, window| label.place_at(window, row.chars(), false)));
        let misread = self.places(&letters, |label, window| label.misread_at(window, row.chars()));
        let is_free = |place: &Range<usize>| !found.iter().any(|(other, _)| overlap(other, place));
        let misread: Vec<_> = misread.filter(|(place, _)| is_free(place)).collect();
        found.extend(longest(row, misread.into_iter()));
        found.sort_by_key(|(place, _)| place.start);
        found
    }

    /// Where `place` finds a label among the letters that begin with its first one.
    fn places<'i>(
        &'i self,
        letters: &'i [(usize, char)],
        place: impl Fn(&FieldLabel, &[(usize, char)]) -> Option<Range<usize>> + 'i,
    ) -> impl Iterator<Item = (Range<usize>, T)> + 'i {
        let starts = letters.iter().enumerate();
        let labels = starts.flat_map(|(start, (_, first))| {
            self.0.get(first).into_iter().flatten().map(move |(label, meaning)| (start, label, *meaning))
        });
        labels.filter_map(move |(start, label, meaning)| {
            let window = letters.get(start..start + label.0.len())?;
            Some((place(label, window)?, meaning))
        })
    }
}

/// The longest of places that overlap, each within one line of the row.
fn longest<T: Copy>(row: &RowText<'_>, places: impl Iterator<Item = (Range<usize>, T)>) -> Vec<(Range<usize>, T)> {
    let mut found: Vec<(Range<usize>, T)> = Vec::new();
    for (place, meaning) in places {
        let is_of_one_line = row.chars().get(place.clone()).is_some_and(|chars| !chars.contains(&GAP));
        let overlaps = |other: &(Range<usize>, T)| overlap(&other.0, &place);
        if is_of_one_line && found.iter().filter(|other| overlaps(other)).all(|other| other.0.len() < place.len()) {
            found.retain(|other| !overlaps(other));
            found.push((place, meaning));
        }
    }
    found
}

/// The letters of a row in which labels are searched, each with its place.
fn letters(row: &RowText<'_>) -> Vec<(usize, char)> {
    let chars = row.chars().iter().enumerate();
    chars.flat_map(|(index, char)| folded(*char).map(move |letter| (index, lookalike(letter)))).collect()
}

/// The places of labels in a row: where several overlap, the longest. Those inside of one of the others do not count.
/// `may_be_joined`: a letter may be right behind a label.
pub(super) fn occurrences(
    row: &RowText<'_>,
    wanted: &[FieldLabel],
    others: &[FieldLabel],
    may_be_joined: bool,
) -> Vec<Range<usize>> {
    let letters = letters(row);
    let places = |labels: &[FieldLabel]| -> Vec<Range<usize>> {
        labels.iter().flat_map(|label| places_of(label, &letters, row.chars(), may_be_joined)).collect()
    };
    let (found, others) = (places(wanted), places(others));
    let covers = |other: &Range<usize>, place: &Range<usize>| other.start <= place.start && place.end <= other.end;
    let mut kept: Vec<Range<usize>> = found
        .iter()
        .filter(|place| !others.iter().any(|other| covers(other, place)))
        .filter(|place| !found.iter().any(|other| other != *place && covers(other, place)))
        .cloned()
        .collect();
    kept.sort_by_key(|place| (place.start, place.end));
    kept.dedup();
    kept
}

fn places_of(label: &FieldLabel, letters: &[(usize, char)], chars: &[char], may_be_joined: bool) -> Vec<Range<usize>> {
    letters.windows(label.0.len()).filter_map(|window| label.place_at(window, chars, may_be_joined)).collect()
}

/// Returns true if no letter is right before or behind. Behind, one may be where the space between two words was lost:
/// a capital behind a small letter, or a currency.
fn is_word(place: &Range<usize>, chars: &[char], may_be_joined: bool) -> bool {
    // The small o of "Nº" is a sign, and belongs to the label.
    let is_letter = |index: usize| chars.get(index).is_some_and(|char| char.is_alphabetic() && *char != 'º');
    if place.start.checked_sub(1).is_some_and(is_letter) {
        return false;
    }
    // "18348/102/TO058" is a number.
    let is_behind_sign = place.start.checked_sub(1).is_some_and(|before| matches!(chars.get(before), Some('/' | '-')));
    if is_behind_sign && chars.get(place.end).is_some_and(char::is_ascii_digit) {
        return false;
    }
    // The "1" of "TOTA12.50" may be the letter, or the first digit.
    let ends_in_digit = chars.get(place.end - 1).is_some_and(char::is_ascii_digit);
    if ends_in_digit && chars.get(place.end).is_some_and(|next| next.is_ascii_digit() || matches!(next, '.' | ',')) {
        return false;
    }
    let is_new_word = || {
        let is_small = chars.get(place.end - 1).is_some_and(|char| char.is_lowercase());
        let is_capital = chars.get(place.end).is_some_and(|char| char.is_uppercase());
        (is_small && is_capital) || super::amount::starts_with_currency(chars.get(place.end..).unwrap_or_default())
    };
    !is_letter(place.end) || may_be_joined || is_new_word()
}

/// The plain small letters and digits of a character; empty for a sign.
pub(super) fn folded(char: char) -> impl Iterator<Item = char> {
    let small = char.to_lowercase().next().unwrap_or(char);
    let (first, second) = match small {
        'à' | 'á' | 'â' | 'ã' | 'ä' | 'å' | 'ą' | 'ă' | 'ā' => (Some('a'), None),
        'æ' => (Some('a'), Some('e')),
        'ç' | 'ć' | 'č' => (Some('c'), None),
        'ď' | 'đ' => (Some('d'), None),
        'è' | 'é' | 'ê' | 'ë' | 'ě' | 'ę' | 'ē' | 'ė' => (Some('e'), None),
        'ğ' | 'ģ' => (Some('g'), None),
        'ì' | 'í' | 'î' | 'ï' | 'ī' | 'į' | 'ı' | '|' => (Some('i'), None),
        'ķ' => (Some('k'), None),
        'ł' | 'ľ' | 'ļ' => (Some('l'), None),
        'ñ' | 'ń' | 'ň' | 'ņ' => (Some('n'), None),
        'ò' | 'ó' | 'ô' | 'õ' | 'ö' | 'ø' | 'ő' | 'º' => (Some('o'), None),
        'ř' => (Some('r'), None),
        'ś' | 'š' | 'ș' | 'ş' => (Some('s'), None),
        'ß' => (Some('s'), Some('s')),
        'ť' | 'ț' | 'ţ' => (Some('t'), None),
        'ù' | 'ú' | 'û' | 'ü' | 'ů' | 'ű' | 'ū' | 'ų' => (Some('u'), None),
        'ý' => (Some('y'), None),
        'ź' | 'ž' | 'ż' => (Some('z'), None),
        other => (Some(other).filter(|other| other.is_alphanumeric()), None),
    };
    [first, second].into_iter().flatten()
}

/// One letter for all that a model takes for each other.
fn lookalike(letter: char) -> char {
    match letter {
        '0' => 'o',
        '1' | 'i' => 'l',
        '5' => 's',
        '8' => 'b',
        other => other,
    }
}
