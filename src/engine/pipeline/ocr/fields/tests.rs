use proptest::prelude::*;

use super::super::geometry::PageArea;
use super::super::order;
use super::*;

/// A page of text: each line of it is a row, and two or more spaces divide its lines. A letter is 10 wide, a line 20
/// high.
fn find(text: &str, field: &DocumentFieldDeclaration) -> Option<FoundDocumentField> {
    let lines = lines(text);
    let areas: Vec<Quadrilateral> = lines.iter().map(OcrLine::area).collect();
    DocumentText::new([(order::rows(&areas).as_slice(), lines.as_slice())]).find(field)
}

fn lines(text: &str) -> Vec<OcrLine> {
    let mut lines = Vec::new();
    for (row, top) in text.lines().zip((0_u16..).step_by(30)) {
        let mut start = 0;
        for cell in row.split("  ") {
            let length = u16::try_from(cell.chars().count()).unwrap();
            let indent = u16::try_from(cell.chars().take_while(|char| *char == ' ').count()).unwrap();
            let (left, right) = (f32::from(start + indent) * 10.0, f32::from(start + length) * 10.0);
            let area = PageArea { left, top: f32::from(top), right, bottom: f32::from(top) + 20.0 };
            if !cell.trim().is_empty() {
                lines.push(OcrLine::even(cell.trim(), Quadrilateral::upright(area), 0.99));
            }
            start += length + 2;
        }
    }
    lines
}

fn field(toml: &str) -> DocumentFieldDeclaration {
    toml::from_str(&format!("name = \"x\"\n{toml}")).unwrap()
}

fn value(text: &str, field: &DocumentFieldDeclaration) -> String {
    match find(text, field).map(|found| found.value) {
        Some(ParsedFieldValue::Amount(amount)) => format!("{amount} {}", amount.currency().unwrap_or("?")),
        Some(ParsedFieldValue::Text(text) | ParsedFieldValue::Name(text)) => text,
        Some(taxes @ ParsedFieldValue::Taxes(_)) => serde_json::to_string(&taxes).unwrap(),
        None => "none".to_owned(),
    }
}

#[test]
fn amounts_are_read_in_the_forms_of_many_countries() {
    let any = field("pattern = 'amount'");
    for (text, expected) in [
        ("12.50", "12.50 ?"),
        ("12,50 €", "12.50 EUR"),
        ("€ 1.234,56", "1234.56 EUR"),
        ("$1,234.56", "1234.56 ?"),
        ("1 234,56 EUR", "1234.56 EUR"),
        ("CHF 1'234.50", "1234.50 CHF"),
        ("EUR12,50", "12.50 EUR"),
        ("12 345 Ft", "12345 HUF"),
        ("1.234.567,89 zł", "1234567.89 PLN"),
        ("$25", "25 ?"),
        ("Rs 1939", "1939 INR"),
        ("Rs. 1,939", "1939 INR"),
        ("Cars 1939", "none"),
        ("-12,50", "-12.50 ?"),
        ("12,50-", "-12.50 ?"),
        ("-€12.50", "-12.50 EUR"),
        // As models read them.
        ("12,5O EUR", "12.50 EUR"),
        ("l2.S0", "12.50 ?"),
        ("1O,OO", "10.00 ?"),
        ("12, 50", "12.50 ?"),
        ("156,59UR", "156.59 ?"),
        ("12 ,50", "12.50 ?"),
        ("E12.50", "12.50 ?"),
        ("12,50C", "12.50 ?"),
        ("¥12.50", "12.50 ?"),
        ("¥1200", "1200 JPY"),
        ("A$12.50", "12.50 AUD"),
        ("X$12.50", "12.50 ?"),
        ("AED105.00", "105.00 AED"),
        ("AED 105.00", "105.00 AED"),
        ("105.00 SAR", "105.00 SAR"),
        ("KWD 1,234.500", "1234.500 KWD"),
        ("EUR 1.234", "1234 EUR"),
        ("6,54,321.00", "654321.00 ?"),
        ("12.50DKK", "12.50 DKK"),
        ("$2,779.5", "2779.5 ?"),
        ("2779.5", "none"),
        ("1.234.56", "1234.56 ?"),
        ("1２．50", "12.50 ?"),
        ("2 x 3,00", "3.00 ?"),
        ("2 12.50", "12.50 ?"),
        // No amounts.
        ("19,00 %", "none"),
        ("12.05.2024", "none"),
        ("12.05.24", "none"),
        ("14:05", "none"),
        ("12:30.15", "none"),
        ("1.2.3", "none"),
        ("v1.50a", "none"),
        ("25", "none"),
        ("1234567890123456.00", "none"),
        ("SOS", "none"),
        ("OO.OO", "none"),
        ("", "none"),
    ] {
        assert_eq!(value(text, &any), expected, "{text}");
    }
}

#[test]
fn dates_are_read_in_seven_languages() {
    let any = field("pattern = 'date'");
    for (text, expected) in [
        ("2026-11-23", "2026-11-23"),
        ("23.11.2026", "2026-11-23"),
        ("23.11.26 14:05", "2026-11-23"),
        ("Datum:23/11/2026", "2026-11-23"),
        ("11/23/2026", "2026-11-23"),
        ("03/04/2026", "2026-04-03"),
        ("23-11-2026", "2026-11-23"),
        ("3. 4. 2026", "2026-04-03"),
        ("23.11.2O26", "2026-11-23"),
        ("23 November 2026", "2026-11-23"),
        ("November 23, 2026", "2026-11-23"),
        ("Nov 23rd, 2026", "2026-11-23"),
        ("23-Nov-26", "2026-11-23"),
        ("23. März 2026", "2026-03-23"),
        ("23. Dez. 2026", "2026-12-23"),
        ("le 23 février 2026", "2026-02-23"),
        ("1er août 2026", "2026-08-01"),
        // The day of the week decides the order if it fits only one.
        ("Fri 04/07/2017", "2017-04-07"),
        ("Tue 04/07/2017", "2017-07-04"),
        ("vendredi, 07.04.2017", "2017-04-07"),
        ("Mon 04/07/2017", "2017-07-04"),
        ("Sunday 01/01/2017", "2017-01-01"),
        ("Mar 29/02/2028", "2028-02-29"),
        ("23 de noviembre de 2026", "2026-11-23"),
        ("23 giugno 2026", "2026-06-23"),
        ("23 juin 2026", "2026-06-23"),
        ("23 juillet 2026", "2026-07-23"),
        ("23 maart 2026", "2026-03-23"),
        ("23November2026", "2026-11-23"),
        ("2026年11月23日", "2026-11-23"),
        ("20261123", "2026-11-23"),
        ("21.04.2009:14", "2020-04-21"),
        ("31.11.2026", "none"),
        ("29.02.2026", "none"),
        ("29.02.2028", "2028-02-29"),
        ("1.2.3", "none"),
        ("192.168.10.20", "none"),
        ("12.50 23.11", "none"),
        ("1 2 2026", "none"),
        ("", "none"),
    ] {
        assert_eq!(value(text, &any), expected, "{text}");
    }
    assert_eq!(value("03/04/2026", &field("pattern = 'date'\nday_order = 'month_first'")), "2026-03-04");
}

#[test]
fn account_numbers_have_the_right_check_digits() {
    let any = field("pattern = 'iban'");
    for (text, expected) in [
        ("IBAN: DE89 3704 0044 0532 0130 00", "DE89370400440532013000"),
        ("DE89370400440532013000", "DE89370400440532013000"),
        ("DE89 37O4 0044 O532 013O 00", "DE89370400440532013000"),
        ("GB29 NWBK 6016 1331 9268 19", "GB29NWBK60161331926819"),
        ("FR14 2004 1010 0505 0001 3M02 606", "FR1420041010050500013M02606"),
        ("NL91ABNA0417164300 BIC ABNANL2A", "NL91ABNA0417164300"),
        ("DE88 3704 0044 0532 0130 00", "none"),
        ("DE89 3704 0044 0532 0130 001", "none"),
        ("XX89 3704 0044 0532 0130 00", "none"),
    ] {
        assert_eq!(value(text, &any), expected, "{text}");
    }
}

#[test]
fn tax_numbers_and_numbers_are_read() {
    let any = field("pattern = 'vat_id'");
    for (text, expected) in [
        ("USt-IdNr. DE 123 456 789", "DE123456789"),
        ("DE123456789", "DE123456789"),
        ("ATU12345678", "ATU12345678"),
        ("FR XX 123456789", "FRXX123456789"),
        ("NL 123456789 B01", "NL123456789B01"),
        ("IT 12345678901", "IT12345678901"),
        ("DE12345678", "none"),
        ("ABDE123456789", "none"),
    ] {
        assert_eq!(value(text, &any), expected, "{text}");
    }
    let labelled = field("pattern = 'number'\nlabels = ['Invoice no', 'Rechnungsnr']");
    assert_eq!(value("Invoice No.: 2026-0815/A.", &labelled), "2026-0815/A");
    assert_eq!(value("Rechnungs-Nr  R4711", &labelled), "R4711");
    assert_eq!(value("Invoice  paid", &labelled), "none");
}

const TOTAL: &str = "pattern = 'amount'
labels = ['total', 'amount due', 'grand total', 'Gesamtbetrag', 'Summe', 'total à payer', 'importe total', 'totale', 'te betalen']
not = ['sub total', 'Zwischensumme', 'sous-total', 'subtotale', 'total items', 'total discount']
choose = 'last'";

#[test]
fn totals_are_found_beside_and_below_their_labels_in_five_languages() {
    let total = field(TOTAL);
    for (page, expected) in [
        ("Coffee  2.50\nSub total  2.50\nTax  0.20\nTotal  2.70\nCash  5.00\nChange  2.30", "2.70 ?"),
        ("Kaffee  2,50\nZwischensumme  2,50\nSUMME EUR  2,70\nBar  5,00", "2.70 ?"),
        ("Sous-total  10,00 €\nTVA  2,00 €\nTotal à payer  12,00 €\nCarte  12,00 €", "12.00 EUR"),
        ("Base  10,00\nIVA 21%  2,10\nIMPORTE TOTAL  12,10 EUR", "12.10 EUR"),
        ("Subtotale  10,00\nTOTALE  12,20", "12.20 ?"),
        ("Subtotaal  10,00\nTe betalen  12,10", "12.10 ?"),
        // As models read them.
        ("SubTotal  2.50\nT0TAI:  2.7O", "2.70 ?"),
        ("AMOUNTDUE  2.70", "2.70 ?"),
        ("TotalEUR2,70", "2.70 EUR"),
        ("TOTALEUR2,70", "2.70 EUR"),
        ("Gesamtbetrag 19% MwSt  11,90", "11.90 ?"),
        ("TotalItems  3\nTOTAL  7.50", "7.50 ?"),
        // Below.
        ("Invoice  Amount due\n2026-1  $1,250.00", "1250.00 ?"),
        ("  Grand Total\n\n   99.00", "99.00 ?"),
        // Not of another word, and not far away.
        ("Totally  2.70", "none"),
        ("Subtotal  2.70", "none"),
        ("Total\n\n\n\n\n\n2.70", "none"),
        ("Total  pending", "none"),
    ] {
        assert_eq!(value(page, &total), expected, "{page}");
    }
}

#[test]
fn a_value_is_found_where_the_space_behind_its_label_was_lost() {
    let total = field("labels = ['total', 'net a payer']\npattern = 'amount'");
    let number = field("labels = ['invoice no', 'facture no']\npattern = 'number'");
    let short = field("labels = ['fattura n']\npattern = 'number'");
    let iban = field("labels = ['iban']\npattern = 'iban'");
    let date = field("labels = ['date']\npattern = 'date'\nunlabelled = true");
    for (text, field, expected) in [
        ("Net à payer16.234,85EUR", &total, "16234.85 EUR"),
        ("Total12.50", &total, "12.50 ?"),
        // Its "1" may be the letter, or the first digit.
        ("TOTA12.50", &total, "none"),
        ("FactureNoRE25994\n2xScrews", &number, "RE25994"),
        ("Invoice No  24/11/2026", &number, "none"),
        ("Invoice No  Jan 1, 2022", &number, "none"),
        ("FACTURE Nº : F20260023", &number, "F20260023"),
        ("Fattura Nº 12/2026", &short, "12/2026"),
        ("Invoice No2026/40788", &number, "2026/40788"),
        ("IBANDE89370400440532013000", &iban, "DE89370400440532013000"),
        ("Date2026-11-24", &date, "2026-11-24"),
        ("Date:18September2026", &date, "2026-09-18"),
        ("2octobre2026", &date, "2026-10-02"),
        ("2026-11-2414:35", &date, "2026-11-24"),
        ("2026-11-249:35", &date, "2026-11-24"),
        ("24.11.202614:35", &date, "2026-11-24"),
        ("24.11.2026 14:35", &date, "2026-11-24"),
        ("24.11.2026145", &date, "none"),
    ] {
        assert_eq!(value(text, field), expected, "{text}");
    }
}

const RECEIPT: &str = "CORNER SHOP LTD
12 High Street
Receipt No: 004711
Date: 14/03/2026 09:41
Bread  2.40
Milk  1.20
Tea  6.40
Total  10.00
Cash  20.00
Change  10.00
VAT summary
Rate  Net  VAT  Gross
20 %  8.33  1.67  10.00";

#[test]
fn a_value_is_chosen_by_what_supports_it() {
    for (page, pattern, expected) in [
        // The last amount is that of the tax summary.
        (RECEIPT, "total", "10.00 ?"),
        (RECEIPT, "document_date", "2026-03-14"),
        (RECEIPT, "supplier", "CORNER SHOP LTD"),
        ("Coffee  2.50\nSub total  2.50\nTax  0.20\nTotal  2.70\nCash  5.00\nChange  2.30", "total", "2.70 ?"),
        ("Coffee  2.50\nSub total  2.50\nTax  0.20\nTotal  2.70\nCash  5.00\nChange  2.30", "net", "2.50 ?"),
        ("Kaffee  2,50\nZwischensumme  2,50\nSUMME EUR  2,70\nBar  5,00\nRückgeld  2,30", "total", "2.70 ?"),
        ("Sous-total  10,00 €\nTVA 20 %  2,00 €\nTotal TTC  12,00 €\nCarte  12,00 €", "total", "12.00 EUR"),
        ("Invoice total AED 105.00", "total", "105.00 AED"),
        ("Subtotal A$ 100.00\nGST A$ 10.00\nTotal A$ 110.00", "total", "110.00 AUD"),
        ("Subtotal KWD 10.000\nTotal KWD 10.500", "total", "10.500 KWD"),
        ("SUBTOTAL 6,00,000.00\nIGST 1,08,000.00\nTotal 7,08,000.00", "total", "708000.00 ?"),
    ] {
        assert_eq!(value(page, &field(&format!("pattern = '{pattern}'"))), expected, "{pattern} of {page}");
    }
}

#[test]
fn the_number_of_a_document_is_whole_and_none_of_an_order() {
    let number = field("pattern = 'document_number'");
    for (page, expected) in [
        ("Invoice No. : CR 1806/0729\nTotal  5.00", "CR1806/0729"),
        ("Invoice No: FS/22/09/51\nOrder No: 4711", "FS/22/09/51"),
        ("Fatura No: EXP2025000000363", "EXP2025000000363"),
        ("Receipt No.: 003-1220815  Pax: 1", "003-1220815"),
        ("Check# 159363  Table 6", "159363"),
        ("Order No: 4711\nTerminal ID 60155116\nCustomer No 12345", "none"),
    ] {
        assert_eq!(value(page, &number), expected, "{page}");
    }
}

#[test]
fn the_name_of_a_supplier_may_stand_in_two_rows() {
    let supplier = field("pattern = 'supplier'");
    let page = "GOLDEN SPOON\nRESTAURANT LTD\n12 Main Street\nBread  2.40\nTotal  2.40";
    assert_eq!(value(page, &supplier), "GOLDEN SPOON RESTAURANT LTD");
}

#[test]
fn the_confidence_is_higher_where_two_facts_agree() {
    let total = field("pattern = 'total'");
    let confidence = |page: &str| find(page, &total).map_or(0.0, |found| found.confidence);
    let supported = confidence("Bread  2.40\nMilk  1.20\nTotal  3.60\nCash  5.00\nChange  1.40");
    let labelled = confidence("Bread  2.40\nMilk  1.20\nTotal  3.70");
    let bare = confidence("Bread  2.40\nMilk  1.20\n3.60");
    assert!(supported > labelled && labelled > bare, "{supported} {labelled} {bare}");
}

#[test]
fn the_total_of_the_last_page_counts() {
    let pages = ["Bread  2.40\nCarried forward  2.40", "Milk  1.20\nNet  3.60\nVAT  0.72\nTotal  4.32"];
    let pages: Vec<Vec<OcrLine>> = pages.iter().map(|text| lines(text)).collect();
    let rows: Vec<_> =
        pages.iter().map(|lines| order::rows(&lines.iter().map(OcrLine::area).collect::<Vec<_>>())).collect();
    let text = DocumentText::new(rows.iter().map(Vec::as_slice).zip(pages.iter().map(Vec::as_slice)));
    let found = text.find(&field("pattern = 'total'")).unwrap();
    assert_eq!((found.text.as_str(), found.page), ("4.32", 1));
}

#[test]
fn tax_numbers_of_more_countries_are_read() {
    let any = field("pattern = 'vat_id'");
    for (text, expected) in [
        ("GSTIN: 27AAPFU0939F1ZV", "27AAPFU0939F1ZV"),
        ("TRN 100123456700003", "100123456700003"),
        ("VAT No. 310122393500003", "310122393500003"),
        ("CHE-116.281.710 MWST", "CHE116281710"),
        ("ABN 51 824 753 556", "51824753556"),
        ("P.IVA 00743110157", "00743110157"),
        ("0105556055491 Bangkok", "0105556055491"),
        ("0105556055492 Bangkok", "none"),
        ("T2011001033515", "T2011001033515"),
        ("T3011001033515", "none"),
        ("GST/HST 889039061RT0001", "889039061RT0001"),
        ("889039062RT0001", "none"),
        ("Phone 100123456700", "none"),
    ] {
        assert_eq!(value(text, &any), expected, "{text}");
    }
    let iban = field("pattern = 'iban'");
    assert_eq!(value("IBAN: AE07 0331 2345 6789 0123 456", &iban), "AE070331234567890123456");
    assert_eq!(value("IBAN SA03 8000 0000 6080 1016 7519", &iban), "SA0380000000608010167519");
}

#[test]
fn check_digits_of_tax_numbers_are_compared() {
    let right =
        ["PL5260250274", "PT501964843", "RO5888716", "DK13585628", "FI20774740", "BE0403170701", "FR40303265045"];
    for text in right {
        assert_eq!(identifiers::is_checked_vat_id(text), Some(true), "{text}");
        let last = text.chars().last().and_then(|last| last.to_digit(10)).unwrap();
        let other = format!("{}{}", &text[..text.len() - 1], (last + 1) % 10);
        assert_eq!(identifiers::is_checked_vat_id(&other), Some(false), "{other}");
    }
    assert_eq!(identifiers::is_checked_vat_id("FRXX303265045"), None);
}

#[test]
fn a_number_of_a_document_has_its_letters() {
    let number = field("pattern = 'document_number'");
    for (text, expected) in [
        ("Invoice number INV326510840", "INV326510840"),
        ("Invoice No\nINV74914", "INV74914"),
        ("Invoice No: NG-INV-2025-00123", "NG-INV-2025-00123"),
        ("Invoice No. 4711", "4711"),
        ("INV4711", "4711"),
        ("RECEIFT #: CS00168420", "CS00168420"),
        ("Receipt P0S015026", "POS015026"),
        ("Tax Invoice\n20/04/2018 19:15  #1000000163", "1000000163"),
        ("Tax Invoice\n17/06/2018 18:21  B063895", "B063895"),
        ("INVOICE\n#23413561", "23413561"),
        ("# 2 items sold", "none"),
        ("電子發票證明聯\nAB-12345678", "AB-12345678"),
    ] {
        assert_eq!(value(text, &number), expected, "{text}");
    }
}

#[test]
fn a_sign_of_dollars_is_that_of_the_country() {
    let currency = field("pattern = 'currency'");
    for (text, expected) in [
        ("Portland, OR 97201\nTotal $ 12.50", "USD"),
        ("Ottawa K1A 0B1\nTotal $ 12.50", "CAD"),
        ("Bogotá\nTotal $ 12.500", "COP"),
        ("IVA 19%  $ 2.00\nTotal $ 12.50", "none"),
        ("VAT 0%\nTotal US$ 12.50", "USD"),
        ("ABN 51 824 753 556\nTotal USD 12.50", "USD"),
        ("NIT 900.123.456-7\nMiami, FL 33101\nTotal $ 12.50", "none"),
        ("TRN 100123456700003\nTotal 12.50", "AED"),
        ("Total $ 12.50", "none"),
        ("Calle 5 DE 11001\nTotal $ 12.50", "none"),
        ("AUSTIN TX 78701\nTotal $ 12.50", "USD"),
        ("Call (555) 123-4567\nTotal $ 12.50", "USD"),
        ("3/25/2026\nTotal $ 12.50", "USD"),
        ("25/3/2026\nTotal $ 12.50", "none"),
        ("Springfield, Illinois\nTotal $ 12.50", "USD"),
    ] {
        assert_eq!(value(text, &currency), expected, "{text}");
    }
}

#[test]
fn a_rounded_total_is_the_amount_to_pay() {
    let total = field("pattern = 'total'");
    for (text, expected) in [
        ("Kopi  2.11\nTotal  2.11\nRounding  -0.01\nNett Total  2.10\nCash  10.00\nChange  7.90", "2.10 ?"),
        ("Total  15.98\nRounding Adj  0.02\nAmount Due  16.00\nCash  20.00\nChange  4.00", "16.00 ?"),
        ("Tea  3.99\nTotal  3.99\nRounding  0.01\nTotal rounded  4.00", "4.00 ?"),
    ] {
        assert_eq!(value(text, &total), expected, "{text}");
    }
}

#[test]
fn a_tax_may_be_included_or_zero() {
    let tax = field("pattern = 'tax'");
    let amount = |page: &str| {
        let taxes: serde_json::Value = serde_json::from_str(&value(page, &tax)).unwrap();
        taxes[0]["amount"].as_str().unwrap().to_owned()
    };
    assert_eq!(amount("Total  38.90\nCash  50.00\nChange  11.10\nTotal includes 6% GST  2.20"), "2.20");
    assert_eq!(amount("Subtotal  38.90\nTax  0.00\nTotal  38.90"), "0.00");
}

#[test]
fn a_year_of_two_digits_is_of_this_century_up_to_69() {
    let date = field("pattern = 'date'");
    assert_eq!([value("06-08-95", &date), value("06.08.26", &date)], ["1995-08-06", "2026-08-06"]);
}

#[test]
fn a_sum_that_contradicts_a_label_makes_its_value_doubtful() {
    let total = field("pattern = 'total'");
    let page = |total: &str| format!("Net  106.10\nGST 6%  6.37\nTotal  {total}\nCash  120.00\nChange  7.53");
    let confidence = |text: &str| find(&page(text), &total).unwrap().confidence;
    assert!(confidence("112.47") > 0.9, "{}", confidence("112.47"));
    assert!(confidence("142.47") < confidence("112.47") - 0.1, "{}", confidence("142.47"));
}

#[test]
fn the_choice_is_among_all_values_with_a_label() {
    let page = "Total  5.00\nTotal  11.00  1.90  12.90\nTotal  7.00";
    for (choice, expected) in [("first", "5.00 ?"), ("last", "7.00 ?"), ("largest", "12.90 ?"), ("nearest", "5.00 ?")] {
        let field = field(&format!("pattern = 'amount'\nlabels = ['total']\nchoose = '{choice}'"));
        assert_eq!(value(page, &field), expected, "{choice}");
    }
}

#[test]
fn a_value_without_its_label_counts_where_that_is_wanted() {
    let labelled = field("pattern = 'date'\nlabels = ['date', 'Datum']");
    let either = DocumentFieldDeclaration { unlabelled: true, ..labelled.clone() };
    assert_eq!(value("23.11.2026 14:05", &labelled), "none");
    assert_eq!(value("23.11.2026 14:05", &either), "2026-11-23");
    assert_eq!(value("01.01.2026\nDatum: 23.11.2026", &either), "2026-11-23");
}

#[test]
fn a_field_tells_its_text_its_place_and_its_confidence() {
    let found = find("Kaffee  2,50\nTOTAL: EUR 2,70", &field(TOTAL)).unwrap();
    assert_eq!((found.text.as_str(), found.confidence), ("EUR 2,70", 0.99));
    let expected = PageArea { left: 70.0, top: 30.0, right: 150.0, bottom: 50.0 };
    let bounds = found.area.bounds();
    let near = |one: f32, other: f32| (one - other).abs() < 0.01;
    assert!(near(bounds.left, expected.left) && near(bounds.right, expected.right), "{bounds:?}");
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!(json["value"], serde_json::json!({"amount": "2.70", "currency": "EUR"}));
}

/// A number as a country writes it.
fn written(cents: u32, thousands: &str, decimal: char) -> String {
    let whole = (cents / 100).to_string();
    let groups: Vec<&str> =
        whole.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap()).collect();
    format!("{}{decimal}{:02}", groups.join(thousands), cents % 100)
}

proptest! {
    #[test]
    fn an_amount_is_read_as_it_was_written(cents in 0_u32..2_000_000_000, style in 0_usize..6, code in 0_usize..4) {
        let (thousands, decimal) = [("", '.'), ("", ','), (",", '.'), (".", ','), (" ", ','), ("'", '.')][style];
        let number = written(cents, thousands, decimal);
        let (text, currency) = [
            (format!("{number} EUR"), "EUR"),
            (format!("US${number}"), "USD"),
            (format!("CHF {number}"), "CHF"),
            (number, "?"),
        ][code].clone();
        let expected = format!("{}.{:02} {currency}", cents / 100, cents % 100);
        prop_assert_eq!(value(&format!("Total  {text}"), &field(TOTAL)), expected, "{}", text);
    }

    #[test]
    fn letters_in_place_of_digits_change_nothing(cents in 100_000_u32..10_000_000, at in 0_usize..9) {
        let number = written(cents, "", '.');
        let mut chars: Vec<char> = number.chars().collect();
        let at = at % chars.len();
        chars[at] = match chars[at] { '0' => 'O', '1' => 'l', '5' => 'S', other => other };
        let text: String = chars.into_iter().collect();
        prop_assert_eq!(value(&text, &field("pattern = 'amount'")), format!("{number} ?"));
    }

    #[test]
    fn a_date_is_read_as_it_was_written(day in 1_u32..=28, month in 1_u32..=12, year in 2000_u32..2070, style in 0_usize..5) {
        let text = [
            format!("{year}-{month:02}-{day:02}"),
            format!("{day:02}.{month:02}.{year}"),
            format!("{day}/{month}/{year}"),
            format!("{day}. {month}. {year}"),
            format!("{day:02}-{month:02}-{:02}", year % 100),
        ][style].clone();
        let found = value(&format!("Date: {text}, 10:15"), &field("pattern = 'date'"));
        // 03/12 in this order; a second number above 12 would be a day.
        prop_assert_eq!(found, format!("{year:04}-{month:02}-{day:02}"), "{}", text);
    }

    #[test]
    fn an_account_number_with_one_wrong_digit_is_none(at in 4_usize..22, by in 1_u8..10) {
        let mut iban = b"DE89370400440532013000".to_vec();
        iban[at] = b'0' + (iban[at] - b'0' + by) % 10;
        prop_assert_eq!(value(std::str::from_utf8(&iban).unwrap(), &field("pattern = 'iban'")), "none");
    }

    #[test]
    fn any_page_is_searched(text in "(([A-Z0-9 .,:/€$-]|total|date|[^\\r])[\n ]?){0,40}") {
        let by_evidence = ["total", "net", "tax", "currency", "supplier", "document_date", "due_date", "document_number"];
        for pattern in by_evidence.into_iter().chain(["iban", "vat_id"]) {
            if let Some(found) = find(&text, &field(&format!("pattern = '{pattern}'"))) {
                prop_assert!((0.0..=1.0).contains(&found.confidence) && found.area.bounds().width().is_finite());
            }
        }
        for pattern in ["amount", "date", "iban", "vat_id", "number"] {
            for choice in ["nearest", "first", "last", "largest"] {
                let any = format!("pattern = '{pattern}'\nchoose = '{choice}'\nlabels = ['total', 'é']\nunlabelled = true");
                if let Some(found) = find(&text, &field(&any)) {
                    prop_assert!(!found.text.trim().is_empty() && found.area.bounds().width().is_finite());
                }
            }
        }
    }
}
