//! The message to a receiver, in JSON.

use std::borrow::Cow;

use ledge_base::clock;
use ledge_base::names::{AlertName, DeviceName};
use ledge_part::check::FindingStatus;
use schemars::JsonSchema;
use serde::Serialize;

use crate::tracker::{DueAlert, NotificationKind};

/// The check of a test message.
const TEST_CHECK: &str = "test";

/// The longest detail of a message, in characters. Receivers refuse messages that are too large for them.
const DETAIL_CHARS_MAX: usize = 1000;

/// A message: something is wrong, or is right again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AlertMessage<'a> {
    /// The version of Ledge.
    pub version: &'static str,
    /// The name of this box.
    pub device: &'a str,
    /// The name of the alert.
    pub alert: &'a str,
    /// The name of the check, as `ledge doctor` writes it.
    pub check: &'a str,
    /// `firing`, `resolved` or `test`.
    pub status: &'static str,
    /// `warn` or `fail`.
    pub severity: &'static str,
    /// True for a failure that was reported before and lasts.
    pub reminder: bool,
    /// The finding in words; its beginning where it is long.
    pub detail: Cow<'a, str>,
    /// The remedy.
    pub advice: Option<&'a str>,
    /// The time since which it was wrong, in RFC 3339.
    pub since: String,
    /// The time of this message.
    pub at: String,
    /// All of it in words, for receivers that show a text.
    pub text: String,
}

/// The JSON schema of a message.
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(AlertMessage<'static>)
}

impl<'a> AlertMessage<'a> {
    /// The message of a change.
    pub fn new(device: &'a DeviceName, alert: &'a AlertName, due: &'a DueAlert, now_ms: u64) -> Self {
        let DueAlert { check, news, severity, since_ms, detail, advice } = due;
        let (status, is_reminder) = match news {
            NotificationKind::Firing => ("firing", false),
            NotificationKind::Reminder => ("firing", true),
            NotificationKind::Resolved => ("resolved", false),
        };
        let since = clock::rfc3339(*since_ms);
        let detail = beginning(detail);
        let text = match news {
            NotificationKind::Firing => format!("{device}: {check}: {detail}"),
            NotificationKind::Reminder => format!("{device}: still, since {since}: {check}: {detail}"),
            NotificationKind::Resolved if detail.is_empty() => format!("{device}: {check} is right again"),
            NotificationKind::Resolved => format!("{device}: {check} is right again: {detail}"),
        };
        let text = advice.iter().fold(text, |text, advice| format!("{text}\n{advice}"));
        Self {
            version: env!("CARGO_PKG_VERSION"),
            device: device.as_str(),
            alert: alert.as_str(),
            check,
            status,
            severity: word(*severity),
            reminder: is_reminder,
            detail,
            advice: advice.as_deref(),
            since,
            at: clock::rfc3339(now_ms),
            text,
        }
    }

    /// A message that says nothing but that it arrives.
    pub fn test(device: &'a DeviceName, alert: &'a AlertName, now_ms: u64) -> Self {
        let now = clock::rfc3339(now_ms);
        Self {
            version: env!("CARGO_PKG_VERSION"),
            device: device.as_str(),
            alert: alert.as_str(),
            check: TEST_CHECK,
            status: "test",
            severity: word(FindingStatus::Warn),
            reminder: false,
            detail: "a test message: nothing is wrong".into(),
            advice: None,
            since: now.clone(),
            at: now,
            text: format!("{device}: a test message of the alert {alert}: nothing is wrong"),
        }
    }

    /// The message in bytes.
    pub fn json(&self) -> Vec<u8> {
        // Only texts, so this does not fail.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// The beginning of a text, with a mark where it was cut.
fn beginning(text: &str) -> Cow<'_, str> {
    let end = text.char_indices().nth(DETAIL_CHARS_MAX).and_then(|(end, _)| text.get(..end));
    end.map_or(Cow::Borrowed(text), |text| Cow::Owned(format!("{text}…")))
}

/// A severity as `ledge doctor --json` writes it.
pub fn word(severity: FindingStatus) -> &'static str {
    match severity {
        FindingStatus::Ok => "ok",
        FindingStatus::Info => "info",
        FindingStatus::Warn => "warn",
        FindingStatus::Fail => "fail",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn written(news: NotificationKind) -> Value {
        let (detail, advice) = match news {
            NotificationKind::Resolved => ("5.0 GiB of 9.0 GiB free", None),
            _ => ("1.0 MiB of 9.0 GiB free", Some("free disk space".to_owned())),
        };
        let due = DueAlert {
            check: "state".into(),
            news,
            severity: FindingStatus::Fail,
            since_ms: 1_767_225_600_000,
            detail: detail.into(),
            advice,
        };
        let (device, alert) = (DeviceName::constant("box"), AlertName::constant("shop"));
        serde_json::from_slice(&AlertMessage::new(&device, &alert, &due, 1_767_225_960_000).json()).unwrap()
    }

    #[test]
    fn a_message_says_what_is_wrong_where_since_when_and_what_to_do() {
        let expected = json!({
            "version": env!("CARGO_PKG_VERSION"), "device": "box", "alert": "shop", "check": "state",
            "status": "firing", "severity": "fail", "reminder": false, "detail": "1.0 MiB of 9.0 GiB free",
            "advice": "free disk space", "since": "2026-01-01T00:00:00Z", "at": "2026-01-01T00:06:00Z",
            "text": "box: state: 1.0 MiB of 9.0 GiB free\nfree disk space",
        });
        assert_eq!(written(NotificationKind::Firing), expected);
    }

    #[test]
    fn a_long_detail_is_cut() {
        assert_eq!(beginning(&"ä".repeat(DETAIL_CHARS_MAX)), "ä".repeat(DETAIL_CHARS_MAX));
        let due = DueAlert {
            check: "cameras".into(),
            news: NotificationKind::Firing,
            severity: FindingStatus::Fail,
            since_ms: 0,
            detail: "ä".repeat(50_000),
            advice: Some("look".into()),
        };
        let (device, alert) = (DeviceName::constant("box"), AlertName::constant("shop"));
        let message = AlertMessage::new(&device, &alert, &due, 0);
        let cut = "ä".repeat(DETAIL_CHARS_MAX) + "…";
        assert_eq!((&*message.detail, message.text.as_str()), (&*cut, &*format!("box: cameras: {cut}\nlook")));
    }

    #[test]
    fn the_text_tells_a_reminder_and_an_end_from_a_beginning() {
        let reminder = written(NotificationKind::Reminder);
        assert_eq!((&reminder["status"], &reminder["reminder"]), (&json!("firing"), &json!(true)));
        assert!(reminder["text"].as_str().unwrap().starts_with("box: still, since 2026-01-01T00:00:00Z: state: "));
        let resolved = written(NotificationKind::Resolved);
        assert_eq!((&resolved["status"], &resolved["advice"]), (&json!("resolved"), &Value::Null));
        assert_eq!(resolved["text"], "box: state is right again: 5.0 GiB of 9.0 GiB free");
    }
}
