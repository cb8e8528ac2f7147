//! The invoice that a PDF carries as XML: Factur-X and ZUGFeRD, in the syntaxes of EN 16931 (UN/CEFACT Cross Industry
//! Invoice D16B, UBL 2.1) and in that of ZUGFeRD 1.0.

use hayro::hayro_syntax::Pdf;
use hayro::hayro_syntax::object::{self, Array, Dict, Stream};
use roxmltree::{Document, Node};
use serde::{Deserialize, Serialize};

/// The names of the attachment (Factur-X 1.07, 6.2.2).
const NAMES: [&str; 4] = ["factur-x.xml", "zugferd-invoice.xml", "xrechnung.xml", "order-x.xml"];
/// The largest XML in bytes.
const BYTES_MAX: usize = 8 << 20;
/// The longest value in characters.
const VALUE_CHARS_MAX: usize = 200;
/// The most taxes.
const TAXES_MAX: usize = 20;
/// The most attachments that are looked at, and the most nodes of their tree of names.
const ATTACHMENTS_MAX: usize = 1000;
const NODES_MAX: usize = 1000;

/// An invoice as the XML has it. Amounts are decimal numbers, dates `YYYY-MM-DD`; what it does not say is none.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct InvoiceXml {
    pub number: Option<String>,
    pub date: Option<String>,
    pub due_date: Option<String>,
    pub supplier: Option<String>,
    pub vat_id: Option<String>,
    pub currency: Option<String>,
    /// With taxes, before what was paid already.
    pub total: Option<String>,
    pub net: Option<String>,
    /// Rates in percent, and amounts.
    pub taxes: Vec<(Option<String>, String)>,
    pub iban: Option<String>,
}

impl InvoiceXml {
    /// The invoice that a PDF carries; `None` without one, and for one that cannot be read.
    pub(crate) fn of(pdf: &Pdf) -> Option<Self> {
        Self::parse(&attachment(pdf)?)
    }

    /// Returns true if no value is longer than one is read.
    pub(crate) fn is_bounded(&self) -> bool {
        let Self { number, date, due_date, supplier, vat_id, currency, total, net, taxes, iban } = self;
        let texts = [number, date, due_date, supplier, vat_id, currency, total, net, iban].into_iter().flatten();
        let taxes_text = taxes.iter().flat_map(|(rate, amount)| rate.iter().chain([amount]));
        taxes.len() <= TAXES_MAX && texts.chain(taxes_text).all(|text| text.len() <= 4 * VALUE_CHARS_MAX)
    }

    fn parse(xml: &[u8]) -> Option<Self> {
        // Without a DTD, which an invoice has not: its entities could be of any size.
        let text = std::str::from_utf8(xml.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(xml)).ok()?;
        let document = Document::parse(text).ok()?;
        let root = document.root_element();
        let invoice = match root.tag_name().name() {
            "CrossIndustryInvoice" | "CrossIndustryDocument" => cross_industry(root),
            "Invoice" | "CreditNote" => universal(root),
            _ => return None,
        };
        (invoice != Self::default()).then_some(invoice)
    }
}

/// The bytes of the XML among the attachments.
fn attachment(pdf: &Pdf) -> Option<Vec<u8>> {
    let root: Dict<'_> = pdf.xref().get(pdf.xref().root_id())?;
    let mut files: Vec<Dict<'_>> = Vec::new();
    if let Some(associated) = root.get::<Array<'_>>("AF") {
        files.extend(associated.iter::<Dict<'_>>().take(ATTACHMENTS_MAX));
    }
    let tree = root.get::<Dict<'_>>("Names").and_then(|names| names.get::<Dict<'_>>("EmbeddedFiles"));
    if let Some(tree) = tree {
        collect(tree, &mut files);
    }
    let named = |file: &&Dict<'_>| {
        let name = |key| file.get::<object::String<'_>>(key).map(|name| letters(name.as_bytes()));
        [name("UF"), name("F")].into_iter().flatten().any(|name| NAMES.contains(&name.as_str()))
    };
    let file = files.iter().find(named)?.get::<Dict<'_>>("EF")?;
    let stream = file.get::<Stream<'_>>("UF").or_else(|| file.get::<Stream<'_>>("F"))?;
    let bytes = stream.decoded().ok()?;
    (bytes.len() <= BYTES_MAX).then(|| bytes.into_owned())
}

/// The files of a tree of names, which may refer to itself.
fn collect<'a>(tree: Dict<'a>, files: &mut Vec<Dict<'a>>) {
    let mut waiting = vec![tree];
    for _ in 0..NODES_MAX {
        let Some(node) = waiting.pop() else { return };
        if let Some(names) = node.get::<Array<'a>>("Names") {
            let found = names.iter::<object::Object<'a>>().filter_map(object::Object::into_dict);
            files.extend(found.take(ATTACHMENTS_MAX.saturating_sub(files.len())));
        }
        if let Some(kids) = node.get::<Array<'a>>("Kids") {
            waiting.extend(kids.iter::<Dict<'a>>().take(NODES_MAX.saturating_sub(waiting.len())));
        }
    }
}

/// The ASCII letters of a name in small ones: in UTF-16 there are zeros between them.
fn letters(name: &[u8]) -> String {
    let visible = name.iter().filter(|byte| byte.is_ascii_graphic());
    visible.map(|byte| char::from(byte.to_ascii_lowercase())).collect()
}

/// The first element at a path below, whatever the namespaces.
fn at<'a>(node: Node<'a, 'a>, path: &[&str]) -> Option<Node<'a, 'a>> {
    let Some((name, rest)) = path.split_first() else { return Some(node) };
    let mut children = node.children().filter(|child| child.is_element() && child.tag_name().name() == *name);
    children.find_map(|child| at(child, rest))
}

fn all<'a>(node: Node<'a, 'a>, name: &'a str) -> impl Iterator<Item = Node<'a, 'a>> {
    node.children().filter(move |child| child.is_element() && child.tag_name().name() == name)
}

fn value(node: Option<Node<'_, '_>>) -> Option<String> {
    let text = node?.text()?.trim();
    let is_value = !text.is_empty() && text.chars().count() <= VALUE_CHARS_MAX && !text.contains(char::is_control);
    is_value.then(|| text.to_owned())
}

/// A decimal number as XML has it.
fn amount(node: Option<Node<'_, '_>>) -> Option<String> {
    let is_number = |text: &String| {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let (whole, decimals) = digits.split_once('.').unwrap_or((digits, "0"));
        let are_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        are_digits(whole) && are_digits(decimals) && text.len() <= 20
    };
    value(node).filter(is_number)
}

/// A date as `YYYY-MM-DD` or, in the format 102, as `YYYYMMDD`.
fn date(node: Option<Node<'_, '_>>) -> Option<String> {
    let text = value(node)?;
    let digits: String = text.chars().filter(char::is_ascii_digit).take(8).collect();
    let part = |range| digits.get(range);
    let (year, month, day) = (part(0..4)?, part(4..6)?, part(6..8)?);
    let is_date = ("01"..="12").contains(&month) && ("01"..="31").contains(&day);
    is_date.then(|| format!("{year}-{month}-{day}"))
}

/// Cross Industry Invoice. The names in ZUGFeRD 1.0 are the second ones.
fn cross_industry(root: Node<'_, '_>) -> InvoiceXml {
    let one_of = |names: &[&str]| names.iter().find_map(|name| at(root, &[name]));
    let head = one_of(&["ExchangedDocument", "HeaderExchangedDocument"]);
    let trade = one_of(&["SupplyChainTradeTransaction", "SpecifiedSupplyChainTradeTransaction"]);
    let part = |names: [&str; 2]| trade.and_then(|trade| names.iter().find_map(|name| at(trade, &[name])));
    let agreement = part(["ApplicableHeaderTradeAgreement", "ApplicableSupplyChainTradeAgreement"]);
    let settlement = part(["ApplicableHeaderTradeSettlement", "ApplicableSupplyChainTradeSettlement"]);
    let below = |node: Option<Node<'_, '_>>, path: &[&str]| -> Option<String> { value(at(node?, path)) };
    let sums = settlement.and_then(|settlement| {
        let names = ["SpecifiedTradeSettlementHeaderMonetarySummation", "SpecifiedTradeSettlementMonetarySummation"];
        names.iter().find_map(|name| at(settlement, &[name]))
    });
    let seller = agreement.and_then(|agreement| at(agreement, &["SellerTradeParty"]));
    let vat_id = seller.and_then(|seller| {
        let mut registrations = all(seller, "SpecifiedTaxRegistration").filter_map(|entry| at(entry, &["ID"]));
        value(registrations.find(|id| id.attribute("schemeID") == Some("VA")))
    });
    let taxes = settlement.into_iter().flat_map(|settlement| all(settlement, "ApplicableTradeTax"));
    let taxes = taxes.filter_map(|tax| {
        let rate = ["RateApplicablePercent", "ApplicablePercent"].iter().find_map(|name| amount(at(tax, &[name])));
        Some((rate, amount(at(tax, &["CalculatedAmount"]))?))
    });
    let iban = ["SpecifiedTradeSettlementPaymentMeans", "PayeePartyCreditorFinancialAccount", "IBANID"];
    let due = ["SpecifiedTradePaymentTerms", "DueDateDateTime", "DateTimeString"];
    InvoiceXml {
        number: below(head, &["ID"]),
        date: date(head.and_then(|head| at(head, &["IssueDateTime", "DateTimeString"]))),
        due_date: date(settlement.and_then(|settlement| at(settlement, &due))),
        supplier: below(seller, &["Name"]),
        vat_id,
        currency: below(settlement, &["InvoiceCurrencyCode"]),
        total: amount(sums.and_then(|sums| at(sums, &["GrandTotalAmount"]))),
        net: amount(sums.and_then(|sums| at(sums, &["TaxBasisTotalAmount"]))),
        taxes: taxes.take(TAXES_MAX).collect(),
        iban: below(settlement, &iban),
    }
}

/// UBL.
fn universal(root: Node<'_, '_>) -> InvoiceXml {
    let party = at(root, &["AccountingSupplierParty", "Party"]);
    let of_party = |path: &[&str]| value(at(party?, path));
    let taxes = at(root, &["TaxTotal"]).into_iter().flat_map(|total| all(total, "TaxSubtotal"));
    let taxes =
        taxes.filter_map(|tax| Some((amount(at(tax, &["TaxCategory", "Percent"])), amount(at(tax, &["TaxAmount"]))?)));
    let name = of_party(&["PartyLegalEntity", "RegistrationName"]);
    InvoiceXml {
        number: value(at(root, &["ID"])),
        date: date(at(root, &["IssueDate"])),
        due_date: date(at(root, &["DueDate"])),
        supplier: name.or_else(|| of_party(&["PartyName", "Name"])),
        vat_id: of_party(&["PartyTaxScheme", "CompanyID"]),
        currency: value(at(root, &["DocumentCurrencyCode"])),
        total: amount(at(root, &["LegalMonetaryTotal", "TaxInclusiveAmount"])),
        net: amount(at(root, &["LegalMonetaryTotal", "TaxExclusiveAmount"])),
        taxes: taxes.take(TAXES_MAX).collect(),
        iban: value(at(root, &["PaymentMeans", "PayeeFinancialAccount", "ID"])),
    }
}

/// Reads any bytes as the XML of an invoice; true for one. What is read has bounded values. The folder `fuzz/` and
/// `tests/it/fuzz.rs` feed it.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_invoice_xml(data: &[u8]) -> bool {
    let invoice = InvoiceXml::parse(data);
    assert!(invoice.as_ref().is_none_or(InvoiceXml::is_bounded));
    invoice.is_some()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An invoice of both syntaxes with the same content.
    const CROSS_INDUSTRY: &str = "<r:CrossIndustryInvoice xmlns:r='r' xmlns:a='a'><r:ExchangedDocument><a:ID>R-1</a:ID>\
        <a:IssueDateTime><a:DateTimeString format='102'>20261124</a:DateTimeString></a:IssueDateTime></r:ExchangedDocument>\
        <r:SupplyChainTradeTransaction><a:ApplicableHeaderTradeAgreement><a:SellerTradeParty><a:Name>Hill &amp; Sons</a:Name>\
        <a:SpecifiedTaxRegistration><a:ID schemeID='FC'>1</a:ID></a:SpecifiedTaxRegistration>\
        <a:SpecifiedTaxRegistration><a:ID schemeID='VA'>DE136695976</a:ID></a:SpecifiedTaxRegistration></a:SellerTradeParty>\
        </a:ApplicableHeaderTradeAgreement><a:ApplicableHeaderTradeSettlement><a:InvoiceCurrencyCode>EUR</a:InvoiceCurrencyCode>\
        <a:ApplicableTradeTax><a:CalculatedAmount>19.00</a:CalculatedAmount><a:RateApplicablePercent>19</a:RateApplicablePercent>\
        </a:ApplicableTradeTax><a:SpecifiedTradePaymentTerms><a:DueDateDateTime><a:DateTimeString>20261224</a:DateTimeString>\
        </a:DueDateDateTime></a:SpecifiedTradePaymentTerms><a:SpecifiedTradeSettlementHeaderMonetarySummation>\
        <a:TaxBasisTotalAmount>100.00</a:TaxBasisTotalAmount><a:GrandTotalAmount>119.00</a:GrandTotalAmount>\
        </a:SpecifiedTradeSettlementHeaderMonetarySummation></a:ApplicableHeaderTradeSettlement>\
        </r:SupplyChainTradeTransaction></r:CrossIndustryInvoice>";

    const UNIVERSAL: &str = "<Invoice><ID>R-1</ID><IssueDate>2026-11-24</IssueDate><DueDate>2026-12-24</DueDate>\
        <DocumentCurrencyCode>EUR</DocumentCurrencyCode><AccountingSupplierParty><Party><PartyTaxScheme>\
        <CompanyID>DE136695976</CompanyID></PartyTaxScheme><PartyLegalEntity><RegistrationName>Hill &amp; Sons</RegistrationName>\
        </PartyLegalEntity></Party></AccountingSupplierParty><TaxTotal><TaxSubtotal><TaxAmount>19.00</TaxAmount><TaxCategory>\
        <Percent>19</Percent></TaxCategory></TaxSubtotal></TaxTotal><LegalMonetaryTotal>\
        <TaxExclusiveAmount>100.00</TaxExclusiveAmount><TaxInclusiveAmount>119.00</TaxInclusiveAmount></LegalMonetaryTotal></Invoice>";

    #[test]
    fn both_syntaxes_say_the_same() {
        let text = |text: &str| Some(text.to_owned());
        let expected = InvoiceXml {
            number: text("R-1"),
            date: text("2026-11-24"),
            due_date: text("2026-12-24"),
            supplier: text("Hill & Sons"),
            vat_id: text("DE136695976"),
            currency: text("EUR"),
            total: text("119.00"),
            net: text("100.00"),
            taxes: vec![(text("19"), "19.00".to_owned())],
            iban: None,
        };
        assert_eq!(InvoiceXml::parse(CROSS_INDUSTRY.as_bytes()), Some(expected.clone()));
        assert_eq!(InvoiceXml::parse(UNIVERSAL.as_bytes()), Some(expected));
    }

    #[test]
    fn entities_other_documents_and_wrong_numbers_are_left_out() {
        let bomb = format!("<!DOCTYPE a [<!ENTITY b 'bbbb'>]>{}", CROSS_INDUSTRY.replace("R-1", "&b;"));
        assert_eq!(InvoiceXml::parse(bomb.as_bytes()), None);
        assert_eq!(InvoiceXml::parse(b"<Order><ID>1</ID></Order>"), None);
        let wrong = CROSS_INDUSTRY.replace("119.00", "1e9").replace("20261124", "20261324");
        let wrong = InvoiceXml::parse(wrong.as_bytes()).unwrap();
        assert_eq!((wrong.total, wrong.date, wrong.net), (None, None, Some("100.00".to_owned())));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_left_out(at in 0..CROSS_INDUSTRY.len(), with in "[<>&a-z0-9/'=\" ]{0,8}") {
            let changed = format!("{}{with}{}", &CROSS_INDUSTRY[..at], &CROSS_INDUSTRY[at..]);
            if let Some(invoice) = InvoiceXml::parse(changed.as_bytes()) {
                prop_assert!(invoice.total.is_none_or(|total| total.parse::<f64>().is_ok()));
            }
        }
    }
}
