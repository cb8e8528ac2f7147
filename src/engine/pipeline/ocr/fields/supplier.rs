//! The name of who wrote a document: the shop of a receipt, the supplier of an invoice.

use std::ops::Range;

use super::candidate::FieldCandidate;
use super::evidence::Evidence;
use super::labelled_amount::LabelledAmount;
use super::names::{ADDRESSES, FINAL_FORMS, LEGAL_FORMS, OTHERS, SENTENCES, TRADES, is_in, plain};
use super::parties::{self, Party};
use super::row_text::{GAP, RowText};
use super::value::ParsedFieldValue;
use super::words::{RowWords, WordMeaning};
use crate::pipeline::ocr::geometry::{PageArea, coordinate, median};

/// The first rows are all looked at, of the others those with a legal form or below a heading of the seller.
const FIRST_ROWS: usize = 10;
const LETTERS_MIN: usize = 2;
const LETTERS_MAX: usize = 60;
/// The most words of a further row of a name.
const MORE_WORDS: usize = 5;
/// The most rows of a name.
const NAME_ROWS: usize = 3;

/// The names that may be the supplier's.
pub(super) fn candidates(rows: &[RowText<'_>], words: &[RowWords], amounts: &[LabelledAmount]) -> Vec<FieldCandidate> {
    let facts = NameFacts::of(rows, words, amounts);
    let mut found = Vec::new();
    let first_page = rows.iter().enumerate().take_while(|(_, row)| row.page() == 0);
    for (index, row) in first_page {
        for (position, line) in row.lines().into_iter().enumerate() {
            let Some(name) = NameLine::of(row, index, &line) else { continue };
            if row.chars().get(line.clone()).and_then(parties::heading).is_some() {
                continue;
            }
            let party = parties::of_line(rows, index, &line);
            if !(LETTERS_MIN..=LETTERS_MAX).contains(&name.letters)
                || !(index < FIRST_ROWS || name.has(LEGAL_FORMS) || party == Some(Party::Seller))
            {
                continue;
            }
            let (row, chars) = (index, name.chars.clone());
            let mut lines = vec![name];
            loop {
                let text = lines.iter().filter_map(|line| Some(rows.get(line.row)?.text(&line.chars)));
                let value = ParsedFieldValue::Name(text.collect::<Vec<_>>().join(" "));
                if let Some(evidence) = facts.evidence(&lines, position, party) {
                    found.push(FieldCandidate { row, chars: chars.clone(), value, evidence });
                }
                match next_line(rows, &lines) {
                    Some(next) if lines.len() < NAME_ROWS => lines.push(next),
                    _ => break,
                }
            }
        }
    }
    found
}

/// The line right below a name that may be the rest of it.
fn next_line(rows: &[RowText<'_>], lines: &[NameLine]) -> Option<NameLine> {
    let last = lines.last()?;
    let row = rows.get(last.row + 1).filter(|row| row.page() == 0)?;
    let [only] = row.lines().try_into().ok()?;
    let next = NameLine::of(row, last.row + 1, &only)?;
    let is_near =
        next.area.top - last.area.bottom < 3.0 * last.area.height() && next.area.overlap_across(&last.area) > 0.0;
    let is_heading = row.chars().get(only.clone()).and_then(parties::heading).is_some();
    let is_name = next.digits == 0
        && next.label.is_none()
        && (1..=MORE_WORDS).contains(&next.words.len())
        && !is_heading
        && !lines.first()?.is_other();
    (is_near && is_name && !last.has(FINAL_FORMS) && !next.has(ADDRESSES)).then_some(next)
}

/// A line as a name.
struct NameLine {
    row: usize,
    chars: Range<usize>,
    area: PageArea,
    confidence: f32,
    /// Its words in plain small letters.
    words: Vec<String>,
    letters: usize,
    digits: usize,
    capitals: usize,
    /// A label with a colon was before it.
    label: Option<String>,
    /// The number of a company in brackets was behind it.
    has_number: bool,
    has_comma: bool,
}

impl NameLine {
    fn of(row: &RowText<'_>, index: usize, line: &Range<usize>) -> Option<Self> {
        let chars = row.chars().get(line.clone())?;
        // "Name: Lieferant GmbH"
        let colon = chars.iter().position(|char| *char == ':').filter(|colon| colon + 2 < chars.len());
        let label = colon.map(|colon| chars.iter().take(colon).collect::<String>()).map(|label| plain(&label));
        let start = colon.map_or(0, |colon| colon + 1);
        let start = start + chars.iter().skip(start).take_while(|char| !char.is_alphanumeric()).count();
        // "Name (123456-X)": the number of the company does not belong to it.
        let number = chars
            .iter()
            .enumerate()
            .skip(start + 3)
            .find(|(index, char)| **char == '(' && chars.get(index + 1).is_some_and(char::is_ascii_digit));
        let end = number.map_or(chars.len(), |(index, _)| index);
        let kept = chars.get(start..end)?;
        let is_part = |char: &char| char.is_alphanumeric() || matches!(char, '.' | ')');
        let end = start + kept.iter().rposition(is_part).map_or(0, |last| last + 1);
        let kept = chars.get(start..end)?;
        let text: String = kept.iter().collect();
        let words = text.split(|char: char| !char.is_alphanumeric() && !matches!(char, '.' | '\'' | '’'));
        let chars = line.start + start..line.start + end;
        let (area, confidence) = row.place(&chars)?;
        Some(Self {
            row: index,
            chars,
            area: area.bounds(),
            confidence,
            words: words.map(plain).filter(|word| !word.is_empty()).collect(),
            letters: kept.iter().filter(|char| char.is_alphabetic()).count(),
            digits: kept.iter().filter(|char| char.is_ascii_digit()).count(),
            capitals: kept.iter().filter(|char| char.is_uppercase()).count(),
            label,
            has_number: number.is_some(),
            has_comma: kept.contains(&','),
        })
    }

    fn has(&self, list: &str) -> bool {
        self.words.iter().any(|word| is_in(list, word))
    }

    /// True if most of its words are none of a name.
    fn is_other(&self) -> bool {
        self.words.iter().filter(|word| is_in(OTHERS, word)).count() * 2 >= self.words.len()
    }

    fn is_name(&self) -> bool {
        self.letters > 2
            && self.digits < self.letters
            && !self.is_other()
            && !self.has(ADDRESSES)
            && !self.is_number_of_shop()
    }

    /// "STORE # MN-1186"
    fn is_number_of_shop(&self) -> bool {
        let is_shop =
            self.words.first().is_some_and(|word| ["store", "shop", "branch", "outlet"].contains(&word.as_str()));
        is_shop && self.digits * 2 > self.letters.saturating_sub(5)
    }
}

struct NameFacts<'d> {
    rows: &'d [RowText<'d>],
    words: &'d [RowWords],
    /// The median height of the rows.
    height: f32,
    /// The first row with a name.
    first: Option<usize>,
    domains: Vec<String>,
    /// The first rows with a legal form.
    with_form: Vec<usize>,
    /// The rows with an amount.
    amounts: Vec<usize>,
}

impl<'d> NameFacts<'d> {
    fn of(rows: &'d [RowText<'d>], words: &'d [RowWords], amounts: &[LabelledAmount]) -> Self {
        let heights = rows.iter().filter_map(|row| Some(row.place(&(0..row.chars().len()))?.0.height()));
        let height = median(heights).unwrap_or(1.0).max(1.0);
        let lines_of = |(index, row): (usize, &RowText<'_>)| -> Vec<NameLine> {
            row.lines().iter().filter_map(|line| NameLine::of(row, index, line)).collect()
        };
        let lines: Vec<NameLine> = rows.iter().enumerate().take(FIRST_ROWS).flat_map(lines_of).collect();
        Self {
            rows,
            words,
            height,
            first: lines.iter().find(|line| line.is_name()).map(|line| line.row),
            domains: domains(rows),
            with_form: lines.iter().filter(|line| line.has(LEGAL_FORMS)).map(|line| line.row).collect(),
            amounts: amounts.iter().filter(|amount| !amount.is_integer).map(|amount| amount.row).collect(),
        }
    }

    /// The evidence for a name of these lines, of which the first stands at this position of its row.
    fn evidence(&self, lines: &[NameLine], position: usize, party: Option<Party>) -> Option<Evidence> {
        let (first, last) = (lines.first()?, lines.last()?);
        let words: Vec<&String> = lines.iter().flat_map(|line| &line.words).collect();
        let has = |list: &str| words.iter().any(|word| is_in(list, word));
        let count = |of: fn(&NameLine) -> usize| lines.iter().map(of).sum::<usize>();
        let letters = count(|line| line.letters);
        let mut evidence = Evidence::found();
        for (place, fact) in [(0, "row 1"), (1, "row 2"), (3, "row 4")] {
            evidence.fact(fact, first.row == place);
        }
        evidence.fact("first rows", first.row < FIRST_ROWS);
        evidence.measure("row", coordinate(first.row.min(20)) / 20.0);
        evidence.fact("not first of row", position > 0);
        evidence.fact("first name", self.first == Some(first.row));
        let height = lines.iter().map(|line| line.area.height()).fold(0.0, f32::max).max(1.0);
        evidence.measure("larger letters", (height / self.height).ln().clamp(-1.0, 1.5));
        evidence.measure("misread", 1.0 - lines.iter().map(|line| line.confidence).fold(1.0, f32::min));
        evidence.fact("of three rows", lines.len() == 3);
        let heights = (first.area.height().max(1.0) / last.area.height().max(1.0)).ln().abs();
        evidence.measure("rows of other heights", if lines.len() > 1 { heights.min(1.0) } else { 0.0 });
        let has_form = has(LEGAL_FORMS);
        let own = first.row..=last.row;
        evidence.fact("legal form", has_form);
        evidence.fact("legal form in another row", !has_form && self.with_form.iter().any(|row| !own.contains(row)));
        evidence.fact("trade", has(TRADES));
        evidence.fact("only trades", words.iter().all(|word| is_in(TRADES, word) || is_in(LEGAL_FORMS, word)));
        evidence.fact("address", has(ADDRESSES));
        evidence.fact("other word", has(OTHERS));
        evidence.fact("mostly other words", first.is_other());
        evidence.fact("sentence", has(SENTENCES));
        evidence.fact("digits", count(|line| line.digits) > 0);
        evidence.fact("amount beside", lines.iter().any(|line| self.amounts.contains(&line.row)));
        evidence.fact("amount above", self.amounts.first().is_some_and(|amount| *amount < first.row));
        evidence.fact("comma", lines.iter().any(|line| line.has_comma));
        evidence.fact("short", letters < 4);
        evidence.fact("long", letters > 30);
        evidence.fact("capitals", count(|line| line.capitals) * 10 >= letters * 8);
        evidence.fact("labelled", first.label.is_some());
        evidence.fact("of seller", party == Some(Party::Seller));
        evidence.fact("of buyer", party == Some(Party::Buyer));
        evidence.fact("company number", last.has_number);
        let joined: String = words.iter().map(|word| word.as_str()).collect();
        let is_domain =
            |domain: &String| domain.len() >= 4 && (joined.contains(domain.as_str()) || domain.contains(&joined));
        evidence.fact("domain", joined.len() >= 4 && self.domains.iter().any(is_domain));
        self.below(last, &mut evidence);
        Some(evidence)
    }

    /// The evidence of the rows below a name.
    fn below(&self, last: &NameLine, evidence: &mut Evidence) {
        let next = self.rows.get(last.row + 1);
        let digits = next.map(|row| row.chars().iter().filter(|char| char.is_ascii_digit()).count());
        evidence.fact("digits below", digits.is_some_and(|digits| digits > 2));
        let address = next.and_then(|row| NameLine::of(row, last.row + 1, row.lines().first()?));
        evidence.fact("address below", address.is_some_and(|line| line.has(ADDRESSES)));
        let labels = || self.words.iter().skip(last.row).take(4).flatten();
        evidence.fact("tax number below", labels().any(|(_, meaning)| *meaning == WordMeaning::TaxNumber));
    }
}

/// The names within addresses of the web and of mail: "www.example.com" is "example".
fn domains(rows: &[RowText<'_>]) -> Vec<String> {
    let mut domains = Vec::new();
    for row in rows {
        let text: String = row.chars().iter().collect::<String>().to_lowercase();
        for word in text.split([' ', GAP, '/', '(', ')', ',', ':']) {
            let host = word.rsplit('@').next().unwrap_or(word).trim_start_matches("www.");
            let is_address = word.contains('@')
                || word.starts_with("www.")
                || [".com", ".de", ".net", ".org", ".fr", ".it", ".eu", ".co."].iter().any(|end| word.contains(end));
            let name = host.split('.').next().unwrap_or_default();
            if is_address && !["gmail", "yahoo", "hotmail", "outlook", "email"].contains(&name) {
                domains.push(plain(name));
            }
        }
    }
    domains
}
