//! The findings of `ledge doctor` and `ledge mqtt check`, as text in columns.

use std::fmt::Write as _;

pub use ledge_part::check::{Check, Status};

/// The checks in columns, and a summary below them.
pub fn text(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let status = match check.status {
            Status::Ok => "ok",
            Status::Info => "info",
            Status::Warn => "warn",
            Status::Fail => "FAIL",
        };
        // A detail of several lines stays in its column.
        let indent = format!("\n{:1$}", "", width + 8);
        let _ = writeln!(text, "{status:<4}  {:width$}  {}", check.name, check.detail.replace('\n', &indent));
        if let Some(advice) = &check.advice {
            let _ = writeln!(text, "{:1$}-> {advice}", "", width + 8);
        }
    }
    let count = |status| checks.iter().filter(|check| check.status == status).count();
    let _ = match (count(Status::Fail), count(Status::Warn)) {
        (0, 0) => writeln!(text, "\nNo problems found."),
        (0, warnings) => writeln!(text, "\nLedge works. Warnings: {warnings}."),
        (failures, _) => writeln!(text, "\nProblems to solve: {failures}."),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_each_check_its_advice_and_what_is_left_to_do() {
        let checks = [Check::ok("cpu", "x"), Check::fail("configuration", "2 mistakes:\n  a\n  b", "correct it")];
        let expected = "\
ok    cpu            x
FAIL  configuration  2 mistakes:
                       a
                       b
                     -> correct it

Problems to solve: 1.
";
        assert_eq!(text(&checks), expected);
    }
}
