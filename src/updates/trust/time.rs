//! Time that cannot be set back: a clock at 1970 must not make expired metadata valid again.

use std::time::Duration;

use ledge_base::clock;
use sigstore_tuf::Timestamp as TimestampRole;

/// The field in which the platform writes when it signed the `timestamp` role (RFC 3339).
pub const SIGNED_AT: &str = "x-ledge-signed-at";

/// Returns the trusted time: that of the system, but neither before the build nor before the proven time.
pub(super) fn now_ms(system_ms: u64, proven_ms: u64) -> u64 {
    system_ms.max(clock::built_ms()).max(proven_ms)
}

/// Returns the time at which the platform signed this, by its own field.
pub(super) fn signed_at_ms(timestamp: &TimestampRole) -> Option<u64> {
    parse_ms(timestamp.extra.get(SIGNED_AT)?.as_str()?)
}

/// Parses a time in RFC 3339.
pub(super) fn parse_ms(text: &str) -> Option<u64> {
    Some(unix_ms(text.parse().ok()?))
}

/// Converts a time to milliseconds since the Unix epoch.
pub(super) fn unix_ms(moment: jiff::Timestamp) -> u64 {
    moment.as_millisecond().try_into().unwrap_or(0)
}

/// Converts milliseconds to a time. Times beyond the year 9999 become its last moment.
pub(super) fn timestamp(unix_ms: u64) -> jiff::Timestamp {
    let moment = i64::try_from(unix_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    moment.unwrap_or(jiff::Timestamp::MAX)
}

/// Returns whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn time_does_not_run_before_this_was_built() {
        assert_eq!(now_ms(0, 0), clock::built_ms());
    }

    #[test]
    fn only_a_moment_of_rfc_3339_proves_anything() {
        let signed_at = |value: serde_json::Value| {
            let role = serde_json::json!({"_type": "timestamp", "spec_version": "1.0", "version": 1, "meta": {},
                "expires": "2099-01-01T00:00:00Z", SIGNED_AT: value});
            signed_at_ms(&serde_json::from_value(role).unwrap())
        };
        assert_eq!(signed_at("2026-11-20T01:00:00+01:00".into()), Some(1_795_132_800_000));
        for wrong in [serde_json::json!(1), "yesterday".into(), "2026-11-20".into(), serde_json::Value::Null] {
            assert_eq!(signed_at(wrong), None);
        }
        assert_eq!(signed_at("1901-01-01T00:00:00Z".into()), Some(0));
    }

    proptest! {
        #[test]
        fn time_never_runs_behind_what_is_known(system: u64, proven: u64) {
            let now = now_ms(system, proven);
            prop_assert!(now >= system && now >= proven && now >= clock::built_ms());
            prop_assert!([system, proven, clock::built_ms()].contains(&now));
        }

        #[test]
        fn a_moment_is_the_same_after_it_was_written(ms in 0_u64..253_402_207_200_000) {
            prop_assert_eq!(parse_ms(&timestamp(ms).to_string()), Some(ms));
        }
    }
}
