//! Two tables of a `model.toml`: `[response_cache]` and `[limits]`. `serving/` applies them.

use std::time::Duration;

use ledge_base::token_bucket::CallRate;
use ledge_base::toml_check::ValueProblem;
use serde::{Deserialize, Serialize};

/// Bound on a model's cache: more than any box of this kind has memory for, to catch typing mistakes.
const CACHE_BYTES_MAX: u64 = 1 << 40;

/// Bound on the age of a cached answer: about thirty years.
const CACHE_TTL_S_MAX: u64 = 1_000_000_000;

/// `[response_cache]`: whether answers are cached, how many bytes of them and for how long.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelCacheConfig {
    /// Set to cache answers. Only for a model that gives equal answers to equal requests.
    pub enable: bool,
    /// The most bytes of cached answers; a quarter of the daemon's `response_cache.max_bytes` without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
    /// Seconds after which an answer is computed again; never without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<u64>,
    /// Set to share answers between callers. A caller can then find out that another one sent the same request.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub share: bool,
}

impl ModelCacheConfig {
    /// [`Self::ttl_s`].
    pub fn ttl(&self) -> Option<Duration> {
        self.ttl_s.map(Duration::from_secs)
    }

    /// Mistakes that types cannot express.
    pub(super) fn mistakes(&self) -> Vec<ValueProblem> {
        let mut mistakes = Vec::new();
        if !self.max_bytes.is_none_or(|bytes| (1..=CACHE_BYTES_MAX).contains(&bytes)) {
            mistakes.push(ValueProblem::new("response_cache.max_bytes", format!("expected 1 to {CACHE_BYTES_MAX}")));
        }
        if !self.ttl_s.is_none_or(|seconds| (1..=CACHE_TTL_S_MAX).contains(&seconds)) {
            mistakes.push(ValueProblem::new("response_cache.ttl_s", format!("expected 1 to {CACHE_TTL_S_MAX}")));
        }
        mistakes
    }
}

/// `[limits]`: limits of all callers of a version of the model together.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CallLimits {
    /// The most calls at a time, waiting ones included; 0 is no limit.
    pub max_concurrent: u32,
    /// The most calls a second, over time; 0 is no limit.
    pub max_rate: CallRate,
    /// The most calls at once after a quiet time; 0 is one second's worth.
    pub burst: u32,
}

impl CallLimits {
    /// True when anything is limited.
    pub fn is_set(&self) -> bool {
        self.max_concurrent > 0 || self.max_rate.is_set()
    }
}

#[cfg(test)]
mod tests {
    use super::super::model_config::ModelConfig;
    use super::*;

    #[test]
    fn without_the_tables_nothing_is_kept_and_nothing_limited() {
        let config = ModelConfig::parse("t", "").unwrap();
        assert!(!config.response_cache.enable && !config.limits.is_set());
    }

    #[test]
    fn the_tables_are_read_and_their_mistakes_named() {
        let text = "[response_cache]\nenable = true\nmax_bytes = 1000\nttl_s = 60\n[limits]\nmax_rate = 5\nburst = 2\n";
        let config = ModelConfig::parse("t", text).unwrap();
        assert_eq!(config.response_cache.ttl(), Some(Duration::from_mins(1)));
        assert_eq!(config.limits, CallLimits { max_concurrent: 0, max_rate: CallRate::new(5.0).unwrap(), burst: 2 });
        for (text, key) in [
            ("[response_cache]\nmax_bytes = 0", "response_cache.max_bytes"),
            ("[response_cache]\nttl_s = 0", "response_cache.ttl_s"),
            ("[limits]\nmax_rate = -1", "limits.max_rate"),
            ("[limits]\nmax_rate = nan", "limits.max_rate"),
            ("[limits]\nmax_rate = 0.0001", "limits.max_rate"),
            ("[limits]\nmax_concurrent = -1", "limits.max_concurrent"),
        ] {
            let mistakes = ModelConfig::parse("t", text).unwrap_err();
            assert_eq!(mistakes.iter().map(|mistake| mistake.key.as_str()).collect::<Vec<_>>(), [key], "{text}");
        }
    }
}
