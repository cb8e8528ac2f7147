//! Who gets in: whether anybody can, and the store of API keys.

use crate::cli::checks::Check;
use crate::config::Config;
use crate::identity::keys::{KeyStore, KeysError};

/// Looks at the ways in.
pub fn check(config: &Config) -> Check {
    let name = "access";
    if let Some(problem) = config.lets_nobody_in() {
        return Check::fail(name, problem, "the server does not start before");
    }
    match KeyStore::new(&config.state.path).list() {
        Ok(keys) => {
            let count = keys.iter().filter(|key| key.revoked_ms.is_none()).count();
            Check::ok(name, format!("{count} API keys that are not revoked"))
        }
        Err(error @ KeysError::Unreadable { .. }) => Check::warn(
            name,
            format!("{:#}", anyhow::Error::from(error)),
            "run this as root, or as the user that Ledge runs as",
        ),
        Err(error) => {
            Check::fail(name, format!("{:#}", anyhow::Error::from(error)), "no API key lets anybody in before")
        }
    }
}
