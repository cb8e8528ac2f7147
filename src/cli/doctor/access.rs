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
    let keys = match KeyStore::new(&config.state.path).list() {
        Ok(keys) => keys,
        Err(error) => {
            let is_private = matches!(error, KeysError::Unreadable { .. });
            let detail = format!("{:#}", anyhow::Error::from(error));
            return if is_private {
                Check::warn(name, detail, "run this as root, or as the user that Ledge runs as")
            } else {
                Check::fail(name, detail, "no API key lets anybody in before")
            };
        }
    };
    if let Some((key, problem)) = config.access.warnings().into_iter().next() {
        return Check::warn(name, format!("access.{key}: {problem}"), "the server runs without it");
    }
    let valid = keys.iter().filter(|key| key.revoked_ms.is_none()).count();
    Check::ok(name, format!("{valid} of {} API keys are not revoked", keys.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::checks::Status;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test makes the damage")]
    fn a_user_who_has_left_is_a_warning_and_a_damaged_store_is_worse() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::with_root(folder.path());
        assert_eq!(check(&config).status, Status::Ok);
        config.access = toml::from_str("users = [{ user = \"gone\", roles = [\"admin\"] }]").unwrap();
        let warned = check(&config);
        assert!(warned.status == Status::Warn && warned.detail.contains("write the number"), "{warned:?}");
        std::fs::write(folder.path().join("keys.json"), "{}").unwrap();
        assert_eq!(check(&config).status, Status::Fail);
    }
}
