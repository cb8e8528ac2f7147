//! The values of an invoice that its file states by itself, as XML, to compare with those on its pages.

use ledge_documents::InvoiceXml;

use super::amount::currency_of_code;
use super::value::{MoneyAmount, ParsedFieldValue, TaxAmount};
use super::{DocumentFieldDeclaration, DocumentFieldPattern, DocumentText, FoundDocumentField};

/// A value that a file states, and whether its pages say the same.
#[derive(Debug, Clone, PartialEq)]
pub enum StatedField {
    /// The value stands on a page.
    Printed(FoundDocumentField),
    /// No page says it, and none says another one surely.
    Unprinted(ParsedFieldValue),
    /// The pages say another one.
    Contradicted { stated: ParsedFieldValue, printed: FoundDocumentField },
}

impl DocumentText<'_> {
    /// Compares the value that a file states for a field with its pages. `None` if it states none.
    pub fn stated(&self, field: &DocumentFieldDeclaration, invoice: &InvoiceXml) -> Option<StatedField> {
        let stated = value(field.pattern, invoice)?;
        let candidates = self.candidates(field.pattern);
        let same = candidates.iter().find(|candidate| is_same(&stated, &candidate.value));
        let place = same.and_then(|same| self.found(same.row, &same.chars, stated.clone(), Some(1.0)));
        if let Some(found) = place {
            return Some(StatedField::Printed(found));
        }
        let printed = self.likeliest(field, candidates).filter(|printed| printed.confidence >= field.threshold);
        Some(match printed {
            Some(printed) => StatedField::Contradicted { stated, printed },
            None => StatedField::Unprinted(stated),
        })
    }
}

/// The value that the XML has for a pattern.
fn value(pattern: DocumentFieldPattern, invoice: &InvoiceXml) -> Option<ParsedFieldValue> {
    use DocumentFieldPattern as Pattern;
    let InvoiceXml { number, date, due_date, supplier, vat_id, currency, total, net, taxes, iban } = invoice;
    let code = currency.as_deref().and_then(currency_of_code);
    let text = |text: &Option<String>| text.clone().map(ParsedFieldValue::Text);
    let amount = |text: &Option<String>| {
        let amount = MoneyAmount::parse(text.as_deref()?)?;
        Some(ParsedFieldValue::Amount(MoneyAmount { currency: code, ..amount }))
    };
    match pattern {
        Pattern::Total => amount(total),
        Pattern::Net => amount(net),
        Pattern::Tax => {
            let tax = |(rate, amount): &(Option<String>, String)| {
                let rate = rate.as_deref().and_then(MoneyAmount::parse).map(|rate| rate.thousandths() / 10);
                Some(TaxAmount { rate, amount: MoneyAmount::parse(amount)? })
            };
            let taxes: Vec<_> = taxes.iter().map(tax).collect::<Option<_>>()?;
            (!taxes.is_empty()).then_some(ParsedFieldValue::Taxes(taxes))
        }
        Pattern::Currency => code.map(|code| ParsedFieldValue::Text(code.to_owned())),
        Pattern::Supplier => supplier.clone().map(ParsedFieldValue::Name),
        Pattern::DocumentDate => text(date),
        Pattern::DueDate => text(due_date),
        Pattern::DocumentNumber => text(number),
        Pattern::Iban => text(&iban.as_ref().map(|iban| iban.replace(' ', ""))),
        Pattern::VatId => text(vat_id),
        Pattern::Amount | Pattern::Date | Pattern::Number => None,
    }
}

/// Returns true if a value on a page is the stated one. A page may write numbers and dates with signs.
fn is_same(stated: &ParsedFieldValue, printed: &ParsedFieldValue) -> bool {
    match (stated, printed) {
        (ParsedFieldValue::Amount(one), ParsedFieldValue::Amount(other)) => one.thousandths() == other.thousandths(),
        (ParsedFieldValue::Taxes(one), ParsedFieldValue::Taxes(other)) => {
            let amounts = |taxes: &[TaxAmount]| {
                let amounts = taxes.iter().map(|tax| tax.amount.thousandths()).filter(|amount| *amount != 0);
                let mut amounts: Vec<i64> = amounts.collect();
                amounts.sort_unstable();
                amounts
            };
            amounts(one) == amounts(other)
        }
        (ParsedFieldValue::Text(one), ParsedFieldValue::Text(other)) => {
            let letters = |text: &str| -> String {
                text.chars().filter(|letter| letter.is_alphanumeric()).flat_map(char::to_lowercase).collect()
            };
            letters(one) == letters(other)
        }
        (stated, printed) => stated.agrees(printed),
    }
}
