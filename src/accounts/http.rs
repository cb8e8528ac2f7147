//! The routes of accounts and objectives.

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::get;
use ledge_base::month::Month;
use ledge_base::names::ModelName;
use ledge_part::api_error::ApiError;
use ledge_part::check::FindingStatus;
use ledge_part::reply::json;
use ledge_part::route::needs::VIEW;
use ledge_part::route::{Route, RouteScope};
use serde::Serialize;

use crate::accounts::Accounts;
use crate::config::OverBudget;
use crate::document::MonthDocument;
use crate::ledger::BudgetStep;
use crate::objective::{Indicator, TOLD};

/// The routes of accounts and objectives.
pub const ROUTES: &[Route<Accounts>] = &[
    Route::get("/accounts", VIEW, || get(accounts)).scope(RouteScope::Box),
    Route::get("/objectives", VIEW, || get(objectives)).scope(RouteScope::Box),
];

#[derive(Debug, Serialize)]
struct MonthsDocument {
    /// The newest first.
    months: Vec<String>,
    currency: String,
    budgets: Vec<BudgetDocument>,
}

/// A budget in the open month.
#[derive(Debug, Serialize)]
struct BudgetDocument {
    name: String,
    caller: Option<String>,
    model: Option<ModelName>,
    /// `calls`, `cpu_hours` or `cost`.
    unit: &'static str,
    used: f64,
    limit: f64,
    share: f64,
    over: OverBudget,
    /// `ok`, `warning` or `spent`.
    state: &'static str,
}

#[derive(Debug, Serialize)]
struct ObjectivesDocument {
    objectives: Vec<ObjectiveDocument>,
}

/// One quantity of an objective.
#[derive(Debug, Serialize)]
struct ObjectiveDocument {
    name: String,
    /// `latency` or `availability`.
    kind: &'static str,
    caller: Option<String>,
    model: Option<ModelName>,
    p99_ms: Option<f64>,
    availability: Option<f64>,
    days: u64,
    good: u64,
    bad: u64,
    /// 1 is all of the error budget, below 0 it is overdrawn.
    budget_left: f64,
    burn_rate: BurnRates,
    alert: Option<AlertDocument>,
}

#[derive(Debug, Serialize)]
struct BurnRates {
    #[serde(rename = "5m")]
    five_minutes: f64,
    #[serde(rename = "1h")]
    hour: f64,
    #[serde(rename = "6h")]
    six_hours: f64,
    #[serde(rename = "3d")]
    three_days: f64,
}

#[derive(Debug, Serialize)]
struct AlertDocument {
    factor: f64,
    windows: &'static str,
    status: FindingStatus,
}

impl From<&Indicator> for ObjectiveDocument {
    fn from(it: &Indicator) -> Self {
        let [five_minutes, hour, six_hours, three_days] = TOLD.map(|(_, window)| it.burn_rate(window));
        let all = it.all();
        let is_latency = it.kind == crate::objective::IndicatorKind::Latency;
        Self {
            name: it.config.name.to_string(),
            kind: it.kind.as_str(),
            caller: it.config.caller.as_ref().map(ToString::to_string),
            model: it.config.model.clone(),
            p99_ms: it.config.p99_ms.filter(|_| is_latency).map(crate::decimal::Decimal::get),
            availability: it.config.availability.filter(|_| !is_latency).map(crate::decimal::Decimal::get),
            days: it.config.days,
            good: all.good,
            bad: all.bad,
            budget_left: it.budget_left(),
            burn_rate: BurnRates { five_minutes, hour, six_hours, three_days },
            alert: it.alert().map(|rule| AlertDocument {
                factor: rule.factor,
                windows: rule.windows,
                status: rule.status,
            }),
        }
    }
}

/// `GET /accounts`: the months and budgets; with `?month=2026-12` the rows of one, as JSON or, with `format=csv` or
/// `Accept: text/csv`, as CSV.
async fn accounts(
    State(accounts): State<Accounts>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let AccountsQuery { month, is_csv } = AccountsQuery::parse(query.as_deref().unwrap_or_default())?;
    let accepts_csv = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let is_csv = is_csv.unwrap_or(accepts_csv.is_some_and(|accept| accept.starts_with("text/csv")));
    let Some(month) = month else {
        if is_csv {
            return Err(ApiError::new(StatusCode::BAD_REQUEST, "CSV is of one month: add month=2026-12"));
        }
        let months = accounts.months().await.iter().map(ToString::to_string).collect();
        return Ok(accounts.with_book(|book| {
            let currency = book.config.accounts.currency.clone();
            let budgets = book.budgets().into_iter().map(|(budget, used)| BudgetDocument {
                name: budget.name.to_string(),
                caller: budget.caller.as_ref().map(ToString::to_string),
                model: budget.model.clone(),
                unit: used.unit,
                used: used.used,
                limit: used.limit,
                share: used.share(),
                over: budget.over,
                state: match used.step(budget) {
                    None => "ok",
                    Some(BudgetStep::Warning) => "warning",
                    Some(BudgetStep::Whole) => "spent",
                },
            });
            json(&MonthsDocument { months, currency, budgets: budgets.collect() })
        }));
    };
    let ledger = accounts.month(month).await;
    let none = || ApiError::new(StatusCode::NOT_FOUND, format!("this box has no accounts of {month}"));
    let ledger = ledger.ok_or_else(none)?;
    let (zone, prices) = accounts.with_book(|book| (book.zone.clone(), book.config.accounts.clone()));
    let document = MonthDocument::new(month, &zone, &ledger, &prices);
    if !is_csv {
        return Ok(json(&document));
    }
    let mut response = Response::new(document.csv().into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/csv; charset=utf-8"));
    Ok(response)
}

/// The parameters of `GET /accounts`.
#[derive(Debug, Default, PartialEq, Eq)]
struct AccountsQuery {
    month: Option<Month>,
    is_csv: Option<bool>,
}

impl AccountsQuery {
    fn parse(query: &str) -> Result<Self, ApiError> {
        let wrong = |message: &str| ApiError::new(StatusCode::BAD_REQUEST, message);
        let mut parsed = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match (&*name, &*value) {
                ("month", month) => {
                    parsed.month = Some(month.parse().map_err(|_| wrong("month: expected a month such as 2026-12"))?);
                }
                ("format", "csv") => parsed.is_csv = Some(true),
                ("format", "json") => parsed.is_csv = Some(false),
                ("format", _) => return Err(wrong("format: expected csv or json")),
                _ => return Err(wrong("expected no parameters besides month=2026-12 and format=csv")),
            }
        }
        Ok(parsed)
    }
}

/// `GET /objectives`.
async fn objectives(State(accounts): State<Accounts>) -> Response {
    accounts
        .with_book(|book| json(&ObjectivesDocument { objectives: book.indicators.iter().map(Into::into).collect() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_month_and_a_format_are_parameters() {
        let month = "2026-12".parse().ok();
        assert_eq!(AccountsQuery::parse("").unwrap(), AccountsQuery::default());
        assert_eq!(
            AccountsQuery::parse("month=2026-12&format=csv").unwrap(),
            AccountsQuery { month, is_csv: Some(true) }
        );
        for wrong in ["month=", "month=../x", "format=xml", "caller=a", "month=2026-12&api_key=x"] {
            assert_eq!(AccountsQuery::parse(wrong).unwrap_err().status, StatusCode::BAD_REQUEST, "{wrong}");
        }
    }
}
