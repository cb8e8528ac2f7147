//! Words that name a value, however a model read them: without accents, spaces and signs, and with letters that look
//! alike counted as one.

use std::ops::Range;

use super::row_text::RowText;

/// A label in the form in which it is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FieldLabel(Vec<char>);

impl FieldLabel {
    /// The labels of a list that have any letter.
    pub(super) fn all(labels: &[String]) -> Vec<Self> {
        let folded = labels.iter().map(|label| Self(label.chars().flat_map(folded).map(lookalike).collect()));
        folded.filter(|label| !label.0.is_empty()).collect()
    }
}

/// The places of labels in a row: where several overlap, the longest. Those inside of one of the others do not count.
/// `may_be_joined`: a letter may be right behind a label.
pub(super) fn occurrences(
    row: &RowText<'_>,
    wanted: &[FieldLabel],
    others: &[FieldLabel],
    may_be_joined: bool,
) -> Vec<Range<usize>> {
    let letters: Vec<(usize, char)> = row
        .chars()
        .iter()
        .enumerate()
        .flat_map(|(index, char)| folded(*char).map(move |letter| (index, lookalike(letter))))
        .collect();
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
    let windows = letters.windows(label.0.len());
    let equal = windows.filter(|window| window.iter().map(|(_, letter)| letter).eq(&label.0));
    let places = equal.filter_map(|window| Some(window.first()?.0..window.last()?.0 + 1));
    places.filter(|place| is_word(place, chars, may_be_joined)).collect()
}

/// Returns true if no letter is right before or behind. Behind, one may be where the space between two words was lost:
/// a capital behind a small letter, or a currency.
fn is_word(place: &Range<usize>, chars: &[char], may_be_joined: bool) -> bool {
    // The small o of "Nº" is a sign, and belongs to the label.
    let is_letter = |index: usize| chars.get(index).is_some_and(|char| char.is_alphabetic() && *char != 'º');
    if place.start.checked_sub(1).is_some_and(is_letter) {
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
        'à' | 'á' | 'â' | 'ã' | 'ä' | 'å' | 'ą' | 'ă' => (Some('a'), None),
        'æ' => (Some('a'), Some('e')),
        'ç' | 'ć' | 'č' => (Some('c'), None),
        'ď' => (Some('d'), None),
        'è' | 'é' | 'ê' | 'ë' | 'ě' | 'ę' => (Some('e'), None),
        'ì' | 'í' | 'î' | 'ï' | '|' => (Some('i'), None),
        'ł' => (Some('l'), None),
        'ñ' | 'ń' | 'ň' => (Some('n'), None),
        'ò' | 'ó' | 'ô' | 'õ' | 'ö' | 'ø' | 'ő' | 'º' => (Some('o'), None),
        'ř' => (Some('r'), None),
        'ś' | 'š' | 'ș' => (Some('s'), None),
        'ß' => (Some('s'), Some('s')),
        'ť' | 'ț' => (Some('t'), None),
        'ù' | 'ú' | 'û' | 'ü' | 'ů' | 'ű' => (Some('u'), None),
        'ý' => (Some('y'), None),
        'ź' | 'ż' | 'ž' => (Some('z'), None),
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
