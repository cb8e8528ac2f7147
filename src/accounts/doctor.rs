//! The findings about budgets and objectives, which the daemon is asked for.

use ledge_part::check::Finding;
use ledge_part::section::DoctorContext;
use serde_json::Value;

use crate::config::{BudgetsConfig, ObjectivesConfig};
use crate::objective::finding_name;

fn text<'a>(of: &'a Value, key: &str) -> &'a str {
    of.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn number(of: &Value, key: &str) -> f64 {
    of.get(key).and_then(Value::as_f64).unwrap_or_default()
}

/// The findings about budgets.
pub fn budgets(config: &BudgetsConfig, context: &DoctorContext<'_>) -> Vec<Finding> {
    if config.is_empty() {
        return Vec::new();
    }
    let answer = (context.ask_daemon)("/accounts").unwrap_or_default();
    answer.get("budgets").and_then(Value::as_array).into_iter().flatten().map(budget).collect()
}

fn budget(of: &Value) -> Finding {
    let name = format!("budget {}", text(of, "name"));
    let unit = text(of, "unit").replace('_', " ");
    let detail = format!("{:.0} % of {} {unit} of this month", number(of, "share") * 100.0, number(of, "limit"));
    match text(of, "state") {
        "spent" if text(of, "over") == "refuse" => {
            let advice = "its calls are refused until the month ends: raise it, or set over = \"warn\"";
            Finding::fail(&name, detail, advice)
        }
        "ok" => Finding::ok(&name, detail),
        _ => Finding::warn(&name, detail, "see GET /accounts for the callers"),
    }
}

/// The findings about objectives.
pub fn objectives(config: &ObjectivesConfig, context: &DoctorContext<'_>) -> Vec<Finding> {
    if config.is_empty() {
        return Vec::new();
    }
    let answer = (context.ask_daemon)("/objectives").unwrap_or_default();
    answer.get("objectives").and_then(Value::as_array).into_iter().flatten().map(objective).collect()
}

fn objective(of: &Value) -> Finding {
    let name = finding_name(text(of, "name"), text(of, "kind"));
    let left = format!("{:.0} % of the error budget is left", number(of, "budget_left") * 100.0);
    let Some(alert) = of.get("alert").filter(|alert| alert.is_object()) else { return Finding::ok(&name, left) };
    let (factor, windows) = (number(alert, "factor"), text(alert, "windows"));
    let detail = format!("the error budget burns more than {factor} times too fast over {windows}; {left}");
    let advice = "look at the failures, times and queues of its models: GET /objectives, ledge top";
    if text(alert, "status") == "fail" {
        Finding::fail(&name, detail, advice)
    } else {
        Finding::warn(&name, detail, advice)
    }
}

#[cfg(test)]
mod tests {
    use ledge_part::check::FindingStatus;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_spent_budget_that_refuses_is_a_failure_and_one_that_warns_a_warning() {
        let status = |state: &str, over: &str| {
            budget(&json!({"name": "b", "unit": "calls", "share": 0.9, "limit": 10, "state": state, "over": over}))
                .status
        };
        assert_eq!(status("ok", "refuse"), FindingStatus::Ok);
        assert_eq!(status("warning", "refuse"), FindingStatus::Warn);
        assert_eq!(status("spent", "warn"), FindingStatus::Warn);
        assert_eq!(status("spent", "refuse"), FindingStatus::Fail);
    }

    #[test]
    fn an_alert_of_an_objective_says_how_fast_its_budget_burns() {
        let mut of = json!({"name": "fast", "kind": "latency", "budget_left": 0.25, "alert": null});
        let found = objective(&of);
        assert_eq!(
            (&*found.name, found.status, &*found.detail),
            ("objective fast latency", FindingStatus::Ok, "25 % of the error budget is left")
        );
        of["alert"] = json!({"factor": 14.4, "windows": "1 h and 5 min", "status": "fail"});
        let found = objective(&of);
        assert!(
            found.status == FindingStatus::Fail && found.detail.contains("14.4 times too fast over 1 h and 5 min"),
            "{}",
            found.detail
        );
        of["alert"]["status"] = json!("warn");
        assert_eq!(objective(&of).status, FindingStatus::Warn);
    }
}
