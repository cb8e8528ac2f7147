//! The sections `[accounts]`, `[[budget]]` and `[[objective]]`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use ledge_base::names::ModelName;
use ledge_base::principal::Principal;
use ledge_base::toml_check::{ValueProblem, empty_if_none, from_text, in_range, none_if_empty};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::decimal::Decimal;

/// The most budgets. Each looks at all rows of the month after an interval with calls.
pub const BUDGETS_MAX: usize = 64;

/// The most objectives. Each counts every call, and has some 9 kB for each of its indicators.
pub const OBJECTIVES_MAX: usize = 16;

/// The most models with prices of their own.
const MODEL_PRICES_MAX: usize = 256;

const NAME_BYTES_MAX: usize = 64;

/// The section `[accounts]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccountsConfig {
    /// Keeps accounts by month.
    pub enabled: bool,
    /// The name of the currency of all prices, for people.
    pub currency: String,
    /// Of calls that were answered.
    pub price_per_1000_calls: Decimal,
    pub price_per_cpu_hour: Decimal,
    pub price_per_kwh: Decimal,
    /// The power of a busy core in watts, where the processor's own figures cannot be read.
    pub watts_per_core: Decimal,
    /// Prices of models, in place of the ones above.
    pub models: BTreeMap<ModelName, ModelPrices>,
}

/// The prices of one model.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelPrices {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_per_1000_calls: Option<Decimal>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_per_cpu_hour: Option<Decimal>,
}

impl Default for AccountsConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            currency: String::new(),
            price_per_1000_calls: Decimal::default(),
            price_per_cpu_hour: Decimal::default(),
            price_per_kwh: Decimal::default(),
            watts_per_core: Decimal::millionths(8_000_000),
            models: BTreeMap::new(),
        }
    }
}

impl AccountsConfig {
    pub(crate) fn own_problems(&self) -> Vec<ValueProblem> {
        let mut problems = Vec::new();
        if self.currency.len() > 16 || self.currency.contains(|c: char| c.is_control() || "=+-@\"".contains(c)) {
            problems
                .push(ValueProblem::new("currency", "is longer than 16 bytes, or no name of a currency".to_owned()));
        }
        if self.watts_per_core > Decimal::millionths(1_000_000_000) {
            problems.push(ValueProblem::new("watts_per_core", "is more than 1000".to_owned()));
        }
        if self.models.len() > MODEL_PRICES_MAX {
            problems.push(ValueProblem::new("models", format!("has more than {MODEL_PRICES_MAX} models")));
        }
        problems
    }
}

/// The name of a budget or an objective: 1 to 64 of `A-Z a-z 0-9 . _ -`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct EntryName(String);

impl EntryName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for EntryName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_name = !text.is_empty()
            && text.len() <= NAME_BYTES_MAX
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        is_name.then(|| Self(text.to_owned())).ok_or("expected a name of 1 to 64 of A-Z a-z 0-9 . _ -")
    }
}

impl fmt::Display for EntryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for EntryName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

/// A caller of the configuration, as accounts name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerName(pub Principal);

impl FromStr for CallerName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "expected a caller as `ledge accounts` names it: key:NAME, cert:NAME, person:NAME, camera:NAME, inbox:NAME, mqtt:TOPIC, ip:ADDRESS, uid:NUMBER or local";
        let caller = match text.split_once(':').filter(|(_, name)| !name.is_empty()) {
            Some(("key", name)) => Principal::Key(name.into()),
            Some(("cert", name)) => Principal::Certificate(name.into()),
            Some(("person", name)) => Principal::Person(name.into()),
            Some(("camera", name)) => Principal::Camera(name.into()),
            Some(("inbox", name)) => Principal::Inbox(name.into()),
            Some(("mqtt", topic)) => Principal::Mqtt(topic.into()),
            Some(("ip", address)) => Principal::Peer(address.parse().map_err(|_| EXPECTED)?),
            Some(("uid", number)) => Principal::User(number.parse().map_err(|_| EXPECTED)?),
            _ if text == "local" => Principal::Local,
            _ => return Err(EXPECTED),
        };
        (text.len() <= 150).then_some(Self(caller)).ok_or("is longer than 150 bytes")
    }
}

impl fmt::Display for CallerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The reaction when a budget is spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OverBudget {
    #[default]
    Warn,
    Refuse,
}

/// One budget of a month.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetConfig {
    pub name: EntryName,
    /// `None` is all callers.
    #[serde(default, deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub caller: Option<CallerName>,
    /// `None` is all models.
    #[serde(default, deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub model: Option<ModelName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls_per_month: Option<Decimal>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_hours_per_month: Option<Decimal>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_per_month: Option<Decimal>,
    /// The share of the budget at which there is a warning.
    #[serde(default = "warn_at")]
    pub warn_at: Decimal,
    #[serde(default)]
    pub over: OverBudget,
}

fn warn_at() -> Decimal {
    Decimal::millionths(800_000)
}

/// All budgets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BudgetsConfig(pub Vec<BudgetConfig>);

impl BudgetsConfig {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl BudgetConfig {
    pub(crate) fn problems(&self) -> Vec<ValueProblem> {
        let mut problems = Vec::new();
        let limits = [
            ("calls_per_month", self.calls_per_month),
            ("cpu_hours_per_month", self.cpu_hours_per_month),
            ("cost_per_month", self.cost_per_month),
        ];
        if limits.iter().filter(|(_, limit)| limit.is_some()).count() != 1 {
            problems.push(ValueProblem::new(
                "name",
                "needs one of calls_per_month, cpu_hours_per_month and cost_per_month",
            ));
        }
        let zero = limits.into_iter().filter(|(_, limit)| limit.is_some_and(Decimal::is_zero));
        problems.extend(
            zero.map(|(key, _)| ValueProblem::new(key, "is 0: revoke the key of a caller to refuse all of its calls")),
        );
        if self.warn_at.is_zero() || self.warn_at > Decimal::millionths(1_000_000) {
            problems.push(ValueProblem::new("warn_at", "is no share: expected a number above 0 and up to 1"));
        }
        problems
    }
}

/// One objective.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectiveConfig {
    pub name: EntryName,
    #[serde(default, deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub caller: Option<CallerName>,
    #[serde(default, deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub model: Option<ModelName>,
    /// 99 of 100 calls are answered within this time, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<Decimal>,
    /// The percentage of calls that are answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub availability: Option<Decimal>,
    /// The days over which the error budget is counted.
    #[serde(default = "days", deserialize_with = "in_range::<3, 90, _, _>")]
    pub days: u64,
    /// The least number of calls in the long window of an alert.
    #[serde(default = "min_calls", deserialize_with = "in_range::<1, 1_000_000, _, _>")]
    pub min_calls: u64,
}

fn days() -> u64 {
    30
}

fn min_calls() -> u64 {
    100
}

/// All objectives.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ObjectivesConfig(pub Vec<ObjectiveConfig>);

impl ObjectivesConfig {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The shortest time of the objectives that name this model, of all callers or of one.
    pub fn p99_of(&self, model: &ModelName) -> Option<Duration> {
        self.0.iter().filter(|of| of.model.as_ref() == Some(model)).filter_map(ObjectiveConfig::p99).min()
    }
}

impl ObjectiveConfig {
    /// [`Self::p99_ms`].
    pub fn p99(&self) -> Option<Duration> {
        self.p99_ms.map(|ms| Duration::from_secs_f64(ms.get() / 1000.0))
    }

    pub(crate) fn problems(&self) -> Vec<ValueProblem> {
        let mut problems = Vec::new();
        if self.p99_ms.is_none() && self.availability.is_none() {
            problems.push(ValueProblem::new("name", "needs p99_ms or availability, or both"));
        }
        if self.p99_ms.is_some_and(|ms| ms.is_zero() || ms > Decimal::millionths(3_600_000_000_000)) {
            problems.push(ValueProblem::new("p99_ms", "is no time: expected a number above 0 and up to 3600000"));
        }
        let range = Decimal::millionths(50_000_000)..=Decimal::millionths(99_999_000);
        if self.availability.is_some_and(|percent| !range.contains(&percent)) {
            problems.push(ValueProblem::new(
                "availability",
                "is no percentage of an objective: expected a number from 50 to 99.999",
            ));
        }
        problems
    }
}

impl Serialize for CallerName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use ledge_base::toml_check;
    use ledge_part::section::ConfigSection;

    use super::*;

    #[derive(Debug, PartialEq, Default, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct TestFile {
        accounts: AccountsConfig,
        budget: BudgetsConfig,
        objective: ObjectivesConfig,
    }

    fn read(text: &str) -> TestFile {
        toml_check::parse::<TestFile>("f", text).unwrap()
    }

    #[track_caller]
    fn assert_problems(found: &[ValueProblem], expected: &[(&str, &str)]) {
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (problem, (key, part)) in found.iter().zip(expected) {
            assert!(problem.key == *key && problem.message.contains(part), "{found:?}");
        }
    }

    #[test]
    fn each_kind_of_caller_is_read_as_accounts_write_it() {
        for text in [
            "key:till-7",
            "cert:erp",
            "camera:yard",
            "inbox:scans",
            "mqtt:shop/1",
            "ip:10.0.0.1",
            "ip:fd00::1",
            "uid:1000",
            "local",
        ] {
            assert_eq!(text.parse::<CallerName>().unwrap().to_string(), text);
        }
        for text in ["", "till-7", "key:", "ip:here", "uid:-1", "others", "Key:a"] {
            assert!(text.parse::<CallerName>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_budget_has_one_limit() {
        let two = read(
            "[[budget]]\nname = 'a'\n[[budget]]\nname = 'a'\ncalls_per_month = 0\ncost_per_month = 5\nwarn_at = 2",
        );
        assert_problems(
            &two.budget.problems(),
            &[
                ("[0].name", "needs one of"),
                ("[1].name", "two budgets"),
                ("[1].name", "needs one of"),
                ("[1].calls_per_month", "is 0"),
                ("[1].warn_at", "share"),
            ],
        );
        let good = read("[[budget]]\nname = 'a'\ncaller = 'key:till'\ncpu_hours_per_month = 1.5\nover = 'refuse'");
        assert!(good.budget.problems().is_empty());
        assert_eq!(good.budget.0[0].warn_at, Decimal::new(0.8).unwrap());
    }

    #[test]
    fn an_objective_has_a_time_or_a_percentage() {
        let found = read("[[objective]]\nname = 'a'\n[[objective]]\nname = 'b'\np99_ms = 0\navailability = 100");
        assert_problems(
            &found.objective.problems(),
            &[("[0].name", "needs p99_ms"), ("[1].p99_ms", "no time"), ("[1].availability", "no percentage")],
        );
        let good = read("[[objective]]\nname = 'a'\np99_ms = 2.5\navailability = 99.9");
        assert!(good.objective.problems().is_empty());
        assert_eq!(good.objective.0[0].p99(), Some(Duration::from_micros(2500)));
    }

    #[test]
    fn prices_of_a_model_go_before_those_of_all() {
        let file = read(
            "[accounts]\ncurrency = 'EUR'\nprice_per_1000_calls = 0.5\nmodels = { wine = { price_per_1000_calls = 2 } }",
        );
        assert!(file.accounts.problems().is_empty());
        assert_eq!(file.accounts.models.len(), 1);
        assert_problems(&read("[accounts]\ncurrency = '=1+1'").accounts.problems(), &[("currency", "no name")]);
        assert_eq!(toml_check::parse::<TestFile>("f", "").unwrap(), TestFile::default());
    }
}
