//! What systemd is told: that the daemon is ready, that it takes up changes, that it is alive, and how it does in words.

use std::time::Duration;

use sd_notify::NotifyState;

/// The longest status text, in bytes: `systemctl status` has one line for it.
const LONGEST: usize = 400;

/// What the next step of a start may take: as much as the unit gives the whole of it.
const STEP: Duration = Duration::from_mins(2);

/// Every part has started.
pub fn ready() {
    send(&[NotifyState::Ready]);
}

/// The start goes on, before there is anything that could show a sign of life.
pub fn starting() {
    send(&[extend(STEP)]);
}

/// Changes are being taken up; [`ready`] follows. The time is what `Type=notify-reload` asks for; older ones ignore it.
pub fn reloading() {
    let now = NotifyState::monotonic_usec_now();
    send(&[Some(NotifyState::Reloading), now.ok()].into_iter().flatten().collect::<Vec<_>>());
}

/// The end has begun, and may take `most`, whatever the unit says.
pub fn stopping(most: Duration) {
    send(&[NotifyState::Stopping, extend(most)]);
}

/// Every part has just done something. Before the daemon is ready that is `starting`: its start may then take so much
/// longer, however many models there are.
pub fn alive(starting: Option<Duration>) {
    send(&[Some(NotifyState::Watchdog), starting.map(extend)].into_iter().flatten().collect::<Vec<_>>());
}

fn extend(most: Duration) -> NotifyState<'static> {
    NotifyState::ExtendTimeoutUsec(u32::try_from(most.as_micros()).unwrap_or(u32::MAX))
}

/// How the daemon does, for `systemctl status`.
pub fn status(text: &str) {
    send(&[NotifyState::Status(&line(text))]);
}

/// Within what time systemd wants to hear that the daemon is alive, when it does.
pub fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|every| !every.is_zero())
}

/// Whether anybody listens.
pub fn is_listened_to() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// One line, not too long. What stood in a second line would be taken for another message to systemd.
fn line(text: &str) -> String {
    let text: String = text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    if text.len() <= LONGEST {
        return text;
    }
    let end = (0..=LONGEST).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    format!("{} ...", text.get(..end).unwrap_or_default())
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "systemd was not notified");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_status_is_one_line_whatever_a_reason_says(text in "\\PC*|[\\n\\r\\x00a-z=é]{0,900}") {
            let line = line(&text);
            prop_assert!(!line.chars().any(char::is_control));
            prop_assert!(line.len() <= LONGEST + 4);
        }
    }

    #[test]
    fn a_short_status_stays_as_it_is() {
        assert_eq!(line("3 models ready\nREADY=1"), "3 models ready READY=1");
    }
}
