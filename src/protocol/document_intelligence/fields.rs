//! Fields of receipts and invoices, by the names of this form.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::reading::{Corners, ReadField};
use super::request::DocumentModel;
use super::result::Region;

/// A field of the reader, with its names in a receipt and in an invoice, and the form of its value.
struct FieldName {
    name: &'static str,
    receipt: Option<&'static str>,
    invoice: &'static str,
    form: FieldForm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldForm {
    Text,
    Date,
    Amount,
    /// Taxes by rate, and their sum as `TotalTax`.
    Taxes,
    /// An account, as the only entry of a list.
    Account,
}

const FIELDS: [FieldName; 9] = [
    FieldName { name: "supplier", receipt: Some("MerchantName"), invoice: "VendorName", form: FieldForm::Text },
    FieldName { name: "date", receipt: Some("TransactionDate"), invoice: "InvoiceDate", form: FieldForm::Date },
    FieldName { name: "due_date", receipt: None, invoice: "DueDate", form: FieldForm::Date },
    FieldName { name: "number", receipt: None, invoice: "InvoiceId", form: FieldForm::Text },
    FieldName { name: "vat_id", receipt: None, invoice: "VendorTaxId", form: FieldForm::Text },
    FieldName { name: "total", receipt: Some("Total"), invoice: "InvoiceTotal", form: FieldForm::Amount },
    FieldName { name: "net", receipt: Some("Subtotal"), invoice: "SubTotal", form: FieldForm::Amount },
    FieldName { name: "tax", receipt: Some("TaxDetails"), invoice: "TaxDetails", form: FieldForm::Taxes },
    FieldName { name: "iban", receipt: None, invoice: "PaymentDetails", form: FieldForm::Account },
];

/// A field of a document (`DocumentField`).
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DocumentField {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(flatten)]
    value: FieldValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    bounding_regions: Vec<Region>,
    #[serde(skip_serializing_if = "Option::is_none")]
    confidence: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
enum FieldValue {
    #[serde(rename = "valueString")]
    Text(String),
    #[serde(rename = "valueDate")]
    Date(String),
    #[serde(rename = "valueCurrency")]
    Amount(CurrencyValue),
    #[serde(rename = "valueObject")]
    Object(BTreeMap<&'static str, DocumentField>),
    #[serde(rename = "valueArray")]
    List(Vec<DocumentField>),
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct CurrencyValue {
    amount: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    currency_code: Option<String>,
}

impl DocumentField {
    /// 0 to 1; none for a part of a list.
    pub fn confidence(&self) -> Option<f64> {
        self.confidence
    }

    fn part(value: FieldValue) -> Self {
        let kind = match &value {
            FieldValue::Text(_) => "string",
            FieldValue::Date(_) => "date",
            FieldValue::Amount(_) => "currency",
            FieldValue::Object(_) => "object",
            FieldValue::List(_) => "array",
        };
        Self { kind, value, content: None, bounding_regions: Vec::new(), confidence: None }
    }
}

/// The fields that were found on the pages that `region` knows.
pub(super) fn document_fields(
    found: &BTreeMap<String, ReadField>,
    model: DocumentModel,
    region: impl Fn(usize, &Corners) -> Option<Region>,
) -> BTreeMap<&'static str, DocumentField> {
    let currency = found.get("currency").and_then(|field| field.value.as_str());
    let mut fields = BTreeMap::new();
    for FieldName { name, receipt, invoice, form } in FIELDS {
        let name_here = if model == DocumentModel::Receipt { receipt } else { Some(invoice) };
        let (Some(name_here), Some(field)) = (name_here, found.get(name)) else { continue };
        let place = field.page.zip(field.corners.as_ref());
        let region = place.map(|(page, corners)| region(page, corners));
        // It stands on a page that is not answered.
        if region == Some(None) {
            continue;
        }
        let regions: Vec<_> = region.flatten().into_iter().collect();
        let whole = |value: FieldValue| DocumentField {
            content: field.text.clone(),
            bounding_regions: regions.clone(),
            confidence: Some(field.confidence),
            ..DocumentField::part(value)
        };
        let text = || field.value.as_str().map(str::to_owned);
        let value = match form {
            FieldForm::Text => text().map(FieldValue::Text),
            FieldForm::Date => text().map(FieldValue::Date),
            FieldForm::Amount => {
                let code = field.value.get("currency").and_then(Value::as_str).or(currency);
                number(field.value.get("amount")).map(|amount| amount_of(amount, code))
            }
            FieldForm::Taxes => {
                let taxes: Vec<_> = field.value.as_array().into_iter().flatten().collect();
                let amounts: Option<Vec<f64>> = taxes.iter().map(|tax| number(tax.get("amount"))).collect();
                if let Some(sum) =
                    amounts.filter(|amounts| !amounts.is_empty()).map(|amounts| amounts.iter().sum::<f64>())
                {
                    fields.insert("TotalTax", whole(amount_of((sum * 1e3).round() / 1e3, currency)));
                }
                Some(FieldValue::List(taxes.into_iter().filter_map(|tax| tax_of(tax, currency)).collect()))
            }
            FieldForm::Account => text().map(|iban| {
                let account = BTreeMap::from([("IBAN", DocumentField::part(FieldValue::Text(iban)))]);
                FieldValue::List(vec![DocumentField::part(FieldValue::Object(account))])
            }),
        };
        if let Some(value) = value {
            fields.insert(name_here, whole(value));
        }
    }
    fields
}

fn amount_of(amount: f64, code: Option<&str>) -> FieldValue {
    FieldValue::Amount(CurrencyValue { amount, currency_code: code.map(str::to_owned) })
}

/// A rate as `10%`.
fn percent(rate: &str) -> String {
    let digits = if rate.contains('.') { rate.trim_end_matches('0').trim_end_matches('.') } else { rate };
    format!("{digits}%")
}

/// A number that is written as a text, as amounts of the reader are.
fn number(value: Option<&Value>) -> Option<f64> {
    value?.as_str()?.parse().ok()
}

fn tax_of(tax: &Value, currency: Option<&str>) -> Option<DocumentField> {
    let amount = DocumentField::part(amount_of(number(tax.get("amount"))?, currency));
    // The service gives rates as they are printed.
    let rate = tax
        .get("rate")
        .and_then(Value::as_str)
        .map(|rate| ("Rate", DocumentField::part(FieldValue::Text(percent(rate)))));
    let parts = [("Amount", amount)].into_iter().chain(rate).collect();
    Some(DocumentField::part(FieldValue::Object(parts)))
}
