//! Where a document comes from, as far as its addresses, its currencies and its taxes say it.

use std::collections::BTreeSet;

use super::evidence::Evidence;
use super::labelled_amount::LabelledAmount;
use super::row_text::{GAP, RowText};
use super::value::MoneyAmount;

/// The states and districts of the United States, in two letters.
const STATES: &str = "AL AK AZ AR CA CO CT DE FL GA HI ID IL IN IA KS KY LA ME MD MA MI MN MS MO MT NE NV NH NJ NM NY NC ND OH OK OR PA RI SC SD TN TX UT VT VA WA WV WI WY DC PR";

/// Those that are words of other languages: "CALLE 5 DE 11001". They count behind a comma.
const WORD_STATES: &str = "AL CO DE HI IN LA MA ME OK OR PA";

/// Names of states that are one word, and no country.
const STATE_NAMES: &[&str] = &[
    "alabama",
    "alaska",
    "arizona",
    "arkansas",
    "california",
    "colorado",
    "connecticut",
    "delaware",
    "florida",
    "hawaii",
    "idaho",
    "illinois",
    "indiana",
    "iowa",
    "kansas",
    "kentucky",
    "louisiana",
    "maryland",
    "massachusetts",
    "michigan",
    "minnesota",
    "mississippi",
    "missouri",
    "nebraska",
    "nevada",
    "ohio",
    "oklahoma",
    "oregon",
    "pennsylvania",
    "tennessee",
    "texas",
    "utah",
    "vermont",
    "virginia",
    "wisconsin",
    "wyoming",
];

/// Words of taxes on added value, which the United States do not have.
const VALUE_ADDED: &[&str] =
    &["gst", "vat", "mwst", "ust", "tva", "iva", "btw", "moms", "dph", "kdv", "sst", "ptu", "abn", "hst"];

/// Words of the taxes of countries that have dollars or pesos of their own: whoever prints them is there.
const TAXES_OF_OTHER_DOLLARS: &[&str] =
    &["abn", "nzbn", "uen", "hst", "qst", "tvq", "rfc", "cfdi", "nit", "cuit", "afip", "統一發票"];

/// A hint at a country.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CountryHint {
    AmericanAddress,
    AmericanTelephone,
    AmericanState,
    /// A date that only its month in front makes one.
    MonthFirst,
    /// "USD" or "US$".
    AmericanDollars,
    Dollars,
    OtherCurrency,
    ValueAddedTax,
    TaxOfOtherDollars,
    SalesTax,
    Canada,
    Australia,
    Singapore,
    HongKong,
    NewZealand,
    Taiwan,
    Mexico,
    Colombia,
    Chile,
    Argentina,
}

/// Countries with dollars or pesos of their own, which their documents write as `$`. The first that a document names
/// counts.
const DOLLARS: &[(CountryHint, &str)] = &[
    (CountryHint::Canada, "CAD"),
    (CountryHint::Australia, "AUD"),
    (CountryHint::Singapore, "SGD"),
    (CountryHint::HongKong, "HKD"),
    (CountryHint::NewZealand, "NZD"),
    (CountryHint::Taiwan, "TWD"),
    (CountryHint::Mexico, "MXN"),
    (CountryHint::Colombia, "COP"),
    (CountryHint::Chile, "CLP"),
    (CountryHint::Argentina, "ARS"),
];

/// Words that hint at a country.
const WORDS: &[(CountryHint, &[&str])] = &[
    (CountryHint::AmericanDollars, &["usd"]),
    (CountryHint::AmericanState, STATE_NAMES),
    (CountryHint::ValueAddedTax, VALUE_ADDED),
    (CountryHint::TaxOfOtherDollars, TAXES_OF_OTHER_DOLLARS),
    (
        CountryHint::Canada,
        &["canada", "hst", "qst", "tvq", "tps", "ontario", "quebec", "toronto", "montreal", "vancouver"],
    ),
    (CountryHint::Australia, &["australia", "abn", "sydney", "melbourne", "nsw"]),
    (CountryHint::Singapore, &["singapore", "pte", "uen"]),
    (CountryHint::HongKong, &["hongkong", "kowloon"]),
    (CountryHint::NewZealand, &["zealand", "auckland", "wellington", "christchurch", "nzbn"]),
    (CountryHint::Taiwan, &["taiwan", "taipei", "統一發票", "臺北", "台北"]),
    (CountryHint::Mexico, &["mexico", "méxico", "cdmx", "rfc", "cfdi"]),
    (CountryHint::Colombia, &["colombia", "bogota", "bogotá", "medellin", "medellín", "nit"]),
    (CountryHint::Chile, &["chile", "santiago", "sii"]),
    (CountryHint::Argentina, &["argentina", "cuit", "afip"]),
];

/// The hints of a document on its country.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Origin(BTreeSet<CountryHint>);

impl Origin {
    pub(super) fn of(rows: &[RowText<'_>], amounts: &[LabelledAmount]) -> Self {
        let mut hints = BTreeSet::new();
        for code in amounts.iter().filter_map(|amount| amount.amount.currency()) {
            hints.insert(if code == "USD" { CountryHint::Dollars } else { CountryHint::OtherCurrency });
        }
        for row in rows {
            let text: String = row.chars().iter().map(|char| if *char == GAP { ' ' } else { *char }).collect();
            let words: Vec<&str> =
                text.split(|char: char| !char.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
            let small: Vec<String> = words.iter().map(|word| word.to_lowercase()).collect();
            let facts = [
                (CountryHint::AmericanAddress, has_american_address(&text)),
                (CountryHint::AmericanDollars, text.contains("US$")),
                (CountryHint::AmericanTelephone, words.windows(3).any(is_american_telephone)),
                (CountryHint::MonthFirst, text.split(' ').any(is_month_first)),
                (CountryHint::SalesTax, small.windows(2).any(|two| two == ["sales", "tax"])),
                (CountryHint::HongKong, small.windows(2).any(|two| two == ["hong", "kong"])),
                (CountryHint::Canada, words.windows(2).any(is_canadian_postcode)),
            ];
            hints.extend(facts.into_iter().filter(|(_, is_so)| *is_so).map(|(hint, _)| hint));
            let has = |names: &[&str]| small.iter().any(|word| names.contains(&word.as_str()));
            hints.extend(WORDS.iter().filter(|(_, names)| has(names)).map(|(hint, _)| *hint));
        }
        Self(hints)
    }

    fn has(&self, hint: CountryHint) -> bool {
        self.0.contains(&hint)
    }

    /// The currency that a sign of dollars stands for here; other currencies are what they are. `None` for dollars or
    /// pesos of an unknown country, and where one country is as likely as another. The United States have no tax on
    /// added value.
    pub(super) fn of_dollars(&self, code: &'static str) -> Option<&'static str> {
        use CountryHint::{
            AmericanAddress, AmericanDollars, AmericanState, AmericanTelephone, MonthFirst, SalesTax, TaxOfOtherDollars,
        };
        let has_any = |hints: &[CountryHint]| hints.iter().any(|hint| self.has(*hint));
        if code != "USD" || self.has(AmericanDollars) {
            return Some(code);
        }
        if has_any(&[AmericanAddress, SalesTax]) {
            return (!self.has(TaxOfOtherDollars)).then_some(code);
        }
        let own = DOLLARS.iter().find(|(country, _)| self.has(*country)).map(|(_, code)| *code);
        let is_likely_american =
            has_any(&[AmericanState, AmericanTelephone, MonthFirst]) && !self.has(CountryHint::ValueAddedTax);
        own.or_else(|| is_likely_american.then_some(code))
    }

    /// The amount with the currency that its sign stands for here.
    pub(super) fn of_amount(&self, amount: MoneyAmount) -> MoneyAmount {
        MoneyAmount { currency: amount.currency.and_then(|code| self.of_dollars(code)), ..amount }
    }

    /// The facts of the origin about a currency.
    pub(super) fn support_currency(&self, code: &str, evidence: &mut Evidence) {
        evidence.fact("dollars", code == "USD");
        evidence.fact("dollars: american address", code == "USD" && self.has(CountryHint::AmericanAddress));
        evidence.fact("dollars: value added tax", code == "USD" && self.has(CountryHint::ValueAddedTax));
        evidence.fact("dollars of another country", DOLLARS.iter().any(|(_, own)| *own == code));
        evidence.fact("dollars: american telephone", code == "USD" && self.has(CountryHint::AmericanTelephone));
        evidence.fact("dollars: sales tax", code == "USD" && self.has(CountryHint::SalesTax));
        evidence.fact("dollars: month first", code == "USD" && self.has(CountryHint::MonthFirst));
    }

    /// The facts of the origin about the order of day and month in a date that has two readings.
    pub(super) fn support_order(&self, is_month_first: bool, evidence: &mut Evidence) {
        evidence.fact("ambiguous", true);
        if is_month_first {
            evidence.fact("month first", true);
            evidence.fact("month first: american address", self.has(CountryHint::AmericanAddress));
            evidence.fact("month first: american telephone", self.has(CountryHint::AmericanTelephone));
            evidence.fact("month first: dollars", self.has(CountryHint::Dollars));
            evidence.fact("month first: another currency", self.has(CountryHint::OtherCurrency));
            evidence.fact("month first: value added tax", self.has(CountryHint::ValueAddedTax));
            evidence.fact("month first: sales tax", self.has(CountryHint::SalesTax));
        }
    }
}

/// A state with its postal code: "CA 94103", "CA94103", "Portland, OR 97201".
fn has_american_address(text: &str) -> bool {
    let is_zip = |zip: &str| {
        let digits = zip.split_once('-').map_or(zip, |(digits, _)| digits);
        digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    let is_known = |states: &str, state: &str| states.split(' ').any(|known| known == state);
    let spaced = text.replace(',', " , ");
    let words =
        spaced.split_whitespace().map(|word| word.trim_matches(|char: char| !char.is_alphanumeric() && char != ','));
    let words: Vec<&str> = std::iter::once("").chain(words.filter(|word| !word.is_empty())).collect();
    words.iter().zip(words.iter().skip(1)).zip(words.iter().skip(2).chain([&""])).any(|((before, word), next)| {
        let (state, zip) = word.split_at_checked(2).unwrap_or_default();
        let is_address = is_known(STATES, state) && is_zip(if zip.is_empty() { next } else { zip });
        is_address && (!is_known(WORD_STATES, state) || *before == ",")
    })
}

/// 3/25/2017
fn is_month_first(word: &str) -> bool {
    let parts: Vec<Option<u32>> = word.split('/').map(|part| part.parse().ok()).collect();
    matches!(parts.as_slice(), [Some(1..=12), Some(13..=31), Some(0..=99 | 1990..=2099)])
}

/// K1A 0B1
fn is_canadian_postcode(two: &[&str]) -> bool {
    let form = |char: char| match char {
        '0'..='9' => '0',
        'A'..='Z' => 'A',
        _ => '?',
    };
    let forms = two.iter().map(|part| part.chars().map(form).collect::<String>());
    forms.eq(["A0A", "0A0"])
}

/// 555 123 4567
fn is_american_telephone(three: &[&str]) -> bool {
    let lengths: Vec<usize> = three.iter().map(|part| part.len()).collect();
    lengths == [3, 3, 4] && three.iter().all(|part| part.chars().all(|char| char.is_ascii_digit()))
}
