//! One API key as the store has it.

use ledge_base::names::{KeyName, ModelName};
use ledge_base::token_bucket::CallRate;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::access::{CallerAccess, Role, ViewScope};
use crate::api_key::ApiKeyId;

/// One key in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiKeyRecord {
    /// The id in its holder's key.
    pub id: ApiKeyId,
    /// The name of its holder. No other key has, or had, this name.
    pub name: KeyName,
    /// BLAKE3 of its secret.
    pub blake3: SecretHash,
    pub roles: Vec<Role>,
    /// The models it covers; without it all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<ModelName>>,
    /// The feature views that it may read and push; see [`CallerAccess::new`] for a key without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feature_views: Option<ViewScope>,
    /// The time of its creation, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_ms: Option<u64>,
    /// The most requests a second, over time; 0 is no limit.
    #[serde(default)]
    pub max_rate: CallRate,
    /// The most requests at a time; 0 is no limit.
    #[serde(default)]
    pub max_concurrent: u32,
}

/// BLAKE3 of a secret. Compared in constant time, as `blake3::Hash` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecretHash(pub blake3::Hash);

impl Serialize for SecretHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.to_hex().as_str())
    }
}

impl<'de> Deserialize<'de> for SecretHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let hash = blake3::Hash::from_hex(&text).ok().filter(|hash| hash.to_hex().as_str() == text);
        hash.map(Self).ok_or_else(|| serde::de::Error::custom("expected 64 hexadecimal digits"))
    }
}

impl ApiKeyRecord {
    /// Its access.
    pub fn access(&self) -> CallerAccess {
        CallerAccess::new(self.roles.iter().copied(), self.models.clone(), self.feature_views.clone())
    }
}
