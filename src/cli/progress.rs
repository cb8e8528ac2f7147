//! Progress on a terminal: a line on standard error, which is removed at the end.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar up to `total`, or a counter without one, drawn by a template of `indicatif`. Without a terminal nothing is
/// drawn.
pub fn bar(total: Option<u64>, template: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    total.map_or_else(ProgressBar::new_spinner, ProgressBar::new).with_style(style)
}
