//! The answers to rows as CSV, or as lines of JSON, written part by part.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The form of answers to CSV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowsForm {
    Csv,
    /// A JSON object a line.
    JsonLines,
}

impl RowsForm {
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Csv => "text/csv; charset=utf-8",
            Self::JsonLines => "application/x-ndjson",
        }
    }
}

/// Writes the answers of one call, a header before those in CSV.
#[derive(Debug, Clone)]
pub struct RowAnswers {
    form: RowsForm,
    is_headed: bool,
    /// In CSV, begins each line with the number of its row.
    is_numbered: bool,
}

/// The answer to a row. Numbers stay as they are written.
#[derive(Deserialize)]
struct RawRowAnswer<'a> {
    #[serde(borrow)]
    class: Option<JsonText<'a>>,
    #[serde(borrow)]
    probabilities: Option<ObjectMembers<'a>>,
    #[serde(borrow)]
    values: Option<Vec<&'a RawValue>>,
}

/// Borrowed where it has no escapes.
#[derive(Deserialize)]
struct JsonText<'a>(#[serde(borrow)] Cow<'a, str>);

/// The members of an object, in their order.
struct ObjectMembers<'a>(Vec<(JsonText<'a>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for ObjectMembers<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectMembersVisitor;

        impl<'de> Visitor<'de> for ObjectMembersVisitor {
            type Value = ObjectMembers<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ObjectMembers<'de>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(ObjectMembers(pairs))
            }
        }

        deserializer.deserialize_map(ObjectMembersVisitor)
    }
}

impl RowAnswers {
    pub fn new(form: RowsForm) -> Self {
        Self { form, is_headed: false, is_numbered: false }
    }

    /// CSV with a first column `row`, because some rows have no answer. With `is_headed`, lines before these had the
    /// header.
    pub fn numbered_csv(is_headed: bool) -> Self {
        Self { form: RowsForm::Csv, is_headed, is_numbered: true }
    }

    /// The lines for a result of the kind `table`, a list with an answer for each row.
    pub fn lines(&mut self, result: &RawValue) -> serde_json::Result<Vec<u8>> {
        self.lines_from(result, 0)
    }

    /// The same for a result whose first row has the number `first`, from 0.
    pub fn lines_from(&mut self, result: &RawValue, first: usize) -> serde_json::Result<Vec<u8>> {
        let mut lines = Vec::with_capacity(result.get().len());
        match self.form {
            RowsForm::JsonLines => {
                for answer in serde_json::from_str::<Vec<&RawValue>>(result.get())? {
                    lines.extend_from_slice(answer.get().as_bytes());
                    lines.push(b'\n');
                }
            }
            RowsForm::Csv => {
                let numbered = |cell: Cow<'static, str>| self.is_numbered.then_some(cell).into_iter();
                for (number, answer) in serde_json::from_str::<Vec<RawRowAnswer<'_>>>(result.get())?.iter().enumerate()
                {
                    if !std::mem::replace(&mut self.is_headed, true) {
                        write_line(&mut lines, numbered("row".into()).chain(answer.header()));
                    }
                    write_line(&mut lines, numbered((first + number).to_string().into()).chain(answer.cells()));
                }
            }
        }
        Ok(lines)
    }
}

impl RawRowAnswer<'_> {
    /// The names of the columns of all answers, which have the same form.
    fn header(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let class = self.class.iter().map(|_| "class".into());
        let probabilities = self.probabilities.iter().flat_map(|pairs| &pairs.0);
        let probabilities = probabilities.map(|(name, _)| format!("probability_{}", name.0).into());
        let values = self.values.iter().flatten();
        let is_one = self.values.as_ref().is_some_and(|values| values.len() == 1);
        let value = move |index: usize| if is_one { "value".into() } else { format!("value_{index}").into() };
        class.chain(probabilities).chain(values.enumerate().map(move |(index, _)| value(index)))
    }

    fn cells(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let class = self.class.iter().map(|class| (&*class.0).into());
        let probabilities = self.probabilities.iter().flat_map(|pairs| &pairs.0).map(|(_, number)| number);
        let numbers = probabilities.chain(self.values.iter().flatten());
        class.chain(numbers.map(|number| number.get().into()))
    }
}

fn write_line<'a>(lines: &mut Vec<u8>, cells: impl Iterator<Item = Cow<'a, str>>) {
    for (index, cell) in cells.enumerate() {
        if index > 0 {
            lines.push(b',');
        }
        lines.extend_from_slice(csv_cell(&cell).as_bytes());
    }
    lines.push(b'\n');
}

/// A cell of CSV (RFC 4180, section 2), in quotes where needed. An empty cell has quotes too, because a line with only
/// an unquoted empty cell would be no row.
pub fn csv_cell(text: &str) -> Cow<'_, str> {
    let is_plain = !text.is_empty() && !text.contains(['"', ',', '\n', '\r']);
    if is_plain { text.into() } else { format!("\"{}\"", text.replace('"', "\"\"")).into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(form: RowsForm, results: &[&str]) -> String {
        let mut answers = RowAnswers::new(form);
        let lines = results
            .iter()
            .flat_map(|result| answers.lines(&RawValue::from_string((*result).to_owned()).unwrap()).unwrap());
        String::from_utf8(lines.collect()).unwrap()
    }

    #[test]
    fn answers_have_one_header_and_numbers_as_they_are() {
        let classes = [
            r#"[{"class":"a,\"b\"","probabilities":{"z":0.10,"a,\"b\"":1e-9}}]"#,
            r#"[{"class":"","probabilities":{"z":1,"a,\"b\"":0}}]"#,
        ];
        let expected = "class,probability_z,\"probability_a,\"\"b\"\"\"\n\"a,\"\"b\"\"\",0.10,1e-9\n\"\",1,0\n";
        assert_eq!(lines(RowsForm::Csv, &classes), expected);
        assert_eq!(lines(RowsForm::Csv, &[r#"[{"values":[1.5]},{"values":[-2]}]"#]), "value\n1.5\n-2\n");
        assert_eq!(lines(RowsForm::Csv, &[r#"[{"values":[1.5, 3]}]"#]), "value_0,value_1\n1.5,3\n");
        let numbered = |is_headed, first| {
            let result = RawValue::from_string(r#"[{"values":[1]},{"values":[2]}]"#.to_owned()).unwrap();
            String::from_utf8(RowAnswers::numbered_csv(is_headed).lines_from(&result, first).unwrap()).unwrap()
        };
        assert_eq!((numbered(false, 0) + &numbered(true, 7)).as_str(), "row,value\n0,1\n1,2\n7,1\n8,2\n");
        assert_eq!(
            lines(RowsForm::JsonLines, &[r#"[{"values":[1.5]}, {"class":"\n"}]"#]),
            "{\"values\":[1.5]}\n{\"class\":\"\\n\"}\n"
        );
    }
}
