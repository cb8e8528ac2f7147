//! Messages to systemd (`sd_notify`): ready, reloading, stopping, alive, and the status text.

use std::time::Duration;

use sd_notify::NotifyState;

/// The longest status text, in bytes: `systemctl status` has one line for it.
const STATUS_BYTES_MAX: usize = 400;

/// The time that a start asks for its next step: as much as the unit gives the whole start.
const START_STEP_TIME: Duration = Duration::from_mins(2);

/// Reports that every part has started.
pub fn ready() {
    send(&[NotifyState::Ready]);
}

/// Asks for more time for the start, before any part could give a sign of life.
pub fn starting() {
    send(&[extend(START_STEP_TIME)]);
}

/// Reports that changes are being loaded; [`ready`] follows. `Type=notify-reload` needs the time; older versions of
/// systemd ignore it.
pub fn reloading() {
    let now = NotifyState::monotonic_usec_now();
    send(&[Some(NotifyState::Reloading), now.ok()].into_iter().flatten().collect::<Vec<_>>());
}

/// Reports that the daemon stops, and asks for up to `most`, regardless of the unit's timeout.
pub fn stopping(most: Duration) {
    send(&[NotifyState::Stopping, extend(most)]);
}

/// Notifies the watchdog after a sign of life of every part. `starting` is given until the daemon is ready: the start
/// may take that much longer, however many models there are.
pub fn alive(starting: Option<Duration>) {
    send(&[Some(NotifyState::Watchdog), starting.map(extend)].into_iter().flatten().collect::<Vec<_>>());
}

fn extend(most: Duration) -> NotifyState<'static> {
    NotifyState::ExtendTimeoutUsec(u32::try_from(most.as_micros()).unwrap_or(u32::MAX))
}

/// Sends the text for `systemctl status`.
pub fn status(text: &str) {
    send(&[NotifyState::Status(&line(text))]);
}

/// The time of systemd's watchdog, `None` without one.
pub fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|every| !every.is_zero())
}

/// True if systemd gave this process a socket for messages.
pub fn has_socket() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// One line within the limit. systemd would read a second line as another message.
fn line(text: &str) -> String {
    let text: String = text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    if text.len() <= STATUS_BYTES_MAX {
        return text;
    }
    let end = (0..=STATUS_BYTES_MAX).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
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
            prop_assert!(line.len() <= STATUS_BYTES_MAX + 4);
        }
    }

    #[test]
    fn a_short_status_stays_as_it_is() {
        assert_eq!(line("3 models ready\nREADY=1"), "3 models ready READY=1");
    }
}
