//! Rows of tables as whole numbers make them, so that a thousand of them need no file: the same ones here and in
//! `tests/models/table_rows.py`, which says what each key of a column is.

use serde::Deserialize;
use serde_json::Value;

pub const ROWS: usize = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    pub name: String,
    #[serde(default)]
    pub missing: bool,
    #[serde(default)]
    extremes: Vec<Value>,
    #[serde(default)]
    names: Vec<Value>,
    #[serde(default)]
    low: i64,
    #[serde(default)]
    high: i64,
    #[serde(default)]
    decimals: i32,
}

/// `SplitMix64`.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

impl Column {
    fn cell(&self, row: usize, kind: u64, number: u64) -> Value {
        let one_of = |list: &[Value]| list[usize::try_from(number % list.len() as u64).unwrap()].clone();
        if self.missing && kind < 5 {
            return Value::Null;
        }
        if !self.extremes.is_empty() && kind >= 80 && row >= ROWS - ROWS / 10 {
            return one_of(&self.extremes);
        }
        if !self.names.is_empty() {
            return one_of(&self.names);
        }
        let span = u64::try_from(self.high - self.low + 1).unwrap();
        let whole = self.low + i64::try_from(number % span).unwrap();
        match self.decimals {
            0 => whole.into(),
            #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
            decimals => (whole as f64 / 10_f64.powi(decimals)).into(),
        }
    }
}

/// A thousand rows, each with a cell of each column; a missing one is null.
pub fn rows(columns: &[Column]) -> Vec<Vec<Value>> {
    let mut numbers = Numbers(0);
    let mut row = |row| {
        columns
            .iter()
            .map(|column| {
                let kind = numbers.next() % 100;
                column.cell(row, kind, numbers.next())
            })
            .collect()
    };
    (0..ROWS).map(&mut row).collect()
}
