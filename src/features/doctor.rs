//! The finding about the feature store: its declarations, its folder and its damage.

use ledge_base::telemetry::system::DiskSpace;
use ledge_base::toml_check::BadConfiguration;
use ledge_part::check::{Finding, size};
use ledge_part::section::DoctorContext;
use serde_json::Value;

use crate::config::FeaturesConfig;
use crate::registry::Registry;

/// Checks the feature store, and lists the views with unusual rows; nothing where no feature view is declared.
pub fn check(config: &FeaturesConfig, context: &DoctorContext<'_>) -> Vec<Finding> {
    // Empty where the daemon does not run.
    let status = (context.ask_daemon)("/features/status").unwrap_or_default();
    let Some(store) = check_store(config, &status) else { return Vec::new() };
    [store].into_iter().chain(unusual_views(&status)).collect()
}

fn check_store(config: &FeaturesConfig, status: &Value) -> Option<Finding> {
    let name = "feature store";
    let views = match Registry::load(&config.views, &config.path) {
        Ok(registry) if registry.is_empty() => return None,
        Ok(registry) => registry.views().count(),
        Err(mistakes) => {
            let mistakes = BadConfiguration(mistakes).to_string();
            return Some(Finding::fail(name, mistakes, "correct this: the server does not start"));
        }
    };
    let folder = config.path.as_path();
    // Before the first start there is no folder.
    let free = DiskSpace::under(folder).map_or(u64::MAX, |disk| disk.available_bytes);

    let number = |key: &str| status.get(key).and_then(Value::as_u64).unwrap_or(0);
    let (lost, damaged) = (number("entries_lost"), number("damage_found"));
    let state = status.get("state").and_then(Value::as_str).unwrap_or_default();
    let is = if state.is_empty() { String::new() } else { format!(", and is {state}") };
    let detail = format!("{views} feature views; the store is in {}{is}; {} free", folder.display(), size(free));

    Some(if lost > 0 {
        let detail = format!("{detail}; at least {lost} acknowledged entries are lost{}", of_views(status));
        Finding::fail(name, detail, "push their rows again, or restore a backup; the log names the entries")
    } else if free < config.min_free_mb << 20 {
        Finding::fail(name, detail, "free disk space: pushes are refused below features.min_free_mb")
    } else if damaged > 0 {
        let detail = format!("{detail}; damaged data was found {damaged} times since the start");
        Finding::warn(name, detail, "check the disk; the log names the damaged files")
    } else if state.is_empty() || state == "ready" {
        Finding::ok(name, detail)
    } else {
        Finding::warn(name, detail, "see `ledge features status`")
    })
}

/// A finding for each view with entities that are unusual now. None names an entity.
fn unusual_views(status: &Value) -> Vec<Finding> {
    let views = status.get("feature_views").and_then(Value::as_array);
    let finding = |view: &Value| {
        let count = |key: &str| view.get("unusual_rows")?.get(key)?.as_u64();
        let (unusual, watched) = (count("unusual")?, count("watched")?);
        let name = view.get("name").and_then(Value::as_str)?;
        let detail = format!("{unusual} of {watched} entities of feature view `{name}` are unusual");
        let advice = format!("see `ledge features unusual --view {name}`");
        (unusual > 0).then(|| Finding::warn(&format!("unusual rows {name}"), detail, advice))
    };
    views.into_iter().flatten().filter_map(finding).collect()
}

/// The views that entries were lost of, as far as that is known.
fn of_views(status: &Value) -> String {
    let views = status.get("feature_views").and_then(Value::as_array);
    let of_view = |view: &Value| {
        let lost = view.get("entries_lost").and_then(Value::as_u64).filter(|lost| *lost > 0)?;
        Some(format!("{} of {}", lost, view.get("name").and_then(Value::as_str).unwrap_or_default()))
    };
    let views: Vec<String> = views.into_iter().flatten().filter_map(of_view).collect();
    if views.is_empty() { String::new() } else { format!(": {}", views.join(", ")) }
}
