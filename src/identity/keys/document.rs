//! A key as lists show it, on the command line and over HTTP: everything but the hash of its secret.

use ledge_base::clock;
use ledge_base::names::{KeyName, ModelName};
use ledge_base::token_bucket::CallRate;
use serde::Serialize;

use super::{ApiKeyId, ApiKeyRecord};
use crate::access::{Role, ViewScope};

/// The state of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ApiKeyState {
    Valid,
    Expired,
    Revoked,
}

impl ApiKeyState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
        }
    }
}

impl ApiKeyRecord {
    /// The state at a time.
    pub fn state(&self, now_ms: u64) -> ApiKeyState {
        match self {
            Self { revoked_ms: Some(_), .. } => ApiKeyState::Revoked,
            Self { expires_ms: Some(expires), .. } if *expires <= now_ms => ApiKeyState::Expired,
            _ => ApiKeyState::Valid,
        }
    }
}

/// A key without its hash.
#[derive(Debug, Clone, Serialize)]
pub struct ApiKeyDocument {
    id: ApiKeyId,
    name: KeyName,
    state: ApiKeyState,
    roles: Vec<Role>,
    /// `None` is all models.
    models: Option<Vec<ModelName>>,
    feature_views: ViewScope,
    /// In RFC 3339, as the next two.
    created: String,
    expires: Option<String>,
    revoked: Option<String>,
    max_rate: CallRate,
    max_concurrent: u32,
}

impl ApiKeyDocument {
    /// The document of a key, with its state at a time.
    pub fn new(key: &ApiKeyRecord, now_ms: u64) -> Self {
        Self {
            id: key.id,
            name: key.name.clone(),
            state: key.state(now_ms),
            roles: key.roles.clone(),
            models: key.models.clone(),
            feature_views: key.access().feature_views().clone(),
            created: clock::rfc3339(key.created_ms),
            expires: key.expires_ms.map(clock::rfc3339),
            revoked: key.revoked_ms.map(clock::rfc3339),
            max_rate: key.max_rate,
            max_concurrent: key.max_concurrent,
        }
    }
}
