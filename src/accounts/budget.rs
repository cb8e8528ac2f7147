//! The used share of a budget, and the cost of use.

use std::sync::Arc;

use ledge_models::serving::budgets::SpentBudget;

use crate::config::{AccountsConfig, BudgetConfig, OverBudget};
use crate::ledger::{BudgetStep, MonthLedger, RowKey, UseSums, caller_text};

const MICROJOULES_A_KWH: f64 = 3.6e12;
const MICROJOULES_A_WH: f64 = 3.6e9;
const NANOSECONDS_AN_HOUR: f64 = 3.6e12;

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub fn float(number: u64) -> f64 {
    number as f64
}

pub fn cpu_hours(sums: &UseSums) -> f64 {
    float(sums.cpu_ns) / NANOSECONDS_AN_HOUR
}

pub fn watt_hours(microjoules: u64) -> f64 {
    float(microjoules) / MICROJOULES_A_WH
}

/// The price of the use of a model; `None` is that of the box itself.
pub fn cost(prices: &AccountsConfig, model: Option<&str>, sums: &UseSums) -> f64 {
    let own = model.and_then(|model| prices.models.iter().find(|(name, _)| name.as_str() == model).map(|(_, own)| own));
    let calls = own.and_then(|own| own.price_per_1000_calls).unwrap_or(prices.price_per_1000_calls);
    let cpu = own.and_then(|own| own.price_per_cpu_hour).unwrap_or(prices.price_per_cpu_hour);
    float(sums.answered()) / 1000.0 * calls.get()
        + cpu_hours(sums) * cpu.get()
        + float(sums.energy_uj) / MICROJOULES_A_KWH * prices.price_per_kwh.get()
}

/// The use of a budget in a month.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BudgetUse {
    pub used: f64,
    pub limit: f64,
    /// `calls`, `cpu_hours` or `cost`.
    pub unit: &'static str,
}

impl BudgetUse {
    /// The use of `budget` in the sums of a month.
    pub fn of(budget: &BudgetConfig, prices: &AccountsConfig, ledger: &MonthLedger) -> Self {
        let caller = budget.caller.as_ref().map(|caller| caller_text(&caller.0));
        let model = budget.model.as_ref().map(ledge_base::names::ModelName::as_str);
        let covers = |key: &RowKey| {
            caller.as_ref().is_none_or(|caller| *caller == key.caller) && model.is_none_or(|model| *model == *key.model)
        };
        if let Some(limit) = budget.calls_per_month {
            return Self { used: float(ledger.sum(covers).answered()), limit: limit.get(), unit: "calls" };
        }
        if let Some(limit) = budget.cpu_hours_per_month {
            return Self { used: cpu_hours(&ledger.sum(covers)), limit: limit.get(), unit: "cpu_hours" };
        }
        let rows = ledger.rows.iter().filter(|(key, _)| covers(key));
        let used = rows.map(|(key, sums)| cost(prices, Some(&key.model), sums)).sum();
        Self { used, limit: budget.cost_per_month.unwrap_or_default().get(), unit: "cost" }
    }

    /// 1 is the whole budget.
    pub fn share(&self) -> f64 {
        if self.limit > 0.0 { self.used / self.limit } else { 0.0 }
    }

    /// The step that is reached.
    pub fn step(&self, budget: &BudgetConfig) -> Option<BudgetStep> {
        match self.share() {
            share if share >= 1.0 => Some(BudgetStep::Whole),
            share if share >= budget.warn_at.get() => Some(BudgetStep::Warning),
            _ => None,
        }
    }

    /// The budget, where it is spent and refuses calls.
    pub fn refusal(&self, budget: &BudgetConfig, until_ms: u64) -> Option<SpentBudget> {
        let refuses = budget.over == OverBudget::Refuse && self.step(budget) == Some(BudgetStep::Whole);
        refuses.then(|| SpentBudget {
            name: Arc::from(budget.name.as_str()),
            principal: budget.caller.as_ref().map(|caller| caller.0.clone()),
            model: budget.model.clone(),
            until_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> MonthLedger {
        let mut ledger = MonthLedger::default();
        for (caller, model, calls) in [("key:a", "wine", 100), ("key:a", "text", 10), ("key:b", "wine", 1)] {
            let sums = UseSums {
                calls: calls + 5,
                failed: 2,
                refused: 3,
                cpu_ns: calls * 36_000_000_000,
                energy_uj: 3_600_000_000_000,
                ..UseSums::default()
            };
            ledger.add(RowKey { caller: caller.into(), model: model.into() }, &sums);
        }
        ledger
    }

    fn budget(text: &str) -> BudgetConfig {
        toml::from_str(&format!("name = 'b'\n{text}")).unwrap()
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "sums of few whole numbers, and one literal")]
    fn a_budget_covers_its_caller_and_model_and_counts_only_answers() {
        let prices = AccountsConfig::default();
        let used = |text: &str| BudgetUse::of(&budget(text), &prices, &ledger()).used;
        assert_eq!(used("calls_per_month = 1"), 111.0);
        assert_eq!(used("caller = 'key:a'\ncalls_per_month = 1"), 110.0);
        assert_eq!(used("model = 'wine'\ncalls_per_month = 1"), 101.0);
        assert_eq!(used("caller = 'key:a'\nmodel = 'text'\ncpu_hours_per_month = 1"), 0.1);
    }

    #[test]
    fn a_price_is_of_answers_cpu_and_energy_and_a_model_may_have_its_own() {
        let text = "price_per_1000_calls = 10\nprice_per_cpu_hour = 2\nprice_per_kwh = 0.3\nmodels = { text = { price_per_1000_calls = 100 } }";
        let prices: AccountsConfig = toml::from_str(text).unwrap();
        let near = |cost: f64, expected: f64| assert!((cost - expected).abs() < 1e-9, "{cost}");
        let used = |text: &str| BudgetUse::of(&budget(text), &prices, &ledger()).used;
        near(used("caller = 'key:b'\ncost_per_month = 1"), 0.01 + 0.02 + 0.3);
        near(used("model = 'text'\ncost_per_month = 1"), 1.0 + 0.2 + 0.3);
    }

    #[test]
    fn a_budget_warns_at_its_share_and_refuses_when_it_is_spent() {
        let of = |limit: &str| {
            let budget = budget(&format!("calls_per_month = {limit}\nover = 'refuse'\nmodel = 'wine'"));
            let used = BudgetUse::of(&budget, &AccountsConfig::default(), &ledger());
            (used.step(&budget), used.refusal(&budget, 7).map(|spent| spent.until_ms))
        };
        assert_eq!(of("200"), (None, None));
        assert_eq!(of("126"), (Some(BudgetStep::Warning), None));
        assert_eq!(of("101"), (Some(BudgetStep::Whole), Some(7)));
    }
}
