//! Two tables of a `model.toml`: `[response_cache]` and `[limits]`. What they say is obeyed by `serving/`.

use std::time::Duration;

use ledge_base::token_bucket::Rate;
use serde::{Deserialize, Serialize};

/// More than any box of this kind has memory for: a limit that only catches slips of the pen.
const MOST_BYTES: u64 = 1 << 40;

/// About thirty years.
const LONGEST_TTL_S: u64 = 1_000_000_000;

/// `[response_cache]`: whether answers are kept, how many bytes of them and for how long.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ResponseCache {
    /// Whether answers are kept. Only for a model that gives equal answers to equal requests.
    pub enable: bool,
    /// The most bytes of kept answers; a quarter of the daemon's `response_cache.max_bytes` without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
    /// Seconds after which an answer is computed anew; never without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<u64>,
    /// Whether callers get the answers that others asked for. They can tell then that somebody did.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub share: bool,
}

impl ResponseCache {
    /// [`Self::ttl_s`].
    pub fn ttl(&self) -> Option<Duration> {
        self.ttl_s.map(Duration::from_secs)
    }

    /// What no type can say: the key, and what was expected.
    pub(super) fn mistakes(&self) -> Vec<(&'static str, String)> {
        let mut mistakes = Vec::new();
        if !self.max_bytes.is_none_or(|bytes| (1..=MOST_BYTES).contains(&bytes)) {
            mistakes.push(("response_cache.max_bytes", format!("expected 1 to {MOST_BYTES}")));
        }
        if !self.ttl_s.is_none_or(|seconds| (1..=LONGEST_TTL_S).contains(&seconds)) {
            mistakes.push(("response_cache.ttl_s", format!("expected 1 to {LONGEST_TTL_S}")));
        }
        mistakes
    }
}

/// `[limits]`: what all callers of a version of the model together may ask for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// The most calls at a time, waiting ones included; 0 is no limit.
    pub max_concurrent: u32,
    /// The most calls a second, over time; 0 is no limit.
    pub max_rate: Rate,
    /// The most calls at once after a quiet time; 0 is one second's worth.
    pub burst: u32,
}

impl Limits {
    /// Whether anything is limited.
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
        assert_eq!(config.limits, Limits { max_concurrent: 0, max_rate: Rate::new(5.0).unwrap(), burst: 2 });
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
