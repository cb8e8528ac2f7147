//! A document as a row of CSV (RFC 4180).

use serde_json::{Map, Value};

/// The columns before the fields.
const FIRST_COLUMNS: [&str; 4] = ["id", "file", "read_at", "pages"];

/// The columns after the fields.
const LAST_COLUMNS: [&str; 1] = ["doubtful"];

/// The column of the currency, which the fields may name too.
const CURRENCY: &str = "currency";

/// The facts of a row besides the fields.
#[derive(Debug, Clone, Copy)]
pub struct RowHead<'a> {
    pub id: &'a str,
    pub file: &'a str,
    pub read_at: &'a str,
    pub pages: usize,
}

/// The columns of documents with these fields.
fn columns<'a>(fields: &[&'a str]) -> Vec<&'a str> {
    let currency = Some(CURRENCY).filter(|currency| !fields.contains(currency));
    let fields = fields.iter().copied().chain(currency);
    FIRST_COLUMNS.into_iter().chain(fields).chain(LAST_COLUMNS).collect()
}

/// The line with the names of the columns.
pub fn header(fields: &[&str]) -> String {
    line(columns(fields).into_iter().map(str::to_owned))
}

/// The line of a document.
pub fn row(
    fields: &[&str],
    head: RowHead<'_>,
    found: &Map<String, Value>,
    doubtful: Option<&Map<String, Value>>,
) -> String {
    let value = |name: &str| found.get(name).and_then(|field| field.get("value"));
    let cell = |column: &str| match column {
        "id" => head.id.to_owned(),
        "file" => head.file.to_owned(),
        "read_at" => head.read_at.to_owned(),
        "pages" => head.pages.to_string(),
        "doubtful" => doubtful.into_iter().flat_map(Map::keys).map(String::as_str).collect::<Vec<_>>().join(" "),
        CURRENCY if value(CURRENCY).is_none() => {
            found.values().find_map(|field| field.pointer("/value/currency")?.as_str()).unwrap_or_default().to_owned()
        }
        name => value(name).map(text).unwrap_or_default(),
    };
    line(columns(fields).into_iter().map(cell))
}

/// True if a table has the row of an id.
pub fn has_row(table: &str, id: &str) -> bool {
    table.lines().any(|line| line.strip_prefix(id).is_some_and(|rest| rest.starts_with(',')))
}

/// The value of a field as a cell: an amount without its currency, several taxes each with its rate.
fn text(value: &Value) -> String {
    let part = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    match value {
        Value::String(text) => text.clone(),
        Value::Object(_) => part(value, "amount"),
        Value::Array(taxes) => match taxes.as_slice() {
            [tax] => part(tax, "amount"),
            taxes => {
                let taxes = taxes.iter().map(|tax| format!("{}%: {}", part(tax, "rate"), part(tax, "amount")));
                taxes.collect::<Vec<_>>().join("; ")
            }
        },
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn line(cells: impl Iterator<Item = String>) -> String {
    let mut writer = csv::WriterBuilder::new().terminator(csv::Terminator::Any(b'\n')).from_writer(Vec::new());
    // Writing to memory does not fail.
    let _ = writer.write_record(cells.map(|cell| harmless(&cell)));
    String::from_utf8(writer.into_inner().unwrap_or_default()).unwrap_or_default()
}

/// A cell that no spreadsheet takes for a formula: texts are from documents that anybody may have sent.
fn harmless(cell: &str) -> String {
    let cell: String = cell.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let is_number = || cell.bytes().all(|byte| byte.is_ascii_digit() || b"-.".contains(&byte));
    if cell.starts_with(['=', '+', '-', '@']) && !is_number() { format!("'{cell}") } else { cell }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const HEAD: RowHead<'static> = RowHead { id: "7", file: "a,b.pdf", read_at: "2026-12-01T00:00:00Z", pages: 2 };

    fn map(value: &Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn a_row_has_the_fields_in_their_columns() {
        let fields = ["total", "tax", "supplier"];
        let found = map(&json!({
            "total": {"value": {"amount": "12.50", "currency": "EUR"}, "confidence": 0.99},
            "tax": {"value": [{"rate": "19.00", "amount": "1.90"}, {"rate": "7.00", "amount": "0.35"}]},
            "supplier": {"value": "Smith \"& Sons\""},
        }));
        let doubtful = map(&json!({"date": {"value": "2026-01-01"}, "number": {"value": "1"}}));
        assert_eq!(header(&fields), "id,file,read_at,pages,total,tax,supplier,currency,doubtful\n");
        assert_eq!(
            row(&fields, HEAD, &found, Some(&doubtful)),
            "7,\"a,b.pdf\",2026-12-01T00:00:00Z,2,12.50,19.00%: 1.90; 7.00%: 0.35,\"Smith \"\"& Sons\"\"\",EUR,date number\n"
        );
        let found = map(&json!({"tax": {"value": [{"rate": null, "amount": "-1.90"}]}, "currency": {"value": "AED"}}));
        assert!(row(&["tax", "currency"], HEAD, &found, None).ends_with(",2,-1.90,AED,\n"));
    }

    #[test]
    fn no_cell_is_a_formula_or_a_second_line() {
        let found = map(&json!({"number": {"value": "=HYPERLINK(\"http://x\")\nA,1"}, "supplier": {"value": "+1"}}));
        let row = row(&["number", "supplier"], RowHead { file: "@a.pdf", ..HEAD }, &found, None);
        assert!(row.starts_with("7,'@a.pdf,") && row.contains(",\"'=HYPERLINK(\"\"http://x\"\") A,1\",'+1,"), "{row}");
        assert_eq!(row.matches('\n').count(), 1);
    }

    #[test]
    fn a_row_is_found_by_its_whole_id() {
        assert!(has_row("id,file\n7,a\n8,b\n", "8") && !has_row("id,file\n78,a\n", "7"));
    }
}
