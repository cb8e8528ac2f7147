//! Sandboxed processes: each test starts this binary again, with an order in its environment. A process enters its
//! sandbox with one thread, and the usual main of tests has two.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that panics says where")]

mod models;
mod order;
mod refusals;
mod sandboxes;

use std::process::ExitCode;

/// A test: its name, and its body.
type Test = (&'static str, fn());

fn main() -> ExitCode {
    if let Some(order) = order::ProbeOrder::of_this_process() {
        order.obey();
        return ExitCode::SUCCESS;
    }

    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let tests: Vec<Test> = [sandboxes::TESTS, refusals::TESTS, models::TESTS].concat();
    if has("--list") {
        if !has("--ignored") {
            for (name, _) in tests {
                println!("{name}: test");
            }
        }
        return ExitCode::SUCCESS;
    }

    let filters: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with("--")).collect();
    let chosen = |name: &str| {
        let fits = |filter: &&String| if has("--exact") { name == *filter } else { name.contains(filter.as_str()) };
        filters.is_empty() || filters.iter().any(fits)
    };
    let mut failed = false;
    for (name, body) in tests.into_iter().filter(|(name, _)| chosen(name)) {
        let passed = std::panic::catch_unwind(body).is_ok();
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        failed |= !passed;
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
