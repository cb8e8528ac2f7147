//! The feature store: what is declared, and where it lies.

use ledge_base::toml_check::BadConfiguration;
use ledge_part::check::{Check, size};
use ledge_part::section::Site;
use serde_json::Value;

use crate::config::FeaturesConfig;
use crate::registry::Registry;

/// How the feature store is; `None` where no feature view is declared.
pub fn check(config: &FeaturesConfig, site: &Site<'_>) -> Option<Check> {
    let name = "feature store";
    let views = match Registry::load(&config.views, &config.path) {
        Ok(registry) if registry.is_empty() => return None,
        Ok(registry) => registry.views().count(),
        Err(mistakes) => {
            let mistakes = BadConfiguration(mistakes).to_string();
            return Some(Check::fail(name, mistakes, "correct it; the server does not start with it"));
        }
    };
    let folder = config.path.as_path();
    // Before the first start there is no folder: then it is its parent that counts.
    let place = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(folder);
    let free = rustix::fs::statvfs(place).map_or(u64::MAX, |found| found.f_bavail.saturating_mul(found.f_frsize));
    // Where its daemon answers.
    let status = (site.ask_daemon)("/features/status").unwrap_or_default();
    let number = |key: &str| status.get(key).and_then(Value::as_u64).unwrap_or(0);
    let (lost, damaged) = (number("entries_lost"), number("damage_found"));
    let state = status.get("state").and_then(Value::as_str).unwrap_or_default();
    let is = if state.is_empty() { String::new() } else { format!(", and is {state}") };
    let detail = format!("{views} feature views; the store is in {}{is}; {} free", folder.display(), size(free));
    Some(if lost > 0 {
        let detail = format!("{detail}; {lost} acknowledged entries, or more, are lost");
        Check::fail(name, detail, "push their rows again, or restore a backup; the log says which entries")
    } else if free < config.min_free_mb << 20 {
        Check::fail(name, detail, "make room: pushes are refused (features.min_free_mb)")
    } else if damaged > 0 {
        let detail = format!("{detail}; damage was found {damaged} times since its start");
        Check::warn(name, detail, "the log says where: look after the disk")
    } else if state.is_empty() || state == "ready" {
        Check::ok(name, detail)
    } else {
        Check::warn(name, detail, "see `ledge features status`")
    })
}
