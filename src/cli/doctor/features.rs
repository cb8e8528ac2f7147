//! The feature store: what is declared, and where it lies.

use crate::cli::checks::Check;
use crate::cli::doctor::{own_answer, size};
use crate::cli::{BadConfiguration, load_registry};
use crate::config::Config;

/// How the feature store is; `None` where no feature view is declared.
pub fn check(config: &Config) -> Option<Check> {
    let name = "feature store";
    let views = match load_registry(config) {
        Ok(registry) if registry.is_empty() => return None,
        Ok(registry) => registry.views().count(),
        Err(mistakes @ BadConfiguration(_)) => {
            return Some(Check::fail(name, mistakes.to_string(), "correct it; the server does not start with it"));
        }
    };
    let folder = config.features.path.as_path();
    // Before the first start there is no folder: then it is its parent that counts.
    let place = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(folder);
    let free = rustix::fs::statvfs(place).map_or(u64::MAX, |found| found.f_bavail.saturating_mul(found.f_frsize));
    let state = state(config).map_or_else(String::new, |state| format!(", and is {state}"));
    let detail = format!("{views} feature views; the store is in {}{state}; {} free", folder.display(), size(free));
    Some(match state.as_str() {
        _ if free < config.features.min_free_mb << 20 => {
            Check::fail(name, detail, "make room: pushes are refused (features.min_free_mb)")
        }
        "" | ", and is ready" => Check::ok(name, detail),
        _ => Check::warn(name, detail, "see `ledge features status`"),
    })
}

/// The state of the store, when its daemon answers.
fn state(config: &Config) -> Option<String> {
    Some(own_answer(config, "/features/status")?.get("state")?.as_str()?.to_owned())
}
