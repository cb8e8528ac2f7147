//! The trusted roles, for display.

use std::collections::BTreeMap;

use super::{TrustedMetadata, time};
use crate::status::RoleStatus;

impl TrustedMetadata {
    /// Returns the trusted roles. Their expiry is known after the first refresh since the start.
    pub fn roles(&self) -> BTreeMap<String, RoleStatus> {
        let expires = |role: &str| {
            let set = &self.current.as_ref()?.set;
            Some(match role {
                "root" => set.root().expires,
                "timestamp" => set.timestamp()?.expires,
                "snapshot" => set.snapshot()?.expires,
                other => set.targets_role(other)?.expires,
            })
        };
        let status = |(role, version): (String, u64)| {
            let expires_ms = expires(&role).map(time::unix_ms);
            (role, RoleStatus { version, expires_ms })
        };
        self.versions().into_iter().map(status).collect()
    }
}
