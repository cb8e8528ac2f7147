//! A month in JSON and in CSV.

use ledge_base::clock::{self, TimeZone};
use ledge_base::month::Month;
use serde::Serialize;

use crate::budget::{cost, cpu_hours, float, watt_hours};
use crate::config::AccountsConfig;
use crate::ledger::{MonthLedger, ObjectiveSums, UseSums};
use crate::objective::IndicatorKind;

/// The name of the row of the box itself. No caller has it: theirs have a colon, or are `local` and `others`.
const BOX: &str = "box";

/// The accounts of a month.
#[derive(Debug, Serialize)]
pub struct MonthDocument<'a> {
    pub month: String,
    /// The beginning of the month at the place of this box, and its end.
    pub from: String,
    pub until: String,
    /// The end of the time that is counted.
    pub through: String,
    pub currency: &'a str,
    /// True where a part of the energy is an estimate.
    pub estimated: bool,
    pub estimated_watt_hours: f64,
    /// Times of which use may be missing.
    pub gaps: Vec<GapDocument>,
    pub rows: Vec<AccountRow<'a>>,
    /// The objectives with calls in the month.
    pub objectives: Vec<ObjectiveMonth<'a>>,
    /// The use that no caller accounts for.
    #[serde(rename = "box")]
    pub own: AccountRow<'a>,
    pub total: AccountRow<'a>,
}

#[derive(Debug, Serialize)]
pub struct GapDocument {
    pub from: String,
    pub to: String,
}

/// The calls of one quantity of an objective in a month.
#[derive(Debug, Serialize)]
pub struct ObjectiveMonth<'a> {
    pub name: &'a str,
    /// `latency` or `availability`.
    pub kind: &'static str,
    /// The percentage of calls that are to be good, when they were counted last.
    pub target: f64,
    /// The longest time of a good call, in milliseconds.
    pub within_ms: Option<f64>,
    pub good: u64,
    pub bad: u64,
    /// The percentage of calls that were good.
    pub reached: f64,
    /// The share of the bad calls that the target allows in this month which is left; below 0 it was missed.
    pub budget_left: f64,
}

impl<'a> ObjectiveMonth<'a> {
    fn new((name, kind): &'a (String, IndicatorKind), sums: &ObjectiveSums) -> Self {
        let ObjectiveSums { good, bad, allowed_ppm, time_max_us } = *sums;
        let bad_share = float(bad) / float(good.saturating_add(bad).max(1));
        let allowed = f64::from(allowed_ppm.max(1)) / 1e6;
        Self {
            name,
            kind: kind.as_str(),
            target: rounded(100.0 - allowed * 100.0, 4),
            within_ms: (time_max_us > 0).then(|| float(time_max_us) / 1000.0),
            good,
            bad,
            reached: rounded(100.0 - bad_share * 100.0, 4),
            budget_left: rounded(1.0 - bad_share / allowed, 4),
        }
    }
}

/// A number with so many places after the point.
pub fn rounded(number: f64, places: i32) -> f64 {
    let factor = 10_f64.powi(places);
    (number * factor).round() / factor
}

/// The use of one caller of one model.
#[derive(Debug, Serialize)]
pub struct AccountRow<'a> {
    pub caller: &'a str,
    pub model: &'a str,
    pub calls: u64,
    pub failed: u64,
    pub refused: u64,
    pub cpu_seconds: f64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub watt_hours: f64,
    pub cost: f64,
}

impl<'a> AccountRow<'a> {
    fn new(caller: &'a str, model: &'a str, sums: &UseSums, cost: f64) -> Self {
        Self {
            caller,
            model,
            calls: sums.calls,
            failed: sums.failed,
            refused: sums.refused,
            cpu_seconds: cpu_hours(sums) * 3600.0,
            bytes_in: sums.bytes_in,
            bytes_out: sums.bytes_out,
            watt_hours: watt_hours(sums.energy_uj),
            cost,
        }
    }
}

impl<'a> MonthDocument<'a> {
    pub fn new(month: Month, zone: &TimeZone, ledger: &'a MonthLedger, prices: &'a AccountsConfig) -> Self {
        let row = |(key, sums): (&'a crate::ledger::RowKey, &UseSums)| {
            AccountRow::new(&key.caller, &key.model, sums, cost(prices, Some(&key.model), sums))
        };
        let mut rows: Vec<_> = ledger.rows.iter().map(row).collect();
        rows.sort_by(|a, b| b.cpu_seconds.total_cmp(&a.cpu_seconds));
        let own = AccountRow::new(BOX, "", &ledger.own, cost(prices, None, &ledger.own));
        let mut sum = ledger.sum(|_| true);
        sum.add(&ledger.own);
        let total = AccountRow::new("", "", &sum, rows.iter().map(|row| row.cost).sum::<f64>() + own.cost);
        let gap = |gap: &crate::ledger::AccountGap| GapDocument {
            from: clock::rfc3339(gap.from_ms),
            to: clock::rfc3339(gap.to_ms),
        };
        Self {
            month: month.to_string(),
            from: clock::rfc3339(month.begin_ms(zone)),
            until: clock::rfc3339(month.end_ms(zone)),
            through: clock::rfc3339(ledger.through_ms),
            currency: &prices.currency,
            estimated: ledger.estimated_uj > 0,
            estimated_watt_hours: watt_hours(ledger.estimated_uj),
            gaps: ledger.gaps.iter().map(gap).collect(),
            objectives: ledger.objectives.iter().map(|(key, sums)| ObjectiveMonth::new(key, sums)).collect(),
            rows,
            own,
            total,
        }
    }

    /// The rows and that of the box, with a head. No cell of a caller's text begins a formula of a spreadsheet.
    pub fn csv(&self) -> Vec<u8> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let head = [
            "month",
            "caller",
            "model",
            "calls",
            "failed",
            "refused",
            "cpu_seconds",
            "bytes_in",
            "bytes_out",
            "watt_hours",
            "cost",
            "currency",
            "estimated",
        ];
        // Writing into memory does not fail.
        let _ = writer.write_record(head);
        for row in self.rows.iter().chain([&self.own]) {
            let _ = writer.write_record([
                self.month.clone(),
                harmless(row.caller),
                harmless(row.model),
                row.calls.to_string(),
                row.failed.to_string(),
                row.refused.to_string(),
                format!("{:.3}", row.cpu_seconds),
                row.bytes_in.to_string(),
                row.bytes_out.to_string(),
                format!("{:.4}", row.watt_hours),
                format!("{:.6}", row.cost),
                harmless(self.currency),
                self.estimated.to_string(),
            ]);
        }
        writer.into_inner().unwrap_or_default()
    }
}

/// A text that a spreadsheet takes for a text (OWASP, "CSV Injection").
fn harmless(text: &str) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if clean.trim_start().starts_with(['=', '+', '-', '@']) { format!("'{clean}") } else { clean }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::RowKey;

    #[test]
    fn no_cell_of_a_table_is_a_formula() {
        let mut ledger = MonthLedger::default();
        let texts = ["=cmd|' /C calc'!A0", "+1", "-1", "@x", " =1", "\t=1", "a\",=1\r\n=2"];
        for text in texts {
            ledger.add(RowKey { caller: text.into(), model: text.into() }, &UseSums { calls: 1, ..UseSums::default() });
        }
        let prices = AccountsConfig::default();
        let (month, zone) = ("2026-12".parse().unwrap(), TimeZone::named("UTC").unwrap());
        let table = MonthDocument::new(month, &zone, &ledger, &prices).csv();
        let mut reader = csv::Reader::from_reader(&*table);
        let rows: Vec<_> = reader.records().map(|row| row.unwrap()).collect();
        assert_eq!(rows.len(), texts.len() + 1);
        for cell in rows.iter().flat_map(|row| row.iter()) {
            assert!(
                !cell.trim_start().starts_with(['=', '+', '-', '@']) && !cell.contains(char::is_control),
                "{cell:?}"
            );
        }
        assert_eq!(&rows[texts.len()][1], BOX);
    }

    #[test]
    fn the_total_is_the_sum_of_all_rows() {
        let mut ledger = MonthLedger { estimated_uj: 1, ..MonthLedger::default() };
        let sums = UseSums { calls: 10, cpu_ns: 36_000_000_000, energy_uj: 3_600_000_000, ..UseSums::default() };
        ledger.add(RowKey { caller: "key:a".into(), model: "wine".into() }, &sums);
        ledger.own.add(&UseSums { calls: 0, ..sums });
        let prices: AccountsConfig = toml::from_str("price_per_1000_calls = 1\nprice_per_cpu_hour = 100").unwrap();
        let (month, zone) = ("2026-12".parse().unwrap(), TimeZone::named("Asia/Dubai").unwrap());
        let document = MonthDocument::new(month, &zone, &ledger, &prices);
        assert_eq!((document.total.cpu_seconds, document.total.watt_hours, document.total.calls), (72.0, 2.0, 10));
        assert!((document.total.cost - 2.01).abs() < 1e-9, "{}", document.total.cost);
        assert!(document.estimated);
        assert_eq!(document.from, "2026-11-30T20:00:00Z");
    }
}
