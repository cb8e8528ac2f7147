//! The findings of `ledge doctor` and `ledge mqtt check`, as text in columns.

use std::fmt::Write as _;

pub use ledge_part::check::{Finding, FindingStatus};

/// The widest column of names, in characters: a longer name moves only its own line.
const NAME_WIDTH_MAX: usize = 32;

/// The least width of the column of details, in characters, however narrow the terminal is.
const DETAIL_WIDTH_MIN: usize = 24;

/// The checks in columns, and a summary below them. With `columns`, lines are broken for a terminal of that width.
pub fn text(checks: &[Finding], columns: Option<usize>) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0).min(NAME_WIDTH_MAX);
    let room = columns.map_or(usize::MAX, |columns| columns.saturating_sub(width + 8).max(DETAIL_WIDTH_MIN));
    let mut text = String::new();
    for check in checks {
        let status = match check.status {
            FindingStatus::Ok => "ok",
            FindingStatus::Info => "info",
            FindingStatus::Warn => "warn",
            FindingStatus::Fail => "FAIL",
        };
        // A detail of several lines stays in its column.
        let indent = format!("\n{:1$}", "", width + 8);
        let detail = broken(&check.detail, room).join(&indent);
        let _ = writeln!(text, "{status:<4}  {:width$}  {detail}", check.name);
        if let Some(advice) = &check.advice {
            let advice = broken(advice, room.saturating_sub(3)).join(&format!("{indent}   "));
            let _ = writeln!(text, "{:1$}-> {advice}", "", width + 8);
        }
    }
    let count = |status| checks.iter().filter(|check| check.status == status).count();
    let _ = match (count(FindingStatus::Fail), count(FindingStatus::Warn)) {
        (0, 0) => writeln!(text, "\nNo problems found."),
        (0, warnings) => writeln!(text, "\nLedge works. Warnings: {warnings}."),
        (failures, _) => writeln!(text, "\nProblems to solve: {failures}."),
    };
    text
}

/// The lines of a text, broken between words at `width` characters. Words are kept whole, such as the paths of files.
fn broken(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.split('\n') {
        let start = line.len() - line.trim_start().len();
        let (indent, words) = line.split_at(start);
        let (mut current, mut length) = (indent.to_owned(), indent.len());
        for (place, word) in words.split(' ').enumerate() {
            let chars = word.chars().count();
            if place > 0 && length + 1 + chars > width {
                lines.push(std::mem::replace(&mut current, indent.to_owned()));
                length = indent.len();
            } else if place > 0 {
                current.push(' ');
                length += 1;
            }
            current.push_str(word);
            length += chars;
        }
        lines.push(current);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_each_check_its_advice_and_what_is_left_to_do() {
        let checks = [Finding::ok("cpu", "x"), Finding::fail("configuration", "2 mistakes:\n  a\n  b", "correct it")];
        let expected = "\
ok    cpu            x
FAIL  configuration  2 mistakes:
                       a
                       b
                     -> correct it

Problems to solve: 1.
";
        assert_eq!(text(&checks, None), expected);
        assert_eq!(text(&checks, Some(200)), expected);
    }

    #[test]
    fn lines_are_broken_between_words_for_a_narrow_terminal() {
        let checks = [Finding::warn(
            "cpu",
            "one two three four five six\n  seven eight nine ten eleven",
            "see /a/path/of/a/file/longer/than/the/line now",
        )];
        let expected = "\
warn  cpu  one two three four five
           six
             seven eight nine ten
             eleven
           -> see
              /a/path/of/a/file/longer/than/the/line
              now

Ledge works. Warnings: 1.
";
        assert_eq!(text(&checks, Some(35)), expected);
        assert_eq!(text(&checks, Some(1)), expected);
    }
}
