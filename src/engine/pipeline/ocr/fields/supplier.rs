//! The name of who wrote a document: the shop of a receipt, the supplier of an invoice.

use std::ops::Range;

use super::candidate::FieldCandidate;
use super::evidence::Evidence;
use super::labels::folded;
use super::row_text::{GAP, RowText};
use super::value::ParsedFieldValue;
use super::words::RowWords;
use crate::pipeline::ocr::geometry::coordinate;

/// The first rows are all looked at, of the others those with a legal form or a label.
const FIRST_ROWS: usize = 10;
const LETTERS_MIN: usize = 2;
const LETTERS_MAX: usize = 60;

/// Words behind the names of companies.
const LEGAL_FORMS: &[&str] = &[
    "sdn",
    "bhd",
    "berhad",
    "enterprise",
    "trading",
    "pvt",
    "pte",
    "ltd",
    "limited",
    "llc",
    "llp",
    "inc",
    "corp",
    "corporation",
    "company",
    "gmbh",
    "mbh",
    "ag",
    "kg",
    "ohg",
    "ug",
    "e.k",
    "ek",
    "kgaa",
    "sarl",
    "sas",
    "sa",
    "eurl",
    "spa",
    "srl",
    "snc",
    "bv",
    "nv",
    "vof",
    "plc",
    "ab",
    "oy",
    "oyj",
    "as",
    "aps",
    "sro",
    "doo",
    "kft",
    "zrt",
    "bt",
    "nyrt",
    "sp",
    "zoo",
    "lda",
    "sl",
    "slu",
    "fzc",
    "fze",
    "fzco",
    "wll",
    "sti",
    "anonim",
];

/// Those that are the end of a name.
const FINAL_FORMS: &[&str] =
    &["bhd", "berhad", "ltd", "limited", "llc", "inc", "gmbh", "sarl", "srl", "spa", "bv", "plc"];

/// Words of shops and restaurants.
const TRADES: &[&str] = &[
    "restaurant",
    "cafe",
    "coffee",
    "bar",
    "grill",
    "kitchen",
    "bistro",
    "pizza",
    "pizzeria",
    "bakery",
    "market",
    "supermarket",
    "mart",
    "store",
    "stores",
    "shop",
    "hotel",
    "pharmacy",
    "hardware",
    "stationery",
    "books",
    "gift",
    "foods",
    "food",
    "house",
    "restoran",
    "kedai",
    "supermarkt",
    "markt",
    "apotheke",
    "backerei",
    "gasthaus",
    "hypermarket",
    "minimarket",
    "station",
];

/// Words of addresses and of what else stands at the top.
const ADDRESSES: &[&str] = &[
    "street", "st", "road", "rd", "avenue", "ave", "blvd", "lane", "drive", "suite", "floor", "jalan", "jln", "lot",
    "lorong", "taman", "bandar", "selangor", "kuala", "lumpur", "johor", "malaysia", "strasse", "str", "platz", "weg",
    "rue", "calle", "via", "highway", "hwy", "plaza", "block", "unit", "box", "ny", "ca", "tx", "usa",
];
const OTHERS: &[&str] = &[
    "receipt",
    "invoice",
    "tax",
    "bill",
    "cash",
    "tel",
    "fax",
    "phone",
    "email",
    "www",
    "http",
    "welcome",
    "thank",
    "thanks",
    "date",
    "time",
    "table",
    "server",
    "order",
    "customer",
    "copy",
    "duplicate",
    "original",
    "page",
    "rechnung",
    "facture",
    "fattura",
    "factura",
    "factuur",
    "beleg",
    "quittung",
    "kassenbon",
    "gst",
    "vat",
    "reg",
    "registration",
    "no",
    "store",
    "manager",
    "cashier",
    "open",
    "description",
    "qty",
    "item",
    "price",
    "amount",
    "total",
    "dine",
    "take",
    "guest",
    "guests",
    "check",
    "mail",
    "com",
    "ticket",
    "statement",
    "paid",
    "posted",
    "duplikat",
    "verkaufer",
    "seller",
    "kaufer",
    "buyer",
    "steuernummer",
    "lieferant",
    "again",
    "please",
    "come",
    "counter",
    "merchant",
    "number",
    "gmail",
    "salesperson",
    "stylesheet",
    "datum",
    "kunde",
    "save",
    "money",
    "live",
    "better",
];
/// Words before the names of suppliers and of customers.
const SELLERS: &[&str] =
    &["seller", "supplier", "vendor", "from", "verkaufer", "lieferant", "vendeur", "fournisseur", "merchant", "soldby"];
const BUYERS: &[&str] = &[
    "to",
    "buyer",
    "customer",
    "client",
    "kaufer",
    "kunde",
    "billto",
    "soldto",
    "shipto",
    "acheteur",
    "attn",
    "rechnungsempfanger",
    "leistungsempfanger",
];

/// The names that may be the supplier's.
pub(super) fn candidates(rows: &[RowText<'_>], words: &[RowWords]) -> Vec<FieldCandidate> {
    let domains = domains(rows);
    let texts: Vec<String> = rows.iter().map(|row| row.chars().iter().copied().flat_map(folded).collect()).collect();
    let has_form = |row: &RowText<'_>| parts(row).iter().any(|part| Name::of(row, part).has(LEGAL_FORMS));
    let with_form: Vec<bool> = rows.iter().take(FIRST_ROWS).map(has_form).collect();
    let mut heights: Vec<f32> =
        rows.iter().filter_map(|row| Some(row.place(&(0..row.chars().len()))?.0.height())).collect();
    heights.sort_by(f32::total_cmp);
    let height = heights.get(heights.len() / 2).copied().unwrap_or(1.0).max(1.0);
    let facts = NameFacts { rows, words, height, domains, texts, with_form };
    let mut found = Vec::new();
    let mut section = Section::None;
    for (index, row) in rows.iter().enumerate() {
        if row.page() > 0 {
            break;
        }
        section = section.at(index);
        for (position, part) in parts(row).into_iter().enumerate() {
            let name = Name::of(row, &part);
            if let Some(label) = name.section(index) {
                section = label;
            }
            let is_first = index < FIRST_ROWS;
            if !(LETTERS_MIN..=LETTERS_MAX).contains(&name.letters)
                || !(is_first || name.has(LEGAL_FORMS) || matches!(section, Section::Seller(_)))
            {
                continue;
            }
            let Some(evidence) = facts.evidence(&name, index, position, &part, section) else { continue };
            let text = row.text(&name.chars);
            if let Some((rows, more)) = continued(rows, index, &part, &name) {
                let mut evidence = evidence.clone();
                evidence.fact("of two rows", rows == 2);
                evidence.fact("of three rows", rows == 3);
                evidence.fact("legal form below", true);
                let value = ParsedFieldValue::Text(format!("{text} {more}"));
                found.push(FieldCandidate { row: index, chars: name.chars.clone(), value, evidence });
            }
            found.push(FieldCandidate {
                row: index,
                chars: name.chars.clone(),
                value: ParsedFieldValue::Text(text),
                evidence,
            });
        }
    }
    found
}

/// The rest of a name in the next one or two rows, which ends with a legal form: the number of rows, and its text.
fn continued(rows: &[RowText<'_>], index: usize, part: &Range<usize>, first: &Name) -> Option<(usize, String)> {
    let place = rows.get(index)?.place(part)?.0.bounds();
    let mut text = String::new();
    for below in 1..=2 {
        let row = rows.get(index + below)?;
        let [only] = parts(row).try_into().ok()?;
        let name = Name::of(row, &only);
        let area = row.place(&only)?.0.bounds();
        let is_near = area.top - place.bottom < 3.0 * place.height() && area.overlap_across(&place) > 0.0;
        let is_name = name.digits == 0 && name.label.is_none() && !name.words.is_empty() && name.words.len() <= 5;
        if !is_near || !is_name || first.has(FINAL_FORMS) || name.has(ADDRESSES) {
            return None;
        }
        if below > 1 {
            text.push(' ');
        }
        text.push_str(&row.text(&name.chars));
        if name.has(LEGAL_FORMS) {
            return Some((below + 1, text));
        }
    }
    None
}

/// The lines of a row.
fn parts(row: &RowText<'_>) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let mut start = 0;
    for (index, char) in row.chars().iter().enumerate().chain([(row.chars().len(), &GAP)]) {
        if *char == GAP {
            parts.push(start..index);
            start = index + 1;
        }
    }
    parts
}

/// Whose address the rows are, by the last label above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Section {
    None,
    /// With the row of its label.
    Seller(usize),
    Buyer(usize),
}

impl Section {
    /// Its end: a label counts for three rows.
    fn at(self, index: usize) -> Self {
        match self {
            Self::Seller(row) | Self::Buyer(row) if index > row + 3 => Self::None,
            other => other,
        }
    }
}

/// A line as a name.
struct Name {
    chars: Range<usize>,
    /// Its words in plain small letters.
    words: Vec<String>,
    letters: usize,
    digits: usize,
    capitals: usize,
    /// A label with a colon was before it.
    label: Option<String>,
}

impl Name {
    fn of(row: &RowText<'_>, part: &Range<usize>) -> Self {
        let chars = row.chars().get(part.clone()).unwrap_or_default();
        // "Name: Lieferant GmbH"
        let colon = chars.iter().position(|char| *char == ':').filter(|colon| colon + 2 < chars.len());
        let label = colon.map(|colon| chars.iter().take(colon).copied().flat_map(folded).collect());
        let start = colon.map_or(0, |colon| colon + 1);
        let start = start + chars.iter().skip(start).take_while(|char| !char.is_alphanumeric()).count();
        // "Name (123456-X)": the number of the company does not belong to it.
        let end = chars
            .iter()
            .enumerate()
            .skip(start + 3)
            .find(|(index, char)| **char == '(' && chars.get(index + 1).is_some_and(char::is_ascii_digit));
        let end = end.map_or(chars.len(), |(index, _)| index);
        let kept = chars.get(start..end).unwrap_or_default();
        let end = start
            + kept
                .iter()
                .rposition(|char| char.is_alphanumeric() || matches!(char, '.' | ')'))
                .map_or(0, |last| last + 1);
        let kept = chars.get(start..end).unwrap_or_default();
        let text: String = kept.iter().collect();
        let words = text.split(|char: char| !char.is_alphanumeric() && !matches!(char, '.' | '\'' | '’'));
        let words = words.map(|word| word.chars().flat_map(folded).collect::<String>()).filter(|word| !word.is_empty());
        Self {
            chars: part.start + start..part.start + end,
            words: words.collect(),
            letters: kept.iter().filter(|char| char.is_alphabetic()).count(),
            digits: kept.iter().filter(|char| char.is_ascii_digit()).count(),
            capitals: kept.iter().filter(|char| char.is_uppercase()).count(),
            label,
        }
    }

    fn has(&self, words: &[&str]) -> bool {
        self.words.iter().any(|word| words.contains(&word.as_str()))
    }

    /// The section that this line begins.
    fn section(&self, index: usize) -> Option<Section> {
        let joined: String = self.words.concat();
        let is_of = |words: &[&str]| {
            words.contains(&joined.as_str())
                || self.label.as_ref().is_some_and(|label| words.contains(&label.as_str()))
                || self.words.len() <= 3 && self.words.first().is_some_and(|word| words.contains(&word.as_str()))
        };
        if is_of(BUYERS) {
            Some(Section::Buyer(index))
        } else if is_of(SELLERS) {
            Some(Section::Seller(index))
        } else {
            None
        }
    }
}

struct NameFacts<'d> {
    rows: &'d [RowText<'d>],
    words: &'d [RowWords],
    /// The median height of the rows.
    height: f32,
    domains: Vec<String>,
    /// Of the rows, in plain small letters.
    texts: Vec<String>,
    /// True for each of the first rows with a legal form.
    with_form: Vec<bool>,
}

impl NameFacts<'_> {
    /// The evidence for the line at this position of its row.
    fn evidence(
        &self,
        name: &Name,
        index: usize,
        position: usize,
        part: &Range<usize>,
        section: Section,
    ) -> Option<Evidence> {
        let row = self.rows.get(index)?;
        let (area, confidence) = row.place(&name.chars)?;
        let mut evidence = Evidence::found();
        for (place, fact) in ["row 1", "row 2", "row 3", "row 4"].into_iter().enumerate() {
            evidence.fact(fact, index == place);
        }
        evidence.fact("first rows", index < FIRST_ROWS);
        evidence.measure("row", coordinate(index.min(20)) / 20.0);
        evidence.fact("not first of row", position > 0);
        evidence.measure("larger letters", (area.height().max(1.0) / self.height).ln().clamp(-1.0, 1.5));
        evidence.measure("misread", 1.0 - confidence);
        let has_form = name.has(LEGAL_FORMS);
        let others = self.with_form.iter().enumerate().any(|(other, has_form)| other != index && *has_form);
        evidence.fact("legal form", has_form);
        evidence.fact("legal form in another row", !has_form && others);
        evidence.fact(
            "only a legal form",
            has_form && name.words.iter().all(|word| LEGAL_FORMS.contains(&word.as_str()) || word.len() < 2),
        );
        evidence.fact(
            "begins with a legal form",
            name.words.first().is_some_and(|word| LEGAL_FORMS.contains(&word.as_str())),
        );
        evidence.fact("trade", name.has(TRADES));
        evidence.fact("address", name.has(ADDRESSES));
        evidence.fact("other word", name.has(OTHERS));
        evidence.fact(
            "mostly other words",
            name.words.iter().filter(|word| OTHERS.contains(&word.as_str())).count() * 2 >= name.words.len(),
        );
        let is_label =
            self.words.get(index)?.iter().any(|(place, _)| part.start <= place.start && place.end <= part.end);
        evidence.fact("label of a value", is_label);
        evidence.fact("digits", name.digits > 0);
        evidence.fact("mostly digits", name.digits > name.letters);
        evidence.fact("comma", row.chars().get(name.chars.clone())?.contains(&','));
        evidence.fact("short", name.letters < 4);
        evidence.fact("long", name.letters > 30);
        evidence.fact("one word", name.words.len() == 1);
        evidence.fact("capitals", name.capitals * 10 >= name.letters * 8);
        evidence.fact("labelled", name.label.is_some());
        evidence.fact(
            "name",
            name.label.as_ref().is_some_and(|label| label == "name" || label == "firma" || label == "company"),
        );
        evidence.fact("of seller", matches!(section, Section::Seller(_)));
        evidence.fact("of buyer", matches!(section, Section::Buyer(_)));
        let joined: String = name.words.concat();
        evidence.fact(
            "domain",
            joined.len() >= 4
                && self
                    .domains
                    .iter()
                    .any(|domain| domain.len() >= 4 && (joined.contains(domain.as_str()) || domain.contains(&joined))),
        );
        let is_again = |text: &String| joined.len() >= 5 && text.contains(&joined);
        let again = self.texts.iter().enumerate().any(|(other, text)| other != index && is_again(text));
        evidence.fact("again", again);
        let below = self.rows.get(index + 1).map(|row| row.chars().iter().filter(|char| char.is_ascii_digit()).count());
        evidence.fact("digits below", below.is_some_and(|digits| digits > 2));
        Some(evidence)
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
                domains.push(name.chars().flat_map(folded).collect());
            }
        }
    }
    domains
}
