//! The check of access: a way in for at least one caller, and the store of API keys.

use ledge_base::clock;
use ledge_identity::keys::{ApiKeyRecord, ApiKeyStore, ApiKeysError};

use crate::config::Config;
use ledge_part::check::Finding;

/// The time before a key expires from which it is reported, in milliseconds.
const EXPIRY_WARNING_MS: u64 = 30 * 86_400_000;

/// Checks the ways in and the API keys.
pub fn check(config: &Config) -> Finding {
    let name = "access";
    if let Some(problem) = config.lets_nobody_in() {
        return Finding::fail(name, problem, "correct it: the server does not start like this");
    }

    let keys = match ApiKeyStore::new(&config.state.path).list() {
        Ok(keys) => keys,
        Err(error) => {
            let is_private = matches!(error, ApiKeysError::Unreadable { .. });
            let detail = format!("{:#}", anyhow::Error::from(error));
            return if is_private {
                Finding::warn(name, detail, "run this command as root, or as the user that Ledge runs as")
            } else {
                Finding::fail(name, detail, "repair it: until then the server accepts no API key")
            };
        }
    };

    if let Some(problem) = config.access.warnings().into_iter().next() {
        let detail = format!("access.{}: {}", problem.key, problem.message);
        return Finding::warn(name, detail, "the server ignores this entry");
    }
    let valid = keys.iter().filter(|key| key.revoked_ms.is_none());
    let detail = format!("{} of {} API keys are not revoked", valid.clone().count(), keys.len());
    match ending(valid, clock::FLOOR.now_millis()) {
        None => Finding::ok(name, detail),
        Some(ending) => {
            Finding::warn(name, format!("{detail}\n{ending}"), "create new keys for their holders: ledge keys create")
        }
    }
}

/// The keys that expire soon, or have expired and are not revoked.
fn ending<'k>(keys: impl Iterator<Item = &'k ApiKeyRecord>, now_ms: u64) -> Option<String> {
    let ends = |key: &ApiKeyRecord| {
        let at = key.expires_ms.filter(|at| *at < now_ms.saturating_add(EXPIRY_WARNING_MS))?;
        let verb = if at < now_ms { "expired" } else { "expires" };
        Some(format!("the key {} {verb} at {}", key.name, clock::rfc3339(at)))
    };
    let ending: Vec<_> = keys.filter_map(ends).collect();
    (!ending.is_empty()).then(|| ending.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledge_base::token_bucket::CallRate;
    use ledge_identity::access::Role;
    use ledge_identity::keys::NewApiKey;
    use ledge_part::check::FindingStatus;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test makes the damage")]
    fn a_user_who_has_left_is_a_warning_and_a_damaged_store_is_worse() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::with_root(folder.path());
        assert_eq!(check(&config).status, FindingStatus::Ok);
        let now_ms = clock::unix_millis();
        let key = |name: &str, days: u64| NewApiKey {
            name: name.parse().unwrap(),
            roles: vec![Role::Infer],
            models: None,
            feature_views: None,
            expires_ms: Some(now_ms + days * 86_400_000),
            max_rate: CallRate::new(0.0).unwrap(),
            max_concurrent: 0,
        };
        let store = ApiKeyStore::new(folder.path());
        store.create(&key("till", 40), now_ms).unwrap();
        assert_eq!(check(&config).status, FindingStatus::Ok);
        store.create(&key("door", 20), now_ms).unwrap();
        let warned = check(&config);
        assert!(warned.status == FindingStatus::Warn && warned.detail.contains("door"), "{warned:?}");
        assert!(!warned.detail.contains("till"), "{warned:?}");
        store.revoke("door", now_ms).unwrap();
        config.access = toml::from_str("users = [{ user = \"gone\", roles = [\"admin\"] }]").unwrap();
        let warned = check(&config);
        assert!(warned.status == FindingStatus::Warn && warned.detail.contains("give the number"), "{warned:?}");
        std::fs::write(folder.path().join("keys.json"), "{}").unwrap();
        assert_eq!(check(&config).status, FindingStatus::Fail);
    }
}
