//! The sections `[[alert]]` of the configuration.

use std::time::Duration;

use ledge_base::names::AlertName;
use ledge_base::secret::SecretFile;
use ledge_base::toml_check::{ValueProblem, empty_if_none, in_range, none_if_empty};
use ledge_egress::{CertificateFingerprint, ConfiguredDestination, HostPort, TokenHeader, WebhookConfig, WebhookUrl};
use ledge_part::check::FindingStatus;
use serde::{Deserialize, Serialize};

use crate::tracker::AlertReceiverRules;

/// The most alerts. Each has a task, and a state for each finding.
pub const ALERTS_MAX: usize = 16;

/// The most names in `checks`.
const CHECKS_MAX: usize = 100;

/// The longest name in `checks`, in bytes: a kind of check, and a name.
const CHECK_BYTES_MAX: usize = 200;

/// All alerts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AlertsConfig(pub Vec<AlertConfig>);

/// One alert: its receiver, and the findings to report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlertConfig {
    /// Its name in messages, topics, metrics and logs.
    pub name: AlertName,
    /// The webhook. `None`: only MQTT.
    #[serde(default, deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub url: Option<WebhookUrl>,
    /// Publishes the messages at the broker of `[mqtt]`, too.
    #[serde(default)]
    pub mqtt: bool,
    /// The least severity that is reported.
    #[serde(default)]
    pub least: MinimumSeverity,
    /// The names of checks, or their first words; empty is all.
    #[serde(default)]
    pub checks: Vec<String>,
    /// The time in seconds for which something must be wrong, or right again, before it is reported.
    #[serde(default = "hold_s", deserialize_with = "in_range::<1, 86_400, _, _>")]
    pub hold_s: u64,
    /// The time in seconds after which a lasting failure is reported again; 0 is never.
    #[serde(default = "repeat_s", deserialize_with = "in_range::<0, 31_536_000, _, _>")]
    pub repeat_s: u64,
    /// The secret that the webhook wants.
    #[serde(default, deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub token_file: Option<SecretFile>,
    /// The header whose value is only the secret. `None`: `Authorization: Bearer SECRET`.
    #[serde(default, deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub token_header: Option<TokenHeader>,
    /// The CAs that may have signed the webhook's certificate; `None` is those that the system trusts.
    #[serde(default, deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub ca_file: Option<SecretFile>,
    /// The SHA-256 of the one certificate that the webhook may present.
    #[serde(default, deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub pinned_sha256: Option<CertificateFingerprint>,
    /// A proxy that is asked to connect (HTTP CONNECT).
    #[serde(default, deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub proxy: Option<HostPort>,
}

/// The least severity that is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MinimumSeverity {
    #[default]
    Warn,
    Fail,
}

fn hold_s() -> u64 {
    300
}

fn repeat_s() -> u64 {
    86_400
}

impl AlertConfig {
    /// [`Self::hold_s`].
    pub fn hold(&self) -> Duration {
        Duration::from_secs(self.hold_s)
    }

    /// The name of the finding about its delivery.
    pub fn check_name(&self) -> String {
        format!("alert {}", self.name)
    }

    /// The filter and times of its receivers.
    pub(crate) fn rules(&self) -> AlertReceiverRules {
        AlertReceiverRules {
            least: match self.least {
                MinimumSeverity::Warn => FindingStatus::Warn,
                MinimumSeverity::Fail => FindingStatus::Fail,
            },
            checks: self.checks.clone(),
            except: self.check_name(),
            hold: self.hold(),
            repeat: (self.repeat_s > 0).then(|| Duration::from_secs(self.repeat_s)),
        }
    }

    /// A short hash of a receiver's address, severity and checks. The reports it got are stored under this hash, since
    /// they say nothing about another receiver or other checks.
    pub(crate) fn mark(&self, address: &str) -> String {
        let mut checks: Vec<_> = self.checks.iter().map(String::as_str).collect();
        checks.sort_unstable();
        let least = match self.least {
            MinimumSeverity::Warn => "warn",
            MinimumSeverity::Fail => "fail",
        };
        // None of these has a control character.
        format!("{:08x}", fnv1a(&format!("{address}\n{least}\n{}", checks.join("\n"))))
    }

    /// The webhook; `None` without one.
    pub(crate) fn webhook(&self) -> Option<WebhookConfig> {
        Some(WebhookConfig {
            url: self.url.clone()?,
            token_file: self.token_file.clone(),
            token_header: self.token_header.clone(),
            ca_file: self.ca_file.clone(),
            pinned_sha256: self.pinned_sha256,
            proxy: self.proxy.clone(),
        })
    }

    pub(crate) fn problems(&self) -> Vec<ValueProblem> {
        let mut problems = Vec::new();
        let mut wrong = |key: &str, problem: &str| problems.push(ValueProblem::new(key, problem));
        if self.url.is_none() && !self.mqtt {
            wrong("name", "has no receiver: set `url`, or mqtt = true");
        }
        for (key, is_set) in [
            ("token_file", self.token_file.is_some()),
            ("ca_file", self.ca_file.is_some()),
            ("pinned_sha256", self.pinned_sha256.is_some()),
            ("proxy", self.proxy.is_some()),
        ] {
            if is_set && self.url.is_none() {
                wrong(key, "is for an alert with a url");
            }
        }
        problems.extend(self.webhook().iter().flat_map(WebhookConfig::problems));
        problems
    }

    pub(crate) fn check_problems(&self) -> Vec<ValueProblem> {
        let mut problems = Vec::new();
        if self.checks.len() > CHECKS_MAX {
            problems.push(ValueProblem::new("checks", format!("has more than {CHECKS_MAX} names")));
        }
        for (index, check) in self.checks.iter().enumerate() {
            if check.is_empty() || check.len() > CHECK_BYTES_MAX || check.contains(char::is_control) {
                let problem = format!("is empty, longer than {CHECK_BYTES_MAX} bytes or has a control character");
                problems.push(ValueProblem::new(format!("checks[{index}]"), problem));
            }
        }
        problems
    }

    pub(crate) fn destination(&self) -> Option<ConfiguredDestination> {
        Some(self.webhook()?.destination())
    }
}

/// The hash FNV-1a in 32 bits: the same in every version, and too short to find a secret of an address by it.
fn fnv1a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

impl AlertsConfig {
    pub fn iter(&self) -> impl Iterator<Item = &AlertConfig> {
        self.0.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use ledge_base::toml_check;
    use ledge_part::section::ConfigSection;

    use super::*;

    #[derive(Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
    #[serde(default)]
    struct AlertsFile {
        alert: AlertsConfig,
    }

    fn read(text: &str) -> AlertsConfig {
        toml_check::parse::<AlertsFile>("f", text).unwrap().alert
    }

    #[track_caller]
    fn problems(text: &str, expected: &[(&str, &str)]) {
        let found = read(text).problems();
        let found: Vec<_> = found.iter().map(|problem| (problem.key.as_str(), problem.message.as_str())).collect();
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for ((key, message), (expected_key, part)) in found.iter().zip(expected) {
            assert!(key == expected_key && message.contains(part), "{found:?}");
        }
    }

    #[test]
    fn an_alert_needs_a_name_and_a_receiver() {
        let AlertsConfig(alerts) = read("[[alert]]\nname = 'shop'\nurl = 'https://hooks.example/x?sig=1'");
        let alert = &alerts[0];
        assert_eq!(
            (alert.least, alert.hold_s, alert.repeat_s, alert.mqtt),
            (MinimumSeverity::Warn, 300, 86_400, false)
        );
        assert!(alert.problems().is_empty());
        problems("[[alert]]\nname = 'a'\nmqtt = true", &[]);
        problems("[[alert]]\nname = 'a'", &[("[0].name", "has no receiver")]);
    }

    #[test]
    fn a_mark_follows_the_receiver_and_what_it_wants_to_hear() {
        assert_eq!([fnv1a(""), fnv1a("a"), fnv1a("foobar")], [0x811c_9dc5, 0xe40c_292c, 0xbf9c_f968]);
        let mark = |address: &str, text: &str| read(&format!("[[alert]]\nname = 'a'\n{text}")).0[0].mark(address);
        let before = mark("https://h:443/x", "checks = ['cpu', 'state']\nurl = 'https://h/x'");
        assert_eq!(mark("https://h:443/x", "checks = ['state', 'cpu']\nhold_s = 5\nrepeat_s = 0"), before);
        for other in [
            mark("https://h:443/y", "checks = ['cpu', 'state']"),
            mark("https://h:443/x", "checks = ['cpu']"),
            mark("https://h:443/x", ""),
            mark("https://h:443/x", "checks = ['cpu', 'state']\nleast = 'fail'"),
        ] {
            assert_ne!(other, before);
        }
    }

    #[test]
    fn mistakes_between_keys_are_reported_by_their_keys() {
        problems(
            "[[alert]]\nname = 'a'\nurl = 'http://10.0.0.9/x'\nca_file = 'ca.pem'\ntoken_file = 't'\n\
             [[alert]]\nname = 'a'\nmqtt = true\nproxy = 'p:1'\nchecks = ['state', '']\n\
             [[alert]]\nname = 'b'\nurl = 'https://h/x'\ntoken_header = 'x-token'",
            &[
                ("[0].ca_file", "https://"),
                ("[0].token_file", "plain text"),
                ("[1].name", "two alerts"),
                ("[1].proxy", "with a url"),
                ("[1].checks[1]", "empty"),
                ("[2].token_header", "token_file"),
            ],
        );
        problems("[[alert]]\nname = 'a'\nurl = 'http://127.0.0.1/x'\ntoken_file = 't'", &[]);
    }

    #[test]
    fn the_webhook_and_its_proxy_are_destinations() {
        let config =
            read("[[alert]]\nname = 'a'\nmqtt = true\n[[alert]]\nname = 'b'\nurl = 'https://h/x'\nproxy = 'p:3128'");
        let [found] = config.destinations().try_into().unwrap();
        assert_eq!((found.key.as_str(), found.at.to_string().as_str()), ("[1].url", "h:443"));
        assert_eq!(found.proxy.unwrap().key, "[1].proxy");
    }
}
