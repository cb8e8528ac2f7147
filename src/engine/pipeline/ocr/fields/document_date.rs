//! The date of a document and the day on which it is due.

use super::candidate::FieldCandidate;
use super::date::{self, DayOrder, FoundDate};
use super::evidence::Evidence;
use super::origin::Origin;
use super::row_text::{RowText, overlap};
use super::value::ParsedFieldValue;
use super::words::{LabelPlace, RowWords, WordMeaning, label_of};

/// A date of the document with its label.
struct LabelledDate {
    row: usize,
    found: FoundDate,
    label: Option<(WordMeaning, LabelPlace)>,
    has_time: bool,
}

/// All readings of all dates. An ambiguous one is two candidates.
pub(super) fn candidates(rows: &[RowText<'_>], words: &[RowWords], origin: &Origin) -> Vec<FieldCandidate> {
    let dates = labelled(rows, words);
    let mut values: Vec<(String, bool)> = Vec::new();
    for date in &dates {
        for value in std::iter::once((date.found.date.clone(), false))
            .chain(date.found.exchanged.clone().map(|date| (date, true)))
        {
            if !values.contains(&value) {
                values.push(value);
            }
        }
    }
    let certain: Vec<[u32; 2]> =
        dates.iter().filter(|date| date.found.exchanged.is_none()).filter_map(|date| parts(rows, date)).collect();
    let months = certain.iter().any(|[first, second]| *first <= 12 && *second > 12);
    let days = certain.iter().any(|[first, second]| (13..=31).contains(first) && *second <= 12);
    let candidates = values.iter().filter_map(|(value, is_exchanged)| {
        let same: Vec<&LabelledDate> = dates
            .iter()
            .filter(|date| {
                if *is_exchanged { date.found.exchanged.as_ref() == Some(value) } else { date.found.date == *value }
            })
            .collect();
        let first = same.iter().min_by_key(|date| (rank(date), date.row))?;
        let mut evidence = Evidence::found();
        labels(&same, &mut evidence);
        places(&same, &dates, rows, &mut evidence);
        if first.found.exchanged.is_some() {
            origin.support_order(*is_exchanged, &mut evidence);
            evidence.fact("month first beside another", *is_exchanged && months);
            evidence.fact("day first beside another", !*is_exchanged && days);
            evidence.fact("month first against another", *is_exchanged && days);
            evidence.fact("day first against another", !*is_exchanged && months);
        }
        Some(FieldCandidate {
            row: first.row,
            chars: first.found.chars.clone(),
            value: ParsedFieldValue::Text(value.clone()),
            evidence,
        })
    });
    candidates.collect()
}

/// The dates of all rows with their labels.
fn labelled(rows: &[RowText<'_>], words: &[RowWords]) -> Vec<LabelledDate> {
    let mut dates = Vec::new();
    for (index, (row, own)) in rows.iter().zip(words).enumerate() {
        let mut found = date::found(row.chars(), DayOrder::DayFirst);
        // The space behind a label is lost often.
        for place in own.iter().map(|(place, _)| place) {
            let behind = date::found(row.chars().get(place.end..).unwrap_or_default(), DayOrder::DayFirst);
            let behind = behind
                .into_iter()
                .map(|date| FoundDate { chars: place.end + date.chars.start..place.end + date.chars.end, ..date });
            for date in behind {
                if !found.iter().any(|other| overlap(&other.chars, &date.chars)) {
                    found.push(date);
                }
            }
        }
        for date in found {
            let label = label_of(rows, words, index, &date.chars, is_of_dates);
            let has_time = has_time(row.chars().get(date.chars.end..).unwrap_or_default())
                || has_time(row.chars().get(..date.chars.start).unwrap_or_default());
            dates.push(LabelledDate { row: index, found: date, label, has_time });
        }
    }
    dates
}

fn is_of_dates(meaning: WordMeaning) -> bool {
    matches!(
        meaning,
        WordMeaning::Date
            | WordMeaning::DateOfIssue
            | WordMeaning::DueDate
            | WordMeaning::OtherDate
            | WordMeaning::AmountDue
    )
}

fn rank(date: &LabelledDate) -> u8 {
    match date.label {
        Some((WordMeaning::DateOfIssue, _)) => 0,
        Some((WordMeaning::Date, _)) => 1,
        None => 2,
        Some(_) => 3,
    }
}

fn labels(same: &[&LabelledDate], evidence: &mut Evidence) {
    let has = |meaning: WordMeaning, place: LabelPlace| same.iter().any(|date| date.label == Some((meaning, place)));
    let has_any = |meaning: WordMeaning| same.iter().any(|date| date.label.is_some_and(|(own, _)| own == meaning));
    evidence.fact("beside date of issue", has(WordMeaning::DateOfIssue, LabelPlace::Beside));
    evidence.fact("below date of issue", has(WordMeaning::DateOfIssue, LabelPlace::Above));
    evidence.fact("beside date", has(WordMeaning::Date, LabelPlace::Beside));
    evidence.fact("below date", has(WordMeaning::Date, LabelPlace::Above));
    evidence.fact("beside due date", has(WordMeaning::DueDate, LabelPlace::Beside));
    evidence.fact("below due date", has(WordMeaning::DueDate, LabelPlace::Above));
    evidence.fact("amount due", has_any(WordMeaning::AmountDue));
    evidence.fact("other date", has_any(WordMeaning::OtherDate));
    evidence.fact("no label", same.iter().all(|date| date.label.is_none()));
}

fn places(same: &[&LabelledDate], dates: &[LabelledDate], rows: &[RowText<'_>], evidence: &mut Evidence) {
    let values: std::collections::BTreeSet<&String> = dates.iter().map(|date| &date.found.date).collect();
    let is_same = |date: Option<&LabelledDate>| {
        date.is_some_and(|date| same.iter().any(|own| own.row == date.row && own.found.chars == date.found.chars))
    };
    let (earliest, latest) = (values.first(), values.last());
    let own = same.first().map(|date| &date.found.date);
    evidence.fact("only date", values.len() == 1);
    evidence.fact("first", values.len() > 1 && is_same(dates.first()));
    evidence.fact("last", values.len() > 1 && is_same(dates.last()));
    evidence.fact("earliest", values.len() > 1 && own.is_some() && own == earliest.copied());
    evidence.fact("latest", values.len() > 1 && own.is_some() && own == latest.copied());
    evidence.fact("twice", same.len() > 1);
    evidence.fact("with time", same.iter().any(|date| date.has_time));
    evidence.fact("without century", same.iter().all(|date| !date.found.has_century));
    evidence.fact("in words", same.iter().any(|date| date.found.sign.is_none()));
    evidence.fact("with dots", same.iter().any(|date| date.found.sign == Some('.')));
    let year = own.and_then(|date| date.get(..4)).and_then(|year| year.parse::<u32>().ok()).unwrap_or_default();
    evidence.fact("year is unlikely", !(2005..=2035).contains(&year));
    evidence.row(same.first().map_or(0, |date| date.row), rows);
    evidence.reading(rows, same.iter().map(|date| (date.row, &date.found.chars)));
    let has_letters = |date: &&LabelledDate| {
        let chars = rows.get(date.row).and_then(|row| row.chars().get(date.found.chars.clone()));
        date.found.sign.is_some() && chars.is_some_and(|chars| chars.iter().any(|char| char.is_alphabetic()))
    };
    evidence.fact("letters as digits", same.iter().all(has_letters));
}

/// The first two numbers of a date in digits.
fn parts(rows: &[RowText<'_>], date: &LabelledDate) -> Option<[u32; 2]> {
    let sign = date.found.sign.filter(|sign| matches!(sign, '/' | '-'))?;
    let text: String = rows.get(date.row)?.chars().get(date.found.chars.clone())?.iter().collect();
    let mut parts = text.split(sign).map(|part| part.trim().parse());
    Some([parts.next()?.ok()?, parts.next()?.ok()?])
}

/// Returns true if a time such as 14:05 is in a text.
fn has_time(chars: &[char]) -> bool {
    let is_time = |window: &[char]| matches!(window, [hour, ':', minute, second] if hour.is_ascii_digit() && matches!(minute, '0'..='5') && second.is_ascii_digit());
    chars.windows(4).any(is_time)
}
